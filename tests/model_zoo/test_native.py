"""The C kernels by themselves, and how they come about: compiled once, kept, and done without where that fails."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
from mindspore import ops
from waiting import HANGING

from model_zoo import engine, layers
from model_zoo.engine import build

sys.path.insert(0, str(Path(__file__).parent))

import native_checks
from native_attention import causal, scores
from native_kernels import Kernels, numbers

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def libraries(path, tmp_path_factory):
    """The library with each number of threads: it has them as long as it is loaded."""
    home, found = tmp_path_factory.mktemp("libraries"), {}
    with pytest.MonkeyPatch.context() as patch:
        for count in (1, 2, 4):
            patch.setenv(build.THREADS, str(count))
            found[count] = Kernels(shutil.copyfile(path, home / f"{count}.so"))
            assert found[count].library.pet_threads() == count
    return found


@pytest.mark.parametrize("check", native_checks.CHECKS, ids=lambda check: check.__name__)
def test_kernels_are_right_over_awkward_shapes_and_the_same_with_any_number_of_threads(libraries, check):
    """Bit for bit."""
    for kernels in libraries.values():
        check(kernels)
    assert len({kernels.digest.hexdigest() for kernels in libraries.values()}) == 1


STARTED_BY_ANOTHER = """
import ctypes, sys, threading
import native_checks
kernels = native_checks.Kernels(sys.argv[1])
def start():
    mathematics, state = ctypes.CDLL("libm.so.6"), (ctypes.c_uint32 * 8)()
    mathematics.fegetenv(state)
    state[7] |= 0x8040  # of vectors: the smallest numbers are zeros, as factors and as results
    mathematics.fesetenv(state)
    assert kernels.library.pet_threads() == 2
