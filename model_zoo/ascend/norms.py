"""Norms by ``ops.RmsNorm`` and ``ops.LayerNorm``, for the cells of `model_zoo.norms`.

Both compute in float32 within, and want all their tensors in one type.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import nn, ops


class RMSNormOperator(nn.Cell):
    """As `model_zoo.norms.RMSNorm`. A weight with an offset is added up in float32: a narrow type would round it."""

    def __init__(self, eps: float, offset: float):
        super().__init__()
        self.offset, self.norm = offset, ops.RmsNorm(eps)

    def construct(self, x, weight):
        if self.offset != 0:
            return self.norm(x.astype(ms.float32), weight.astype(ms.float32) + self.offset)[0].astype(x.dtype)
        dtype = x.dtype if x.dtype == weight.dtype else ms.float32
        return self.norm(x.astype(dtype), weight.astype(dtype))[0]


class LayerNormOperator(nn.Cell):
    """As `model_zoo.norms.LayerNorm`."""

    def __init__(self, eps: float):
        super().__init__()
        self.norm = ops.LayerNorm(-1, -1, eps)

    def construct(self, x, weight, bias):
        dtype = x.dtype if x.dtype == weight.dtype and x.dtype == bias.dtype else ms.float32
        return self.norm(x.astype(dtype), weight.astype(dtype), bias.astype(dtype))[0]
