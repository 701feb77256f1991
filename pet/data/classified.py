"""Texts with a label, by the columns of `pet.data.columns.TEXTS` or token ids."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from model_zoo.atomic import json_value
from model_zoo.tokenizers.pieces import check_text

from .columns import TEXTS, Columns
from .token_rows import without_own

NUMBER = re.compile(r"[-+]?(0|[1-9]\d*)(\.\d*)?([eE][-+]?\d+)?|[-+]?\.\d+")
"""A number as tables hold it; 007 is a name."""


def classified(columns: Mapping[str, Any], required: bool = True) -> dict[str, Any]:
    """The fields of a `pet.data.row.Row`, of token ids their columns.

    Args:
        required: whether a row must have a label.

    Raises:
        KeyError: a column is missing.
        ValueError: the row cannot be used; the message says why.
    """
    form = next((form for form in TEXTS if columns.get(form["text"].names[0]) is not None), TEXTS[0])
    row = Columns(columns, form, "a text with a label" if required else "a text")
    if row.value("input_ids") is None:
        both = "text_pair" in form and form["text_pair"].required
        found: dict[str, Any] = {"text": row.text("text", True), "text_pair": row.text("text_pair", both)}
    else:
        found = {"tokens": without_own({role: row.value(role) for role in ("input_ids", "attention_mask")})}
    return {**found, "label": label_of(row, required)}


def asked(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The same of a row that may have a label."""
    return classified(columns, required=False)


def label_of(row: Columns, required: bool) -> Any:
    """What the data says of a text: a name, a number, or a list of these. In CSV a list is JSON."""
    given = row.value("label", required)
    value = given.tolist() if hasattr(given, "tolist") else given
    if value is not given and np.size(value) == 1:  # a MindRecord's number has a shape
        value = np.ravel(value)[0].item()
    if isinstance(value, str) and value.strip()[:1] == "[":
        with contextlib.suppress(ValueError):  # a name may begin so
            value = json_value(value)
    every = value if isinstance(value, list) else [value]
    if value is not None and not all(isinstance(each, (str, int, float)) and each == each for each in every):
        name = row.name("label")
        raise ValueError(f"{name}: expected a name, a number, or a list of these, found {value!r}")
    for each in (each for each in every if isinstance(each, str)):
        check_text(each)
    return value


def label_in_table(label: Any) -> Any:
    """A label of CSV, where every value is a text: the number that it is, as pandas and Hugging Face's datasets read
    it, so that such a file teaches what one of JSON does."""
    if not isinstance(label, str) or not NUMBER.fullmatch(text := label.strip()):
        return label
    return int(text) if text.lstrip("+-").isdigit() else float(text)


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
