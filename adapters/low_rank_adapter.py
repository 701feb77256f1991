"""MindPet's low-rank adapter: a bottleneck whose two projections are each a product of two thin matrices.

    y + U_b·U_a·f(D_b·D_a·y + b) + c      D_a (r, H)   D_b (H/k, r)   U_a (r, H/k)   U_b (H, r)

k is the reduction factor and r the low rank, after Mahabadi et al. 2021 (Compacter). U_b and c start at zero: a fresh
adapter changes nothing, bit for bit.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, ops

from adapters.bottleneck import activation
from adapters.factors import Factor, generator_for, kaiming_uniform
from adapters.method import AdapterModule, MethodConfig
from adapters.settings import LowRankAdapter as Settings


class LowRankAdapterConfig(Settings, MethodConfig):
    """Low-rank adapters, after attention and after the feed-forward unless `targets` says otherwise."""

    def parameters_at(self, site) -> int:
        width = self.width_at(site)
        return 2 * self.rank * (site.out_features + width) + width + site.out_features

    def build(self, site) -> AdapterModule:
        return LowRankAdapter(self, site, self.width_at(site))


class LowRankAdapter(AdapterModule):
    """The network at one cell."""

    saved = (
        *("low_rank_down_a.weight=down_a.weight", "low_rank_down_b.weight=down_b.weight"),
        *("low_rank_down.bias=down_bias", "low_rank_up_a.weight=up_a.weight"),
        *("low_rank_up_b.weight=up_b.weight", "low_rank_up.bias=up_bias"),
    )
    reads_output = True

    def __init__(self, config: LowRankAdapterConfig, site, width: int):
        super().__init__()
        generator, rank, hidden = generator_for(config.seed, site.path), config.rank, site.out_features
        self.down_a = Factor(kaiming_uniform(generator, rank, hidden))
        self.down_b = Factor(kaiming_uniform(generator, width, rank))
        self.up_a = Factor(kaiming_uniform(generator, rank, width))
        self.up_b = Factor(np.zeros((hidden, rank), np.float32))
        self.down_bias = Parameter(Tensor(np.zeros(width, np.float32)), name="down_bias")
        self.up_bias = Parameter(Tensor(np.zeros(hidden, np.float32)), name="up_bias")
        self.activation = activation(config.non_linearity)
        self.product = ops.MatMul(transpose_b=True)

    def construct(self, x, y):
        flat = y.reshape(-1, y.shape[-1]).astype(ms.float32)  # (N, H)
        inner = self.product(self.product(flat, self.down_a.weight), self.down_b.weight) + self.down_bias
        inner = self.product(self.activation(inner), self.up_a.weight)  # (N, r)
        change = self.product(inner, self.up_b.weight) + self.up_bias
        return y + change.reshape(y.shape).astype(y.dtype)

    def trace(self, tracer, x, y):
        def through(flat, a, b, bias):
            for factor in (a, b):
                flat = tracer.emit("product_of_rows", flat, factor.weight)
            return tracer.emit("add_bias", flat, bias)

        inner = self.activation(through(y, self.down_a, self.down_b, self.down_bias))
        return tracer.add(through(inner, self.up_a, self.up_b, self.up_bias), y)
