"""Dropout whose mask is a function of (key, cell, element): the same step gives the same mask, however it is reached.

A resumed run, or one on another machine, needs no generator state: the trainer sets a new key before every forward, and
the mask is an integer hash of it, computed inside the graph. Where a batch is divided over processes or pieces, each is
told which block of the rows it has, and draws that part of the whole batch's mask.
"""

from __future__ import annotations

import zlib

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from model_zoo.layers import int_range, on_ascend

KEY_NAME = "dropout_key"
STRIDE = -1640531527
"""2³² over the golden ratio: neighbouring elements get indices far apart."""

_parts, _cast = ops.Split(0, 2), ops.Cast()


def shifted(bits, count: int, by_product: bool):
    """The upper bits of int32 without sign, moved down by 8 or more places. On Ascend by a product in float32, which
    holds what is left exactly: an operator that shifts runs on the device's control processors there, far slower."""
    if by_product:
        upper = _cast(ops.bitwise_and(bits, -(1 << count)), ms.float32)
        down = _cast(upper * 2.0**-count, ms.int32)
    else:
        down = ops.bitwise_right_shift(bits, count)
    return ops.bitwise_and(down, (1 << (32 - count)) - 1)


def mixed(bits, by_product: bool):
    """A finaliser in the manner of MurmurHash3: every input bit reaches every output bit."""
    bits = ops.bitwise_xor(bits, shifted(bits, 16, by_product)) * -2048144789
    bits = ops.bitwise_xor(bits, shifted(bits, 13, by_product)) * -1028477387
    return ops.bitwise_xor(bits, shifted(bits, 16, by_product))


def seed_of(key, site: int, size: int, by_product: bool):
    """What is added to an element's index times STRIDE: the hash of key and site, and where the block of ``size``
    begins. The key parameter is the key and the block's number."""
    key, block = _parts(key)  # (1,) each
    return mixed(key * 668265263 + site, by_product) + block * size * STRIDE


def drawn(index, seed, by_product: bool):
    """Random bits of the elements with these indices. (In a graph MindSpore 2.7 takes a constant times a number by way
    of float32, but ``ops.mul`` does not.)"""
    return mixed(ops.mul(index, STRIDE) + seed, by_product)


class Dropout(nn.Cell):
    """Zeroes a share of the elements while training, and scales up the rest (Srivastava et al. 2014).

    Args:
        rate: the share, from 0 to below 1.
        name: of the cell that this stands in; cells with other names have other masks under the same key.

    Where nobody sets the key, as in MindSpore's own training loops, it is MindSpore's dropout, whose generator
    `mindspore.set_seed` begins: one key for all steps would be one mask for all.

    Attributes:
        keyed: whether a trainer sets the key.
        members, place: how many processes divide the columns, and which of them this is: it draws its part of the mask
            that a single process would draw for all.
    """

    keyed = False
    members, place = 1, 0

    def __init__(self, rate: float, name: str):
        super().__init__()
        self.factor = 1.0 / (1.0 - rate)
        self.threshold = int(rate * 2**31)
        self.site = zlib.crc32(name.encode()) & 0x7FFFFFFF
        self.by_product = on_ascend()
        self.key = Parameter(Tensor([0, 0], ms.int32), name=KEY_NAME, requires_grad=False)  # the key, the block
        self.key.adapter = KEY_NAME
        self.unkeyed = nn.Dropout(p=rate)

    def places(self, x):
        """Where each element of x stands in the mask of its block, and the size of that."""
        if self.members == 1:
            return int_range(x.size).reshape(x.shape), x.size
        rows, columns = x.shape
        index = int_range(rows).reshape(rows, 1) * (columns * self.members)
        return index + int_range(columns) + self.place * columns, rows * columns * self.members

    def construct(self, x):
        if not self.training:
            return x
        if not self.keyed:
            return self.unkeyed(x)
        index, size = self.places(x)
        seed = seed_of(self.key, self.site, size, self.by_product)
        bits = ops.bitwise_and(drawn(index, seed, self.by_product), 0x7FFFFFFF)
        return ops.select(bits >= self.threshold, x * self.factor, ops.zeros_like(x))

    def trace(self, tracer, x):
        if not self.training:
            return x
        if not self.keyed:
            tracer.refuse(type(self))
        numbers = {"site": self.site, "threshold": self.threshold, "factor": self.factor}
        return tracer.emit("dropout", x, self.key, *tracer.rows, **numbers, members=self.members, place=self.place)


def set_dropout_key(model: nn.Cell, key: int, block: int = 0) -> None:
    """Sets the key of every dropout in the model: one assignment each, seen by compiled graphs too.

    Args:
        key: of the whole batch.
        block: which part of it the next forward has, counted in parts of its size.
    """
    value = Tensor([key & 0x7FFFFFFF, block], ms.int32)
    for cell in dropouts(model):
        cell.keyed = True
        ops.assign(cell.key, value)


def dropouts(model: nn.Cell) -> list[Dropout]:
    """The dropout cells of a model's adapters."""
    return [cell for _, cell in model.cells_and_names() if isinstance(cell, Dropout)]
