"""Matrix products of the plain column whose factors are rounded to bfloat16, or are stored in fewer bits."""

from __future__ import annotations

import mindspore as ms
from mindspore import nn

from model_zoo.engine.plain import cast, late, product, product_rows, stop_gradient, zeros_like


class Rounded(nn.Cell):
    """A product of float32 factors rounded to bfloat16: what those kernels compute that end in ``_bf16``. Gradients
    pass the rounding as they are. Factors of another type are taken as they are: weights in bfloat16 are round.

    Args:
        primitive: the ``MatMul`` or ``BatchMatMul``.
    """

    stands_for_product, low = True, "_bf16"

    def __init__(self, primitive):
        super().__init__()
        self.primitive = primitive

    def round(self, x):
        # exact: the difference has no more digits than x, and the sum is a bfloat16
        return x + stop_gradient(cast(cast(x, ms.bfloat16), ms.float32) - x)

    def construct(self, left, right):
        if left.dtype != ms.float32:
            return self.primitive(left, right)
        if right.dtype != ms.float32:
            return self.primitive(self.round(left), right)
        return self.primitive(self.round(left), self.round(right))


class Widened(nn.Cell):
    """A ``MatMul`` for frozen weights in fewer bits than the other factor. They are widened forward, and again
    backward, so that no wide copy is kept in between.

    Args:
        primitive: the ``MatMul``, without ``transpose_a``.
    """

    stands_for_product, low, transpose_a = True, "", False

    def __init__(self, primitive):
        super().__init__()
        self.primitive, self.transpose_b = primitive, primitive.transpose_b
        self.widened = WidenedProduct(primitive.transpose_b)

    def __call__(self, left, right):  # operator by operator nothing is kept for long
        return self.primitive(left, right if left.dtype == right.dtype else right.astype(left.dtype))

    def construct(self, left, right):
        return self.primitive(left, right) if left.dtype == right.dtype else self.widened(left, right)


class WidenedProduct(nn.Cell):
    """``x·Wᵀ``, or ``x·W`` where that is not turned."""

    def __init__(self, turned: bool):
        super().__init__()
        self.turned = turned

    def construct(self, x, weight):
        wide = cast(weight, x.dtype)
        return product_rows(x, wide) if self.turned else product(x, wide)

    def bprop(self, x, weight, out, dout):
        wide = cast(late(weight, dout), dout.dtype)
        return product(dout, wide) if self.turned else product_rows(dout, wide), zeros_like(weight)


def rounded(product):
    return Rounded(product())
