"""What a model is called with, as tensors."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor

from model_zoo.errors import InputError


def as_array(name: str, value) -> np.ndarray:
    """A list, array or Tensor as an array; InputError when its rows differ in length."""
    try:
        return np.asarray(value.asnumpy() if isinstance(value, Tensor) else value)
    except ValueError as error:
        raise InputError(f"{name}: rows of different lengths; pad them and give attention_mask") from error


def as_int_tensor(name: str, value, rank: int | None) -> Tensor:
    """A list, array or Tensor as an int32 Tensor; InputError when it is not integers of this rank."""
    if isinstance(value, Tensor):
        if value.dtype != ms.int32:
            value = value.astype(ms.int32)
        shape = value.shape
    else:
        array = as_array(name, value)
        array = array if array.size else array.astype(np.int32)  # NumPy takes what is empty for float64
        if array.dtype == object or not (np.issubdtype(array.dtype, np.integer) or array.dtype == bool):
            raise InputError(f"{name}: integers expected, got {array.dtype}; rows must have equal lengths")
        shape, value = array.shape, Tensor(array.astype(np.int32))
    if rank is not None and len(shape) != rank:
        raise InputError(f"{name} has shape {tuple(shape)}; (batch, length) expected")
    return value


def check_runs(dtype) -> None:
    """Raises InputError for a type that the device has no operators for: MindSpore has few of bfloat16 on a CPU."""
    if dtype == ms.bfloat16 and ms.get_context("device_target") == "CPU":
        raise InputError(
            "dtype bfloat16: MindSpore cannot compute in it on a CPU; dtype auto keeps weights in the 16 bits of their "
            "file, and computes in float32"
        )
