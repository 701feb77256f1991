"""The C functions of `csrc/packing.c`, as `model_zoo.quantization.codec` calls them."""

from __future__ import annotations

import ctypes
import functools
from types import SimpleNamespace

import mindspore as ms
import numpy as np
from mindspore import ops

from model_zoo.engine.build import NoCompiler, library


@functools.cache
def packing_kernels() -> SimpleNamespace | None:
    """Functions named and called as those of the codec that they stand for; None without a compiler."""
    try:
        return SimpleNamespace(
            quantize_blocks=quantize_blocks,
            dequantize_blocks=dequantize_blocks,
            quantize_rows=quantize_rows,
            dequantize_rows=dequantize_rows,
            library=ctypes.CDLL(str(library())),
        )
    except NoCompiler:
        return None


def call(name: str, *arguments) -> None:
    """A function of no result. Arrays go as pointers, whole numbers as int64."""

    def passed(value):
        if value is None:
            return ctypes.c_void_p(None)
        if isinstance(value, np.ndarray):
            assert value.flags.c_contiguous
            return ctypes.c_void_p(value.ctypes.data)
        return ctypes.c_float(value) if isinstance(value, float) else ctypes.c_int64(int(value))

    function = getattr(packing_kernels().library, name)
    function.restype = None
    function(*map(passed, arguments))


def quantize_blocks(values, block, limit, half, bounds, order):
    codes, factors = np.empty((values.size + 1) // 2, np.uint8), np.empty(-(-values.size // block), np.float32)
    call("quantize_blocks", values, values.size, block, float(limit), half, bounds, order, codes, factors)
    return codes, factors


def dequantize_blocks(codes, count, block, quant_map, factors, zeros):
    out = np.empty(count, np.float32)
    call("dequantize_blocks", codes, count, block, quant_map, factors, zeros, out)
    return out


def quantize_rows(values):
    codes, most = np.empty(values.shape, np.int8), np.empty(len(values), np.float32)
    call("quantize_rows", values, len(values), values.shape[1], codes, most)
    return codes, most


def dequantize_rows(codes, most):
    out = np.empty(codes.shape, np.float32)
    call("dequantize_rows", codes, most, len(codes), codes.shape[1], out)
    return out


def unpacking(name: str, shape: tuple[int, int]):
    """The C function ``unpack_codes`` or ``unpack_rows`` as an operator that gives a matrix of this shape."""

    def shapes(*given):
        return list(shape)

    def dtypes(*given):
        return ms.float32

    return ops.Custom(f"{library()}:{name}", out_shape=shapes, out_dtype=dtypes, func_type="aot")
