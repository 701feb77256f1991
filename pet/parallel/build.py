"""A recipe's model, divided from the start: no process ever builds or reads more than its part."""

from __future__ import annotations

from collections.abc import Callable

from adapters.registry import registry
from adapters.settings import FROM_WEIGHTS
from model_zoo.auto import AutoConfig, AutoModel
from model_zoo.checkpoint.reading import Checkpoint
from pet.names import find_model
from pet.parallel.whole import base_fingerprint
from pet.train.objectives.reference import Reference


def divided_model(recipe, distributed, load: Callable, attach: Callable, fresh: bool = False):
    """This process's part of the recipe's model, with its adapter, and with another one that is its reference.

    The whole model is built without its weights, which takes no memory, and cut; then the part is read from the files.
    Where the start depends on whole weights (random ones, PiSSA, OLoRA, a prefix that begins as a text, prompts and
    trained rows that begin as rows of the embedding), each process loads the whole first.

    Args:
        recipe: says the model.
        distributed: whose part it is.
        load: gives the whole model of a recipe.
        attach: puts the adapter on a model.
        fresh: whether that adapter is the recipe's own, untrained.

    Raises:
        InputError: as `load` and `attach`; heads or layers that cannot be divided.
    """
    section, adapter, reference = recipe.model, recipe.adapter, Reference(recipe.train.reference)
    known = fresh and (getattr(adapter, "init", None) in FROM_WEIGHTS or getattr(adapter, "init_text", None))
    if not (section.from_scratch or section.config or known):
        directory = find_model(section.path)
        config, quantization = AutoConfig.from_pretrained(directory), section.quantization.settings()
        with Checkpoint(directory) as checkpoint:
            model = AutoModel.unloaded(checkpoint, config, section.dtype, quantization)
        if reference.directory or not fresh:
            model.base_fingerprint = base_fingerprint(model, directory)  # a loaded adapter is checked against it
        attach(model)
        reference.attach(model)
        if model.config is config and not starts_from_base(model):
            return distributed.prepare(model, directory)
    model = load(recipe)
    attach(model)
    reference.attach(model)
    return distributed.prepare(model)


def starts_from_base(model) -> bool:
    """Whether a fresh adapter begins with something out of the base's weights that `load_parts` does not fill in."""
    return any(
        module.starts_from_base
        for adapter in registry(model).adapters.values()
        if not adapter.source
        for module in adapter.modules.values()
    )
