"""Rows of ids as MindFormers' tokenizers give them."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_zoo.errors import InputError, check_one_of


class Encoding(dict):
    """Rows of a tokenizer by name, which are attributes, too: ``tokenizer(text).input_ids``."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"the tokenizer gives no {name!r}, but {', '.join(self)}")
        return self[name]


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
