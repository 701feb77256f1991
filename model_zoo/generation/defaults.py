"""What a generation_config.json says beside how tokens are chosen, and what is said of settings that take no effect: of
its own, or of a call."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from model_zoo.errors import warn_once
from model_zoo.generation_settings import DRAWN, OF_BEAMS, SAID_BY, UNHEEDED, is_missed


def own_padding(model, beams: int) -> int | None:
    """The ``pad_token_id`` of generation_config.json, or of config.json where there is none, if it is an id of the
    vocabulary. transformers takes 0 for none where there are several beams."""
    token = (model.generation_config or model.config.to_dict()).get("pad_token_id")
    there = type(token) is int and 0 <= token < model.config.dims.vocab and (token or beams == 1)
    return token if there else None


def say_window(source: Any, window: int, length: int) -> None:
    """Warns, once for each model, of an answer beyond a window that only caches heed.

    Args:
        window: `Config.cached_window`.
        length: tokens of the prompt and of the answer, at most.
    """
    if 0 < window < length:
        warn_once(
            f"{source}: config.json says sliding_window={window}: tokens of an answer see the last {window} only, as "
            "in transformers, and those of a prompt and in training all before them; without sliding_window (or "
            "use_cache=False) all do"
        )


def say_unheeded(source: Any, config: Mapping[str, Any], given: Collection[str]) -> None:
    """Warns, once for each model, of settings that take no effect.

    Args:
        source: where the model is from.
        config: generation_config.json.
        given: arguments that the caller has set, which count instead.
    """
    asked = {name: config[name] for name, idle in UNHEEDED.items() if config.get(name) not in (None, [], {}, *idle)}
    left = ", ".join(f"{name}={value!r}" for name, value in asked.items() if name not in given)
    if left:
        hint = "; give generate the tokenizer" if "stop_strings=" in left else ""
        warn_once(f"{source}: {SAID_BY} says {left}, which takes no effect here{hint}")


def say_unused(given: Mapping[str, Any], sampled: bool, beams: int) -> None:
    """Warns, once for each of them, of a call's settings that need sampling or beams."""
    needs = {
        "do_sample=True": [] if sampled else DRAWN,
        "num_beams": [] if beams > 1 else OF_BEAMS,
    }
    for need, names in needs.items():
        for name in names:
            if is_missed(name, given[name]):
                warn_once(f"{name}={given[name]!r} has no effect without {need}", name)
