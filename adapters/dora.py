"""DoRA (Liu et al. 2024): ``y = m · (W + s·B·A)·x / ‖W + s·B·A‖``, the norm over each output's row.

The norm counts as a constant in the gradient (section 4.3 of the paper), as in PEFT. It is never taken of the built
matrix but from the parts of its square,

    ‖W + s·B·A‖² = ‖W‖² + 2·s·⟨W, B·A⟩ + s²·‖B·A‖²

with ⟨W, B·A⟩ = Σ (W·Aᵀ)∘B and ‖B·A‖² = Σ (B·(A·Aᵀ))∘B over each row: O(out·in·r) work and no ``(out, in)`` matrix.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from adapters.deltas import SMALLEST, blocks
from adapters.sites import weight_array


class Magnitude(nn.Cell):
    """Turns W's and B·A's parts into the factor ``m / ‖W + s·B·A‖`` per output.

    The norm is kept relative to ‖W‖, which is computed once in float64. So the factor is exactly 1 while B·A is zero
    and m is ‖W‖, and a fresh adapter gives the base's bits.

    Args:
        norms: ‖W‖ of each row (`row_norms`).
        scale: s.
    """

    def __init__(self, norms: np.ndarray, scale: float):
        super().__init__()
        self.scale = scale
        self.norm = Parameter(Tensor(norms), name="norm", requires_grad=False)
        self.product = ops.MatMul(transpose_b=True)

    def construct(self, magnitude, wa, a, b):
        """m ``(out,)``, W·Aᵀ ``(out, r)``, A ``(r, in)``, B ``(out, r)`` → the factor ``(out,)``."""
        norm = ops.maximum(self.norm, SMALLEST)
        wa, square = self.whole(wa, a)
        cross = (wa * b).sum(1)
        square = (self.product(b, square) * b).sum(1)
        change = (2.0 * self.scale * cross + self.scale * self.scale * square) / (norm * norm)
        current = norm * ops.sqrt(ops.maximum(1.0 + change, SMALLEST))
        return magnitude / ops.stop_gradient(current)

    def whole(self, wa, a):
        """W·Aᵀ and A·Aᵀ ``(r, r)``, which is symmetric."""
        return wa, self.product(a, a)


def row_norms(weight: np.ndarray) -> np.ndarray:
    """‖W‖ of each row of ``(out, in)``, float32."""
    weight = np.asarray(weight, np.float64)
    return np.sqrt((weight * weight).sum(axis=1)).astype(np.float32)


def norms_at(site, change=lambda rows: 0.0) -> np.ndarray:
    """‖W + ΔW‖ of each output of a linear cell, float32, of some rows at a time: W is never there whole in float64.

    Args:
        change: gives rows of ΔW ``(out, in)``; without it there is none.
    """
    if site.transposed:
        return row_norms(weight_array(site).T + change(slice(None)))
    return np.concatenate([row_norms(weight_array(site, rows) + change(rows)) for rows in blocks(site.out_features)])


def rescaled(y, base, bias, change, factor, shape):
    """``y + (f − 1)·(base − bias) + f·change``, with f reshaped so that it lies along the outputs.

    ``y`` holds the base and what other adapters added; only the base is rescaled.
    """
    wide = base.astype(ms.float32)
    if bias is not None:
        wide = wide - bias.astype(ms.float32).reshape(shape)
    factor = factor.reshape(shape)
    return (y.astype(ms.float32) + (factor - 1.0) * wide + factor * change).astype(y.dtype)
