"""Texts with a label, in the forms in which such data is published.

==================  ===================================================================================
what is judged      columns
==================  ===================================================================================
a text              text or sentence
two texts           text, text_pair; sentence1, sentence2; premise, hypothesis; question1, question2; question, sentence
a tokenised text    input_ids [attention_mask]
==================  ===================================================================================

beside ``label`` (or ``labels``): a name or a number, of several labels a list of these, or a value. ``data.columns``
names columns that are called otherwise: ``{text: review, label: stars}``.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from .messages import checked_text
from .token_rows import tokens_of

PAIRS = (
    ("text", "text_pair"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("sentence", ""),
)
"""Names of the first text and of the second, of which the first pair that a row has counts."""
LABELS = ("label", "labels")


def classified(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `pet.data.row.Row`.

    Raises:
        KeyError: a column is missing.
        ValueError: the row cannot be used; the message says why.
    """
    return {**judged(columns), "label": label_of(columns)}


def asked(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The same of a row that may have a label."""
    return classified(columns) if set(LABELS) & set(columns) else judged(columns)


def judged(columns: Mapping[str, Any]) -> dict[str, Any]:
    """What the label is of."""
    if columns.get("input_ids") is not None:
        ids, _ = tokens_of({name: columns.get(name) for name in ("input_ids", "attention_mask")})
        return {"tokens": (ids, [True] * len(ids)), "bare": columns.get("attention_mask") is None}
    first, second = next((pair for pair in PAIRS if columns.get(pair[0]) is not None), PAIRS[0])
    found = {"text": columns[first], "text_pair": columns.get(second)}
    for name in (first, second):
        if name and columns.get(name) is None and not (name == "text_pair" and name not in columns):
            raise KeyError(name)
    for name, value in zip((first, second), found.values(), strict=True):
        if value is not None and not isinstance(value, str):
            raise ValueError(f"column {name!r}: expected a string, found {type(value).__name__}")
        checked_text(value or "")
    return found


def label_of(columns: Mapping[str, Any]) -> Any:
    """What the data says of a text: a name, a number, or a list of these. In CSV a number may be a text, and a list
    JSON."""
    name = next((name for name in LABELS if columns.get(name) is not None), None)
    if name is None:
        raise KeyError("label")
    value = columns[name].tolist() if hasattr(columns[name], "tolist") else columns[name]
    if value is not columns[name] and np.size(value) == 1:  # a MindRecord's number has a shape
        value = np.ravel(value)[0].item()
    if isinstance(value, str) and value.strip()[:1] == "[":
        with contextlib.suppress(ValueError):  # a name may begin so
            value = json.loads(value)
    every = value if isinstance(value, list) else [value]
    if not all(isinstance(each, (str, int, float)) and each == each for each in every):
        raise ValueError(f"{name}: expected a name, a number, or a list of these, found {value!r}")
    return value


def whole_text(tokenizer: Any, text: str, text_pair: str | None = None, limit: int | None = None) -> list[int]:
    """The ids of a text, or of two, as transformers gives them: with the tokens that the tokenizer puts around them,
    and within `limit` by shortening the longer one (``truncation="longest_first"``)."""
    texts = [tokenizer.encode(one, add_special_tokens=False) for one in (text, text_pair) if one is not None]
    before, after = around = tokenizer.around
    if text_pair is not None:
        around = getattr(tokenizer, "around_pair", None) or (before, [*after, *before], after)
    room = None if limit is None else max(0, limit - sum(map(len, around)))
    if room is not None and sum(map(len, texts)) > room:
        shorter = min(map(len, texts)) if len(texts) > 1 else 0
        longer = max(shorter, room - shorter) if shorter <= room else shorter
        if shorter + longer > room:
            shorter, longer = room // 2, room - room // 2
        first_is_longer = len(texts) == 1 or len(texts[0]) > len(texts[1])
        sizes = (longer, shorter) if first_is_longer else (shorter, longer)
        texts = [ids[:size] for ids, size in zip(texts, sizes, strict=False)]
    found = list(around[0])
    for ids, following in zip(texts, around[1:], strict=True):
        found += [*ids, *following]
    return found[:limit]
