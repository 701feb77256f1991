"""Exact conversions between the floating-point types of checkpoints, in NumPy alone.

NumPy has no bfloat16. Here a bfloat16 array is a ``uint16`` array of its bits, and a type is named by a word:
``"float16"``, ``"bfloat16"``, ``"float32"``, ``"float64"``. Widening is exact. Narrowing rounds once, to the nearest,
ties to even, from whatever precision it is given: a float64 is never rounded to float32 on its way to bfloat16.
"""

from __future__ import annotations

import numpy as np

from model_zoo.errors import InputError, nearest

# the NumPy type that holds the bits of each floating-point type
STORAGE = {
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),
    "float32": np.dtype("<f4"),
    "float64": np.dtype("<f8"),
}
_BYTES = np.arange(256, dtype="<u2")
FLOAT8 = {  # e4m3 is float16's other exponent and three of its bits, without infinity
    "float8_e4m3": ((_BYTES >> 7 << 15) + (_BYTES % 128 << 7)).view("<f2") * np.where(_BYTES % 128 == 127, np.nan, 256),
    "float8_e5m2": (_BYTES << 8).view("<f2"),
}
FLOAT8 = {word: numbers.astype(np.float32) for word, numbers in FLOAT8.items()}
"""The numbers of types of 8 bits, by their codes."""
ALIASES = {"fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp32": "float32", "float": "float32"}


def float_name(dtype: object) -> str:
    """The word for a floating-point type given as a word, an alias (``"bf16"``), a NumPy or a MindSpore type."""
    text = str(getattr(dtype, "name", None) or dtype).lower().rsplit(".", 1)[-1]
    name = ALIASES.get(text, text)
    if name not in STORAGE:
        raise InputError(f"dtype {str(dtype)!r} is not a supported floating-point type{nearest(name, STORAGE)}")
    return name


def typed(array: np.ndarray, dtype: str | None) -> np.ndarray:
    """An array of this type as MindSpore takes it: bits of bfloat16 as its own NumPy type, others as they are."""
    if dtype != "bfloat16":
        return array
    from mindspore.common.np_dtype import bfloat16

    return array.view(bfloat16)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """bfloat16 bits (any shape, uint16) as float32, exactly."""
    return np.left_shift(bits, 16, dtype=np.uint32).view(np.float32)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Float values as bfloat16 bits (uint16), rounded once to nearest even; NaN stays NaN, overflow becomes Inf."""
    values = np.asarray(values)
    with np.errstate(over="ignore", invalid="ignore"):
        single = np.ascontiguousarray(values, dtype=np.float32).reshape(values.shape)
    bits = single.view(np.uint32)
    if values.dtype == np.float64:
        # Only a float32 in the middle of two bfloat16 may have hidden on which side of it the float64 lies.
        bits = _beside_ties(bits, single, values)
    rounded = np.atleast_1d(bits >> 16)  # in place from here on: this is most of the time of a fingerprint
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    nan = np.isnan(single)
    if nan.any():
        rounded[np.atleast_1d(nan)] = bits[nan] | 0x00400000
    rounded >>= 16
    return rounded.astype(np.uint16).reshape(values.shape)


def _beside_ties(bits: np.ndarray, single: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The bits of float32 numbers, moved off the middle of two bfloat16 where float64 values were rounded onto it."""
    ties = np.flatnonzero((bits & 0xFFFF) == 0x8000)
    if len(ties):
        there, exact = np.abs(single.reshape(-1)[ties].astype(np.float64)), np.abs(values.reshape(-1)[ties])
        bits = bits.copy()
        bits.reshape(-1)[ties] += (exact > there).astype(np.uint32) - (exact < there).astype(np.uint32)
    return bits


def convert(values: np.ndarray, source: str, target: str) -> np.ndarray:
    """An array stored as `source` (see `STORAGE`) as one stored as `target`; the same array when nothing changes."""
    if source == target:
        return values
    if source == "bfloat16":
        values = from_bfloat16(values)
    if target == "bfloat16":
        return to_bfloat16(values)
    with np.errstate(over="ignore"):  # a value beyond the target's range becomes Inf, as in every framework
        return values.astype(STORAGE[target], copy=False)


def as_storage(array: np.ndarray) -> tuple[np.ndarray, str]:
    """An array and the word for its type; MindSpore's NumPy bfloat16 is seen as its bits, without a copy."""
    name = str(array.dtype)
    if name == "bfloat16":
        return array.view(np.uint16), name
    return array, name
