"""The C kernels of the optimizer's step. AdamW is called past MindSpore, which would copy every weight; what lays
gradients end to end and sums their squares are operators, which a graph can hold."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence

import mindspore as ms
from mindspore import Tensor

from model_zoo.engine.build import library
from model_zoo.engine.call import Function
from model_zoo.graph import address_of


@functools.cache
def in_place():
    """The C function ``adamw_in_place``."""
    function = ctypes.CDLL(str(library())).adamw_in_place
    function.restype = None
    return function


def pointer(tensor: Tensor, size: int) -> int:
    """Where ``size`` float32 numbers begin."""
    address = address_of(tensor)  # of a parameter that was a view, it is in one piece from here on
    if tensor.dtype != ms.float32 or tensor.size != size or not tensor.is_contiguous():
        found = f"{tensor.size} of {tensor.dtype}, contiguous: {tensor.is_contiguous()}"
        raise ValueError(f"{size} float32 numbers in one piece of memory expected, there are {found}")
    return address


def adamw_in_place(weights: Sequence[Tensor], gradient, average, square, numbers: tuple[float, ...]) -> None:
    """AdamW's step on weights and averages where they lie: one pass over all numbers instead of some fifteen, and no
    copy. The formula is that of `pet.train.optimizers.AdamW`.

    Args:
        weights: float32, which are moved.
        gradient, average, square: as many numbers as the weights have together; the averages, vectors ``(n,)``, are
            moved.
        numbers: what the gradient is multiplied by, step size, root of the squares' correction, share of the weights
            that stays, 1 − β₁, β₂, 1 − β₂, ε.
    """
    sizes = [weight.size for weight in weights]
    places = (ctypes.c_void_p * len(weights))(*map(pointer, weights, sizes))
    size, gradient = sum(sizes), gradient.contiguous()  # without a graph that of a transposed weight is a view
    vectors = [pointer(vector, size) for vector in (gradient, average, square)]
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
    return Function("joined", lambda *shapes: [sum(map(math.prod, shapes))])


@functools.cache
def sums_of_squares():
    """The operator of n tensors of any shapes → the sum of squares of each ``(n,)``, added up in double precision."""
    return Function("sums_of_squares", lambda *shapes: [len(shapes)])
