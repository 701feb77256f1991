"""Which tokens end a model's answers, by the files of its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_zoo.errors import InputError


def listed_ends(config: Mapping[str, Any], generation_config: Mapping[str, Any]) -> list[int]:
    """The ``eos_token_id`` of generation_config.json, or else of config.json, as a list; empty where it is null.

    Raises:
        InputError: neither an id nor a list of ids.
    """
    source, name = (
        (generation_config, "generation_config.json")
        if "eos_token_id" in generation_config
        else (config, "config.json")
    )
    value = source.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
        raise InputError(f"{name}: eos_token_id is {value!r}; a token id or a list of ids was expected")
    return ids