thread = threading.Thread(target=start)
thread.start()
thread.join()
native_checks.packing(kernels)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="sets the mode of this processor's vectors")
def test_the_smallest_numbers_are_what_the_caller_takes_them_for(path):
    """MindSpore's threads take them for zeros, and what divides a block of zeros is one of them."""
    environment = {**os.environ, "PET_NATIVE_THREADS": "2", "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    command = [sys.executable, "-c", STARTED_BY_ANOTHER, path]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANGING)
    assert done.returncode == 0, done.stderr[-2000:]


FORKED = """
import os, signal, sys, time
import native_checks
from native_checks import numbers
kernels = native_checks.Kernels(sys.argv[1])
assert kernels.library.pet_threads() == 8
def product():
    return kernels("product_of_rows", (x, weight), (64, 300))
x, weight = numbers(64, 200), numbers(300, 200, seed=1)
expected = product()
for turn in range(400):
    product()
    wait = time.perf_counter() + turn % 100 * 8e-6
    while time.perf_counter() < wait:
        pass
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if (product() == expected).all() and kernels.library.pet_threads() == 8 else 3)
    assert os.waitpid(child, 0)[1] == 0, turn
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes of this system have no copies")
def test_a_copy_of_the_process_computes_too(path):
    """Whether threads, which it has not, were busy, about to sleep or asleep: readers of data are such copies."""
    environment = {**os.environ, "PET_NATIVE_THREADS": "8", "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", FORKED, path], env=environment, capture_output=True, text=True, timeout=HANGING
    )
    assert done.returncode == 0, done.stderr[-2000:]


PRODUCTS_ALONE = ("gemm", "blocks", "rounded", "bf16", "few_rows", "pool", "storage")
INSTRUCTIONS = ("-dM", "-E", "-x", "c", os.devnull)
"""What makes a compiler print those that it knows."""


def compiler_run(*words) -> subprocess.CompletedProcess:
    """The compiler with the flags for this processor and these words behind them."""
    command = [*build.compiler(), *build.COMMON, *build.PROCESSOR[0], *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True)


def compiled_by(*words) -> str:
    """What that prints."""
    done = compiler_run(*words)
    if done.returncode:
        pytest.skip(f"this compiler does not know the flags: {done.stderr[:200]}")
    return done.stdout


@pytest.mark.parametrize(
    ("without", "kind"),
    [
        ("-mno-amx-bf16", 1),
        pytest.param("-mno-avx512f", 0, marks=pytest.mark.full),
        pytest.param("-mno-avx2", 0, marks=pytest.mark.full),
    ],
)
def test_products_in_bfloat16_on_other_processors(path, tmp_path, without, kind):
    """Of vectors where there are no tiles; refused where there are no such instructions. Weights in 4 bits likewise."""
    if compiled_by(without, *INSTRUCTIONS) == compiled_by(*INSTRUCTIONS):
        assert Kernels(path).library.pet_bf16() in (0, kind)
        return  # this processor is such a one: the checks of its own library are of the same code
    # which code is compiled does not depend on -O, and how long that takes does
    library, sources = tmp_path / "other.so", [build.SOURCES / f"{name}.c" for name in PRODUCTS_ALONE]
    compiled_by("-Og", without, *sources, "-lpthread", "-lm", "-o", library)
    other = Kernels(library)
    assert other.library.pet_bf16() in (0, kind)
    native_checks.products(other)
    native_checks.rounded(other)
    native_checks.sums(other)
    native_checks.packed_weights(other)


@pytest.mark.full
def test_products_in_bfloat16_by_tiles(path, tmp_path):
    """What is written for tiles, with tiles in software where the processor has none."""
    if Kernels(path).library.pet_bf16() != 1:
        pytest.skip("no vectors of bfloat16 without tiles")
    names = (*PRODUCTS_ALONE, "loss", "attention_bf16")
    library, sources = tmp_path / "tiles.so", [build.SOURCES / f"{name}.c" for name in names]
    compiled_by(*INSTRUCTIONS)  # a compiler that knows no such flags is left out; what it cannot compile is a fault
    done = compiler_run("-O1", "-include", HERE / "tiles.h", *sources, "-lpthread", "-lm", "-o", library)
    assert done.returncode == 0, done.stderr[-2000:]
    tiles = Kernels(library)
    assert tiles.library.pet_bf16() == 2
    for check in (native_checks.rounded, native_checks.sums, native_checks.loss, native_checks.attention_bf16):
        check(tiles)


QUIET = np.array([0x7FC00000, 0x7FC00001, 0xFFC001FF], np.uint32).view(np.float32)
"""Not-a-numbers, among them those whose last bits would make an exponent."""


@pytest.mark.parametrize("bad", QUIET, ids=("plain", "marked", "negative"))
def test_what_is_not_a_number_stays_so(path, bad):
    """Else a step that went wrong would not be seen to be."""
    kernels = Kernels(path)

    def with_bad(*shape):
        array = numbers(*shape)
        array[tuple(size // 2 for size in shape)] = bad
        return array

    x, other = with_bad(5, 37), numbers(5, 37, seed=1)
    tall = with_bad(20, 37)
    assert np.isnan(kernels("product_of_rows", (tall, other), (20, 5))[10]).all()
    assert np.isnan(kernels("product_of_rows", (numbers(20, 37, seed=2), x), (20, 5))[:, 2]).all()
    assert np.isnan(kernels("plain_product", (numbers(20, 5), x), (20, 37))[:, 18]).all()
    assert np.isnan(kernels("product_of_rows", (x, other), (5, 5))[2]).all()
    assert np.isnan(kernels("product_of_rows", (other, x), (5, 5))[:, 2]).all()
    assert np.isnan(kernels("product_of_columns", (x, other), (37, 37))[18]).all()
    if kernels.library.pet_bf16():
        assert np.isnan(kernels("product_of_rows_bf16", (tall, other), (20, 5))[10]).all()
        assert np.isnan(kernels("product_of_rows_bf16", (numbers(20, 37, seed=2), x), (20, 5))[:, 2]).all()
    weight, eps = numbers(37), np.array([1e-6], np.float32)
    out, scale = kernels("rms_norm", (x, weight, eps, np.zeros(1, np.float32)), x.shape, (5, 1))
    assert np.isnan(out[2]).all() and np.isnan(scale[2]) and not np.isnan(out[[0, 1, 3, 4]]).any()
    out, _, _ = kernels("layer_norm", (x, weight, weight, eps), x.shape, (5, 1), (5, 1))
    assert np.isnan(out[2]).all()
    for name, inputs in (
        ("swiglu", (x, other)),
        ("swiglu", (other, x)),
        ("geglu", (x, other)),
        ("gelu_tanh", (x,)),
        ("gelu", (x,)),
    ):
        assert np.isnan(kernels(name, inputs, x.shape)[2, 18])
    assert np.isnan(kernels("swiglu_gradient", (x, other, other), x.shape, x.shape)[0][2, 18])
    assert np.isnan(kernels("gelu_tanh_gradient", (x, other), x.shape)[2, 18])
    inputs, room = (x, other, np.zeros(5, np.int32), np.zeros(3, np.float32)), (5, 5 + 2 * 37 + 2)
    losses, gradient, _ = kernels("linear_cross_entropy", inputs, (5,), x.shape, room)
    assert np.isnan(losses[2]) and np.isnan(gradient[2]).all() and not np.isnan(losses[[0, 1, 3, 4]]).any()
    losses, ranked, _ = kernels("ranked_cross_entropy", inputs, (5,), (5,), room)
    assert np.isnan(losses[2]) and ranked[2] == 0
    start, end = causal(1, 60, None)
    rest = (start, end, np.ones((1, 60), np.int32), *scores(8))
    query, keys = with_bad(1, 1, 60, 8), numbers(1, 1, 60, 8, seed=2)
    out, stats = kernels("attention", (query, keys, keys, *rest), (60, 8), (1, 1, 60, 2))
    assert np.isnan(out[30]).all() and not np.isnan(out[:30]).any()
    dout = numbers(60, 8)
    d_query, d_keys, _ = kernels("attention_gradient", (query, keys, keys, *rest, out, stats, dout), *3 * [query.shape])
    assert np.isnan(d_query[0, 0, 30]).all() and np.isnan(d_keys[0, 0, :31]).all()
    for places in ((query, query, keys), (keys, query, keys), (keys, keys, query)):  # one that rows from 30 on see
        out, _ = kernels("attention", (*places, *rest), (60, 8), (1, 1, 60, 2))
        assert np.isnan(out[30:, 4]).any()


def test_callers_at_once(path):
    """One of them gets the threads; the others compute by themselves, the same."""
    kernels = Kernels(path)
    a, b = numbers(150, 90), numbers(130, 90, seed=1)
    gate = numbers(3, 40001)
    right = kernels("product_of_rows", (a, b), (150, 130)), kernels("gelu_tanh", (gate,), gate.shape)
    barrier = threading.Barrier(6)

    def call(_):
        own = Kernels(path)
        barrier.wait()
        for _ in range(20):
            np.testing.assert_array_equal(own("product_of_rows", (a, b), (150, 130)), right[0])
            np.testing.assert_array_equal(own("gelu_tanh", (gate,), gate.shape), right[1])
        return True

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(call, range(6)))


def test_threads_that_are_late_take_nothing_of_the_next_work(path, tmp_path):
    """They read the size of one work and the rest of the next: seldom, on busy machines and those of many cores."""
    compiled_by(*INSTRUCTIONS)  # a compiler that knows no such flags is left out
    done = compiler_run("-I", build.SOURCES, HERE / "late.c", "-lpthread", "-o", tmp_path / "late.so")
    assert done.returncode == 0, done.stderr[-2000:]
    late = ctypes.CDLL(str(tmp_path / "late.so"))
    late.pet_use_threads(8)
    assert late.wrong_works(5000) == 0 and late.pet_threads() == 8


def test_scratch_memory_is_bounded_and_goes_with_its_thread(path):
    kernels = Kernels(path)
    a, b = numbers(1536, 600), numbers(1536, 16, seed=1)  # the left factor is turned: 3.7 MB

    def use():
        kernels("product_of_columns", (a, b), (600, 16))

    def grown(times):
        before = psutil.Process().memory_info().rss
        for _ in range(times):
            thread = threading.Thread(target=use)
            thread.start()
            thread.join()
        return psutil.Process().memory_info().rss - before

    grown(3)
    assert min(grown(40) for _ in range(3)) < 40e6  # not 150 MB; what else a process does may grow once


AT_REST = """
import time
from pathlib import Path
import mindspore as ms
import numpy as np
from model_zoo.engine.cells import Eagerly

x = ms.Tensor(np.ones((64, 4096), np.float32))

def seconds():
    threads = Path("/proc/self/task").iterdir()
    workers = [one for one in threads if "Thread_" in (one / "comm").read_text()]
    return sum(int((one / "schedstat").read_text().split()[0]) for one in workers) / 1e9

def behind_operators():
    took = 0
    for _ in range(5):
        x.cumsum(1).asnumpy()
        begin = seconds()
        time.sleep(0.1)
        took += seconds() - begin
    return took

rounds = [behind_operators()]
while max(rounds) < 0.2 and len(rounds) < 12:  # a busy machine lets them turn less
    rounds.append(behind_operators())
before = max(rounds)
with Eagerly():
    pass
rounds = [behind_operators(), behind_operators()]
while min(rounds) > before / 5 and len(rounds) < 12:  # what an operator leaves to do takes longer there, too
    rounds.append(behind_operators())
print(before, min(rounds))
"""


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system says no thread's time")
def test_other_threads_rest_while_kernels_compute():
    done = subprocess.run([sys.executable, "-c", AT_REST], capture_output=True, text=True, timeout=HANGING)
    before, after = map(float, done.stdout.split())
    assert after <= before / 5, done.stdout


def test_products_are_swapped_and_brought_back(path):
    for cell in (layers.Linear(4, 4), layers.Conv1D(4, 4)):
        primitive = cell.product
        engine.set_kernels(cell, True)
        engine.set_kernels(cell, True)
        cell.set_train(False)  # goes down the tree: no cell is its own descendant
        assert layers.is_product(cell.product) and not isinstance(cell.product, ops.MatMul)
        swapped = cell.product
        engine.set_kernels(cell, True)
        assert cell.product is swapped
        engine.set_kernels(cell, False)
        assert cell.product is primitive
