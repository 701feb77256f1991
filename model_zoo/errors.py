"""The one error class for what a user can get wrong, and the search for what they may have meant."""

from __future__ import annotations

import contextlib
import difflib
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

log = logging.getLogger("pet")
_warned: set[str] = set()

OURS = tuple(f"{Path(__file__).parents[1] / package}{os.sep}" for package in ("pet", "adapters", "model_zoo"))
"""How the paths of this library's files begin."""
LISTED = 16  # problems in one message: they fit on a screen, with what is printed around them


class InputError(ValueError):
    """Something a user supplied cannot be used.

    The message is one line per problem: what, where, what was expected, and the nearest valid name. The command line
    prints it without a traceback and exits with code 2.

    Attributes:
        whole: the message with all problems, where `collect` left some out.
        said: whether the user has read it already.
        listed: the problems, where `collect` put several into one.
    """

    whole: str | None = None
    said = False
    listed: tuple[str, ...] = ()

    @classmethod
    def collect(cls, problems: Iterable[str]) -> InputError:
        """One error that lists the problems, so that a user mends them in one go; of many the first ones."""
        problems = list(problems)
        if len(problems) == 1:
            return cls(problems[0])
        lines = [f"{len(problems)} problems:", *(f"  - {problem}" for problem in problems)]
        left = len(problems) - LISTED
        error = cls("\n".join(lines if left <= 0 else [*lines[: LISTED + 1], f"  … and {left} more"]))
        error.whole = "\n".join(lines) if left > 0 else None
        error.listed = tuple(problems)
        return error

    @classmethod
    def raise_any(cls, problems: Iterable[str]) -> None:
        """Raises `collect` of the problems, where there are any."""
        if problems := list(problems):
            raise cls.collect(problems)


@contextlib.contextmanager
def located(where: object) -> Iterator[None]:
    """Every InputError within names the place that it is about."""
    try:
        yield
    except InputError as error:
        raise error if str(where) in str(error) else InputError(f"{where}: {error}") from None


def first_line(error: BaseException) -> str:
    """The first line of an error's message that says something, without the pages that MindSpore appends, nor its
    headings (``- Kernel select failed:``); the error's type where none does."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" -\t")]
    saying = [line for line in lines if not (line.startswith("- ") and line.endswith(":"))] or lines
    return saying[0] if saying else type(error).__name__


def warn_once(text: str, key: str | None = None) -> None:
    """A warning that this process gives once, however often it holds; the same is what has the same key."""
    if (key or text) not in _warned:
        _warned.add(key or text)
        log.warning("%s", text)


def warn_caller(text: str) -> None:
    """A UserWarning of the line of a program that called, whatever of this library lies between."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith((*OURS, contextlib.__file__)):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)


def explain(error: BaseException) -> str:
    """An error's type and `first_line`."""
    kind, line = type(error).__name__, first_line(error)
    return kind if line == kind else f"{kind}: {line}"


# What PEFT and others call a setting of ours.
SYNONYMS = {
    "encoder_hidden_size": "projection_hidden",
    "exclude_modules": "exclude",
    "feedforward_modules": "feedforward",
    "init_lora_weights": "init",
    "layers_to_transform": "layers",
    "lora_alpha": "alpha",
    "lora_dropout": "dropout",
    "lora_r": "rank",
    "lora_rank": "rank",
    "loraplus_lr_ratio": "learning_rate_ratio",
    "lr": "learning_rate",
    "num_virtual_tokens": "length",
    "prefix_projection": "projection",
    "prompt_tuning_init_text": "init_text",
    "r": "rank",
    "rm": "reward",
    "sigmoid": "dpo",
    "target_modules": "targets",
    "trainable_token_indices": "trainable_tokens",
}
# Settings that scripts for PEFT have by habit, and what makes them needless here.
NEEDLESS = {
    "encoder_reparameterization_type": "the network is the MLP",
    "fan_in_fan_out": "a cell says itself how its weight lies",
    "inference_mode": "an adapter that is opened can be trained, too",
    "init_ia3_weights": "vectors begin as ones",
    "layers_pattern": "a model says itself where its layers are",
    "loftq_config": "the base says itself how it is packed",
    "prompt_tuning_init": "init_text says it",
    "task_type": "a model says itself what it is for",
    "tokenizer_name_or_path": "pet.apply_prompt takes the tokenizer itself, as tokenizer=",
}


def similar(name: object, candidates: Iterable[object]) -> str:
    """``" (did you mean 'q_proj'?)"`` for a misspelt name or another library's word for one, otherwise nothing.

    A misspelling has at most a third of its letters wrong, missing or added: ``LOAR`` is one of ``LORA``, ``ADALORA``
    is another name. A name that nothing is close to may be a word of a longer one: ``dora`` is one of ``use_dora``.
    Upper and lower case count as the same.
    """
    names, text = sorted({str(candidate) for candidate in candidates}), str(name).lower()
    if text in NEEDLESS and text not in names:
        return f" (leave it out: {NEEDLESS[text]})"
    if (synonym := SYNONYMS.get(text)) in names:
        return f" (did you mean {synonym!r}?)"
    ranked = []
    for candidate in names:
        if abs(len(candidate) - len(text)) > max(1, max(len(candidate), len(text)) // 3):
            continue  # what follows takes long for long names
        matcher = difflib.SequenceMatcher(None, candidate.lower(), text)
        longer = max(len(candidate), len(text))
        wrong = longer - sum(block.size for block in matcher.get_matching_blocks())
        if wrong <= max(1, longer // 3) and wrong < longer:
            ranked.append((-matcher.ratio(), candidate))
    longer_names = [candidate for candidate in names if text in candidate.lower().split("_")]
    close = [repr(candidate) for candidate in ([found for _, found in sorted(ranked)] or longer_names)[:3]]
    return f" (did you mean {' or '.join(close)}?)" if close else ""


def shown(value: object, limit: int = 60) -> str:
    """A value as an error message shows it: as Python writes it, on one line, cut where it is long."""
    text = re.sub(r"\s*\n\s*", " ", repr(value))
    return text if len(text) <= limit else text[: limit - 2] + " …"


def first_of(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def check_one_of(name: str, value: object, allowed: Iterable[object]) -> None:
    """Raises InputError for a value that is none of these; 1 is not True."""
    if not any(value is option or (isinstance(option, str) and value == option) for option in allowed):
        raise InputError(f"{name}: unknown value {value!r} (there is: {', '.join(map(repr, allowed))})")


def nearest(name: object, candidates: Iterable[object]) -> str:
    """A suffix for an error message: what `similar` finds, or what exists when nothing comes close."""
    names = sorted({str(candidate) for candidate in candidates})
    if not names or (close := similar(name, names)):
        return close if names else ""
    shown = ", ".join(names[:12]) + (f", … {len(names) - 12} more" if len(names) > 12 else "")
    return f" (there is: {shown})"
