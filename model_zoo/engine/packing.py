"""The C functions of `csrc/packing.c`, as `model_zoo.quantization.codec` calls them."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Collection
from types import SimpleNamespace

import numpy as np
from mindspore import Tensor

from model_zoo.engine.build import NoCompiler, library
from model_zoo.engine.call import Function

STORAGES = {"int8": 3, "codes": 4}
"""Kinds of packed matrices by their numbers in `csrc/storage.h`."""

WIDENED = {"float32": 0, "uint16": 1, "float16": 2}
"""Likewise kinds of what is packed, by the NumPy type: bfloat16 as its bits."""

NESTED_PARTS = ("nested_absmax", "nested_quant_map", "nested_offset")


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


def quantize_blocks(values, block, limit, half, bounds, order, codes, factors):
    kind = WIDENED[values.dtype.name]
    call("quantize_blocks", values, kind, values.size, block, float(limit), half, bounds, order, codes, factors)


def dequantize_blocks(codes, count, block, quant_map, factors, zeros):
    out = np.empty(count, np.float32)
    call("dequantize_blocks", codes, count, block, quant_map, factors, zeros, out)
    return out


def quantize_rows(values):
    codes, most = np.empty(values.shape, np.int8), np.empty(len(values), np.float32)
    call("quantize_rows", values, WIDENED[values.dtype.name], len(values), values.shape[1], codes, most)
    return codes, most


def dequantize_rows(codes, most):
    out = np.empty(codes.shape, np.float32)
    call("dequantize_rows", codes, most, len(codes), codes.shape[1], out)
    return out


def packed_layout(kind: str, parts: Collection[str]) -> tuple[int, tuple[str, ...]]:
    """A packed matrix as `program.c` reads it: the number of its storage, and which part stands at each place, "" for
    none.

    Args:
        kind: ``int8``, or any whose codes are looked up in a map.
        parts: their names in `model_zoo.quantization.storage.Storage.parts`.
    """
    factors, double = "SCB" if kind == "int8" else "absmax", "nested_absmax" in parts
    names = "weight", "" if double else factors, "quant_map", factors if double else "", *NESTED_PARTS, "zeros"
    return STORAGES["int8" if kind == "int8" else "codes"], tuple(name if name in parts else "" for name in names)


def packed_words(kind: str, block: int, shape: tuple[int, int], parts: list[str], turned: bool, bf16: bool):
    """What ``packed_product`` is told of a matrix ``(out, in)``, whose parts are its operands from the third on."""
    storage, names = packed_layout(kind, parts)
    places = [2 + parts.index(name) if name else -1 for name in names]
    return Tensor(np.array([*shape, turned, bf16, storage, block, *places], np.int32))


def unpacking(name: str, shape: tuple[int, int]):
    """The C function ``unpack_codes`` or ``unpack_rows`` as an operator that gives a matrix of this shape."""
    return Function(name, lambda *given: list(shape))


def packed_product(width: int):
    """The C function ``packed_product`` as an operator that gives rows of this width."""
    return Function("packed_product", lambda x, *others: [x[0], width])
