"""Adapter directories in PEFT's format: ``adapter_config.json`` and ``adapter_model.safetensors``.

What was loaded and not changed is saved byte for byte as it was; LoRA on stacked experts, as on their matrices. An
adapter made here also carries the fingerprint of its base in the tensor file's metadata, which PEFT does not read;
loading it onto another base is refused.
"""

from __future__ import annotations

import copy
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import nn

from adapters.adapter import Adapter
from adapters.cells import weight_of
from adapters.file_names import BASE, PREFIX
from adapters.fitting import add_whole, check_apart, fit, misfits, shapes_of
from adapters.initial import START
from adapters.matching import saved_in_full
from adapters.method import MethodConfig
from adapters.methods import BY_PEFT_TYPE
from adapters.peft_config import (
    ALL_THE_SAME,
    CONFIG,
    FINGERPRINT,
    LABELS,
    QUANTIZATION,
    STARTED_BY,
    TASK_SCORE,
    WEIGHTS,
    another_base,
    for_any_version,
    is_off,
    known_keys,
    lacks_tokens,
    open_weights,
    read_adapter_config,
    read_settings,
    weights_file,
    whole_name,
    without_effect,
)
from adapters.registry import registry
from adapters.score import prepare_for
from model_zoo.arguments import checked
from model_zoo.atomic import atomic_write, explained
from model_zoo.checkpoint.dtypes import typed
from model_zoo.checkpoint.fingerprint import fingerprint, glance, same_base, same_numbers
from model_zoo.checkpoint.parameters import read_parameter, write_parameter
from model_zoo.checkpoint.safetensors_io import SafetensorsFile, write_file
from model_zoo.errors import InputError, located, warn_caller
from model_zoo.labels import Labels
from model_zoo.quantization import Quantization
from model_zoo.quantization.cells import quantized_cells
from model_zoo.quantization.files import projections

log = logging.getLogger("pet")

REWRITTEN = (
    *("exclude_modules", "layers_pattern", "layers_to_transform", "modules_to_save"),  # narrow target_modules
    *("prompt_tuning_init_text", "tokenizer_kwargs", "tokenizer_name_or_path"),  # a prompt's first text
    "peft_version",
)
"""What of a file that an adapter came from is not true of it any more."""


def adapter_config(directory: str | Path) -> tuple[dict[str, Any], MethodConfig]:
    """An adapter directory's adapter_config.json, and the method's configuration that it describes.

    Raises:
        InputError: see `adapters.peft_config`; a value out of range.
    """
    values = read_adapter_config(directory, BY_PEFT_TYPE)
    cls = BY_PEFT_TYPE[values["peft_type"]]
    return values, read_settings(values, Path(directory) / CONFIG, known_keys(cls, *cls.peft_keys), cls.from_peft)


def saved_name(key: str, config) -> str:
    """A tensor's name in PEFT's file; prompt methods keep theirs bare."""
    return PREFIX + key if config.prefixed else key


@checked
def save_adapter(model: nn.Cell, directory: str | Path, name: str = "default") -> None:
    """Writes one adapter as a directory that Hugging Face PEFT reads.

    Args:
        model: with the adapter.
        directory: made if need be; the two files in it are each whole or as before at any moment.
        name: which adapter.

    Raises:
        InputError: an unknown name, a cell that was exchanged beneath it, or a method that PEFT's format has no place
            for.
    """
    adapter = registry(model).get(name)
    adapter.refuse_lost(model)
    adapter.config.say_elsewhere(model)
    directory = Path(directory)
    source = adapter.source
    if source and adapter.config == source["config"] and is_unchanged(model, adapter):
        values, tensors, metadata = source["values"], source["tensors"], source["metadata"]
    else:
        tensors = {saved_name(key, adapter.config): value for key, value in saved_arrays(adapter).items()}
        kept, told = source.get("values", {}), described(model, adapter)
        kept = {key: value for key, value in kept.items() if not is_off(value) and key not in REWRITTEN}
        told = {key: value for key, value in told.items() if value is not None or key not in kept}
        values = for_any_version(dict(sorted({**kept, **told}.items())))
        # The name under which its makers know the base says more than the directory that it was loaded from here.
        values["base_model_name_or_path"] = kept.get("base_model_name_or_path") or told["base_model_name_or_path"]
        with registry(model).disabled():
            metadata = {"format": "pt", **base_facts(model)}
        start = getattr(adapter.config, "init", None)
        if start == "loftq" or (start in START and QUANTIZATION in metadata):  # what is packed belongs to it
            metadata[STARTED_BY] = start
        if adapter.labels is not None:
            metadata[LABELS] = json.dumps(adapter.labels.written(), ensure_ascii=False)
    with explained(directory):
        directory.mkdir(parents=True, exist_ok=True)
    write_file(directory / WEIGHTS, tensors, metadata)
    with atomic_write(directory / CONFIG) as file:
        file.write(json.dumps(values, indent=2).encode())


