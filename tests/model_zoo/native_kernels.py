"""Kernels of a library, called with NumPy's arrays, and what their results are compared by."""

from __future__ import annotations

import ctypes
import hashlib

import numpy as np

FEW_ROWS, FEW_PACKED_ROWS = 12, 24
"""Up to so many rows, `few_rows.c` multiplies; with factors in 8 or 4 bits."""

AROUND = 32
"""Numbers before and behind every array: none where it is read, so that one taken from there shows."""

TYPES = {"float32": np.float32, "int32": np.int32, "float16": np.float16, "bfloat16": np.uint16}
"""As MindSpore names what operands are, and the NumPy type of their arrays: of bfloat16 the bits."""

UNTOUCHED = 12345.0
"""What is there where an array is written."""

ALONE = "gelu_tanh", "gelu", "relu", "silu", "hyperbolic_tangent"

LOW = {
    **dict.fromkeys(["rms_norm", "layer_norm"], ((), (0,))),
    "rms_norm_gradient": ((4,), ()),
    "rms_norm_gradient_added": ((4,), ()),
    "rms_norm_weight_gradient": ((2,), ()),
    "layer_norm_gradient": ((4,), ()),
    "layer_norm_gradient_added": ((4,), ()),
    "layer_norm_weight_gradient": ((3,), ()),
    "product_of_rows_bf16": ((0,), (0,)),
    "product_of_rows_bf16_added": ((0,), (0,)),
    "plain_product_bf16": ((0,), (0,)),
    "plain_product_bf16_added": ((0,), (0,)),
    **dict.fromkeys(["product_of_rows", "plain_product"], ((0,), ())),
    **dict.fromkeys(["product_of_rows_added", "plain_product_added"], ((0,), (0,))),
    "product_of_rows_onto": ((0, 2), (0,)),
    **dict.fromkeys(["product_of_columns", "product_of_columns_bf16"], ((0, 1), ())),
    "dora": ((0,), (0,)),
    "dora_gradient": ((0, 12), (0,)),
    "dora_rescaled": ((0,), (0,)),
    "low_rank_inner": ((0,), ()),
    "low_rank_factors": ((2, 4), ()),
    "attention_bf16": ((0, 1, 2), (0,)),
    "attention_bf16_gradient": ((0, 1, 2, 9, 11), ()),
    **dict.fromkeys(["swiglu", "geglu"], ((0, 1), (0,))),
    **dict.fromkeys(["swiglu_gradient", "geglu_gradient"], ((0, 1, 2), (0, 1))),
    **dict.fromkeys(ALONE, ((0,), (0,))),
    **dict.fromkeys([f"{name}_gradient" for name in ALONE], ((0, 1), (0,))),
    "add": ((0, 1), ()),
    "add_bias": ((0,), (0,)),
    "column_sum": ((0,), ()),
    **dict.fromkeys(["take_columns", "put_columns", "scale", "scale_columns", "scale_rows", "dropout"], ((0,), (0,))),
    **dict.fromkeys(["scale_columns_gradient", "scale_rows_gradient"], ((0, 1), ())),
    **dict.fromkeys(["rows_to_experts", "rows_from_experts", "sum_by_share"], ((0,), (0,))),
    "sum_by_share_gradient": ((0, 4), (0,)),
    "join_columns": ((0, 1), (0,)),
    "split_heads": ((0,), (0,)),
    "join_heads": ((0,), (0,)),
    **dict.fromkeys(
        [
            f"{split}rotary_{form}{back}"
            for split in ("", "split_")
            for form in ("half", "interleaved")
            for back in ("", "_back")
        ],
        ((0,), (0,)),
    ),
}
"""The inputs and outputs of kernels that may lie in bfloat16."""

IN_FLOAT32 = {"product_of_rows_added": "product_of_rows_bf16_added", "plain_product_added": "plain_product_bf16_added"}
"""What computes the same, with everything in float32, as these do where their output lies in bfloat16."""


