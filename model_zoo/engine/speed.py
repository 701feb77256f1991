"""Whether there are bfloat16 products in C, and how fast they are: measured once per machine."""

from __future__ import annotations

import ctypes
import functools
import time
from contextlib import ExitStack, suppress

import mindspore as ms
import numpy as np

from model_zoo.atomic import locked, write_text
from model_zoo.engine.build import NoCompiler, library
from model_zoo.engine.call import arguments

SIZES = 1024, 2752, 1024
"""Rows, columns and depth of the product that is timed: 6 GFLOP."""

ROUNDS = 7
"""Of which each kind's fastest counts: a busy machine makes some of them slow."""

INSTRUCTIONS = {1: "AVX512-BF16", 2: "AMX"}


def no_bf16() -> str:
    """Why there are no bfloat16 products on this device, in one line; "" where there are."""
    if ms.get_context("device_target") != "CPU":
        return ""
    try:
        found = ctypes.CDLL(str(library())).pet_bf16()
    except NoCompiler as error:
        return f"on a CPU they are computed by kernels in C, and there are none: {error}"
    return "" if found else "this processor has neither AMX nor AVX512-BF16 instructions, or the compiler has none"


@functools.cache
def bf16_speedup() -> float:
    """How many times as fast as float32's bfloat16 products are here, on all threads. It is kept in a file beside the
    kernels, so that all processes go by the same."""
    kept = library().with_suffix(".speed")
    with suppress(OSError, ValueError):
        return float(kept.read_text())
    with ExitStack() as stack:
        with suppress(OSError, ValueError):  # a directory that only others may write to, or one for a lock
            stack.enter_context(locked(kept.with_name("lock")))
        with suppress(OSError, ValueError):  # another process has measured meanwhile
            return float(kept.read_text())
        rates = product_rates()
        found = round(rates["bf16"] / rates["fp32"], 2)
        with suppress(OSError):
            write_text(kept, f"{found}\n")
    return found


def product_rates() -> dict[str, float]:
    """GFLOP/s of the products in C, measured now: ``fp32``, and ``bf16`` where it is."""
    rows, columns, depth = SIZES
    arrays = [np.ones(shape, np.float32) for shape in ((rows, depth), (columns, depth), (rows, columns))]
    given = arguments(*zip(*((array.ctypes.data, array.shape, "float32") for array in arrays), strict=True))
    kernels = ctypes.CDLL(str(library()))
    names = {"fp32": kernels.product_of_rows}
    if not no_bf16():
        names["bf16"] = kernels.product_of_rows_bf16
    best = dict.fromkeys(names, np.inf)
    for _ in range(ROUNDS):
        for name, kernel in names.items():
            begin = time.perf_counter()
            kernel(*given)
            best[name] = min(best[name], time.perf_counter() - begin)
    return {name: 2e-9 * rows * columns * depth / seconds for name, seconds in best.items()}


def describe_bf16() -> str:
    """The instructions, and the speed; or why there are no such products."""
    reason = no_bf16()
    if reason:
        return f"none: {reason}"
    kind = INSTRUCTIONS[ctypes.CDLL(str(library())).pet_bf16()]
    return f"by {kind}, {bf16_speedup():.1f} times as fast as float32"
