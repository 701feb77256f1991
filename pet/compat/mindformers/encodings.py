"""Rows of ids as MindFormers' tokenizers give them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np

from model_zoo.errors import InputError, check_one_of, warn_once


class PaddingStrategy(str, Enum):
    """Words for ``padding``."""

    LONGEST, MAX_LENGTH, DO_NOT_PAD = "longest", "max_length", "do_not_pad"


class TruncationStrategy(str, Enum):
    """Words for ``truncation``; calls take the last two."""

    ONLY_FIRST, ONLY_SECOND = "only_first", "only_second"
    LONGEST_FIRST, DO_NOT_TRUNCATE = "longest_first", "do_not_truncate"


class TensorType(str, Enum):
    """Words for ``return_tensors``."""

    NUMPY, MINDSPORE = "np", "ms"


@dataclasses.dataclass(frozen=True)
class AddedToken:
    """A token as scripts name one; how a text is divided around it, the tokenizer's own files say."""

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    special: bool = False
    normalized: bool | None = None

    def __post_init__(self) -> None:
        if self.normalized is None:
            object.__setattr__(self, "normalized", not self.special)
        if self.single_word or self.lstrip or self.rstrip:
            warn_once(f"AddedToken: {self}: single_word, lstrip and rstrip are those of the tokenizer's own files")

    def __str__(self) -> str:
        return self.content


class BatchEncoding(dict):
    """Rows of a tokenizer by name, which are attributes, too: ``tokenizer(text).input_ids``.

    Args:
        data: the rows.
        tensor_type: None for lists, ``np`` or ``ms``.
    """

    def __init__(self, data: Mapping[str, Any], tensor_type: str | None = None):
        super().__init__({name: as_arrays(tensor_type, rows) if tensor_type else rows for name, rows in data.items()})

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"the tokenizer gives no {name!r}, but {', '.join(self)}")
        return self[name]


def apart(texts: Any) -> tuple[Any, list[str] | None]:
    """The first texts of pairs and the second ones; what is no list of pairs is given as it is, and None."""
    several = isinstance(texts, (list, tuple)) and len(texts)
    if several and all(isinstance(one, (list, tuple)) and [*map(type, one)] == [str, str] for one in texts):
        first, second = zip(*texts, strict=True)
        return list(first), list(second)
    return texts, None


def cuts(truncation: bool | str | None, padding: bool | str, max_length: int | None) -> bool:
    """Whether ``truncation`` cuts. None does where ``max_length`` is said and no padding, as there."""
    check_one_of("truncation", truncation, (None, False, True, "do_not_truncate", "longest_first"))
    return truncation in (True, "longest_first") or (truncation is None and not padding and max_length is not None)


def rows_of(value: Any) -> list:
    """Arrays as lists."""
    value = value.asnumpy() if hasattr(value, "asnumpy") else value
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [rows_of(one) if hasattr(one, "__len__") else int(one) for one in value]


def places_of(masks: list) -> list:
    """0, 1, 2 … for a row's tokens and 0 for its padding, by its mask, or by the mask of each row."""
    if masks and isinstance(masks[0], list):
        return [places_of(row) for row in masks]
    return [one * (seen - 1) for one, seen in zip(masks, itertools.accumulate(masks), strict=True)]


def as_arrays(kind: str, rows: list) -> Any:
    """Rows of one length as an array or a Tensor."""
    check_one_of("return_tensors", kind, ("np", "ms"))
    if len({len(row) for row in rows if np.ndim(row)}) > 1:
        raise InputError("return_tensors: the rows have different lengths; add padding=True")
    array = np.asarray(rows, np.int32)
    if kind == "np":
        return array
    from mindspore import Tensor

    return Tensor(array)
