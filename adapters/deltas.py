"""What each mergeable method adds to a weight, in NumPy alone: merging in memory and on disk share these formulas.

All take and give float64. Products are formed in blocks of `BLOCK` outputs, always the same ones, so that a merge that
holds one block at a time and a merge that holds the whole matrix give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

BLOCK = 64
SMALLEST = 1e-12
"""Norm that a row of zeros is given: its square is still a float32."""


def blocks(count: int) -> Iterator[slice]:
    """The ranges of outputs that are computed at once."""
    for start in range(0, count, BLOCK):
        yield slice(start, min(start + BLOCK, count))


def wide(array: np.ndarray) -> np.ndarray:
    """As contiguous float64."""
    return np.ascontiguousarray(array, np.float64)


def low_rank_product(b: np.ndarray, a: np.ndarray, scale: float) -> np.ndarray:
    """``scale·B·A``: B ``(out, r)``, A ``(r, in)`` → ``(out, in)``."""
    b, a = wide(b), wide(a)
    product = np.empty((b.shape[0], a.shape[1]))
    for rows in blocks(b.shape[0]):
        product[rows] = scale * (b[rows] @ a)
    return product


def dora_delta(weight: np.ndarray, change: np.ndarray, magnitude: np.ndarray) -> np.ndarray:
    """DoRA (Liu et al. 2024): ``m · (W + ΔW) / ‖W + ΔW‖ − W``, the norm over each row of ``(out, in)``."""
    direction = wide(weight) + change
    norm = np.maximum(np.sqrt((direction * direction).sum(axis=1, keepdims=True)), SMALLEST)
    return wide(magnitude).reshape(-1, 1) / norm * direction - weight


def ia3_delta(weight: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """IA3 (Liu et al. 2022): ``W·l − W`` with l ``(out, 1)``, or ``(1, in)`` where it scales the input."""
    return weight * wide(factor) - weight
