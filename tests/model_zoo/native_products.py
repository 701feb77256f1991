"""Checks of products, of weights in every kind of storage."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
from native_kernels import AROUND, EDGES, FEW_PACKED_ROWS, FEW_ROWS, UNTOUCHED, bf16, close, narrow, numbers

from model_zoo.quantization import codec
from model_zoo.quantization.storage import Storage

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
