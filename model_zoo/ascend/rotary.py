"""Rotation by ``ops.rotary_position_embedding``, for `model_zoo.rotary.Rotary`."""

from __future__ import annotations

import mindspore as ms
from mindspore import nn, ops

MODES = {"half": 0, "interleaved": 1}
"""The operator's number of each form."""


class RotaryOperator(nn.Cell):
    """Rotates all dimensions, in float32.

    The gradient is the rotation back. None is given for the angles, which are constants.

    Args:
        form: ``half`` takes ``(B, heads, S, d)`` with cosines and sines ``(B, 1, S, d)``. Both forms take tokens as
            they come out of a projection, ``(1, N, heads, d)`` with ``(1, N, 1, d)``: angles that differ between the
            rows of a batch are documented for ``half`` alone.
    """

    def __init__(self, form: str):
        super().__init__()
        self.mode = MODES[form]

    def rotate(self, x, cosine, sine):
        return ops.rotary_position_embedding(x.astype(ms.float32), cosine, sine, self.mode).astype(x.dtype)

    def construct(self, x, cosine, sine):
        return self.rotate(x, cosine, sine)

    def bprop(self, x, cosine, sine, out, dout):
        return self.rotate(dout, cosine, -sine), ops.zeros_like(cosine), ops.zeros_like(sine)
