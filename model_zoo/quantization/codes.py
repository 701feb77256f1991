"""The sixteen values of each 4-bit type, and the 256 of double quantisation."""

from __future__ import annotations

import functools

import numpy as np

NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
"""Quantiles of the normal distribution (Dettmers et al. 2023, appendix E)."""

FP4 = (0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
"""A sign, two bits of exponent and one of fraction, scaled to 1; the negative ones follow in the same order."""

MAPS = {
    "nf4": np.array(NF4, np.float32),
    "fp4": np.array([*FP4, 0.0, *(-value for value in FP4[1:])], np.float32),
    "int4": np.arange(-8, 8, dtype=np.float32),
}
"""The value of each code, as files hold it in ``quant_map``."""

LIMITS = {"nf4": 1.0, "fp4": 1.0, "int4": 7.0}
"""What the largest element of a block becomes when it is divided by the block's factor."""


@functools.cache
def boundaries(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """The 15 middles between neighbouring values, and the codes of the 16 intervals around them, in ascending order.

    A value on a boundary belongs to the lower interval.
    """
    values = MAPS[kind]
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    return (ascending[:-1] + ascending[1:]) / np.float32(2), order.astype(np.uint8)


@functools.cache
def dynamic_map() -> np.ndarray:
    """The values of 8-bit factors: a sign, an exponent to base 10 whose length varies, and a linear fraction in what is
    left (Dettmers 2016)."""
    found = [0.0, 1.0]
    for exponent in range(7):
        edges = linspace(0.1, 1.0, 2**exponent + 1)
        middles = (edges[:-1] + edges[1:]) / np.float32(2)
        scaled = (np.float32(10.0 ** (exponent - 6)) * middles).tolist()
        found += scaled + [-value for value in scaled]
    return np.array(sorted(found), np.float32)


def linspace(start: float, end: float, count: int) -> np.ndarray:
    """Evenly spaced float32 numbers, from either end to the middle, each rounded once (as PyTorch has them)."""
    first, last = np.float32(start), np.float32(end)
    step = np.float64((last - first) / np.float32(count - 1))
    index = np.arange(count)
    return np.where(index < count // 2, first + step * index, last - step * (count - 1 - index)).astype(np.float32)
