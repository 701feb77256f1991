"""Codes and factors: bitsandbytes' own where it is installed, the recorded ones of tests/fixtures elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from model_zoo.checkpoint.dtypes import from_bfloat16, to_bfloat16
from model_zoo.errors import InputError
from model_zoo.quantization import Storage, codec, codes

SHAPES = [(128, 128), (257, 100), (3, 7), (1, 65), (1, 1), (64, 96), (5, 63), (300, 256)]


@pytest.fixture(params=["C", "NumPy"])
def by(request, monkeypatch):
    """Both ways."""
    if request.param == "NumPy":
        monkeypatch.setattr(codec, "kernels", lambda: None)
    elif codec.kernels() is None:
        pytest.skip("no C compiler")
    return request.param


@pytest.fixture(scope="module")
def oracle():
    """bitsandbytes on one thread: on several its sums, and so its offsets, depend on how many there are."""
    torch = pytest.importorskip("torch", reason="bitsandbytes is compared with where it is installed")
    pytest.importorskip("bitsandbytes")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield torch
    torch.set_num_threads(threads)


def matrix(shape, dtype="float32", seed=0):
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * np.float32(0.05)
    values[0, : shape[1] // 2] = 0
    values[-1] *= 1e-3
    return from_bfloat16(to_bfloat16(values)) if dtype == "bfloat16" else values.astype(dtype).astype(np.float32)


def same(mine, theirs):
    mine, theirs = np.asarray(mine), np.asarray(theirs)
    assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
    assert np.array_equal(mine.view(np.uint8), theirs.view(np.uint8))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_4_bits_are_bitsandbytes(by, oracle, kind, shape):
    import bitsandbytes.functional as theirs

    for dtype, block, double in [("float32", 64, False), ("bfloat16", 64, True), ("float16", 32, True)]:
        values, storage = matrix(shape, dtype), Storage(kind, block, double)
        given = oracle.from_numpy(values).to(getattr(oracle, dtype))
        packed, state = theirs.quantize_4bit(given, blocksize=block, compress_statistics=double, quant_type=kind)
        mine = codec.quantize(storage, shape, lambda rows, values=values: values[rows])
        same(mine["weight"], packed.numpy())
        same(mine["absmax"], state.absmax.numpy())
        same(mine["quant_map"], state.code.numpy())
        if double:
            same(mine["nested_absmax"], state.state2.absmax.numpy())
            same(mine["nested_quant_map"], state.state2.code.numpy())
            same(mine["nested_offset"], state.offset.numpy().reshape(1))
        if shape[1] % block:  # its AVX-512 path then takes other blocks' factors, so the one without vectors is asked
            from bitsandbytes.backends.default.ops import _dequantize_4bit_compute as plain

            factors = state.absmax
            if double:
                factors = theirs.dequantize_blockwise(state.absmax, state.state2) + state.offset
            back = plain(packed.reshape(-1), factors, state.code, block, shape, oracle.float32).numpy()
        else:
            back = theirs.dequantize_4bit(packed, state).float().numpy()
            if dtype != "float32":  # it gives the type that it was given
                state.dtype = oracle.float32
                back = theirs.dequantize_4bit(packed, state).numpy()
        assert np.array_equal(codec.dequantize(storage, mine, shape), back)


def test_factors_without_reciprocals_are_quantised_like_others(by):
    """As where a matrix is zero but for what float32 barely holds; then bitsandbytes' own codes are of no number."""
    values, storage = matrix((16, 192)) * np.float32(1e-38), Storage("nf4", 32, True)
    back = codec.dequantize(storage, codec.quantize(storage, values.shape, lambda rows: values[rows]), values.shape)
    assert np.abs(back).max() <= 2 * np.abs(values).max()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_int8_is_bitsandbytes(by, oracle, shape):
    import bitsandbytes

    values = matrix(shape)
    theirs = bitsandbytes.nn.Int8Params(oracle.from_numpy(values), requires_grad=False).to("cpu")
    mine = codec.quantize(Storage("int8"), shape, lambda rows: values[rows])
    same(mine["weight"], theirs.data.numpy())
    same(mine["SCB"], theirs.SCB.numpy())
    back = bitsandbytes.functional.int8_vectorwise_dequant(theirs.data, theirs.SCB)
    same(codec.dequantize(Storage("int8"), mine, shape), back.numpy())


@pytest.mark.parametrize("count", [1, 3, 7, 8, 31, 33, 100, 511, 513, 4096, 40000, 176128])
def test_a_mean_is_pytorchs(oracle, count):
    values = np.random.default_rng(1).random(count, np.float32)
    assert codec.mean(values) == oracle.from_numpy(values).mean().numpy()


def test_rows_of_a_matrix_are_those_of_the_whole(by):
    for kind, shape in [("nf4", (300, 96)), ("fp4", (65, 100)), ("int4", (20, 64)), ("int8", (9, 33))]:
        for double in (False, True) if kind in ("nf4", "fp4") else (False,):
            storage, values = Storage(kind, 32, double), matrix(shape)
            parts = codec.quantize(storage, shape, lambda rows, values=values: values[rows])
            whole = codec.dequantize(storage, parts, shape)
            for first, last in [(0, 1), (1, 2), (3, 8), (shape[0] - 1, shape[0]), (4, 4)]:
                same(codec.dequantize(storage, parts, shape, slice(first, last)), whole[first:last])


