"""What MindPet raises, as errors that a script shows in one line, and its checks of arguments."""

from __future__ import annotations

import os
import stat
from typing import Any

import mindspore as ms
from mindspore import nn

from model_zoo.errors import InputError

DELTA_LIST = ["lora", "prefixtuning", "adapter", "low_rank_adapter", "bitfit", "ptuning2"]
DEFAULT_FLAGS, DEFAULT_MODES = os.O_RDWR | os.O_CREAT, stat.S_IWUSR | stat.S_IRUSR
VALID_TENSOR_DATATYPE = [ms.float16, ms.float32, ms.bfloat16]


class WrongType(InputError, TypeError):
    """An argument of another type than is expected."""


class MindPetError(InputError):
    """Above MindPet's own errors."""


ERRORS = "AbsolutePathError LinkPathError ReadYamlFileError ModelConfigFreezeInfoError UnexpectedError"
AbsolutePathError, LinkPathError, ReadYamlFileError, ModelConfigFreezeInfoError, UnexpectedError = (
    type(name, (MindPetError,), {"__module__": __name__}) for name in ERRORS.split()
)


def keep_whole(cell: nn.Cell, **numbers: Any) -> None:
    """Makes numbers attributes; raises `WrongType` for what is no whole number, InputError for one below 1."""
    for name, value in numbers.items():
        where = f"{type(cell).__name__}: {name} is {value!r}"
        if isinstance(value, bool) or not isinstance(value, int):
            raise WrongType(f"{where}; a whole number was expected")
        if value < 1:
            raise InputError(f"{where}; at least 1 was expected")
        setattr(cell, name, value)


def dropout(cell: nn.Cell, name: str, share: Any) -> nn.Cell:
    """A dropout; raises `WrongType` for a share that is no float, InputError for one outside of [0, 1)."""
    where = f"{type(cell).__name__}: {name} is {share!r}"
    if not isinstance(share, float):
        raise WrongType(f"{where}; a float was expected")
    if not 0 <= share < 1:
        raise InputError(f"{where}; at least 0 and less than 1 was expected")
    return nn.Dropout(p=share)


def check_types(cell: nn.Cell, **types: Any) -> None:
    """Raises `WrongType` for what is none of the number types that layers may have."""
    for name, value in types.items():
        if value not in VALID_TENSOR_DATATYPE:
            raise WrongType(f"{type(cell).__name__}: {name} is {value!r}; mindspore's float32, float16 or bfloat16")
