"""A recipe's model, divided from the start: no process ever builds or reads more than its part."""

from __future__ import annotations

from collections.abc import Callable

import mindspore as ms

from model_zoo.auto import MODEL_OF, AutoConfig, stored_dtype
from model_zoo.floats import float_name
from pet.names import find_model
from pet.parallel.whole import base_fingerprint


def divided_model(recipe, world, tokenizer, attach: Callable | None = None):
    """This process's part of the recipe's model, with its adapter, or with what ``attach(model)`` puts on it.

    The whole model is built without its weights, which takes no memory, and cut; then the part is read from the files.
    Where the start depends on whole weights (random ones, PiSSA, OLoRA, a prefix that begins as a text), each process
    loads the whole first.

    Raises:
        InputError: as `pet.train.prepare.load_model` and `attach_adapter`; heads or layers that cannot be divided.
    """
    from pet.train.prepare import attach_adapter, load_model

    section, adapter = recipe.model, recipe.adapter
    from_whole = getattr(adapter, "init", None) in ("pissa", "olora") or getattr(adapter, "init_text", None)
    if section.from_scratch or section.config or (from_whole and attach is None):
        model = load_model(recipe)
        if attach is None:
            attach_adapter(model, recipe, tokenizer)
        else:
            attach(model)
        return world.prepare(model)
    directory = find_model(section.path)
    dtype = stored_dtype(directory) if section.dtype == "auto" else section.dtype
    config = AutoConfig.from_pretrained(directory)
    model = MODEL_OF[type(config)](config, dtype=getattr(ms, float_name(dtype)))
    if attach is not None or (adapter.method != "none" and adapter.load is not None):
        model.base_fingerprint = base_fingerprint(model, directory)  # a loaded adapter is checked against it
    if attach is None:
        attach_adapter(model, recipe, tokenizer)
    else:
        attach(model)
    return world.prepare(model, directory)
