"""The C kernels called by themselves, over shapes that are awkward for them, against NumPy in float64.

    python tests/model_zoo/native_checks.py native.so

checks a library, however it was compiled (for sanitizers, other compilers and processors), and prints one digest of
all results: equal for equal numbers of any thread.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import math
import sys

import numpy as np

from model_zoo.checkpoint.dtypes import from_bfloat16, to_bfloat16
from model_zoo.quantization import codec, codes as codes_of
from model_zoo.quantization.storage import Storage

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


PRODUCTS = [  # rows, columns, depth
    (1, 1, 1),
    (1, 500, 300),
    (7, 3, 2),
    (13, 64, 17),
    (5, 129, 255),
    (385, 33, 257),
    (12, 1030, 515),
    (14, 65, 4100),  # deeper than what is copied at once
    (50, 8200, 130),  # many blocks of columns
    (2000, 70, 720),  # more threads than blocks; a left factor that is turned a part at a time
    (15, 700, 2049),
    (97, 8, 40),
    (0, 5, 4),
    (4, 0, 3),
    (3, 70, 0),
]


def products(kernels):
    for rows, columns, depth in PRODUCTS:
        a, b = numbers(rows, depth), numbers(columns, depth, seed=1)
        wide = a.astype(np.float64) @ b.T.astype(np.float64)
        bound = 1e-6 * (np.abs(a).astype(np.float64) @ np.abs(b.T)) + 1e-7
        cases = {"product_of_rows": (a, b), "plain_product": (a, b.T), "product_of_columns": (a.T, b.T)}
        for name, inputs in cases.items():
            mine = kernels(name, inputs, (rows, columns))
            assert (np.abs(mine - wide) <= bound).all(), (name, rows, columns, depth)


def bf16(values):
    """Rounded to bfloat16, to the nearest and ties to even, as float32."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def rounded(kernels):
    """The same of factors rounded to bfloat16, with float32 sums: to as many digits of the rounded factors' product.
    Few rows are computed in float32."""
    if not kernels.library.pet_bf16():
        nothing = np.zeros((20, 3), np.float32), np.zeros((4, 3), np.float32)
        assert kernels.run("product_of_rows_bf16", nothing, (20, 4))[0] == 1
        return
    for rows, columns, depth in (*PRODUCTS, (33, 20, 2048)):  # the last one's rows meet in a first cache
        a, b = numbers(rows, depth), numbers(columns, depth, seed=1)
        if rows > FEW_ROWS:
            a, b = bf16(a), bf16(b)
        wide = a.astype(np.float64) @ b.T.astype(np.float64)
        bound = 1e-6 * (np.abs(a).astype(np.float64) @ np.abs(b.T)) + 1e-7
        a, b = numbers(rows, depth), numbers(columns, depth, seed=1)
        before = numbers(rows, columns, seed=2)
        cases = {"product_of_rows": (a, b), "plain_product": (a, b.T)}
        for name, inputs in cases.items():
            mine = kernels(f"{name}_bf16", inputs, (rows, columns))
            assert (np.abs(mine - wide) <= bound).all(), (name, rows, columns, depth)
        if rows > FEW_ROWS:
            mine = kernels("product_of_columns_bf16", (a.T, b.T), (rows, columns))
            assert (np.abs(mine - wide) <= bound).all(), (rows, columns, depth)
            wide, bound = wide + before, bound + 1e-6 * np.abs(before)
            for name, inputs in cases.items():
                mine = kernels(f"{name}_bf16_added", inputs, (rows, columns), holding=before)
                assert (np.abs(mine - wide) <= bound).all(), (name, rows, columns, depth)
    # so many that each of four threads multiplies rows of its own, where the weight is in bfloat16
    a, (stored, wide) = numbers(2085, 40), narrow(numbers(600, 40, seed=1), "bfloat16")
    for name, weights in (("product_of_rows", (stored, wide)), ("plain_product", (stored.T, wide.T))):
        found = [kernels(f"{name}_bf16", (a, np.ascontiguousarray(one)), (2085, 600)) for one in weights]
        assert np.array_equal(*found), name


def within(mine, expected, tolerance, more):
    """`close`, or as far away as ``more`` says of each number."""
    bound = tolerance * max(1.0, float(np.abs(expected).max(initial=0))) + 2e-6 * np.abs(expected) + more
    assert (np.abs(mine - expected) <= bound).all(), float((np.abs(mine - expected) - bound).max())


class Matrix(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("columns", ctypes.c_int64),
        ("storage", ctypes.c_int),
        ("shift", ctypes.c_int),
        ("block", ctypes.c_int64),
        ("count", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("factors", "map", "nested", "nested_map", "offset", "small", "zeros")),
    )


class Numbers(ctypes.Structure):
    _fields_ = (("at", ctypes.c_void_p), ("low", ctypes.c_int))


class Term(ctypes.Structure):
    _fields_ = (
        ("a", Numbers),
        ("b", Matrix),
        ("depth", ctypes.c_int64),
        ("turned", ctypes.c_int),
        ("a_row", ctypes.c_int64),
    )


class Product(ctypes.Structure):
    _fields_ = (
        ("c", Numbers),
        ("columns", ctypes.c_int64),
        ("add", ctypes.c_int),
        ("bf16", ctypes.c_int),
        ("count", ctypes.c_int),
        ("terms", Term * 8),
    )


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


