"""What a model is called with, as tensors."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor

from model_zoo.errors import InputError


def as_array(name: str, value) -> np.ndarray:
    """A list, array or Tensor as an array; InputError when its rows differ in length."""
    try:
        return np.asarray(value)
    except ValueError as error:
        raise InputError(f"{name}: rows of different lengths; pad them and give attention_mask") from error


def as_int_tensor(name: str, value, rank: int | None) -> Tensor:
    """A list, array or Tensor as an int32 Tensor; InputError when it is not integers of 32 bits and of this rank."""
    if not isinstance(value, Tensor) or value.dtype != ms.int32:
        array = as_array(name, value)
        array = array if array.size else array.astype(np.int32)  # NumPy takes what is empty for float64
        if array.dtype == object or not (np.issubdtype(array.dtype, np.integer) or array.dtype == bool):
            raise InputError(f"{name}: integers expected, got {array.dtype}; rows must have equal lengths")
        narrow = array.astype(np.int32)
        if (narrow != array).any():
            raise InputError(f"{name} holds {array[narrow != array][0]}, which has more than 32 bits")
        value = Tensor(narrow)
    if rank is not None and len(value.shape) != rank:
        raise InputError(f"{name} has shape {tuple(value.shape)}; (batch, length) expected")
    return value


def as_mask(value, shape: tuple[int, ...]) -> np.ndarray:
    """An attention mask as an int32 array of this shape; InputError where it holds anything but 1 and 0."""
    mask = as_array("attention_mask", value)
    if mask.shape != shape:
        raise InputError(f"attention_mask has shape {mask.shape}, input_ids {shape}")
    if (wrong := mask[~np.isin(mask, (0, 1))]).size:
        raise InputError(f"attention_mask holds {wrong[0]}; 1 for real tokens and 0 for padding expected")
    return mask.astype(np.int32)


def check_runs(dtype) -> None:
    """Raises InputError for a type that the device has no operators for: MindSpore has few of bfloat16 on a CPU."""
    if dtype == ms.bfloat16 and ms.get_context("device_target") == "CPU":
        raise InputError(
            "dtype bfloat16: MindSpore cannot compute in it on a CPU; dtype auto keeps weights in the 16 bits of their "
            "file, and computes in float32"
        )
