"""Settings of generation in MindFormers' configurations: they hold for every call that does not say otherwise."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from model_zoo.errors import InputError, similar, warn_once
from model_zoo.generation_settings import DRAWN, FIELDS, HINTS, says_limit
from model_zoo.settings import faults
from pet.compat.mindformers.padding import pad_of
from pet.text_generation import completed

log = logging.getLogger("pet")

# MindFormers' names -> those of `generate`
NAMES = {"max_decode_length": "max_length"}
NAMES |= {name: name for name in ("max_length", "max_new_tokens", "eos_token_id", "pad_token_id", *FIELDS)}


UNSAID = {
    **{"max_length": 20, "num_beams": 1, "do_sample": False, "temperature": 1.0, "top_k": 50, "top_p": 1.0},
    **{"repetition_penalty": 1.0, "renormalize_logits": False, "use_past": False},
    **dict.fromkeys(("max_new_tokens", "pad_token_id", "bos_token_id", "eos_token_id", "_from_model_config")),
}
"""MindFormers' defaults of a `GenerationConfig`."""
IDLE = ("bos_token_id", "use_past", "_from_model_config", "token_type_ids", "position_ids")
"""Settings that change no answer: a prompt begins as it is given, keys and values are kept in any case, and what a
tokenizer gives beside ids and mask follows from them."""
LONGEST = 1024
"""``max_decode_length`` of MindFormers' configurations where nothing is said."""
FIXED = {"encoder_repetition_penalty": 1.0}


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


class GenerationConfig(SimpleNamespace):
    """``GenerationConfig(max_length=64, do_sample=True)``: settings for ``generate(generation_config=…)``, in the place
    of those of the model's configuration. What is not said is as MindFormers has it.

    Raises:
        InputError: a setting that there is not.
    """

    def __init__(self, **settings):
        known = {**dict.fromkeys(NAMES), **UNSAID, **FIXED}
        wrong = [f"{name}: is not known{similar(name, known)}" for name in settings if name not in known]
        other = {name: value for name, value in FIXED.items() if settings.get(name, value) != value}
        wrong += [f"{name}: {settings[name]!r}: only {value} is supported" for name, value in other.items()]
        InputError.raise_any(f"GenerationConfig: {problem}" for problem in wrong)
        said = {{"max_decode_length": "max_length"}.get(name, name): value for name, value in settings.items()}
        super().__init__(**{**UNSAID, **said})

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any], **settings) -> GenerationConfig:
        """Of a dictionary's settings, and others over them."""
        return cls(**{**config_dict, **settings})

    @classmethod
    def from_model_config(cls, model_config: Any) -> GenerationConfig:
        """Of what a model's configuration says."""
        known = {**dict.fromkeys(NAMES), **UNSAID}
        said = {name: getattr(model_config, name, None) for name in known}
        return cls(**{name: value for name, value in said.items() if value is not None})

    def update(self, **settings) -> dict[str, Any]:
        """Takes settings that are known; gives back the others."""
        vars(self).update({name: value for name, value in settings.items() if name in vars(self)})
        return {name: value for name, value in settings.items() if name not in vars(self)}

    def to_dict(self) -> dict[str, Any]:
        """The settings."""
        return dict(vars(self))


def give_defaults(model, given: Mapping[str, Any], checkpoint: Any = None) -> None:
    """Makes a configuration's settings those of ``model.generate`` and of pipelines over the model.

    Args:
        given: the settings.
        checkpoint: directory or name of the model's weights.
    """
    from model_zoo.generation import generate

    defaults, bos = defaults_in(given), getattr(model.config, "bos_token_id", None)
    pad = functools.cache(lambda: pad_of(model.config.to_dict(), checkpoint))
    model.generation_defaults = defaults
    signature = inspect.signature(generate)

    def with_defaults(*arguments, **settings):
        """The model's own ``generate`` with the configuration's settings where the call has none. Padding around
        prompts without a mask is left out, as in MindFormers. Rows are a list where that, or an end token, leaves them
        of different lengths: each has ``max_length`` tokens of its own, or up to its end token. With a mask in front
        of prompts they are an array, filled up."""
        say_if_random(model, "generate")
        own = settings.pop("generation_config", None)
        if own is None and len(arguments) > 1 and isinstance(arguments[1], GenerationConfig):
            own, arguments = arguments[1], (arguments[0], *arguments[2:])
        for name in IDLE:
            if (said := settings.pop(name, None)) is not None and said is not False:
                warn_once(f"generate: {name} has no effect: it changes no answer", name)
        try:
            called = dict(signature.bind_partial(model, *arguments, **settings).arguments)
        except TypeError:  # the model's own says it better
            return type(model).generate(model, *arguments, **settings)
        del called["model"]
        called = {name: value for name, value in called.items() if not (value is None and name in HANDED_ON)}
        if own is None and not (says_limit(defaults) or says_limit(model.generation_config)):
            called = completed({"max_length": LONGEST}, called, model.room)
        called = _drawn(completed(defaults if own is None else defaults_in(own.to_dict()), called, model.room))
        ids, mask = called.get("input_ids"), called.get("attention_mask")
        prompts = without_padding(ids, pad(), bos) if mask is None else masked(ids, mask)
        new, left = called.get("max_new_tokens"), model.room - _longest(ids, prompts)
        limit = called.get("max_length") if new is None else None
        if isinstance(new, int) and new > left > 0:  # cut, as a max_length is
            del called["max_new_tokens"]
            limit = called["max_length"] = model.room
            warn_once(f"generate: max_new_tokens is {left}, all that the context holds", "max_new_tokens")
        if isinstance(limit, int) and limit > model.room:
            limit = called["max_length"] = model.room
            warn_once(f"generate: max_length is {limit}, all that the context holds", "max_length")
        ends = called.get("eos_token_id", model.eos_token_ids)
        ends = {*np.ravel(ends if ends is not None else ())}
        if prompts is None:
            found = type(model).generate(model, **called)
            if mask is not None:  # pipelines and evaluations read columns
                return found
            rows = [_ended(row, np.shape(ids)[-1], ends) for row in found]
            return found if all(map(np.array_equal, rows, found)) else rows
        longest = max(map(len, prompts))
        rows = [(longest - len(prompt), prompt) for prompt in prompts]
        called["input_ids"] = [[pad() or 0] * lacking + prompt for lacking, prompt in rows]
        called["attention_mask"] = [[0] * lacking + [1] * len(prompt) for lacking, prompt in rows]
        if isinstance(limit, int):  # of each row's own tokens
            called["max_length"] = min(limit + max(lacking for lacking, _ in rows), model.room)
        found = type(model).generate(model, **called)
        return [
            _ended(row[lacking:][:limit], len(prompt), ends) for row, (lacking, prompt) in zip(found, rows, strict=True)
        ]

    model.generate = with_defaults


