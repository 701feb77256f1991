"""What generation_config.json asks for beside end tokens, and `generate` does not do by itself.

Settings of the draw (``do_sample``, ``temperature``, ``top_k``, ``top_p``) are not among these: decoding is greedy
unless a caller says otherwise. The others change greedy answers under transformers.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

log = logging.getLogger("pet")

PASSED = {
    "repetition_penalty": 1.0,
    "min_new_tokens": None,
    "num_beams": 1,
    "stop_strings": None,
}
"""Settings that are arguments of `generate` -> their value in transformers where nothing is said."""
UNKNOWN = {
    "no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "guidance_scale": 1.0,
    "penalty_alpha": 0.0,
    "min_length": 0,
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "sequence_bias")),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty")),
    **dict.fromkeys(("watermarking_config", "dola_layers", "constraints", "force_words_ids")),
}
"""Those that `generate` has no argument for."""
_said: set[str] = set()


def say_window(source: Any, window: int, length: int) -> None:
    """Warns, once for each model, of an answer beyond a window that only caches heed.

    Args:
        window: `Config.cached_window`.
        length: tokens of the prompt and of the answer, at most.
    """
    if 0 < window < length and (key := f"{source} window") not in _said:
        _said.add(key)
        log.warning(
            "%s: config.json says sliding_window=%d: tokens of an answer see the last %d only, as in transformers, and "
            "those of a prompt and in training all before them; without sliding_window (or use_cache=False) all do",
            source,
            window,
            window,
        )


def say_unheeded(source: Any, config: Mapping[str, Any], given: Collection[str]) -> None:
    """Warns, once for each model, of settings that take no effect.

    Args:
        source: where the model is from.
        config: generation_config.json.
        given: arguments that the caller has set, which count instead.
    """
    asked = {name: config[name] for name in (*PASSED, *UNKNOWN) if is_asked(name, config.get(name))}
    left = {name: value for name, value in asked.items() if name not in given}
    if not left or (key := f"{source} {sorted(left)}") in _said:
        return
    _said.add(key)
    settings = ", ".join(f"{name}={value!r}" for name, value in left.items())
    ways = [name for name in left if name in PASSED]
    hint = f"; give {' and '.join(ways)} to generate, or to a recipe's generation section" if ways else ""
    log.warning("%s: generation_config.json says %s, which takes no effect here%s", source, settings, hint)


def is_asked(name: str, value: Any) -> bool:
    """Whether a setting says something else than nothing."""
    return value not in (None, 0, [], {}, (PASSED | UNKNOWN)[name])
