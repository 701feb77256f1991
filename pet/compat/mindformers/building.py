"""Models of configurations as scripts have changed them, with random weights or with those of a checkpoint."""

from __future__ import annotations

import copy
import functools
import logging
import os
import re
from collections.abc import Mapping
from typing import Any

from model_zoo.auto import AutoModel as DirectoryModel
from model_zoo.causal_lm import CausalLM
from model_zoo.checkpoint.reading import Checkpoint, load_into
from model_zoo.configs import Config
from model_zoo.errors import InputError, located
from pet import auto
from pet.compat.ckpt.beside import converted
from pet.compat.ckpt.doors import find_ckpt, is_ckpt
from pet.compat.ckpt.names import Form
from pet.compat.ckpt.view import MindFormersCheckpoint, is_lora, is_prefix
from pet.compat.mindformers.cells import give_cell
from pet.compat.mindformers.config import DROPOUTS, give_names
from pet.compat.mindformers.generation_defaults import NAMES as GENERATION, give_defaults
from pet.compat.mindformers.loading import fill_lora, load_their_names
from pet.compat.mindformers.pet_config import with_adapter
from pet.compat.mindformers.presets import split_name
from pet.compat.mindformers.scripted import Scripted, of_field
from pet.names import find_model
from pet.train.base_dropout import attach_dropout

log = logging.getLogger("pet")


def built(config: Config | Mapping[str, Any], loads: bool = True) -> CausalLM:
    """The model of a configuration: random weights, or those of its ``checkpoint_name_or_path`` where it loads any.

    Raises:
        InputError: sizes that do not go together, or others than the checkpoint's.
    """
    said = vars(config) if isinstance(config, Config) else {}
    checkpoint = said.get("checkpoint_name_or_path") if loads else None
    if checkpoint and not is_ckpt(checkpoint):
        model = of_checkpoint(checkpoint, config)
    else:
        model = auto.AutoModel.from_config(config.plain() if isinstance(config, Scripted) else copy.copy(config))
        if checkpoint:
            form = Form(use_rearrange_rope=bool(said.get("use_rearrange_rope")))
            with MindFormersCheckpoint(find_ckpt(checkpoint), model.config.to_dict(), form) as view:
                load_into(model, view)
                if any(map(is_lora, view.file.tensors)):
                    model.held_lora = functools.partial(fill_lora, view.path, form)
                    if not said.get("pet_config"):
                        log.warning("%s: its LoRA matrices are put on with the adapter (get_pet_model)", view.path)
                if any(map(is_prefix, view.file.tensors)):
                    log.warning("%s: its prefix is left out; load_checkpoint of a Trainer takes it, too", view.path)
    give_names(model.config)
    vars(model.config).update({name: value for name, value in said.items() if name not in vars(model.config)})
    stated = said.get("stated", {})
    names = [name for name in GENERATION if name in stated or (name in said and not name.endswith("_id"))]
    give_defaults(model, {name: getattr(config, name) for name in names}, checkpoint)
    load_their_names()
    if not checkpoint:
        model.random_start = next(iter(model.get_parameters())).asnumpy()[:1].copy()
    give_cell(model)
    attach_dropout(model, {place: said[name] for name, place in DROPOUTS.items() if said.get(name)})
    return model


def from_pretrained(name: str | os.PathLike, **settings) -> CausalLM:
    """The model of a checkpoint directory, a bundled base or a MindFormers ``.ckpt`` file, with its weights; ``X_lora``
    with MindFormers' LoRA on it."""
    name, lora = split_name(converted(name) if is_ckpt(name) else name)
    model = auto.AutoModel.from_pretrained(name, **settings)
    give_names(model.config)
    give_defaults(model, {}, name)
    give_cell(model)
    return with_adapter(model, lora)


def of_checkpoint(name: str | os.PathLike, config: Config | Mapping[str, Any]) -> CausalLM:
    """The model of a checkpoint, of which a configuration may have said something else: fewer layers, another length
    of the rows, or a number.

    Raises:
        InputError: the tensors are of other sizes than the configuration says.
    """
    bare, lora = split_name(name)
    directory = find_model(bare)
    own = auto.AutoConfig.from_pretrained(directory)
    if isinstance(config, Config) and not isinstance(config, type(own)):
        raise InputError(
            f"checkpoint_name_or_path: {name} is a {own.model_type}, the configuration is another family's"
        )
    stated = getattr(config, "stated", {})
    changed = {field: of_field(config, field) for field in stated if of_field(config, field) != of_field(own, field)}
    if not changed:
        return from_pretrained(name)
    found = own.to_dict()
    alone = {field: _fits(own, {**found, field: value}) for field, value in changed.items()}
    InputError.raise_any(
        f"{stated[field]}: {field} is {changed[field]}, but {name} has {found.get(field)}"
        for field, fits in alone.items()
        if not fits
    )
    with located(f"the configuration of {name}"):
        wanted = type(own).from_dict({**found, **changed})
    left = own.dims.layers - wanted.dims.layers
    if left:
        log.warning("%s: the first %d of %d layers are read", name, wanted.dims.layers, own.dims.layers)
    layers = re.compile(rf"(?:^|\.){own.family.layers.rpartition('.')[2]}\.(\d+)\.")

    def beyond(stored: str) -> bool:
        layer = layers.search(stored)
        return layer is not None and int(layer[1]) >= wanted.dims.layers

    with Checkpoint(directory) as checkpoint:
        checkpoint = checkpoint.without(beyond) if left else checkpoint
        model = DirectoryModel.unloaded(checkpoint, wanted, "float32")
        load_into(model, checkpoint)
    return with_adapter(model, lora)


def _fits(own: Config, values: Mapping[str, Any]) -> bool:
    """Whether a checkpoint's tensors are those of other values, of as many layers or fewer."""
    try:
        other = type(own).from_dict(values)
    except InputError:
        return False
    there, wanted = own.dims, other.dims
    shapes = [{path: cell.shapes for path, cell in one.tensors().items()} for one in (own, other)]
    free = {"layers": there.layers, "context": there.context}
    return shapes[0] == shapes[1] and wanted.layers <= there.layers and wanted._replace(**free) == there
