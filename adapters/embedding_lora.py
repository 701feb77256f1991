"""LoRA on an embedding: ``y = E[ids] + s·(A[:, ids]ᵀ)·Bᵀ`` with A ``(r, V)`` and B ``(width, r)``.

PEFT's names and start: A zero, B standard normal. On a tied head only the embedding changes; the head keeps the base's
weight, and a merge gives each its own.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, ops

from adapters.deltas import dora_delta, low_rank_product, wide
from adapters.dora import Magnitude, rescaled, row_norms
from adapters.factors import generator_for
from adapters.method import AdapterModule
from adapters.sites import weight_array
from model_zoo.engine import unlearned


class LoRAEmbedding(AdapterModule):
    """LoRA on one embedding table ``(V, width)``. There is no dropout: the input is ids."""

    saved = ("lora_embedding_A", "lora_embedding_B")

    def __init__(self, config, site):
        super().__init__()
        rank = config.rank_at(site.path)
        self.scale, self.output_scale = config.scale_at(site.path), site.output_scale
        self.padding_row = site.padding_row
        b = generator_for(config.seed, site.path).standard_normal((site.out_features, rank)).astype(np.float32)
        self.lora_embedding_A = Parameter(Tensor(np.zeros((rank, site.in_features), np.float32)), name="A")
        self.lora_embedding_B = Parameter(Tensor(b), name="B")
        self.lora_embedding_B.learning_rate_ratio = config.learning_rate_ratio
        self.gather = ops.Gather()
        self.product = ops.MatMul(transpose_a=True, transpose_b=True)

    def change(self, ids):
        """s·B·A's row of every id, as the cell scales rows: ``(N, width)`` in float32."""
        ids = ids.reshape(-1)
        rows = unlearned(self.gather(self.lora_embedding_A, ids, 1), ids, self.padding_row, 0)  # (r, N)
        return self.product(rows * (self.scale * self.output_scale), self.lora_embedding_B)

    def construct(self, ids, y):
        return y + self.change(ids).reshape(y.shape).astype(y.dtype)

    def factors(self) -> tuple[np.ndarray, np.ndarray]:
        """B ``(width, r)`` and A ``(r, V)`` in float64 with ΔE = (B·A)ᵀ: the scale is in B."""
        return wide(self.lora_embedding_B.asnumpy()) * self.scale, wide(self.lora_embedding_A.asnumpy())

    def delta(self, weight: np.ndarray) -> np.ndarray:
        # the table's rows are the outputs here, so that merging on disk forms the same blocks
        a, b = self.lora_embedding_A.asnumpy(), self.lora_embedding_B.asnumpy()
        return low_rank_product(a.T, b.T, self.scale)


class DoRAEmbedding(LoRAEmbedding):
    """DoRA on one embedding table: a magnitude per column, the norm over the vocabulary, as in PEFT."""

    saved = (*LoRAEmbedding.saved, "lora_magnitude_vector")
    needs_base = True
    starts_from_base = True

    def __init__(self, config, site):
        super().__init__(config, site)
        norms = row_norms(weight_array(site).T)
        self.lora_magnitude_vector = Parameter(Tensor(norms), name="lora_magnitude_vector")
        self.magnitude = Magnitude(norms, self.scale)

    def on_base(self, ids, y, base, weight, bias):
        a, b = ops.stop_gradient(self.lora_embedding_A), ops.stop_gradient(self.lora_embedding_B)
        wa = self.product(weight.astype(ms.float32), a)  # (width, r)
        factor = self.magnitude(self.lora_magnitude_vector, wa, a, b)
        return rescaled(y, base, bias, self.change(ids).reshape(y.shape), factor, (-1,))

    def delta(self, weight: np.ndarray) -> np.ndarray:
        return dora_delta(weight.T, super().delta(weight).T, self.lora_magnitude_vector.asnumpy()).T
