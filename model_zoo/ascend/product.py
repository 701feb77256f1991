"""Products with weights in 8 and 4 bits by ``WeightQuantBatchMatmul``, for the cell whose plain path is the reference
(`model_zoo.quantization.cells.PackedProduct`).

The operator (CANN's aclnnWeightQuantBatchMatmulV2) computes ``x·((codes + offset)·scale)`` without a wide weight in
memory. It takes x, scale and offset in one 16-bit type. int8 by row is its form as it is. int4 it wants as
``(in, out)``, two outputs to a byte, the even one in the low half: these codes are kept a second time, turned. Factors
are turned for each product; they are few. It has no derivative: the gradient of x goes by the plain path, from
the codes as they were loaded.

MindSpore's page on it is empty; this follows CANN's documentation, and MindSpore's tests and shape inference.
"""

from __future__ import annotations

from collections.abc import Mapping

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn
from mindspore.ops.auto_generate import WeightQuantBatchMatmul

from model_zoo.ascend import has_operators
from model_zoo.quantization.storage import Storage

HALVES = (ms.float16, ms.bfloat16)
"""Types of x that it takes."""
SIDES = range(1, 65536)
"""Of a weight, that it takes."""
GROUP = 32
"""What groups are multiples of."""


def has_quantized_product(storage: Storage, shape: tuple[int, int]) -> bool:
    """Whether the device has the operator for weights ``(out, in)`` of this form."""
    if not has_operators() or not all(side in SIDES for side in shape):
        return False
    out, into = shape
    fits = storage.block % GROUP == 0 and into % storage.block == 0 and out % 2 == 0
    return storage.kind == "int8" or (storage.kind == "int4" and fits)


def turned_codes(weight: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """int4's codes 0 … 15, two inputs to a byte, as the operator has them: int8 ``(in, out/2)``, each half −8 … 7."""
    out, into = shape
    pairs = weight.reshape(out, into // 2)
    codes = np.stack((pairs >> 4, pairs & 15), -1).reshape(out, into).T ^ 8
    return np.ascontiguousarray(codes[:, ::2] | codes[:, 1::2] << 4).view(np.int8)


class QuantizedProduct(nn.Cell):
    """``x·Wᵀ`` for x ``(N, in)`` in a 16-bit type, by the operator.

    Args:
        storage: of W.
        shape: ``(out, in)``.
    """

    def __init__(self, storage: Storage, shape: tuple[int, int]):
        super().__init__()
        self.shape, self.rows, self.zeros = shape, storage.kind == "int8", storage.zeros
        self.groups = 1 if self.rows else shape[1] // storage.block
        group = storage.block if self.groups > 1 else 0
        self.operator = WeightQuantBatchMatmul(False, self.rows, group)
        if not self.rows:
            zeros = np.zeros((shape[1], shape[0] // 2), np.int8)
            self.codes = Parameter(Tensor(zeros, ms.qint4x2), requires_grad=False)
            self.codes.buffer, self.codes.weights = True, 0

    def take(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Turns the parts of a weight, once, when it is loaded."""
        if not self.rows:
            self.codes.set_data(Tensor(turned_codes(arrays["weight"], self.shape), ms.qint4x2))

    def construct(self, x, parts):
        if self.rows:
            return self.operator(x, parts[0], (parts[1] / 127.0).astype(x.dtype), None, None, None, None)
        offset = self.turned(8.0 - parts[3].astype(ms.float32)).astype(x.dtype) if self.zeros else None
        return self.operator(x, self.codes, self.turned(parts[1]).astype(x.dtype), offset, None, None, None)

    def turned(self, numbers):
        """A number per block ``(out·groups,)`` as ``(groups, out)``."""
        return numbers.reshape(self.shape[0], self.groups).transpose(1, 0)
