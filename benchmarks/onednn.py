"""This library's bf16 products beside those of oneDNN, which MindSpore's wheel ships: `python benchmarks/onednn.py`.

One thread, GFLOP/s of processor time, the fastest of some calls, in turns. Factors are float32 in memory, and rounded
within the call, by oneDNN's own reorders there; *rounded before* are two that lie in bfloat16, as those of a step do
whose frozen weights are stored in it. Results are float32.
"""

from __future__ import annotations

import ctypes
import itertools
import time
from pathlib import Path

import mindspore
import numpy as np

from model_zoo.engine.build import library

BF16, FLOAT32 = 2, 3  # dnnl_data_type_t
SOURCE, WEIGHTS, RESULT, FROM, TO = 1, 33, 17, 1, 17  # DNNL_ARG_…
CPU, IMPLEMENTATION = 1, 8  # dnnl_engine_kind_t, dnnl_query_impl_info_str

SIZES = {  # rows, columns, depth
    "small": ((1024, 512, 512), (1024, 1376, 512), (1024, 512, 1376), (1024, 8000, 512)),
    "big": ((1024, 1024, 1024), (1024, 2752, 1024), (1024, 1024, 2752)),
    "gpt2": ((1024, 2304, 768), (1024, 3072, 768), (1024, 768, 3072)),
}


class Argument(ctypes.Structure):
    _fields_ = (("argument", ctypes.c_int), ("memory", ctypes.c_void_p))


class OneDNN:
    """The dozen functions of its C interface that a product takes, on the calling thread."""

    def __init__(self):
        path = next((Path(mindspore.__file__).parent / "lib").glob("libdnnl.so.3*"))
        self.library, self.engine, self.stream = ctypes.CDLL(str(path)), ctypes.c_void_p(), ctypes.c_void_p()
        self.call("engine_create", ctypes.byref(self.engine), CPU, ctypes.c_size_t(0))
        self.call("threadpool_interop_stream_create", ctypes.byref(self.stream), self.engine, None)

    def call(self, name: str, *arguments) -> None:
        assert getattr(self.library, f"dnnl_{name}")(*arguments) == 0, name

    def make(self, name: str, *arguments) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self.call(name, ctypes.byref(made), *arguments)
        return made

    def matrix(self, array: np.ndarray, turned: bool = False):
        """Its description and memory; `turned` reads rows as columns."""
        kind, (rows, columns) = BF16 if array.dtype == np.uint16 else FLOAT32, array.shape
        shape, strides = ((columns, rows), (1, columns)) if turned else ((rows, columns), (columns, 1))
        pairs = (ctypes.c_int64 * 2)(*shape), (ctypes.c_int64 * 2)(*strides)
        described = self.make("memory_desc_create_with_strides", 2, pairs[0], kind, pairs[1])
        return described, self.make("memory_create", described, self.engine, ctypes.c_void_p(array.ctypes.data))

    def primitive(self, description: ctypes.c_void_p, memories: dict[int, ctypes.c_void_p]):
        """What runs it. Refuses its reference code, which is a thousand times slower."""
        name = ctypes.c_char_p()
        self.call("primitive_desc_query", description, IMPLEMENTATION, 0, ctypes.byref(name))
        assert b"ref" not in name.value, name.value
        made, arguments = self.make("primitive_create", description), (Argument * len(memories))(*memories.items())

        def run():
            self.call("primitive_execute", made, self.stream, len(memories), arguments)

        return run

    def product(self, a, b, c):
        (a_kind, a_memory), (b_kind, b_memory), (c_kind, c_memory) = (
            self.matrix(a),
            self.matrix(b, True),
            self.matrix(c),
        )
        made = self.make("matmul_primitive_desc_create", self.engine, a_kind, b_kind, None, c_kind, None)
        return self.primitive(made, {SOURCE: a_memory, WEIGHTS: b_memory, RESULT: c_memory})

    def rounding(self, x, to):
        (x_kind, x_memory), (to_kind, to_memory) = self.matrix(x), self.matrix(to)
        made = self.make("reorder_primitive_desc_create", x_kind, self.engine, to_kind, self.engine, None)
        return self.primitive(made, {FROM: x_memory, TO: to_memory})


def rates(rows: int, columns: int, depth: int) -> list[float]:
    """Of this library and of oneDNN, and of both with rounded factors."""
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal((size, depth)).astype(np.float32) for size in (rows, columns))
    c, low_a, low_b = np.zeros((rows, columns), np.float32), np.zeros(a.shape, np.uint16), np.zeros(b.shape, np.uint16)
    onednn, kernels = OneDNN(), ctypes.CDLL(str(library()))
    kernels.pet_use_threads(1)
    kernel = kernels.product_of_rows_bf16
    shapes = [(ctypes.c_int64 * 2)(*array.shape) for array in (a, b, c)]

    def here(factors, kind: bytes):
        places = (ctypes.c_void_p * 3)(*[array.ctypes.data for array in (*factors, c)])
        described = (ctypes.c_int * 3)(2, 2, 2), (ctypes.c_void_p * 3)(*[ctypes.addressof(shape) for shape in shapes])
        types = (ctypes.c_char_p * 3)(kind, kind, b"float32")
        return lambda: kernel(3, places, *described, types, None, None)

    round_a, round_b, multiply = onednn.rounding(a, low_a), onednn.rounding(b, low_b), onednn.product(low_a, low_b, c)

    def whole():
        round_a()
        round_b()
        multiply()

    ways = (here((a, b), b"float32"), whole, here((low_a, low_b), b"bfloat16"), multiply)
    best = [np.inf] * len(ways)
    for _, (index, way) in itertools.product(range(8), enumerate(ways)):
        begin = time.thread_time()
        way()
        best[index] = min(best[index], time.thread_time() - begin)
    return [2e-9 * rows * columns * depth / seconds for seconds in best]


def main() -> None:
    print("| case | rows × columns × depth | here | oneDNN | here, rounded before | oneDNN, rounded before |")
    print("|---|---|---|---|---|---|")
    for case, sizes in SIZES.items():
        for size in sizes:
            print(
                f"| {case} | {' × '.join(map(str, size))} | "
                + " | ".join(f"{rate:.0f}" for rate in rates(*size))
                + " |"
            )


if __name__ == "__main__":
    main()
