"""LLaMA-Factory's ``rope_scaling``: a longer context, by a factor that follows from the file's own length."""

from __future__ import annotations

import contextlib
import math
from typing import Any

from model_zoo.errors import InputError
from model_zoo.rope_config import ORIGINAL
from pet.names import model_config
from pet.recipe.translation import Translation

WITH_ORIGINAL = {"dynamic": {}, "yarn": {}, "llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0}}
"""Of which types it notes the base's own context, and which numbers it gives them besides."""


def scale_positions(t: Translation, name: str, value: Any) -> None:
    """Puts the base's ``model.config`` as LLaMA-Factory changes it: the context times the smallest whole factor with
    which ``cutoff_len`` fits, and nothing where it fits as it is, or where the model knows no such scaling."""
    with contextlib.suppress(InputError):  # of the base, reported where it is opened
        config = model_config(t.get("model.path"))
        newer = config.get("rope_parameters")
        scaling = config.get("rope_scaling") or newer or {}
        context = scaling.get(ORIGINAL) or config.get("max_position_embeddings")
        length = t.values.get("cutoff_len") or t.get("data.max_length")
        if context is None:
            t.ignore(name, "the base's positions are not scaled, as in LLaMA-Factory")
        elif length <= context:
            t.ignore(name, f"cutoff_len is {length}, within the base's context of {context}, as in LLaMA-Factory")
        else:
            factor = float(math.ceil(length / context))
            scaled = {"rope_type": value, "factor": factor}
            if value in WITH_ORIGINAL:
                scaled |= {ORIGINAL: context, **WITH_ORIGINAL[value]}
            if newer:
                kept = {key: newer[key] for key in ("rope_theta", "partial_rotary_factor") if key in newer}
                own = {"rope_parameters": {**kept, **scaled}}
            else:
                own = {"rope_scaling": scaled}
            t.put("model.config", {"max_position_embeddings": int(context * factor), **own})
