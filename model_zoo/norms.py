"""The norms that families share, as cells with a plain path and a fast one (`model_zoo.layers`)."""

from __future__ import annotations

import mindspore as ms
from mindspore import nn, ops

from model_zoo.ascend import has_operators
from model_zoo.ascend.norms import LayerNormOperator, RMSNormOperator
from model_zoo.engine import uses_kernel
from model_zoo.layers import new_parameter


class RMSNorm(nn.Cell):
    """``x / sqrt(mean(x²) + eps) · (weight + offset)``, in float32 whatever the weights are (Zhang & Sennrich 2019)."""

    def __init__(self, width: int, eps: float, dtype=ms.float32, offset: float = 0.0):
        super().__init__()
        self.weight = new_parameter((width,), dtype, 1.0 - offset)
        self.eps, self.offset = eps, offset
        uses_kernel(self, "rms_norm", eps=eps, offset=offset)
        self.device = RMSNormOperator(eps, offset) if has_operators() else None

    def construct(self, x):
        if self.device is not None:
            return self.device(x, self.weight)
        if self.fast and x.dtype == ms.float32:
            return self.kernel(x, self.weight)
        wide = x.astype(ms.float32)
        scale = ops.rsqrt((wide * wide).mean(-1, keep_dims=True) + self.eps)
        if self.offset != 0:  # which a narrow type would round
            return (wide * scale * (self.weight.astype(ms.float32) + self.offset)).astype(x.dtype)
        return (wide * scale).astype(x.dtype) * self.weight

    def trace(self, tracer, x):
        return tracer.emit("rms_norm", x, self.weight, eps=self.eps, offset=self.offset)


class LayerNorm(nn.Cell):
    """Layer normalisation over the last axis with weight and bias, in float32 (Ba et al. 2016)."""

    def __init__(self, width: int, eps: float, dtype=ms.float32):
        super().__init__()
        self.weight = new_parameter((width,), dtype, 1.0)
        self.bias = new_parameter((width,), dtype)
        self.eps = eps
        uses_kernel(self, "layer_norm", eps=eps)
        self.device = LayerNormOperator(eps) if has_operators() else None

    def construct(self, x):
        if self.device is not None:
            return self.device(x, self.weight, self.bias)
        if self.fast and x.dtype == ms.float32:
            return self.kernel(x, self.weight, self.bias)
        wide = x.astype(ms.float32)
        centred = wide - wide.mean(-1, keep_dims=True)
        scale = ops.rsqrt((centred * centred).mean(-1, keep_dims=True) + self.eps)
        return (centred * scale).astype(x.dtype) * self.weight + self.bias

    def trace(self, tracer, x):
        return tracer.emit("layer_norm", x, self.weight, self.bias, eps=self.eps)