def base_facts(model: nn.Cell) -> dict[str, str]:
    """What an adapter's file says of its base: fingerprint and, where weights are packed, in which form."""
    facts = {FINGERPRINT: known_fingerprint(model)} if knows(model) else {}
    form = form_of(model)
    return {**facts, QUANTIZATION: form} if form else facts


def form_of(model: nn.Cell) -> str:
    """The form of a model's packed weights as the JSON of a `Quantization`; empty where there are none."""
    told = getattr(model, "base_form", None)  # one process of many may have a part of the base, in smaller blocks
    if told is not None:
        return told
    cells = quantized_cells(model)
    if not cells:
        return ""
    storage = next(iter(cells.values())).storage
    skip = projections(model.config, cells) if knows(model) else []
    return json.dumps({"type": storage.kind, "block": storage.block, "double": storage.double, "skip": skip})


def shown_form(text: str | None) -> str:
    """What `form_of` gives, for people."""
    if not text:
        return "16 or 32 bits"
    return str(Quantization.read(text).storage)


def known_fingerprint(model: nn.Cell) -> str:
    """The base's fingerprint, kept on the model for as long as its weights are the same: a chat with ten adapters and
    a run with ten checkpoints hash a base once. One process of many holds a part of the base, and has been told it."""
    told = getattr(model, "base_fingerprint", None)
    if told:
        return told
    seen, kept = glance(model), model.__dict__.get("_fingerprint", (None, ""))
    if kept[0] != seen:
        kept = (seen, fingerprint(model.config.to_dict(), model))
        object.__setattr__(model, "_fingerprint", kept)
    return kept[1]


def knows(model: nn.Cell) -> bool:
    """Whether a model is one of a family, so that its base has a fingerprint."""
    return hasattr(model, "family") and hasattr(model, "config")


def described(model: nn.Cell, adapter: Adapter) -> dict[str, Any]:
    """adapter_config.json for an adapter made here."""
    values = {
        "peft_type": adapter.config.peft_type,
        "task_type": (TASK_SCORE if adapter.labels else "CAUSAL_LM") if knows(model) else None,
        "base_model_name_or_path": base_name(model),
        "inference_mode": True,
        "revision": None,
        "auto_mapping": None,
    }
    return {**values, **adapter.config.to_peft(model, adapter)}


def base_name(model: nn.Cell) -> str | None:
    """What the base is found by: the name it was asked for by, its directory, or what its config.json calls it."""
    name, directory = getattr(model, "base_name", None), getattr(model, "loaded_from", None)
    if name or directory:
        return name or str(Path(directory).absolute())
    return getattr(getattr(model, "config", None), "extra", {}).get("_name_or_path")


def saved_arrays(adapter: Adapter) -> dict[str, np.ndarray]:
    """The adapter's tensors as they go into a file, by name without prefix."""
    arrays = {key: np.ascontiguousarray(read_parameter(one)) for key, one in adapter.tensors().items()}
    return adapter.config.pack(arrays, adapter)


def is_unchanged(model: nn.Cell, adapter: Adapter) -> bool:
    """Whether an adapter's tensors are still those of the files it came from."""
    stored = adapter.source["tensors"]
    plain = {key[len(PREFIX) :] if adapter.config.prefixed else key: array for key, array in stored.items()}
    before = unpacked(model, adapter.config, {key: array.astype(np.float32) for key, array in plain.items()})
    now = {key: read_parameter(parameter) for key, parameter in adapter.tensors().items()}
    # as they are, or, of those that start from a packed base, in the form that is saved
    return same_arrays(now, before) or same_arrays(adapter.config.unpack(saved_arrays(adapter), model), before)