def storage(kernels):
    """Weights in 16 bits: the bits of the same numbers in float32, in every product."""
    products = ("", "_added", "_bf16", "_bf16_added") if kernels.library.pet_bf16() else ("", "_added")
    for kind in ("bfloat16", "float16"):
        for rows, columns, depth in PRODUCTS:
            a, before = numbers(rows, depth), numbers(rows, columns, seed=2)
            stored, wide = narrow(0.01 * numbers(columns, depth, seed=1), kind)
            for name, weights in (("product_of_rows", (stored, wide)), ("plain_product", (stored.T, wide.T))):
                for suffix in products:
                    holding = before if suffix.endswith("_added") else None
                    given = [
                        kernels(name + suffix, (a, np.ascontiguousarray(weight)), (rows, columns), holding=holding)
                        for weight in weights
                    ]
                    assert np.array_equal(*given), (kind, name, rows, columns, depth)
            onto = [kernels("product_of_rows_onto", (a, weight, before), before.shape) for weight in (stored, wide)]
            assert np.array_equal(*onto), (kind, rows, columns, depth)
        hidden, targets, none = numbers(9, 40), np.arange(9, dtype=np.int32) - 2, np.zeros(3, np.float32)
        both, room = narrow(numbers(70, 40, seed=1), kind), (4, 70 + 2 * 40 + 2)
        for name, second in (("linear_cross_entropy", hidden.shape), ("ranked_cross_entropy", (9,))):
            found = [kernels(name, (hidden, weight, targets, none), (9,), second, room)[:2] for weight in both]
            assert all(np.array_equal(*pair) for pair in zip(*found, strict=True)), (kind, name)
        y, a, b, norm = numbers(50, 70), numbers(8, 40, seed=3), numbers(70, 8, seed=4), np.ones(70, np.float32)
        rest = (a, b, norm, norm, np.array([0.3], np.float32), *np.zeros((2, 1), np.int32))
        assert np.array_equal(*[kernels("dora", (y, weight, *rest), y.shape) for weight in both]), kind
        for vocabulary, width, ids in ((1, 1, [[0]]), (9, 7, [8, 0, 8]), (40, 130, [[3, 39], [0, 3]])):
            stored, wide = narrow(numbers(vocabulary, width), kind)
            ids, shape = np.array(ids, np.int32), (np.shape(ids) + (width,))
            for padding in (-1, vocabulary - 1):
                given = ids, np.array([padding], np.int32)
                for table in (stored, wide):
                    assert np.array_equal(kernels("rows_of", (table, *given), shape), wide[ids]), (kind, width)
                more, gradient = numbers(*shape, seed=2), np.zeros_like(wide)
                np.add.at(gradient, ids[ids != padding], more[ids != padding])
                assert np.array_equal(kernels("rows_of_gradient", (wide, *given, more), wide.shape), gradient), width
    for width in (1, 16, EDGES.size):  # one by one, a vector, and with some behind it
        table = EDGES[: EDGES.size // width * width].reshape(-1, width)
        given = np.arange(len(table), dtype=np.int32), np.array([-1], np.int32)
        found = kernels("rows_of", (table, *given), table.shape)
        assert np.array_equal(found, table.astype(np.float32), equal_nan=True)


def matrix_of(arrays, form, shape):
    """A packed matrix as kernels get it from a program."""
    of = Matrix(
        arrays["weight"].ctypes.data, shape[1], 3 if form.kind == "int8" else 4, -1, form.block, shape[0] * shape[1]
    )
    if form.block & (form.block - 1) == 0:
        of.shift = form.block.bit_length() - 1
    names = {"quant_map": "map", "nested_absmax": "nested", "nested_quant_map": "nested_map", "nested_offset": "offset"}
    names |= {"SCB": "factors", "absmax": "small" if form.double else "factors", "zeros": "zeros"}
    for part, name in names.items():
        if part in arrays:
            setattr(of, name, arrays[part].ctypes.data)
    return of


def packed_weights(kernels):
    """Weights in 8 and 4 bits: the bits of the dequantised weight, forward and backward, in float32 and bfloat16; for
    few rows to rounding."""
    kinds = (0, 1) if kernels.library.pet_bf16() else (0,)
    forms = [
        Storage("int8"),
        Storage("nf4"),
        Storage("fp4", 32, double=True),
        Storage("nf4", 6),
        Storage("nf4", 8, True),
    ]
    for form in [*forms, Storage("int4", 32), Storage("int4", 32, zeros=True)]:
        for out, into in ((1, 2), (3, 7), (70, 96), (5, 130), (33, 1600), (600, 64)):
            if form.kind == "int4":
                into = -(-into // 32) * 32
            shape, weight = (out, into), 0.05 * numbers(out, into)
            arrays = codec.quantize(Storage(form.kind, form.block, form.double), shape, lambda rows, w=weight: w[rows])
            if form.zeros:
                arrays["zeros"] = (np.arange(-(-out * into // form.block)) % 16).astype(np.uint8)
            wide = np.ascontiguousarray(codec.dequantize(form, arrays, shape))
            for rows, turned, low in itertools.product((0, 1, 3, 14, 30, 100), (1, 0), kinds):
                if low and rows <= FEW_PACKED_ROWS:
                    continue
                depth, columns = (into, out) if turned else (out, into)
                a, found = numbers(rows, depth, seed=1), []
                for right in (matrix_of(arrays, form, shape), Matrix(wide.ctypes.data, into)):
                    c, whole = kernels.room((rows, columns), UNTOUCHED)
                    term = Term(Numbers(a.ctypes.data), right, depth, turned)
                    product = Product(Numbers(c.ctypes.data), columns, 0, low, 1)
                    product.terms[0] = term
                    assert kernels.library.products(ctypes.byref(product), 1, ctypes.c_int64(rows)) == 0
                    edges = np.concatenate([whole[: AROUND + 1], whole[AROUND + 1 + c.size :]])
                    assert not kernels.guarded or (edges == UNTOUCHED).all()
                    found.append(c)
                if turned and rows <= FEW_PACKED_ROWS:  # codes of even and of odd places are summed apart
                    bound = 1e-6 * (np.abs(a).astype(np.float64) @ np.abs(wide.T)) + 1e-7
                    assert (np.abs(found[0] - a.astype(np.float64) @ wide.T) <= bound).all(), (form, shape, rows)
                else:
                    assert np.array_equal(*found), (form, shape, rows, turned, low)
                kernels.digest.update(found[0].tobytes())


def together(kernels):
    """Products of few rows at once: each is what it is alone."""
    nf4, int8 = Storage("nf4"), Storage("int8")
    for rows in (1, 3, 12):
        a, other = numbers(rows, 128), numbers(rows, 70, seed=1)
        packed = [
            codec.quantize(form, (out, 128), lambda _, out=out: numbers(out, 128, seed=2))
            for form, out in ((nf4, 260), (int8, 33), (nf4, 5))
        ]
        plain = numbers(70, 90, seed=3)
        rights = [matrix_of(packed[0], nf4, (260, 128)), matrix_of(packed[1], int8, (33, 128))]
        rights += [Matrix(plain.ctypes.data, 90), matrix_of(packed[2], nf4, (5, 128))]
        sizes, lefts = ((260, 128, 1), (33, 128, 1), (90, 70, 0), (5, 128, 1)), (a, a, other, a)
        alone, all_of = [], (Product * len(sizes))()
        for place, ((columns, depth, turned), left, right) in enumerate(zip(sizes, lefts, rights, strict=True)):
            found, at_once = np.empty((rows, columns), np.float32), kernels.room((rows, columns), UNTOUCHED)
            for product, c in ((Product(), found), (all_of[place], at_once[0])):
                product.c, product.columns, product.count = Numbers(c.ctypes.data), columns, 1
                product.terms[0] = Term(Numbers(left.ctypes.data), right, depth, turned)
                if c is found:
                    assert kernels.library.products(ctypes.byref(product), 1, ctypes.c_int64(rows)) == 0
            alone.append((found, *at_once))
        assert kernels.library.products(all_of, len(sizes), ctypes.c_int64(rows)) == 0
        for found, c, whole in alone:
            edges = np.concatenate([whole[: AROUND + 1], whole[AROUND + 1 + c.size :]])
            assert np.array_equal(found, c) and (not kernels.guarded or (edges == UNTOUCHED).all())
            kernels.digest.update(c.tobytes())


def sums(kernels):
    """Products that run at once, each a sum of some, as `gemm.h` has them: in float32, and in bfloat16."""
    kinds = (0, 1) if kernels.library.pet_bf16() else (0,)
    for rows, low in itertools.product((1, 5, 130), kinds):
        held, expected, every = [], [], (Product * 4)()
        cases = [(70, 0, [40, 8]), (33, 1, [2000, 0, 700, 5]), (200, 0, [3]), (9, 0, [0, 0])]
        for number, (columns, add, depths) in enumerate(cases):
            c, whole = kernels.room((rows, columns), UNTOUCHED)
            c[...] = numbers(rows, columns, seed=number)
            expected.append(c.astype(np.float64) * add)
            every[number] = Product(Numbers(c.ctypes.data), columns, add, low, len(depths))
            held.append((c, whole))
            for index, depth in enumerate(depths):
                a, b = numbers(rows, depth, seed=index), numbers(columns, depth, seed=9 + index)
                low_factors = low and (rows > FEW_ROWS or add or len(depths) != 1)
                wide = [(bf16(array) if low_factors else array).astype(np.float64) for array in (a, b)]
                expected[-1] += wide[0] @ wide[1].T
                given = [np.ascontiguousarray(array) for array in (a, b if index % 2 else b.T)]
                held.append(given)
                left, right = (array.ctypes.data for array in given)
                every[number].terms[index] = Term(
                    Numbers(left), Matrix(right, depth if index % 2 else columns), depth, index % 2
                )
        assert kernels.library.products(every, len(cases), ctypes.c_int64(rows)) == 0
        for (c, whole), right in zip([pair for pair in held if isinstance(pair, tuple)], expected, strict=True):
            close(c, right, 1e-5)
            edges = np.concatenate([whole[: AROUND + 1], whole[AROUND + 1 + c.size :]])
            assert not kernels.guarded or (edges == UNTOUCHED).all()
            kernels.digest.update(c.tobytes())


def low_rank(kernels):
    for rows, into, out, rank in [
        (1, 1, 1, 1),
        (47, 33, 70, 8),
        (200, 5, 17, 3),
        (1700, 40, 24, 20),
        (3, 100, 8, 70),
        (0, 4, 4, 2),
        (70, 40, 24, 65),
        (200, 33, 70, 130),  # by products with any width of vectors
        (1, 20, 5, 128),
        (0, 4, 4, 130),
    ]:
        y, x, dout = numbers(rows, out), numbers(rows, into, seed=1), numbers(rows, out, seed=2)
        a, b, scale = numbers(rank, into, seed=3), numbers(out, rank, seed=4), np.array([0.7], np.float32)
        wide_x, wide_a, wide_b, g = (array.astype(np.float64) for array in (x, a, b, dout))
        s = float(scale[0])
        mine, inner = kernels("low_rank", (y, x, a, b, scale), y.shape, (rows, rank))
        close(inner, s * wide_x @ wide_a.T, 1e-5)
        close(mine, y + s * wide_x @ wide_a.T @ wide_b.T, 1e-5)
        t = s * g @ wide_b
        assert np.array_equal(kernels("low_rank_inner", (x, a, scale), inner.shape), inner)
        factors = kernels("low_rank_factors", (b, scale, x, inner, dout), inner.shape, a.shape, b.shape)
        for found, right in zip(factors, (t, t.T @ wide_x, g.T @ (s * wide_x @ wide_a.T)), strict=True):
            close(found, right, 1e-5)


def dora(kernels):
    """Its factor against the norm of the built matrix, begun at zero, from first factors, and over a matrix that these
    were taken off; a fresh one changes no bit."""
    for (rows, into, out, rank), started, taken in itertools.product(
        [(1, 1, 1, 1), (50, 33, 70, 8), (9, 130, 64, 20)], (0, 1), (0, 1)
    ):
        if taken and not started:
            continue
        y, dout, weight = numbers(rows, out), numbers(rows, out, seed=1), numbers(out, into, seed=2)
        a, b, bias = numbers(rank, into, seed=3), numbers(out, rank, seed=4), numbers(out, seed=5)
        firsts = (numbers(rank, into, seed=7), numbers(out, rank, seed=8)) if started else ()
        first = (firsts[1].astype(np.float64) @ firsts[0]) * 0.3 if started else 0.0
        whole = weight + first if taken else weight.astype(np.float64)
        norm, scale = np.linalg.norm(whole, axis=1), np.array([0.3], np.float32)
        magnitude = (norm * (1.5 + 0.2 * numbers(out, seed=6))).astype(np.float32)
        current = np.linalg.norm(whole + 0.3 * (b.astype(np.float64) @ a) - first, axis=1)
        for turned in (0, 1):
            flags = [np.array([flag], np.int32) for flag in (turned, taken)]
            laid = np.ascontiguousarray(weight.T if turned else weight)
            given = (laid, a, b, norm.astype(np.float32), magnitude, scale, *flags, *firsts)
            factor = magnitude / current
            close(kernels("dora_factor", given, (out,)), factor, 1e-5)
            for biases in ((), (bias,)):
                bare = y.astype(np.float64) - (bias if biases else 0)
                found = kernels("dora", (y, *given, *biases), y.shape)
                close(found, y + (factor - 1) * bare, 1e-5)
                held = kernels("dora_factor", given, (out,))
                assert np.array_equal(kernels("dora_rescaled", (y, held, *biases), y.shape), found)
                dy, d_magnitude = kernels("dora_gradient", (y, *given, *biases, dout), y.shape, (out,))
                close(dy, dout * factor, 1e-5)
                close(d_magnitude, (dout * bare).sum(0) / current, 1e-5)
                start = firsts or (a, np.zeros_like(b))
                fresh = (y, laid, *start, magnitude, magnitude, scale, *flags, *firsts, *biases)
                assert np.array_equal(kernels("dora", fresh, y.shape), y)
                broken = b.copy()
                broken[0] = np.nan  # shows, whatever y holds
                shown = kernels("dora", (y, laid, a, broken, *given[3:], *biases), y.shape)
                assert np.isnan(shown[:, 0]).all() and not np.isnan(shown[:, 1:]).any()


def updates(kernels):
    pointers = ctypes.POINTER(ctypes.c_float)
    for sizes in ([1], [15, 2, 33], [16385, 3], [70001]):
        size = sum(sizes)
        gradient = numbers(size, seed=1)
        # one array after the other with nothing to be touched between them
        rooms = [kernels.room((n,), UNTOUCHED) for n in sizes]
        vectors = [kernels.room((size,), UNTOUCHED) for _ in range(2)]
        for number, (array, _) in enumerate((*rooms, *vectors)):
            array[...] = numbers(array.size, seed=number)
        vectors[1][0][...] **= 2
        w, m, v = (
            array.astype(np.float64) for array in (np.concatenate([a for a, _ in rooms]), *(a for a, _ in vectors))
        )
        factor, step, root, keep, *betas = np.array([0.25, 0.01, 0.5, 0.999, 0.1, 0.999, 0.001, 1e-8], np.float32)
        kernels.library.adamw_in_place(
            ctypes.c_int64(len(sizes)),
            (pointers * len(sizes))(*[array.ctypes.data_as(pointers) for array, _ in rooms]),
            (ctypes.c_int64 * len(sizes))(*sizes),
            *[array.ctypes.data_as(pointers) for array in (gradient, *(array for array, _ in vectors))],
            (ctypes.c_float * 8)(factor, step, root, keep, *betas),
        )
        g = gradient.astype(np.float64) * factor
        m = m + (g - m) * betas[0]
        v = v * betas[1] + g * g * betas[2]
        w = w * keep - step * (m / (np.sqrt(v) / root + betas[3]))
        mine = [np.concatenate([array for array, _ in rooms]), *(array for array, _ in vectors)]
        for one, right in zip(mine, (w, m, v), strict=True):
            close(one, right)
            kernels.digest.update(one.tobytes())
        for array, whole in (*rooms, *vectors):
            assert not kernels.guarded or (whole == UNTOUCHED).sum() == whole.size - array.size
        several = (gradient, *(array.reshape(1, -1, 1) for array, _ in vectors))
        squared = [(array.astype(np.float64) ** 2).sum() for array in several]
        np.testing.assert_allclose(kernels("sums_of_squares", several, (3,)), squared, rtol=1e-6)
        end_to_end = np.concatenate([array.reshape(-1) for array in several])
        assert np.array_equal(kernels("joined", several, end_to_end.shape), end_to_end)


def norms(kernels):
    for rows, width in [(1, 1), (1, 5), (7, 33), (300, 16), (2, 8193), (513, 100)]:
        x, weight, bias = numbers(rows, width) * 2 + 0.5, numbers(width, seed=1), numbers(width, seed=2)
        dout, eps = numbers(rows, width, seed=3), np.array([1e-5], np.float32)
        for kind, offset in (("rms", 0.0), ("rms", 1.0), ("layer", 0.0)):
            wide, g = x.astype(np.float64), dout.astype(np.float64)
            mean = wide.mean(1, keepdims=True) if kind == "layer" else np.zeros((rows, 1))
            centred = wide - mean
            scale = 1 / np.sqrt((centred**2).mean(1, keepdims=True) + eps.astype(np.float64))
            moved, given = weight.astype(np.float64) + offset, np.array([offset], np.float32)
            q = g * moved * scale
            expected = q - centred * scale**2 * (q * centred).mean(1, keepdims=True)
            column = (rows, 1)
            if kind == "layer":
                out, m, s = kernels("layer_norm", (x, weight, bias, eps), x.shape, column, column)
                close(m, mean)
                expected -= q.mean(1, keepdims=True)
                between = (m, s)
                close(out, centred * scale * weight + bias, 1e-5)
            else:
                out, s = kernels("rms_norm", (x, weight, eps, given), x.shape, column)
                between = (s,)
                close(out, centred * scale * moved, 1e-5)
            np.testing.assert_allclose(s, scale, rtol=1e-5)
            first = (given,) if kind == "rms" else ()
            close(kernels(f"{kind}_norm_gradient", (x, weight, *first, *between, dout), x.shape), expected, 1e-5)
            close(
                kernels(f"{kind}_norm_weight_gradient", (x, *between, dout), (width,)),
                (g * centred * scale).sum(0),
                1e-5,
            )


def activations(kernels):
    for shape in [(1, 1), (3, 11), (1, 16), (131, 127)]:
        gate, up, dout = numbers(*shape) * 4, numbers(*shape, seed=1), numbers(*shape, seed=2)
        g, u, d = (array.astype(np.float64) for array in (gate, up, dout))
        s = 1 / (1 + np.exp(-g))
        close(kernels("swiglu", (gate, up), shape), g * s * u)
        d_gate, d_up = kernels("swiglu_gradient", (gate, up, dout), shape, shape)
        close(d_gate, d * u * (s + g * s * (1 - s)))
        close(d_up, d * g * s)
        root = np.sqrt(2 / np.pi)
        inner = root * (g + 0.044715 * g**3)
        close(kernels("gelu_tanh", (gate,), shape), 0.5 * g * (1 + np.tanh(inner)))
        slope = 0.5 * (1 + np.tanh(inner)) + 0.5 * g * (1 - np.tanh(inner) ** 2) * root * (1 + 3 * 0.044715 * g**2)
        close(kernels("gelu_tanh_gradient", (gate, dout), shape), d * slope)
        bent = 0.5 * g * (1 + np.tanh(inner))
        close(kernels("geglu", (gate, up), shape), bent * u)
        d_gate, d_up = kernels("geglu_gradient", (gate, up, dout), shape, shape)
        close(d_gate, d * u * slope)
        close(d_up, d * bent)
        share = np.vectorize(lambda value: 0.5 * math.erfc(-value / math.sqrt(2)))(g)
        close(kernels("gelu", (gate,), shape), g * share)
        bell = np.exp(-(g**2) / 2) / np.sqrt(2 * np.pi)
        close(kernels("gelu_gradient", (gate, dout), shape), d * (share + g * bell))
        assert np.array_equal(kernels("relu", (gate,), shape), np.maximum(gate, 0))
        assert np.array_equal(kernels("relu_gradient", (gate, dout), shape), np.where(gate > 0, dout, 0))
        close(kernels("silu", (gate,), shape), g * s)
        close(kernels("silu_gradient", (gate, dout), shape), d * (s + g * s * (1 - s)))
        close(kernels("hyperbolic_tangent", (gate,), shape), np.tanh(g))
        close(kernels("hyperbolic_tangent_gradient", (gate, dout), shape), d * (1 - np.tanh(g) ** 2))
    far = np.array([[-1e30, -1000, -100, -88, 0, 88, 100, 1000]], np.float32)
    close(kernels("swiglu", (far, np.ones_like(far)), far.shape), np.maximum(far, 0))
    for name in ("gelu_tanh", "gelu"):
        close(kernels(name, (far,), far.shape), np.maximum(far, 0))


def heads(kernels):
    for batch, length, count, width in [(1, 1, 1, 2), (2, 5, 3, 6), (3, 70, 2, 64), (1, 130, 5, 10)]:
        x, start = numbers(batch * length, count * width), np.zeros((batch, length), np.int32)
        parted = x.reshape(batch, length, count, width).transpose(0, 2, 1, 3)
        split = kernels("split_heads", (x, start), parted.shape)
        np.testing.assert_array_equal(split, parted)
        np.testing.assert_array_equal(kernels("join_heads", (split, start), x.shape), x)
        for rotated in {width, max(2, width // 4 * 2)}:
            for tables in {1, batch}:
                for form in ("half", "interleaved"):
                    rotary(kernels, parted, rotated, tables, form)


def rotary(kernels, x, rotated, tables, form):
    angles = numbers(tables, 1, x.shape[2], rotated // 2).astype(np.float64)
    lanes = np.concatenate([angles, angles], -1) if form == "half" else np.repeat(angles, 2, -1)
    pairs = x[..., :rotated].astype(np.float64)
    if form == "half":
        a, b = pairs[..., : rotated // 2], pairs[..., rotated // 2 :]
    else:
        a, b = pairs[..., 0::2], pairs[..., 1::2]
    for name, sign in ((f"rotary_{form}", 1), (f"rotary_{form}_back", -1)):
        first = a * np.cos(angles) - sign * b * np.sin(angles)
        second = b * np.cos(angles) + sign * a * np.sin(angles)
        if form == "half":
            turned = np.concatenate([first, second], -1)
        else:
            turned = np.stack([first, second], -1).reshape(pairs.shape)
        table = np.cos(lanes).astype(np.float32), np.sin(lanes).astype(np.float32)
        expected = np.concatenate([turned, x[..., rotated:]], -1)
        close(kernels(name, (x, *table), x.shape), expected)
        # the same in one with splitting the heads
        joined = x.transpose(0, 2, 1, 3).reshape(x.shape[0] * x.shape[2], -1)
        start = np.zeros((x.shape[0], x.shape[2]), np.int32)
        if sign == 1:
            close(kernels(f"split_{name}", (joined, *table, start), x.shape), expected)
        else:
            back = expected.transpose(0, 2, 1, 3).reshape(joined.shape)
            close(kernels(f"split_{name}", (x, *table, start), joined.shape), back)


def rotary_tables(kernels):
    positions = np.array([[0, 1, 511], [70000, 3, 2]], np.int32)
    for width in (1, 2, 9, 64):
        lanes, scale = np.abs(numbers(width)), np.array([1.5], np.float32)
        angles = positions.astype(np.float32)[:, None, :, None] * lanes
        found = kernels("rotary_table", (positions, lanes, scale), angles.shape, angles.shape)
        for mine, function in zip(found, (np.cos, np.sin), strict=True):
            assert np.array_equal(mine, function(angles.astype(np.float64)).astype(np.float32) * scale), width


def loss(kernels):
    for rows, width, vocabulary, together in [
        (1, 1, 1, 1), (5, 3, 3, 2), (9, 16, 16, 9), (33, 40, 1000, 10), (70, 24, 37, 30), (4, 6, 9, 1), (4, 6, 1, 2),
        (3, 20, 8195, 3)
    ]:  # fmt: skip
        hidden, weight = numbers(rows, width), numbers(vocabulary, width, seed=1)
        targets = np.random.default_rng(0).integers(0, vocabulary, rows).astype(np.int32)
        targets[1::3] = -100
        nothing = np.full_like(targets, -100)
        for counted, cap, smoothing in itertools.product((targets, nothing), (0.0, 1.5), (0.0, 0.3)):
            room = (together, vocabulary + 2 * width + 2)
            wide = hidden.astype(np.float64) @ weight.astype(np.float64).T
            bent = np.tanh(wide / cap) if cap else np.zeros_like(wide)
            wide = cap * bent if cap else wide
            p = np.exp(wide - wide.max(1, keepdims=True))
            total = p.sum(1, keepdims=True)
            p /= total
            index, learnt = np.maximum(counted, 0), counted >= 0
            wanted = (1 - smoothing) * np.eye(vocabulary)[index] + smoothing / vocabulary
            expected = np.log(total[:, 0]) + wide.max(1) - (wanted * wide).sum(1)
            first = (wide.argmax(1) == counted).astype(np.float64)
            p -= wanted
            p *= learnt[:, None] * (1 - bent**2)
            inputs = (hidden, weight, counted, np.array([cap, smoothing, 0], np.float32))
            losses, gradient, _ = kernels("linear_cross_entropy", inputs, (rows,), hidden.shape, room)
            close(losses, expected * learnt)
            close(gradient, p @ weight)
            found = kernels("linear_cross_entropy_trained", inputs, (rows,), hidden.shape, weight.shape, room)
            assert np.array_equal(found[0], losses) and np.array_equal(found[1], gradient)
            close(found[2], p.T @ hidden)
            measured, ranked, _ = kernels("ranked_cross_entropy", inputs, (rows,), (rows,), room)
            assert np.array_equal(measured, losses) and np.array_equal(ranked, first)
            if rows % 2 or together % 2:
                continue
            counted, apart = counted.repeat(2)[:rows], 0.7  # a target for both rows of a pair
            index, learnt = np.maximum(counted, 0), counted >= 0
            p = np.exp(log_p := wide - np.log(total) - wide.max(1, keepdims=True))
            other, log_other = (of.reshape(-1, 2, vocabulary)[:, ::-1].reshape(rows, vocabulary) for of in (p, log_p))
            divergence = (p * (log_p - log_other)).sum(1, keepdims=True)
            both = divergence.reshape(-1, 2).sum(1).repeat(2)
            wanted = (1 - smoothing) * np.eye(vocabulary)[index] + smoothing / vocabulary
            slopes = p + apart * (p * (log_p - log_other - divergence) + p - other) - wanted
            slopes *= learnt[:, None] * (1 - bent**2)
            inputs = (hidden, weight, counted, np.array([cap, smoothing, apart], np.float32))
            found = kernels("linear_cross_entropy_trained", inputs, (rows,), hidden.shape, weight.shape, room)
            close(found[0], (apart / 2 * both - (wanted * log_p).sum(1)) * learnt)
            close(found[1], slopes @ weight)
            close(found[2], slopes.T @ hidden)
    # of equal logits the first is ranked first
    same, targets, none = np.ones((4, 2), np.float32), np.array([0, 1, 2, -1], np.int32), np.zeros(3, np.float32)
    _, ranked, _ = kernels("ranked_cross_entropy", (same, same[:3], targets, none), (4,), (4,), (4, 9))
    assert ranked.tolist() == [1, 0, 0, 0]
    # a target that there is not shows
    losses, ranked, _ = kernels("ranked_cross_entropy", (same, same[:3], targets + 1, none), (4,), (4,), (4, 9))
    assert np.isnan(losses).tolist() == [False, False, True, False] and ranked.tolist() == [0, 0, 0, 1]
    losses, _, _ = kernels("linear_cross_entropy", (same, same[:3], targets + 1, none), (4,), (4, 2), (4, 9))
    assert np.isnan(losses).tolist() == [False, False, True, False]


def causal(batch, length, generator):
    rows = np.arange(length, dtype=np.int32)[None].repeat(batch, 0)
    return np.zeros_like(rows), rows + 1


def packed(batch, length, generator):
    _, end = causal(batch, length, generator)
    return (end - 1) // 29 * 29, end


def anything(batch, length, generator):
    """Intervals of all kinds, also empty and beyond the ends."""
    return tuple(generator.integers(-5, length + 6, (2, batch, length)).astype(np.int32))


ATTENTION = [  # batch, heads, key heads, length, extra columns, head_dim, layout, columns' values
    (1, 1, 1, 1, 0, 4, causal, (1,)),
    (2, 4, 2, 7, 0, 5, causal, (1,)),
    (1, 3, 3, 49, 0, 64, causal, (1,)),
    (2, 4, 1, 100, 0, 16, packed, (1,)),
    (1, 2, 1, 97, 3, 80, packed, (0, 1, 1, 1)),
    (1, 2, 2, 130, 0, 128, causal, (1,)),
    (2, 6, 2, 60, 5, 8, causal, (0, 1, 1, -1)),
    (3, 2, 2, 51, 0, 20, anything, (1,)),
    (2, 4, 2, 75, 9, 33, anything, (-1, 0, 0, 1)),
    (1, 2, 1, 20, 2, 8, causal, (0,)),
]


def scores(width, window=0, cap=0.0):
    """The constants of attention: scale, window and cap."""
    return np.array([width**-0.5], np.float32), np.array([window], np.int32), np.array([cap], np.float32)


def attention_cases():
    """Inputs of the kernel, and which key ``(B, 1, S, K)`` each row sees."""
    for case, (window, cap) in itertools.product(ATTENTION, ((0, 0.0), (11, 1.5))):
        batch, count, key_heads, length, extra, width, layout, values = case
        generator = np.random.default_rng(3)
        total = length + extra
        start, end = layout(batch, length, generator)
        columns = generator.choice(values, (batch, total)).astype(np.int32)
        query = numbers(batch, count, length, width) * 2
        keys, vals = (numbers(batch, key_heads, total, width, seed=seed) for seed in (1, 2))
        index, value = np.arange(total) - extra, columns[:, None, :]
        begun = np.maximum(start, end - window) if window else start
        allowed = (index < end[..., None]) & ((index >= begun[..., None]) | (value < 0))
        inputs = (query, keys, vals, start, end, columns, *scores(width, window, cap))
        yield inputs, ((value != 0) & (allowed | (index < 0)))[:, None]


def joined(x):
    """Heads side by side."""
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0] * x.shape[2], -1)


def attention(kernels, low=False):
    """In float64; the kernel that rounds factors to bfloat16 against the same of rounded factors, to what rounding the
    scores, which it computes itself, may change."""
    name, rounded = ("attention_bf16", bf16) if low else ("attention", lambda x: x)
    unit = 2.0**-8 if low else 0.0  # half of a bfloat16's last place
    for inputs, allowed in attention_cases():
        (query, keys, vals), cap = inputs[:3], inputs[-1][0]
        batch, count, length, width = query.shape
        groups = count // keys.shape[1]
        out, stats = kernels(name, inputs, (batch * length, count * width), (batch, count, length, 2))
        q, k, v = (rounded(x).astype(np.float64) for x in (query, keys.repeat(groups, 1), vals.repeat(groups, 1)))
        raw = q @ k.swapaxes(2, 3) * width**-0.5
        bent = np.tanh(raw / cap) if cap else 0.0
        seen = np.where(allowed, cap * bent if cap else raw, -1e30)
        p = np.exp(seen - seen.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        within(out, joined(p @ v), 5e-6, unit * joined(p @ np.abs(v)))
        dout = numbers(*out.shape, seed=5)
        wide = dout.reshape(batch, length, count, width).transpose(0, 2, 1, 3).astype(np.float64)
        d = rounded(dout).reshape(batch, length, count, width).transpose(0, 2, 1, 3).astype(np.float64)
        own = out.reshape(batch, length, count, width).transpose(0, 2, 1, 3)
        d_p = d @ v.swapaxes(2, 3)
        d_scores = p * (d_p - (own * wide if low else p * d_p).sum(-1, keepdims=True))
        d_scores = np.where(allowed, d_scores, 0.0) * (1.0 - np.square(bent)) * width**-0.5
        grouped = (*keys.shape[:2], groups, *keys.shape[2:])

        def summed(x, grouped=grouped):
            return x.reshape(grouped).sum(2)

        mine = kernels(f"{name}_gradient", (*inputs, out, stats, dout), query.shape, keys.shape, vals.shape)
        for left, right, gradient, over in (
            (d_scores, k, mine[0], lambda x: x),
            (d_scores.swapaxes(2, 3), q, mine[1], summed),
            (p.swapaxes(2, 3), d, mine[2], summed),
        ):
            within(gradient, over(left @ right), 1e-5, unit * over(np.abs(left) @ np.abs(right)))


def attention_bf16(kernels):
    if kernels.library.pet_bf16():
        attention(kernels, True)


def prefixed(kernels):
    """What `attention` gives where the trained keys and values stand in front of every row's own."""
    for batch, count, key_heads, length, front, width in [
        (1, 1, 1, 1, 1, 3),
        (3, 4, 2, 50, 7, 16),
        (2, 2, 2, 130, 20, 64),
    ]:
        start, end = np.zeros((batch, length), np.int32), np.tile(np.arange(1, length + 1, dtype=np.int32), (batch, 1))
        columns = np.random.default_rng(0).choice([0, 1, 1], (batch, length)).astype(np.int32)
        prefix = numbers(front, 2, key_heads, width, seed=4)
        query = numbers(batch, count, length, width) * 2
        own = [numbers(batch, key_heads, length, width, seed=seed) for seed in (1, 2)]
        wide = [
            np.concatenate([np.tile(prefix[:, which].swapaxes(0, 1), (batch, 1, 1, 1)), own[which]], 2)
            for which in (0, 1)
        ]
        joined, dout = (batch * length, count * width), numbers(batch * length, count * width, seed=5)
        seen = np.concatenate([np.ones((batch, front), np.int32), columns], 1)
        inputs = (query, *wide, start, end, seen, *scores(width, 20, 1.5))
        out, stats = kernels("attention", inputs, joined, (batch, count, length, 2))
        dq, dk, dv = kernels(
            "attention_gradient", (*inputs, out, stats, dout), query.shape, wide[0].shape, wide[1].shape
        )
        given = (query, *own, start, end, columns, *inputs[-3:], prefix.reshape(front, -1))
        mine = kernels("attention_prefixed", given, joined, (batch, count, length, 2))
        assert all(np.array_equal(one, other) for one, other in zip(mine, (out, stats), strict=True))
        shapes = (query.shape, own[0].shape, own[1].shape, (front, 2 * key_heads * width))
        *found, d_prefix = kernels("attention_prefixed_gradient", (*given, out, stats, dout), *shapes)
        right = (dq, dk[:, :, front:], dv[:, :, front:])
        assert all(np.array_equal(one, other) for one, other in zip(found, right, strict=True))
        of_prefix = np.stack(
            [dk[:, :, :front].sum(0, np.float64), dv[:, :, :front].sum(0, np.float64)]
        )  # (2, heads, T, d)
        close(d_prefix, of_prefix.transpose(2, 0, 1, 3).reshape(front, -1))


def one_token(kernels):
    """Attention of one token over kept keys and values, into which it puts its own: those of all columns, or of some in
    front and as many as the window is wide."""
    for batch, count, key_heads, width, front, room, window, cap, pinned, held in [
        (1, 1, 1, 5, 0, 1, 0, 0.0, 0, 1),
        (2, 4, 2, 64, 0, 40, 0, 0.0, 0, 40),
        (2, 4, 2, 64, 0, 40, 7, 0.0, 0, 40),
        (2, 4, 2, 64, 0, 40, 7, 0.0, 0, 7),
        (2, 4, 2, 64, 0, 40, 1, 0.0, 3, 4),
        (40, 2, 2, 16, 0, 40, 9, 0.0, 0, 9),
        (3, 6, 1, 80, 7, 33, 0, 1.5, 0, 33),
        (3, 6, 1, 80, 7, 33, 8, 1.5, 2, 33),
        (33, 6, 3, 80, 7, 33, 8, 1.5, 2, 10),
    ]:
        query = numbers(batch, count, 1, width) * 2
        keys, values = (numbers(batch, key_heads, front + 1, width, seed=seed) for seed in (1, 2))
        past = [numbers(batch, key_heads, room, width, seed=seed) for seed in (3, 4)]  # of every column
        end = np.full((batch, 1), room, np.int32) - np.arange(batch, dtype=np.int32)[:, None] % room
        columns = np.random.default_rng(0).integers(0, 2, (batch, front + room)).astype(np.int32)
        columns[np.arange(batch), front + end[:, 0] - 1] = 1
        kept = [np.full((batch, key_heads, held, width), np.nan, np.float32) for _ in past]
        expected = np.zeros((batch, count, width))
        for row in range(batch):
            last = end[row, 0] - 1
            for array, whole, new in zip(kept, past, (keys, values), strict=True):
                whole[row, :, last] = new[row, :, front]
                for column in range(last + 1):  # as the kernel does with the last one: inputs stay what they were
                    turn = column if column < pinned else pinned + (column - pinned) % (held - pinned)
                    array[row, :, turn] = whole[row, :, column]
            seen, index = columns[row, : front + last + 1] != 0, np.arange(front + last + 1) - front
            if window:
                seen &= (index < pinned) | (index > last - window)
            for head in range(count):
                pair = head // (count // key_heads)
                k, v = (
                    np.concatenate([new[row, pair, :front], array[row, pair, : last + 1]])[seen].astype(np.float64)
                    for array, new in zip(past, (keys, values), strict=True)
                )
                own = k @ query[row, head, 0].astype(np.float64) * width**-0.5
                own = cap * np.tanh(own / cap) if cap else own
                p = np.exp(own - own.max())
                expected[row, head] = p @ v / p.sum()
        flat = [array.reshape(-1, width) for array in kept]
        given = (query, keys, values, *flat, end, columns, *scores(width, window, cap), np.array([pinned], np.int32))
        mine = kernels("token_attention", given, (batch, count * width))
        close(mine, expected.reshape(batch, -1), 5e-6)
        if not front:
            continue
        for array in (keys, values):  # in front of all rows the same, and seen by all
            array[:, :, :front] = array[:1, :, :front]
        columns[:, :front] = 1
        joined = np.stack([keys[0, :, :front], values[0, :, :front]]).transpose(2, 0, 1, 3)  # (T, 2, key heads, d)
        prefix, new = joined.reshape(front, -1), [array[:, :, front:].copy() for array in (keys, values)]
        alike = (query, *new, *given[3:6], columns[:, front:].copy(), *given[7:], prefix)
        mine = kernels("token_attention_prefixed", alike, (batch, count * width))
        assert np.array_equal(mine, kernels("token_attention", given, (batch, count * width)))


def added(kernels):
    """What adds to what is there: to its output, or to its last input."""
    for rows, columns, depth in [(1, 1, 1), (5, 37, 64), (70, 130, 300), (13, 64, 2100)]:
        a, b, before = numbers(rows, depth), numbers(columns, depth, seed=1), numbers(rows, columns, seed=2)
        expected = before + a.astype(np.float64) @ b.astype(np.float64).T
        close(kernels("product_of_rows_added", (a, b), (rows, columns), holding=before), expected, 1e-5)
        close(kernels("plain_product_added", (a, b.T.copy()), (rows, columns), holding=before), expected, 1e-5)
        close(kernels("product_of_rows_onto", (a, b, before), (rows, columns)), expected, 1e-5)
    for rows, width in [(1, 1), (3, 7), (50, 64), (9, 131)]:
        x, dy, before = (numbers(rows, width, seed=seed) for seed in range(3))
        weight, scale, mean = numbers(width, seed=3), np.abs(numbers(rows, 1, seed=4)) + 0.5, numbers(rows, 1, seed=5)
        offset = np.array([1.0], np.float32)
        for name, numbers_of in (("rms_norm_gradient", (offset, scale)), ("layer_norm_gradient", (mean, scale))):
            given = (x, weight, *numbers_of, dy)
            alone = kernels(name, given, (rows, width)).astype(np.float64)
            close(kernels(f"{name}_added", (*given, before), (rows, width)), before + alone)


def small(kernels):
    """Sums, and columns apart and together."""
    for shape in [(1, 1), (3, 17), (2, 3, 5, 8), (300, 130)]:
        x, y = numbers(*shape), numbers(*shape, seed=1)
        factor = np.array([1.75], np.float32)
        close(kernels("add", (x, y, factor), shape), x.astype(np.float64) * 1.75 + y)
        close(kernels("scale", (x, factor), shape), x.astype(np.float64) * 1.75)
        both = (*shape[:-1], 2 * shape[-1])
        assert np.array_equal(kernels("join_columns", (x, y), both), np.concatenate([x, y], -1))
        first = np.array([shape[-1] // 2], np.int32)
        taken = x[..., first[0] : first[0] + shape[-1] // 2]
        assert np.array_equal(kernels("take_columns", (x, first), taken.shape), taken)
        expected = np.concatenate([y, x], -1)
        expected[..., first[0] : first[0] + shape[-1]] = x
        before = np.concatenate([y, x], -1)
        assert np.array_equal(kernels("put_columns", (x, first), both, holding=before), expected)
        if len(shape) == 2:
            bias = numbers(shape[1], seed=2)
            close(kernels("add_bias", (x, bias), shape), x + bias)
            close(kernels("column_sum", (x,), (shape[1],)), x.astype(np.float64).sum(0))
            close(kernels("scale_columns", (x, bias), shape), x.astype(np.float64) * bias)
            close(kernels("scale_columns_gradient", (x, y), (shape[1],)), (x.astype(np.float64) * y).sum(0))
        else:
            for held, pinned in ((7, 0), (7, 6), (2, 0), (3, 1), (5, 2), (1, 0)):
                room = np.zeros((shape[0] * shape[1] * held, shape[3]), np.float32)
                expected = room.reshape(*shape[:2], held, shape[3]).copy()
                for column in range(shape[2]):
                    turn = column if column < pinned else pinned + (column - pinned) % (held - pinned)
                    expected[:, :, turn] = x[:, :, column]
                mine = kernels("keep_columns", (x, np.array([pinned], np.int32)), room.shape, holding=room)
                assert np.array_equal(mine.reshape(expected.shape), expected)


def experts(kernels):
    for rows, width, chosen in ((1, 1, 1), (7, 4, 2), (33, 5, 5), (260, 128, 8)):
        logits, dy = (3 * numbers(rows, width, seed=seed) for seed in (1, 2))
        x = logits.astype(np.float64)
        every = np.exp(x - x.max(-1, keepdims=True))
        every /= every.sum(-1, keepdims=True)
        mark = np.zeros_like(every)
        np.put_along_axis(mark, np.argsort(-every, -1)[:, :chosen], 1, -1)
        for normed in (0, 1):
            choice = np.array([chosen], np.int32), np.array([normed], np.int32)
            expected = every * mark
            share = expected / expected.sum(-1, keepdims=True) if normed else expected
            mine, *places = kernels("chosen_shares", (logits, *choice), logits.shape, *[(rows, chosen)] * 3)
            row_of, expert_of, token_of = (place.view(np.int32) for place in places)
            tokens, ones = np.nonzero(mark)
            order = np.argsort(ones, kind="stable")  # by experts, and by tokens of one
            assert np.array_equal(expert_of.reshape(-1), ones[order])
            assert np.array_equal(token_of.reshape(-1), tokens[order])
            assert np.array_equal(row_of.reshape(-1), np.argsort(order))
            close(mine, share)
            assert np.array_equal(mine != 0, mark != 0)
            slope = share * dy - (share if normed else every) * (share * dy).sum(-1, keepdims=True)
            close(kernels("chosen_shares_gradient", (logits, *choice, mine, dy), logits.shape), slope)
        hidden, parts, d_total = numbers(rows, 19), numbers(rows * chosen, 19, seed=4), numbers(rows, 19, seed=5)
        gathered = kernels("rows_to_experts", (hidden, token_of, row_of), parts.shape)
        assert np.array_equal(gathered, hidden[token_of.reshape(-1)])
        close(kernels("rows_from_experts", (parts, row_of), hidden.shape), parts[row_of].astype(np.float64).sum(1))
        meant = (np.arange(width) % 3 == 0).astype(np.int32)
        some = kernels("rows_of_some", (row_of, expert_of, meant), row_of.shape).view(np.int32)
        of_meant = meant[expert_of.reshape(-1)][row_of] != 0
        assert np.array_equal(some, np.where(of_meant, row_of, -1))
        for which, there in ((row_of, np.ones_like(of_meant)), (some, of_meant)):
            by = np.take_along_axis(mine, expert_of.reshape(-1)[row_of], 1).astype(np.float64) * there
            summed = parts, mine, which, expert_of
            close(kernels("sum_by_share", summed, hidden.shape), (parts[row_of] * by[..., None]).sum(1))
            outputs = kernels("sum_by_share_gradient", (*summed, d_total), parts.shape, mine.shape, holding=0.0)
            d_parts, d_shares = np.zeros(parts.shape), np.zeros(mine.shape)
            d_parts[row_of] = by[..., None] * d_total[:, None]
            along = (parts[row_of].astype(np.float64) * d_total[:, None]).sum(-1) * there
            np.put_along_axis(d_shares, expert_of.reshape(-1)[row_of], along, 1)
            close(outputs[0], d_parts)
            close(outputs[1], d_shares)
        factors = numbers(rows, 1, seed=3)
        close(kernels("scale_rows", (dy, factors), dy.shape), dy.astype(np.float64) * factors)
        close(kernels("scale_rows_gradient", (logits, dy), factors.shape), (x * dy).sum(-1, keepdims=True))


def packing(kernels):
    """Codes and factors, and what comes of them, as NumPy has them."""

    def run(name, *given):
        """Arrays as they are; of a shape and type: an output."""
        rooms = [kernels.room(one[0], one[0] and 77, one[1]) for one in given if isinstance(one, tuple)]
        outputs = iter(rooms)
        passed = []
        for one in given:
            value = next(outputs)[0] if isinstance(one, tuple) else one
            if isinstance(value, np.ndarray):
                passed.append(ctypes.c_void_p(value.ctypes.data))
            else:
                passed.append(ctypes.c_float(value) if isinstance(value, float) else ctypes.c_int64(value))
        getattr(kernels.library, name)(*passed)
        for array, whole in rooms:
            kernels.digest.update(array.tobytes())
            if kernels.guarded:  # nothing before and behind was written
                assert (whole[: AROUND + 1] == 77).all() and (whole[AROUND + 1 + array.size :] == 77).all()
        return [array for array, _ in rooms]

    def narrowed(x):
        """In bfloat16's bits and in float16, each with the same numbers in float32."""
        bits = to_bfloat16(x)
        return (bits, from_bfloat16(bits)), (x.astype(np.float16), x.astype(np.float16).astype(np.float32))

    for shape in [(1, 1), (3, 7), (5, 64), (64, 96), (33, 256), (2, 9000)]:
        x = numbers(*shape) * np.float32(0.05)
        x[-1] *= 1e-6
        x[0, : shape[1] // 2] = 0
        for kind, block in (("nf4", 64), ("fp4", 32), ("nf4", 8192), ("int4", 32)):
            storage, size = Storage(kind, block), x.size
            codes, factors = np.empty((size + 1) // 2, np.uint8), np.empty(-(-size // block), np.float32)
            codec.quantize_blocks(x.reshape(-1), storage, None, codes, factors)
            bounds, order = codes_of.boundaries(kind)
            outputs = (codes.shape, np.uint8), (factors.shape, np.float32)
            given = codes_of.LIMITS[kind], int(kind == "int4"), bounds, order
            mine = run("quantize_blocks", x, 0, size, block, *given, *outputs)
            assert np.array_equal(mine[0], codes) and np.array_equal(mine[1], factors)
            for which, (narrow, same) in enumerate(narrowed(x), start=1):
                theirs = run("quantize_blocks", narrow, which, size, block, *given, *outputs)
                mine = run("quantize_blocks", same, 0, size, block, *given, *outputs)
                assert all(map(np.array_equal, theirs, mine))
            table, out = codes_of.MAPS[kind], ((size,), np.float32)
            zeros = (np.arange(factors.size) % 16).astype(np.uint8) if kind == "int4" else None
            values = codec.dequantize_blocks(codes, size, block, table, factors, zeros, None)
            given = codes, size, block, table, factors, zeros if zeros is not None else 0
            assert np.array_equal(run("dequantize_blocks", *given, out)[0], values)
        codes, most = codec.quantize_rows(x, None)
        outputs = (codes.shape, np.int8), (most.shape, np.float32)
        mine = run("quantize_rows", x, 0, *shape, *outputs)
        assert np.array_equal(mine[0], codes) and np.array_equal(mine[1], most)
        for which, (narrow, same) in enumerate(narrowed(x), start=1):
            mine, theirs = run("quantize_rows", narrow, which, *shape, *outputs), codec.quantize_rows(same, None)
            assert all(map(np.array_equal, theirs, mine))
        values = run("dequantize_rows", codes, most, *shape, (codes.shape, np.float32))[0]
        assert np.array_equal(values, codec.dequantize_rows(codes, most, None))


CHECKS = (
    products,
    rounded,
    storage,
    packed_weights,
    together,
    sums,
    low_rank,
    dora,
    updates,
    norms,
    activations,
    heads,
    rotary_tables,
    loss,
    attention,
    attention_bf16,
    prefixed,
    one_token,
    added,
    small,
    experts,
    packing,
)

if __name__ == "__main__":
    under_test = Kernels(sys.argv[1], guarded="--bare" not in sys.argv)
    for check in CHECKS:
        check(under_test)
    print(under_test.digest.hexdigest())
