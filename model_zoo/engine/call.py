"""A C function as an operator: of MindSpore's within graphs, and called past MindSpore outside of them."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence

import mindspore as ms
from mindspore import mint, nn, ops

from model_zoo.engine.build import library
from model_zoo.graph import address_of


def outputs(count: int):
    """Marks a shape function as giving a tuple of so many."""

    def mark(function):
        function.outputs = count
        return function

    return mark


@functools.lru_cache(4096)
def described(shapes: Sequence[tuple], types: Sequence[str]) -> tuple:
    """Of operands: how many dimensions each has, its shape, and the name of its type, as a kernel takes them."""
    count = len(shapes)
    sizes = [(ctypes.c_int64 * len(shape))(*shape) for shape in shapes]
    pointers = (ctypes.c_void_p * count)(*map(ctypes.addressof, sizes))
    pointers.lasting = sizes  # what is pointed to lives as long
    dimensions = (ctypes.c_int * count)(*map(len, shapes))
    return dimensions, pointers, (ctypes.c_char_p * count)(*(name.encode() for name in types))


def arguments(addresses: Sequence[int], shapes: Sequence[tuple], types: Sequence[str]) -> tuple:
    """What a kernel is called with (`PET_KERNEL`), for operands that lie there."""
    count = len(addresses)
    return count, (ctypes.c_void_p * count)(*addresses), *described(tuple(shapes), tuple(types)), None, None


def as_it_is(tensor):
    """What a ``_Function`` of MindSpore is to be applied to for this tensor. For a parameter that was cut after its
    creation, or got another type, that is a view of it: MindSpore would refuse its own gradient, or round it to the
    type of before."""
    changed = getattr(tensor, "division", None) or getattr(tensor, "retyped", False)
    return tensor.view(tensor.shape) if changed else tensor


class Function(nn.Cell):
    """A C function of tensors.

    Outside of graphs MindSpore takes about a millisecond to launch an operator of thirty inputs, most of which the call
    itself does without.

    Args:
        shapes: input shapes → tuple of output shapes, marked by `outputs`, or the one output's; all are float32.

    Attributes:
        left: by their places, outputs of an earlier call that the next one may write over.
    """

    def __init__(self, name: str, shapes: Callable):
        super().__init__()

        def dtypes(*types):
            return (ms.float32,) * shapes.outputs if hasattr(shapes, "outputs") else ms.float32

        path = library()
        self.name, self.shapes, self.run = name, shapes, getattr(ctypes.CDLL(str(path)), name)
        self.left: dict = {}
        self.operator = ops.Custom(f"{path}:{name}", out_shape=shapes, out_dtype=dtypes, func_type="aot")

    def __call__(self, *tensors):
        given = [tensor if tensor.is_contiguous() else tensor.contiguous() for tensor in tensors]
        shapes = self.shapes(*(tensor.shape for tensor in given))
        several = hasattr(self.shapes, "outputs")
        made = rooms(shapes if several else (shapes,), self.left)
        every = given + made
        names = [name_of(tensor.dtype) for tensor in every]
        if self.run(*arguments([*map(address_of, every)], [tensor.shape for tensor in every], names)):
            raise RuntimeError(f"{self.name} failed, a kernel of the engine")
        return tuple(made) if several else made[0]

    def construct(self, *tensors):
        return self.operator(*tensors)


def rooms(shapes: Sequence[Sequence[int]], left: dict) -> list:
    """Tensors of these shapes, in float32, that hold nothing of use: those that are left, which are no longer
    afterwards, or new ones. The largest is asked for first: beside a small one there may be no room left for it."""
    made = [None] * len(shapes)
    for index in sorted(range(len(shapes)), key=lambda index: -math.prod(shapes[index])):
        shape = tuple(shapes[index])
        made[index] = left.pop(index, None)
        if made[index] is None or made[index].shape != shape:
            made[index] = None  # before another is asked for
            made[index] = mint.empty(shape, dtype=ms.float32, device="CPU")
    return made


@functools.cache
def name_of(dtype) -> str:
    """As kernels know a type."""
    return str(dtype).lower()
