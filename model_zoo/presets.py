"""The published models by name: their config.json as far as it bears on the architecture. No weights, no MindSpore.

``preset("llama_7b")`` gives a fresh dictionary in Hugging Face's form, as `AutoConfig` and `counting` take it.
"""

from __future__ import annotations

import copy

from model_zoo.errors import InputError, nearest
from model_zoo.families import PRESETS


def preset(name: str) -> dict:
    """The configuration of a published model, as a dictionary of one's own.

    Raises:
        InputError: there is no such preset; the nearest names are given.
    """
    if name not in PRESETS:
        raise InputError(f"model {name!r} is not a preset{nearest(name, PRESETS)}")
    return copy.deepcopy(PRESETS[name])
