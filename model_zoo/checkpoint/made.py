"""Tensors that are made out of stored bytes when they are read: packed, scaled, or not lying row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from model_zoo.checkpoint.dtypes import as_storage, convert
from model_zoo.checkpoint.file_bytes import CHUNK, FileBytes
from model_zoo.errors import InputError

Slices = tuple[slice, ...]


class MadeTensor:
    """One tensor with what a file gives of those it holds: `info`, `read`, `read_into` and `blocks`, by any name.

    Args:
        info: type and shape (`model_zoo.checkpoint.safetensors_io.TensorInfo`).
        make: gives the tensor, or the block that one ``slice`` per leading axis cuts out, as an array of that type;
            sub-classes may have it as a method.
    """

    def __init__(self, info: Any, make: Callable[[Slices], np.ndarray] | None = None):
        self._info = info
        if make is not None:
            self.make = make

    def info(self, _: str) -> Any:
        return self._info

    def read(self, _: str, slices: Slices | None = None, dtype: str | None = None) -> np.ndarray:
        made = self.make((slices,) if isinstance(slices, slice) else tuple(slices or ()))
        return np.ascontiguousarray(convert(made, self._info.dtype, dtype or self._info.dtype)).reshape(made.shape)

    def read_into(self, name: str, out: np.ndarray, slices: Slices | None = None) -> None:
        bits, target = as_storage(out)
        bits[...] = self.read(name, slices, target)

    def blocks(self, name: str) -> Iterable[memoryview]:
        whole = memoryview(self.read(name).reshape(-1)).cast("B")
        return (whole[start : start + CHUNK] for start in range(0, len(whole), CHUNK))


def finite(name: str, make: Callable[[Slices], np.ndarray]) -> Callable[[Slices], np.ndarray]:
    """The same, but an InputError that begins with `name` where what is made holds NaN or infinity: stored factors, or
    codes that stand for them, would make every output of the model so."""

    def checked(slices: Slices) -> np.ndarray:
        with np.errstate(invalid="ignore", over="ignore"):
            values = make(slices)
        if not np.isfinite(values).all():
            raise InputError(f"{name} holds NaN or infinity")
        return values

    return checked


def strided(file: FileBytes, info: Any, kept: np.dtype, strides: tuple[int, ...]) -> MadeTensor:
    """A tensor whose elements lie ``strides`` apart from ``info.start`` on. Of the file what lies between the first and
    the last element of a block is read.

    Args:
        kept: the NumPy type of its elements.
    """

    def make(slices: Slices) -> np.ndarray:
        bounds = [
            part.indices(size)[:2]
            for size, part in zip(info.shape, (*slices, *[slice(None)] * (len(info.shape) - len(slices))), strict=True)
        ]
        shape = [max(0, stop - start) for start, stop in bounds]
        if 0 in shape:
            return np.empty(shape, kept)
        first = sum(start * stride for (start, _), stride in zip(bounds, strides, strict=True))
        last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        run = np.empty(last + 1, kept)
        file.read_into(info.start + first * kept.itemsize, run.view(np.uint8))
        return np.lib.stride_tricks.as_strided(run, shape, [stride * kept.itemsize for stride in strides])

    return MadeTensor(info, make)
