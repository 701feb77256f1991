"""The C kernels called by themselves, over shapes that are awkward for them, against NumPy in float64.

    python tests/model_zoo/native_checks.py native.so

checks a library, however it was compiled (for sanitizers, other compilers and processors), and prints one digest of
all results: equal for equal numbers of any thread.
"""

from __future__ import annotations

import ctypes
import sys

import numpy as np
from native_attention import attention, attention_bf16, heads, one_token, prefixed, rotary_tables
from native_kernels import AROUND, Kernels, numbers
from native_products import dora, low_rank, packed_weights, products, rounded, storage, sums, together
from native_rows import activations, added, experts, loss, norms, small, updates

from model_zoo.checkpoint.dtypes import from_bfloat16, to_bfloat16
from model_zoo.quantization import codec, codes as codes_of
from model_zoo.quantization.storage import Storage


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
