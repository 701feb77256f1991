"""Settings of generation in MindFormers' configurations: they hold for every call that does not say otherwise."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from pet.text_generation import completed

# MindFormers' names -> those of `generate`
NAMES = {"max_decode_length": "max_length"}
NAMES |= {name: name for name in ("max_length", "max_new_tokens", "do_sample", "top_k", "top_p", "temperature")}
NAMES |= {name: name for name in ("repetition_penalty", "eos_token_id", "pad_token_id")}


def defaults_in(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `generate` in a configuration's arguments. ``max_length`` wins over ``max_decode_length``, and
    ``max_new_tokens`` over both, as there; a ``top_k`` of 0 is none.
    """
    found = {NAMES[name]: given[name] for name in NAMES if given.get(name) is not None}
    if found.get("top_k") == 0:
        del found["top_k"]
    if "max_new_tokens" in found:
        found.pop("max_length", None)
    return found


def give_defaults(model, given: Mapping[str, Any]) -> None:
    """Makes a configuration's settings those of ``model.generate`` and of pipelines over the model."""
    from model_zoo.generation import generate

    defaults = defaults_in(given)
    model.generation_defaults = defaults
    if not defaults:
        return
    signature = inspect.signature(generate)

    def with_defaults(*arguments, **settings):
        """The model's own ``generate`` with the configuration's settings where the call has none."""
        called = dict(signature.bind_partial(model, *arguments, **settings).arguments)
        del called["model"]
        return type(model).generate(model, **completed(defaults, called, model.room))

    model.generate = with_defaults