def same_arrays(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> bool:
    """Whether two sets of arrays have the same names and values, whatever type they are held in."""
    return first.keys() == second.keys() and all(
        np.array_equal(first[name].astype(np.float64), second[name].astype(np.float64)) for name in first
    )


@checked
def load_adapter(
    model: nn.Cell, directory: str | Path, name: str = "default", strict: bool = True, activate: bool = True
) -> list[str]:
    """Adds the adapter in a PEFT directory to a model.

    Everything is checked before the model is touched: the configuration, that each target exists, that the file holds
    just the tensors that it should with their shapes, and that the base is the one it was trained on.

    Args:
        model: the base, perhaps with other adapters.
        directory: adapter_config.json and adapter_model.safetensors.
        name: under which the adapter is added.
        strict: refuse another base, and missing, extra or misshapen tensors. False loads what fits.
        activate: let it take part at once, alone.

    Returns:
        What was skipped, for ``strict=False``; otherwise an empty list.

    Raises:
        InputError: lists everything that does not fit.
    """
    directory = Path(directory)
    state = registry(model)
    state.check_new(name)
    values, config = adapter_config(directory)
    skipped: list[str] = []
    with located(directory):
        config, arrays, stored, metadata = read_arrays(model, state, directory, values, config, strict, skipped)
        adapter = state.add(config, name)
    try:
        problems = fill(adapter, arrays)
        if problems and strict:
            raise InputError.collect([f"{weights_file(directory)}: {problem}" for problem in problems])
    except BaseException:
        state.delete(name)
        raise
    note_file(state, adapter, config, values, stored, metadata)
    if FINGERPRINT not in metadata:  # it was not made here
        config.say_elsewhere(model)
    if activate:
        state.set(name)
    return skipped + problems


def read_arrays(model, state, directory: Path, values, config, strict: bool, skipped: list[str]):
    """The tensors of an adapter directory, once its header has been found to agree with the configuration.

    Returns:
        The configuration as it was trained, the arrays by the modules' names in float32, the same as they are stored,
        and the file's metadata.
    """
    with open_weights(directory) as file:
        check_base(model, state, file.metadata, directory, strict, skipped)
        plain = unprefixed(file, config, strict, skipped)
        beside = []
        if strict and getattr(model, "family", None) is not None:
            check_vocabulary(model, file)
            beside = without_effect(file, model.family, model.config.left_out)
        if not config.prefixed:
            beside = beside + bases_copies(model, file)
        plain = {key: stored for key, stored in plain.items() if stored not in beside}
        prepare_for(model, config, {key: file.info(stored).shape for key, stored in plain.items()})
        dropped = fit(model, config, plain, getattr(file, "parameters", ()))
        if dropped:
            warn_caller(f"{directory / CONFIG}: {'; '.join(dropped)}")
        config.check_tensors(model, {key: file.tensors[stored] for key, stored in plain.items()}, directory)
        stored_arrays = {stored: typed(file.read(stored), file.tensors[stored].dtype) for stored in plain.values()}
        arrays = {key: file.read(stored, dtype="float32") for key, stored in plain.items()}
        arrays = unpacked(model, config, arrays)
        if values.get("ensure_weight_tying"):
            check_apart(model, arrays)
        add_whole(config, model, arrays)
        config, arrays = config.restarted(model, arrays, file.metadata.get(STARTED_BY))
        return config, arrays, stored_arrays, dict(file.metadata)


def unpacked(model, config, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A file's arrays as the modules hold them. Embedding and head that PEFT wrote beside them (`fitting.add_whole`)
    are left out where they are the base's own, also in the 16 bits in which the adapter was trained on it."""
    cells = dict(model.cells_and_names())

    def is_the_bases(key: str, array: np.ndarray) -> bool:
        name = whole_name(key)
        return not saved_in_full(config, name.rpartition(".")[0]) and is_weight(cells, name, array)

    with registry(model).disabled():
        kept = {key: array for key, array in arrays.items() if not is_the_bases(key, array)}
        return config.unpack(kept, model)


def is_weight(cells: dict[str, nn.Cell], name: str, array: np.ndarray) -> bool:
    """Whether an array is the weight of this name, also where it was rounded to 16 bits."""
    path, _, last = name.rpartition(".")
    weight = weight_of(cells[path]) if last == "weight" and path in cells else None
    if weight is None or tuple(weight.shape) != array.shape:
        return False
    return same_numbers(read_parameter(weight).astype(np.float32), array)


def bases_copies(model, file: SafetensorsFile) -> list[str]:
    """The base's embedding and head beside a prompt or a prefix, where PEFT's ``save_embedding_layers`` was on.

    Raises:
        InputError: they are not this model's, so that PEFT would change it by them.
    """
    cells, found = dict(model.cells_and_names()), [key for key in file.tensors if key.startswith(BASE)]
    with registry(model).disabled():
        own = (is_weight(cells, key.removeprefix(BASE), file.read(key, dtype="float32")) for key in found)
        other = [key for key, same in zip(found, own, strict=True) if not same]
    if other:
        raise InputError(
            f"{file.path}: {other[0]} is not this model's: the base was changed before its prompt was trained; save "
            "that base and open it, and the adapter by PEFT's save_embedding_layers=False"
        )
    return found


def note_file(state, adapter: Adapter, config, values, stored, metadata) -> None:
    """Keeps with an adapter what is in the file that its numbers are from, and says what its head's numbers mean."""
    adapter.source = {"values": values, "config": copy.deepcopy(config), "tensors": stored, "metadata": metadata}
    adapter.named = state.base_labels
    if LABELS in metadata and adapter.labels is not None:
        adapter.named = Labels.read(metadata[LABELS], len(adapter.labels.names))


def check_base(model, state, metadata, directory, strict, skipped) -> None:
    """Refuses, or notes, a base of another fingerprint than the adapter was made on."""
    expected = metadata.get(FINGERPRINT)
    if expected is None or not knows(model):
        return
    with state.disabled():
        found = known_fingerprint(model)
    with located(directory):
        made_on, here = (shown_form(one) for one in (metadata.get(QUANTIZATION), form_of(model)))
    if same_base(found, expected) and made_on != here:
        log.info("%s: made on weights in %s; this model's are in %s", directory, made_on, here)
    if not same_base(found, expected):
        message = another_base(directory, expected, "this model", found)
        if strict:
            raise InputError(f"{message};\n  {ALL_THE_SAME}")
        skipped.append(message)


def check_vocabulary(model, file: SafetensorsFile) -> None:
    """Refuses an adapter that brings an embedding or a head with more rows than the model has tokens."""
    for key, info in file.tensors.items():
        path, size = whole_name(key).removesuffix(".weight"), model.config.dims.vocab
        if path in (model.family.embedding, model.family.head) and info.shape[0] > size:
            raise InputError(lacks_tokens(key, info.shape[0], size, "pet merge makes one checkpoint of both"))


def unprefixed(file: SafetensorsFile, config, strict, skipped) -> dict[str, str]:
    """{name without PEFT's prefix: name in the file}."""
    plain, odd = {}, []
    for stored in file.tensors:
        if not config.prefixed:
            plain[stored] = stored
        elif stored.startswith(PREFIX):
            plain[stored[len(PREFIX) :]] = stored
        else:
            odd.append(f"{stored} does not begin with {PREFIX}")
    if odd and strict:
        raise InputError.collect([f"{file.path}: {problem}" for problem in odd])
    skipped.extend(odd)
    return plain


def fill(adapter: Adapter, arrays: dict[str, np.ndarray]) -> list[str]:
    """Assigns arrays to the adapter's parameters; what is missing, extra or misshapen is left and returned."""
    parameters = adapter.tensors()
    for key, array in arrays.items():
        if key in parameters and tuple(parameters[key].shape) == array.shape:
            write_parameter(parameters[key], array)
    return misfits(shapes_of(parameters), shapes_of(arrays))