class Kernels:
    """A compiled library, as MindSpore calls it.

    Args:
        path: of the library.
        guarded: whether arrays lie within larger ones. Memory sanitizers want them on their own.
    """

    def __init__(self, path, guarded: bool = True):
        self.library, self.guarded = ctypes.CDLL(str(path)), guarded
        self.digest = hashlib.sha256()

    def room(self, shape, around, kind=np.float32):
        """An array of its own, and all that was allocated for it. It begins where no vector does."""
        size = int(np.prod(shape))
        if not self.guarded:
            alone = np.empty(size, kind)
            return alone.reshape(shape), alone
        whole = np.full(size + 2 * AROUND + 1, around, kind)
        return whole[AROUND + 1 : AROUND + 1 + size].reshape(shape), whole

    def run(self, name: str, inputs, *shapes, holding=None, low=()):
        """Runs a kernel: what it returns, its inputs, and its outputs with all that was allocated for them. ``low``:
        which outputs lie in bfloat16."""
        arrays, types = [], []
        for value in inputs:
            kind = value.dtype if value.dtype in TYPES.values() else {"i": np.int32, "f": np.float32}[value.dtype.kind]
            nothing = {"i": -(2**31), "u": 0x7FC0, "f": np.nan}[np.dtype(kind).kind]
            array, _ = self.room(value.shape, nothing, kind)
            array[...] = value
            arrays.append(array)
            types += [name for name, known in TYPES.items() if known == kind]
        kinds = [np.uint16 if index in low else np.float32 for index in range(len(shapes))]
        outputs = [self.room(shape, UNTOUCHED, kind) for shape, kind in zip(shapes, kinds, strict=True)]
        if holding is not None:
            outputs[0][0][...] = holding
        every = [*arrays, *(array for array, _ in outputs)]
        count = len(every)
        pointers = (ctypes.c_void_p * count)(*[array.ctypes.data for array in every])
        axes = (ctypes.c_int * count)(*[array.ndim for array in every])
        sizes = [(ctypes.c_int64 * array.ndim)(*array.shape) for array in every]
        lists = (ctypes.c_void_p * count)(*[ctypes.addressof(size) for size in sizes])
        types += ["bfloat16" if kind == np.uint16 else "float32" for kind in kinds]
        words = [word.encode() for word in types]
        words = (ctypes.c_char_p * count)(*words)
        return getattr(self.library, name)(count, pointers, axes, lists, words, None, None), arrays, outputs

    def __call__(self, name: str, inputs, *shapes, holding=None):
        """Runs a kernel; what it gives, one array or several. ``holding``: what its first output holds before."""
        failed, arrays, outputs = self.run(name, inputs, *shapes, holding=holding)
        assert not failed, name
        for array, value in zip(arrays, inputs, strict=True):
            assert array.tobytes() == value.astype(array.dtype).tobytes(), f"{name} wrote an input"
        for array, whole in outputs:
            if self.guarded:
                edges = np.concatenate([whole[: AROUND + 1], whole[AROUND + 1 + array.size :]])
                assert (edges == UNTOUCHED).all(), f"{name} wrote outside of {array.shape}"
            self.digest.update(np.ascontiguousarray(array).tobytes())
        results = [array for array, _ in outputs]
        if name in LOW and self.library.pet_bf16():
            self.check_low(name, inputs, shapes, holding)
        return results[0] if len(results) == 1 else results

    def check_low(self, name: str, inputs, shapes, holding) -> None:
        """The same with numbers in bfloat16 where they may be: the bits of float32, rounded."""
        if "product_of" in name + "_product_of" * name.startswith("plain_product") and shapes[0][0] <= FEW_ROWS:
            return  # those of few rows round no factors, where all is float32
        taken, given = LOW[name]
        wide = [bf16(value) if index in taken else value for index, value in enumerate(inputs)]
        narrow = [bits(value) if index in taken else value for index, value in enumerate(inputs)]
        held = holding if holding is None else bf16(holding)
        expected = name, wide, held
        if name == "product_of_rows_onto":
            expected = "product_of_rows_bf16_added", wide[:2], wide[2]
        elif name in IN_FLOAT32:
            expected = IN_FLOAT32[name], wide, held
        failed, _, right = self.run(*expected[:2], *shapes, holding=expected[2])
        held = bits(holding) if holding is not None and 0 in given else holding
        missed, _, mine = self.run(name, narrow, *shapes, holding=held, low=given)
        assert not failed and not missed, name
        for index, ((found, whole), (sure, _)) in enumerate(zip(mine, right, strict=True)):
            sure = bits(sure) if index in given else sure
            assert np.array_equal(found, sure, equal_nan=found.dtype.kind == "f"), (name, shapes, index)
            if self.guarded:
                edges = np.concatenate([whole[: AROUND + 1], whole[AROUND + 1 + found.size :]])
                assert (edges == np.array(UNTOUCHED, whole.dtype)).all(), f"{name} wrote outside of {shapes}"


def bits(values):
    """Rounded to bfloat16, as the bits of that; the processor takes numbers below float32's normal ones for zeros."""
    normal = np.where(np.abs(values) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), values), values)
    return (bf16(normal).view(np.uint32) >> 16).astype(np.uint16)


def numbers(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def close(mine, expected, tolerance=2e-6):
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    np.testing.assert_allclose(mine, expected, atol=tolerance * scale, rtol=2e-6)


def bf16(values):
    """Rounded to bfloat16, to the nearest and ties to even, as float32."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def within(mine, expected, tolerance, more):
    """`close`, or as far away as ``more`` says of each number."""
    bound = tolerance * max(1.0, float(np.abs(expected).max(initial=0))) + 2e-6 * np.abs(expected) + more
    assert (np.abs(mine - expected) <= bound).all(), float((np.abs(mine - expected) - bound).max())


EDGES = np.array([0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFC00, 0x7C00, 0x8000, 0x7E01, 0x3C00, 0x8001], np.uint16)

EDGES = np.tile(EDGES, 5)[:45].view(np.float16)
"""The least and greatest numbers below and above float16's usual exponents, infinities, none, the zero below zero."""


def narrow(weight, kind):
    """A weight stored in 16 bits, and the same numbers in float32."""
    if kind == "bfloat16":
        stored = (weight.view(np.uint32) >> 16).astype(np.uint16)
        return stored, (stored.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore"):
        stored = weight.astype(np.float16)
    return stored, stored.astype(np.float32)


def joined(x):
    """Heads side by side."""
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0] * x.shape[2], -1)