def test_a_matrix_is_quantised_in_pieces_as_it_is_whole(by, monkeypatch):
    for storage in (Storage("nf4", 64, True), Storage("int8"), Storage("int4", 32)):
        values = matrix((96, 96))
        whole = codec.quantize(storage, values.shape, lambda rows, values=values: values[rows])
        seen = []
        monkeypatch.setattr(codec, "AT_ONCE", 1000)

        def some(rows, values=values, seen=seen):
            seen.append(rows)
            return values[rows]

        pieces = codec.quantize(storage, values.shape, some)
        monkeypatch.undo()
        assert len(seen) > 3 and all(np.array_equal(pieces[part], whole[part]) for part in whole)


def test_int4_is_within_half_a_step(by):
    values, storage = matrix((40, 128)), Storage("int4", 32)
    parts = codec.quantize(storage, values.shape, lambda rows: values[rows])
    back = codec.dequantize(storage, parts, values.shape)
    step = np.repeat(parts["absmax"], 32).reshape(values.shape)
    assert (np.abs(back - values) <= step * 0.51).all()  # a factor that was rounded up leaves the largest a bit outside
    same(parts["absmax"], parts["absmax"].astype(np.float16).astype(np.float32))
    zeros = np.random.default_rng(0).integers(0, 16, parts["absmax"].size).astype(np.uint8)
    shifted = codec.dequantize(Storage("int4", 32, zeros=True), {**parts, "zeros": zeros}, values.shape)
    levels = np.stack([parts["weight"][:, 0] >> 4, parts["weight"][:, 0] & 15], 1).reshape(-1, 32).astype(np.float64)
    exact = (levels - zeros[:, None]) * parts["absmax"][:, None]
    assert np.array_equal(shifted, exact.reshape(values.shape).astype(np.float32))


@pytest.mark.parametrize("storage", [Storage("nf4"), Storage("fp4", 32, True), Storage("int8"), Storage("int4", 32)])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(by, storage, value):
    values = matrix((8, 64))
    values[3, 5] = value
    with pytest.raises(InputError, match="NaN or infinity"):
        codec.quantize(storage, values.shape, lambda rows: values[rows])


def test_what_no_type_has_is_refused():
    for settings, words in [
        ({"kind": "nf5"}, "did you mean nf4|nf4"),
        ({"kind": "nf4", "block": 63}, "block 63"),
        ({"kind": "int8", "double": True}, "double"),
        ({"kind": "nf4", "zeros": True}, "zero points"),
    ]:
        with pytest.raises(InputError, match=words):
            Storage(**settings)
    with pytest.raises(InputError, match="no multiple of the block of 64"):
        codec.quantize(Storage("int4", 64), (4, 96), lambda rows: matrix((4, 96))[rows])


def test_sizes():
    """The bits per weight that are promised, at a size where the last blocks do not count."""
    shape = (11008, 4096)
    bits = {Storage("nf4"): 4.5, Storage("nf4", double=True): 4.127, Storage("int8"): 8, Storage("int4", 128): 4.25}
    for storage, expected in bits.items():
        assert storage.nbytes(shape) * 8 / (11008 * 4096) == pytest.approx(expected, rel=2e-3)


def test_maps_ascend():
    assert (np.diff(codes.dynamic_map()) > 0).all()
    for kind in codes.MAPS:
        bounds, order = codes.boundaries(kind)
        assert (np.diff(bounds) >= 0).all() and sorted(order) == list(range(16))


@pytest.mark.parametrize(
    ("shape", "axis", "ranges"),
    [
        ((64, 128), 0, [slice(0, 32)]),
        ((64, 128), 0, [slice(16, 32), slice(48, 64)]),
        ((64, 128), 1, [slice(64, 128)]),
        ((64, 96), 1, [slice(48, 96)]),
        ((64, 96), 0, [slice(3, 7)]),
        ((5, 208), 1, [slice(0, 16), slice(104, 120)]),
    ],
    ids=str,
)
def test_a_part_has_the_numbers_of_the_whole(shape, axis, ranges):
    values = matrix(shape)
    for storage in (Storage("nf4"), Storage("fp4", 64, True), Storage("int8"), Storage("int4", 32)):
        if storage.why_not(shape):
            continue
        parts = codec.quantize(storage, shape, lambda rows, values=values: values[rows])
        form, taken = codec.take(storage, parts, shape, axis, ranges)
        right = np.concatenate(
            [np.take(codec.dequantize(storage, parts, shape), range(*one.indices(9999)), axis) for one in ranges], axis
        )
        expected = form.parts(right.shape)
        assert {part: (str(array.dtype), array.shape) for part, array in taken.items()} == expected
        same(codec.dequantize(form, taken, right.shape), right)
    whole = Storage("nf4")
    with pytest.raises(
        InputError, match="blocks of 64 would be cut into pieces of 4 by a division into columns 0 … 51"
    ):
        codec.part_storage(whole, (8, 104), 1, [slice(0, 52)])
