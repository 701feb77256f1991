"""The C kernels by themselves, and how they come about: compiled once, kept, and done without where that fails."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mindspore as ms
import numpy as np
import psutil
import pytest
from mindspore import ops

from model_zoo import engine as native
from model_zoo import fused, layers
from model_zoo.engine import build
from model_zoo.errors import InputError

sys.path.insert(0, str(Path(__file__).parent))

import native_checks
from native_checks import Kernels, numbers

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def path():
    try:
        return build.library()
    except build.NoCompiler as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("check", native_checks.CHECKS, ids=lambda check: check.__name__)
def test_kernels_are_right_over_awkward_shapes(path, check):
    check(Kernels(path))


def test_results_do_not_depend_on_the_number_of_threads(path):
    """Bit for bit, all of `native_checks`."""
    digests = set()
    for count in ("1", "2", "4"):
        done = subprocess.run(
            [sys.executable, HERE / "native_checks.py", path],
            env={**os.environ, "PET_NATIVE_THREADS": count},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        digests.add(done.stdout)
    assert len(digests) == 1


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
    weight, eps = numbers(37), np.array([1e-6], np.float32)
    out, scale = kernels("rms_norm", (x, weight, eps), x.shape, (5, 1))
    assert np.isnan(out[2]).all() and np.isnan(scale[2]) and not np.isnan(out[[0, 1, 3, 4]]).any()
    out, _, _ = kernels("layer_norm", (x, weight, weight, eps), x.shape, (5, 1), (5, 1))
    assert np.isnan(out[2]).all()
    for name, inputs in (("swiglu", (x, other)), ("swiglu", (other, x)), ("gelu_tanh", (x,))):
        assert np.isnan(kernels(name, inputs, x.shape)[2, 18])
    assert np.isnan(kernels("swiglu_gradient", (x, other, other), x.shape, x.shape)[0][2, 18])
    assert np.isnan(kernels("gelu_tanh_gradient", (x, other), x.shape)[2, 18])
    inputs, room = (x, other, np.zeros(5, np.int32)), (5, 5 + 2 * 37 + 2)
    losses, gradient, _ = kernels("linear_cross_entropy", inputs, (5,), x.shape, room)
    assert np.isnan(losses[2]) and np.isnan(gradient[2]).all() and not np.isnan(losses[[0, 1, 3, 4]]).any()
    losses, ranked, _ = kernels("ranked_cross_entropy", inputs, (5,), (5,), room)
    assert np.isnan(losses[2]) and ranked[2] == 0
    start, end = native_checks.causal(1, 60, None)
    rest = (start, end, np.ones((1, 60), np.int32))
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


def test_scratch_memory_is_bounded_and_goes_with_its_thread(path):
    kernels = Kernels(path)
    a, b = numbers(8, 2048), numbers(1024, 2048, seed=1)  # 4 MB of panels

    def use():
        kernels("product_of_rows", (a, b), (8, 1024))

    def grown(times):
        before = psutil.Process().memory_info().rss
        for _ in range(times):
            thread = threading.Thread(target=use)
            thread.start()
            thread.join()
        return psutil.Process().memory_info().rss - before

    grown(3)
    assert grown(60) < 60e6  # not 240 MB


# How they come about -------------------------------------------------------------------------------------------------


@pytest.fixture
def anew(monkeypatch, tmp_path):
    """As if nothing had been looked for yet, with an empty cache and temporary directory."""
    for name in ("CC", build.SWITCH, build.THREADS):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path / "temporary"))
    caches = (build.library, native.available, native.native)
    for cache in caches:
        cache.cache_clear()
    yield tmp_path
    for cache in caches:
        cache.cache_clear()


def failing(directory: Path, text: str) -> str:
    """A compiler that says this and fails."""
    script = directory / "broken"
    script.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit 1\n")
    script.chmod(0o755)
    return str(script)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"PATH": ""}, "no C compiler (cc, gcc or clang) is on the path; install one"),
        ({"CC": "no-such-compiler -O2"}, "CC is no-such-compiler, which is not on the path"),
        ({"CC": "gcc '"}, "which is no command"),
        ({"CC": "broken"}, "broken cannot compile them: x.c:1: error: what is this"),
    ],
)
def test_without_a_compiler_one_line_says_so(anew, monkeypatch, caplog, settings, message):
    if settings.get("CC") == "broken":
        settings = {"CC": failing(anew, "warming up\nx.c:1: error: what is this")}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    kernel = fused.SwiGLUKernel()
    cell = layers.Linear(4, 4)
    with caplog.at_level(logging.WARNING, "pet"):
        assert native.native(kernel) is kernel
        native.swap_products(cell, True)
        assert not native.available()
    assert isinstance(cell.product, ops.MatMul)
    assert len(caplog.records) == 1 and message in caplog.text and "so it runs slower" in caplog.text
    assert not list(anew.rglob("*native-*")), "nothing half done is left"


def test_switched_off_or_elsewhere_is_silent(anew, monkeypatch, caplog):
    monkeypatch.setenv(build.SWITCH, "0")
    assert not native.available()
    monkeypatch.delenv(build.SWITCH)
    native.available.cache_clear()
    monkeypatch.setattr(ms, "get_context", lambda name: "Ascend")
    assert not native.available()
    assert not caplog.records


def test_threads_are_a_number(anew, monkeypatch):
    assert build.threads() == build.default_threads() >= 1
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert build.threads() == 1
    monkeypatch.setenv(build.THREADS, "3")
    assert build.threads() == 3
    for wrong in ("0", "many", "-1"):
        monkeypatch.setenv(build.THREADS, wrong)
        with pytest.raises(InputError, match=f"PET_NATIVE_THREADS is '{wrong}'; a whole number above 0"):
            build.library()


def test_kept_once_and_made_anew_when_damaged(path, anew, monkeypatch):
    made = []
    monkeypatch.setattr(build, "build", lambda command, sources, target: made.append(target) or copy(path, target))
    first = build.library()
    assert made == [first] and first.parent == anew / "cache" / "mindspore-pet"
    build.library.cache_clear()
    assert build.library() == first and len(made) == 1
    damaged = anew / "other" / "mindspore-pet" / first.name  # what a machine leaves that went down
    damaged.parent.mkdir(parents=True, mode=0o700)
    damaged.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(anew / "other"))
    build.library.cache_clear()
    assert build.library() == damaged == made[1] and damaged.stat().st_size > 0
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nothing")  # which nobody can write
    build.library.cache_clear()
    assert build.library().parent.parent == anew / "temporary"
    (anew / "temporary" / f"mindspore-pet-{os.getuid()}").chmod(0o777)  # others could have put something there
    build.library.cache_clear()
    again = build.library()
    assert again.parent.parent == anew / "temporary" and again.parent.name != f"mindspore-pet-{os.getuid()}"


def copy(source: Path, target: Path) -> None:
    """A new file, as a compiler makes one: the old one may be loaded."""
    target.unlink(missing_ok=True)
    target.write_bytes(source.read_bytes())


def test_two_that_compile_at_once(path, anew):
    """Each for itself; the file is whole from the first moment on."""
    source = anew / "one.c"
    source.write_text("int pet_use_threads(int count) { return count; }\n")
    target = anew / "native-both.so"
    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(lambda _: build.build(build.compiler(), [str(source)], target), range(4)):
            assert build.loaded(target, 1) == target
    assert not list(anew.glob(".native-*"))


def test_products_are_swapped_and_brought_back(path):
    from model_zoo.gpt import Conv1D

    for cell in (layers.Linear(4, 4), Conv1D(4, 4)):
        primitive = cell.product
        native.swap_products(cell, True)
        assert native.is_product(cell.product) and not isinstance(cell.product, ops.MatMul)
        swapped = cell.product
        native.swap_products(cell, True)
        assert cell.product is swapped
        native.swap_products(cell, False)
        assert cell.product is primitive
