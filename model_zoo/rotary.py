"""Rotary positions (Su et al. 2021): frequencies, the table of a forward pass, and the rotation of heads."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from model_zoo.ascend import has_operators
from model_zoo.ascend.rotary import RotaryOperator
from model_zoo.engine import uses_kernel


def rotary_frequencies(width: int, theta: float = 10000.0, scaling: dict | None = None) -> np.ndarray:
    """The angular step per position of each of ``width / 2`` pairs, float32.

    Args:
        width: how many dimensions of a head are rotated.
        theta: the base of the geometric series.
        scaling: ``None`` or a Hugging Face rotary description; ``rope_type`` default, linear, dynamic, llama3 or
            yarn.
    """
    inverse = 1.0 / (theta ** (np.arange(0, width, 2, dtype=np.float32) / width))
    kind = (scaling or {}).get("rope_type", "default")
    if kind == "linear":
        inverse = inverse / scaling["factor"]
    elif kind == "llama3":
        context, low, high = (
            scaling[key] for key in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
        )
        wavelength = 2 * math.pi / inverse
        blend = (context / wavelength - low) / (high - low)
        between = (1 - blend) * inverse / scaling["factor"] + blend * inverse
        inverse = np.where(
            wavelength > context / low,
            inverse / scaling["factor"],
            np.where(wavelength < context / high, inverse, between),
        )
    elif kind == "yarn":
        # pairs that turn often within the first context keep their step, slow ones have it divided
        turns = scaling.get("beta_fast") or 32, scaling.get("beta_slow") or 1
        context = scaling["original_max_position_embeddings"]
        ends = [width * math.log(context / (count * 2 * math.pi)) / (2 * math.log(theta)) for count in turns]
        if scaling.get("truncate", True):
            ends = math.floor(ends[0]), math.ceil(ends[1])
        first, last = max(ends[0], 0), min(ends[1], width - 1)
        slowed = np.clip((np.arange(width // 2) - first) / ((last - first) or 0.001), 0, 1)
        inverse = inverse / scaling["factor"] * slowed + inverse * (1 - slowed)
    return inverse.astype(np.float32)


class RotaryTable(nn.Cell):
    """Positions → cosines and sines, once per forward for all layers.

    ``form`` says how they lie over the rotated dimensions: ``half`` repeats the frequencies twice (pairs (i, i + d/2)),
    ``interleaved`` repeats each one (pairs (2i, 2i + 1)). Both are multiplied by ``scale``.

    Returns:
        Two tensors ``(B, 1, S, 2·len(frequencies))``, float32.
    """

    def __init__(self, frequencies: np.ndarray, form: str, scale: float = 1.0):
        super().__init__()
        self.scale = scale
        lanes = np.concatenate([frequencies, frequencies]) if form == "half" else np.repeat(frequencies, 2)
        self.lanes = Tensor(lanes.astype(np.float32))
        self.reshape, self.cos, self.sin = ops.Reshape(), ops.Cos(), ops.Sin()

    def construct(self, positions):
        batch, length = positions.shape
        angles = self.reshape(positions, (batch, 1, length, 1)) * self.lanes  # widened on the way
        cosine, sine = self.cos(angles), self.sin(angles)
        return (cosine, sine) if self.scale == 1.0 else (cosine * self.scale, sine * self.scale)

    def trace(self, tracer, positions):
        tables = [tracer.place((1, 1, 1, self.lanes.size)) for _ in range(2)]
        tracer.emit("rotary_table", positions, tracer.parameter(self.lanes), scale=self.scale, outputs=tables)
        return tuple(tables)


class Rotary(nn.Cell):
    """Rotates the first ``width`` dimensions of every head by its position's angles (Su et al. 2021).

    Args:
        form: ``half`` or ``interleaved``, as in `RotaryTable`.
        width: how many leading dimensions are rotated; the rest passes through.
        head_dim: the head's whole width.
    """

    def __init__(self, form: str, width: int, head_dim: int):
        super().__init__()
        self.form, self.half = form, form == "half"
        self.width, self.partial = width, width < head_dim
        uses_kernel(self, f"rotary_{form}", w=width, d=head_dim)
        self.device = RotaryOperator(form) if has_operators() else None

    def turned(self, x):
        """Each pair (a, b) as (−b, a)."""
        if self.half:
            middle = self.width // 2
            return ops.concat((-x[..., middle:], x[..., :middle]), -1)
        pairs = x.reshape(x.shape[:-1] + (self.width // 2, 2))
        return ops.stack((-pairs[..., 1], pairs[..., 0]), -1).reshape(x.shape)

    def construct(self, x, cosine, sine):
        if self.fast and x.dtype == ms.float32:
            return self.kernel(x, cosine, sine)
        rotated = x[..., : self.width] if self.partial else x  # (B, heads, S, width)
        if self.device is not None and (self.half or x.shape[0] == 1):
            rotated = self.device(rotated, cosine, sine)
        else:
            wide = rotated.astype(ms.float32)
            rotated = (wide * cosine + self.turned(wide) * sine).astype(x.dtype)
        return ops.concat((rotated, x[..., self.width :]), -1) if self.partial else rotated
