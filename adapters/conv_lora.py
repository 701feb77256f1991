"""LoRA on a convolution: A is a convolution like the base's with r output channels, B one of width 1, as in PEFT.

A takes the base's stride, padding and dilation::

    x ── A: (r, in, kernel) ──► (B, r, …) ── B: (out, r, 1, …) ──► (B, out, …)
"""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from adapters.deltas import dora_delta, low_rank_product, wide
from adapters.dora import Magnitude, rescaled, row_norms
from adapters.dropout import Dropout
from adapters.factors import Factor, first_a, generator_for
from adapters.method import AdapterModule
from adapters.sites import weight_array


class LoRAConv(AdapterModule):
    """LoRA on one ``nn.Conv2d`` or ``nn.Conv1d``.

    MindSpore keeps a Conv1d's weight with an axis of height 1; A and B have PEFT's three axes.
    """

    saved = ("lora_A.weight", "lora_B.weight")

    def __init__(self, config, site):
        super().__init__()
        cell, rank = site.cell, config.rank_at(site.path)
        self.scale = config.scale_at(site.path)
        self.flat = isinstance(cell, nn.Conv1d)
        into, kernel = site.shape[1], tuple(site.shape[2:])
        a = first_a(config, generator_for(config.seed, site.path), rank, into * math.prod(kernel))
        shown = kernel[1:] if self.flat else kernel
        self.lora_A = Factor(a.reshape(rank, into, *shown))
        self.lora_B = Factor(np.zeros((site.out_features, rank) + (1,) * len(shown), np.float32))
        self.lora_B.weight.learning_rate_ratio = config.learning_rate_ratio
        self.a_shape, self.b_shape = (rank, into, *kernel), (site.out_features, rank, 1, 1)
        self.dropout = Dropout(config.dropout, site.path) if config.dropout else None
        self.first = ops.Conv2D(
            rank, kernel, 1, cell.pad_mode, cell.padding, stride=cell.stride, dilation=cell.dilation, group=1
        )
        self.second = ops.Conv2D(site.out_features, (1, 1))

    def change(self, x, shape):
        """What B·A adds, as float32 in this shape."""
        x = x.astype(ms.float32)
        if self.dropout is not None:
            x = self.dropout(x)
        if self.flat:
            x = x.expand_dims(2)
        inner = self.first(x, self.lora_A.weight.reshape(self.a_shape)) * self.scale  # (B, r, H, W)
        return self.second(inner, self.lora_B.weight.reshape(self.b_shape)).reshape(shape)

    def construct(self, x, y):
        return y + self.change(x, y.shape).astype(y.dtype)

    def factors(self) -> tuple[np.ndarray, np.ndarray]:
        """B ``(out, r)`` and A ``(r, in·kernel)`` in float64 with ΔW = B·A: the scale is in B."""
        b, a = wide(self.lora_B.weight.asnumpy()), wide(self.lora_A.weight.asnumpy())
        return b.reshape(b.shape[0], -1) * self.scale, a.reshape(a.shape[0], -1)

    def delta(self, weight: np.ndarray) -> np.ndarray:
        a, b = self.lora_A.weight.asnumpy(), self.lora_B.weight.asnumpy()
        change = low_rank_product(b.reshape(b.shape[0], -1), a.reshape(a.shape[0], -1), self.scale)
        return change.reshape(weight.shape)


class DoRAConv(LoRAConv):
    """DoRA on one convolution: a magnitude per output channel. PEFT's shape for it is ``(1, out, 1…)``."""

    saved = (*LoRAConv.saved, "lora_magnitude_vector")
    needs_base = True

    def __init__(self, config, site):
        super().__init__(config, site)
        norms = row_norms(weight_array(site).reshape(site.out_features, -1))
        self.along = (1, -1, 1) if self.flat else (1, -1, 1, 1)
        self.lora_magnitude_vector = Parameter(Tensor(norms.reshape(self.along)), name="lora_magnitude_vector")
        self.magnitude = Magnitude(norms, self.scale)
        self.product = ops.MatMul(transpose_b=True)

    def on_base(self, x, y, base, weight, bias):
        a, b = ops.stop_gradient(self.lora_A.weight), ops.stop_gradient(self.lora_B.weight)
        a, b = a.reshape(a.shape[0], -1), b.reshape(b.shape[0], -1)
        wa = self.product(weight.astype(ms.float32).reshape(weight.shape[0], -1), a)  # (out, r)
        factor = self.magnitude(self.lora_magnitude_vector.reshape(-1), wa, a, b)
        return rescaled(y, base, bias, self.change(x, y.shape), factor, self.along)

    def delta(self, weight: np.ndarray) -> np.ndarray:
        flat = weight.reshape(weight.shape[0], -1)
        change = super().delta(weight).reshape(flat.shape)
        return dora_delta(flat, change, self.lora_magnitude_vector.asnumpy()).reshape(weight.shape)
