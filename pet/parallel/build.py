"""A recipe's model, divided from the start: no process ever builds or reads more than its part."""

from __future__ import annotations

import mindspore as ms

from model_zoo.auto import MODEL_OF, AutoConfig, stored_dtype
from model_zoo.floats import float_name
from pet.names import find_model
from pet.parallel.whole import base_fingerprint


def divided_model(recipe, world, tokenizer):
    """This process's part of the recipe's model, with its adapter.

    The whole model is built without its weights, which takes no memory, and cut; then the part is read from the files.
    Where the start depends on whole weights (random ones, PiSSA, OLoRA, a prefix that begins as a text), each process
    loads the whole first.

    Raises:
        InputError: as `pet.train.prepare.load_model` and `attach_adapter`; heads or layers that cannot be divided.
    """
    from pet.train.prepare import attach_adapter, load_model

    section, adapter = recipe.model, recipe.adapter
    from_whole = getattr(adapter, "init", None) in ("pissa", "olora") or getattr(adapter, "init_text", None)
    if section.from_scratch or section.config or from_whole:
        model = load_model(recipe)
        attach_adapter(model, recipe, tokenizer)
        return world.prepare(model)
    directory = find_model(section.path)
    dtype = stored_dtype(directory) if section.dtype == "auto" else section.dtype
    config = AutoConfig.from_pretrained(directory)
    model = MODEL_OF[type(config)](config, dtype=getattr(ms, float_name(dtype)))
    if adapter.method != "none" and adapter.load is not None:
        model.base_fingerprint = base_fingerprint(model, directory)  # the adapter is checked against it
    attach_adapter(model, recipe, tokenizer)
    return world.prepare(model, directory)
