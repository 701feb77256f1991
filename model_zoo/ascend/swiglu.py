"""``silu(gate)·up`` by ``ops.swiglu``, for `model_zoo.activations.SwiGLU`.

The operator takes both in one tensor. Two tensors are copied into one first: the backward pass then keeps that copy,
where the plain path keeps twice as much.
"""

from __future__ import annotations

from mindspore import nn, ops


class SwiGLUOperator(nn.Cell):
    """``(…, 2·ffn)``, gate and up → ``(…, ffn)``."""

    def construct(self, both):
        return ops.swiglu(both, -1)