def _ended(row: np.ndarray, start: int, ends: Collection[int]) -> np.ndarray:
    """A row up to the end token that was generated behind its prompt of ``start`` tokens."""
    last = next((place for place in range(start, len(row)) if row[place] in ends), len(row))
    return row[: last + 1]


def _longest(ids: Any, prompts: list[list[int]] | None) -> int:
    """The length of the longest prompt; 0 of what is none, of which generate says what is wrong."""
    with contextlib.suppress(ValueError, IndexError):
        return np.shape(ids)[-1] if prompts is None else max(map(len, prompts))
    return 0


def _drawn(called: Mapping[str, Any]) -> dict[str, Any]:
    """``do_sample`` by its truth, as there, and off with several beams; without it, what counts in a draw alone may be
    anything."""
    found = dict(called)
    if "do_sample" not in found or not isinstance(found["do_sample"], (int, float)):
        return found
    found["do_sample"] = bool(found["do_sample"])
    if found["do_sample"] and isinstance(found.get("num_beams"), int) and found["num_beams"] > 1:
        found["do_sample"] = False
        warn_once("num_beams: nothing is drawn, as in MindFormers: do_sample is off")
    for name in () if found["do_sample"] else DRAWN:
        if found.get(name) is not None and [*faults(name, HINTS[name], FIELDS[name].metadata, found[name])]:
            warn_once(f"{name}={found.pop(name)!r} has no effect without do_sample=True", name)
    return found


HANDED_ON = ("do_sample", "temperature", "repetition_penalty", "max_length")
"""Settings that scripts hand on from a configuration, which may not say them."""


def say_if_random(model, call: str) -> None:
    """Says of a model that was made with random weights, once for each call, if they are still those: where MindSpore's
    ``load_checkpoint`` finds no name of a model in a file it goes on."""
    if still_random(model):
        warn_once(
            f"{call}: the model has random weights; give its configuration's checkpoint_name_or_path, or load a file "
            "with its names by mindspore.load_checkpoint",
            f"{call} {id(model)}",
        )


def check_base(model: Any, mode: str) -> None:
    """Says before a run if a model that is tuned has random weights; what it has after the run are none.

    Raises:
        InputError: a size was named, whose weights MindFormers would download.
    """
    if still_random(model):
        if mode == "finetune":
            if (size := getattr(model.config, "named_size", None)) is not None:
                raise no_base(size)
            say_if_random(model, "Trainer.finetune")
        model.random_start = None


def no_base(size: str) -> InputError:
    """What is wrong with tuning a model of which nothing but its size is here."""
    return InputError(
        f"Trainer.finetune: {size!r} names a size, there are no base weights: give the directory of a downloaded "
        "checkpoint (model=DIR or finetune_checkpoint=DIR); train() starts from random weights"
    )


def still_random(model: Any) -> bool:
    """Whether a model has the random weights that it was made with: it was not trained, nor anything loaded into it."""
    before = getattr(model, "random_start", None)
    if before is None or np.array_equal(next(iter(model.get_parameters())).asnumpy()[:1], before):
        return before is not None
    model.random_start = None
    return False


def masked(ids: Any, mask: Any) -> list[list[int]] | None:
    """The rows of ``ids`` that a mask leaves, where it ends some of them before the last column; otherwise None."""
    rows, real = map(np.atleast_2d, (ids, mask))
    if rows.shape != real.shape or rows.dtype.kind not in "iu" or (real[:, -1] != 0).all():
        return None
    kept = [row[one != 0].tolist() for row, one in zip(rows, real, strict=True)]
    return kept if all(kept) else None


def without_padding(ids: Any, pad: int | None, bos: int | None = None) -> list[list[int]] | None:
    """The rows of ``ids`` without the padding around them; None where there is none, or a row is nothing else.

    Args:
        ids: ``(B, S)`` or one row.
        pad, bos: the padding, and what begins a text: one of it in front is no padding, even if both are the same.
    """
    try:
        array = np.atleast_2d(ids)
    except ValueError:  # rows of different lengths, of which generate says what is wrong
        return None
    if pad is None or array.dtype.kind not in "iu" or not (array != pad).any(1).all():
        return None
    rows = []
    for row in array:
        real = np.flatnonzero(row != pad)
        first = 0 if real[0] == 1 and pad == bos else real[0]
        rows.append(row[first : real[-1] + 1].tolist())
    return rows if any(len(row) < array.shape[1] for row in rows) else None
