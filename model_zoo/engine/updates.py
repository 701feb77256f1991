"""The C kernels of the optimizer's step; see `model_zoo.engine`."""

from __future__ import annotations

import ctypes
import functools
import math

import numpy as np

from model_zoo.engine.build import library
from model_zoo.engine.cells import custom


def one_each(*shapes):
    return [len(shapes)]


def all_numbers(*shapes):
    return [sum(map(math.prod, shapes))]


@functools.cache
def in_place():
    """The C function ``adamw_in_place``."""
    function = ctypes.CDLL(str(library())).adamw_in_place
    function.restype = None
    return function


def pointer(array: np.ndarray, size: int, moved: bool = True) -> int:
    """Where ``size`` float32 numbers begin, which may be written if they are to be moved."""
    flags = array.flags
    if array.dtype != np.float32 or array.size != size or not flags.c_contiguous or (moved and not flags.writeable):
        found = f"{array.size} of {array.dtype}, contiguous: {flags.c_contiguous}, writeable: {flags.writeable}"
        raise ValueError(f"{size} float32 numbers in one piece of memory expected, there are {found}")
    return array.ctypes.data


def adamw_in_place(weights: list[np.ndarray], gradient, average, square, numbers: tuple[float, ...]) -> None:
    """AdamW's step on weights and averages where they lie: one pass over all numbers instead of some fifteen, and no
    copy. The formula is that of `pet.train.optimizers.AdamW`.

    Args:
        weights: float32 arrays, which are moved.
        gradient, average, square: vectors ``(n,)`` of as many numbers as the weights have together; the averages are
            moved.
        numbers: what the gradient is multiplied by, step size, root of the squares' correction, share of the weights
            that stays, 1 − β₁, β₂, 1 − β₂, ε.
    """
    sizes = [array.size for array in weights]
    places = (ctypes.c_void_p * len(weights))(*[pointer(array, array.size) for array in weights])
    size = sum(sizes)
    vectors = [pointer(gradient, size, moved=False), pointer(average, size), pointer(square, size)]
    values = (ctypes.c_float * 8)(*numbers)
    in_place()(
        ctypes.c_int64(len(weights)),
        places,
        (ctypes.c_int64 * len(sizes))(*sizes),
        *map(ctypes.c_void_p, vectors),
        values,
    )


@functools.cache
def joined():
    """The operator of tensors of any shapes → their numbers end to end."""
    return custom("joined", all_numbers)


@functools.cache
def sums_of_squares():
    """The operator of n tensors of any shapes → the sum of squares of each ``(n,)``, added up in double precision."""
    return custom("sums_of_squares", one_each)
