"""The C kernels by themselves, and how they come about: compiled once, kept, and done without where that fails."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mindspore as ms
import numpy as np
import psutil
import pytest
from mindspore import ops
from waiting import HANGING

from model_zoo import activations, engine, layers
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
    start, end = native_checks.causal(1, 60, None)
    rest = (start, end, np.ones((1, 60), np.int32), *native_checks.scores(8))
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


# How they come about -------------------------------------------------------------------------------------------------


@pytest.fixture
def anew(monkeypatch, tmp_path):
    """As if nothing had been looked for yet, with an empty cache and temporary directory."""
    for name in ("CC", build.SWITCH, build.THREADS):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))  # of processes that are started
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path / "temporary"))
    caches = (build.library, engine.available)
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
    monkeypatch.setattr(build, "find_spec", lambda _: None)
    cell, activation = layers.Linear(4, 4), activations.SwiGLU()
    kernel = activation.kernel
    with caplog.at_level(logging.WARNING, "pet"):
        for one in (cell, activation):
            engine.set_kernels(one, True)
        assert activation.fast and activation.kernel is kernel
    assert isinstance(cell.product, ops.MatMul)
    assert len(caplog.records) == 1 and message in caplog.text and "so it runs slower" in caplog.text
    assert not list(anew.rglob("*native-*")), "nothing half done is left"


def test_the_compiler_of_a_package_where_the_system_has_none(anew, monkeypatch, tmp_path):
    package = tmp_path / "ziglang"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PATH", "")
    assert build.compiler() == [str(package / "zig"), "cc"]
    own = tmp_path / "cc"
    own.write_text("")
    own.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build.compiler() == ["cc"]


@pytest.mark.full
@pytest.mark.slow
def test_the_kernels_by_that_compiler(anew, monkeypatch):
    pytest.importorskip("ziglang")
    monkeypatch.setenv("PATH", "")
    path = build.library()
    checks = [sys.executable, str(HERE / "native_checks.py"), str(path)]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    done = subprocess.run(checks, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert not list(anew.glob("temporary/*")), "nothing is left"


@pytest.mark.parametrize(
    "end", ["kill -9 $$", "echo 'gcc: fatal error: Killed signal terminated program cc1' >&2; exit 1"]
)
def test_a_compiler_that_is_killed_makes_no_slower_kernels(tmp_path, end):
    """They would be kept; other flags are for compilers that do not know the first ones."""
    program = tmp_path / "cc"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n{end}\n')
    program.chmod(0o700)
    with pytest.raises(build.NoCompiler, match="cut short"):
        build.compile_to(tmp_path / "native.so", [str(program)], ["a.c"])
    assert (tmp_path / "calls").read_text().count("\n") == 1


def test_a_compiler_that_writes_nothing_is_named(tmp_path):
    program = tmp_path / "cc"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    with pytest.raises(build.NoCompiler, match="cc cannot compile them: error: it ended well and wrote no file"):
        build.build([str(program)], ["a.c"], tmp_path, "key")


def test_switched_off_or_elsewhere_is_silent(anew, monkeypatch, caplog):
    monkeypatch.setenv(build.SWITCH, "0")
    assert not engine.available()
    monkeypatch.delenv(build.SWITCH)
    engine.available.cache_clear()
    monkeypatch.setattr(ms, "get_context", lambda name: "Ascend")
    assert not engine.available()
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


@pytest.fixture
def compiled(path, anew, monkeypatch):
    """How often the compiler ran; in its place the library that is there already is copied."""
    runs = []
    monkeypatch.setattr(build, "compile_to", lambda target, *_: runs.append(target.write_bytes(path.read_bytes())))
    return runs


def afresh() -> Path:
    """The library as a process that has just started would find it."""
    build.library.cache_clear()
    return build.library()


def test_compiled_once_and_kept(anew, compiled, monkeypatch):
    first = afresh()
    assert first.parent == anew / "cache" / "mindspore-pet"
    assert afresh() == first and len(compiled) == 1
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nothing")  # cannot be written
    assert afresh().parent.parent == anew / "temporary"
    (anew / "temporary" / f"mindspore-pet-{os.getuid()}").chmod(0o770)  # others could have put something there
    again = afresh()
    assert again.parent.parent == anew / "temporary" and again.parent.name != f"mindspore-pet-{os.getuid()}"


DAMAGE = {
    "empty": lambda file: file.write_bytes(b""),
    "cut off": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "one bit": lambda file: file.write_bytes(file.read_bytes()[:-9] + b"\x01" + file.read_bytes()[-8:]),
    "writable for the group": lambda file: file.chmod(0o720),
    "writable for all": lambda file: file.chmod(0o702),
    "a link": lambda file: file.rename(file.with_suffix(".real")) and file.symlink_to(file.with_suffix(".real")),
    "unreadable": lambda file: file.chmod(0o000),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_may_not_be_ours_is_never_loaded(anew, compiled, damage):
    """A library is replaced unless owner, permissions and content are as they were when it was compiled."""
    file = afresh()
    good = file.read_bytes()
    kept = file.with_name("copy")
    kept.write_bytes(good)  # `file` itself is mapped into this process, so it must not be cut off in place
    file.unlink()
    kept.rename(file)
    file.chmod(0o700)
    assert afresh() == file and len(compiled) == 1
    DAMAGE[damage](file)
    if damage == "unreadable" and os.access(file, os.R_OK):
        pytest.skip("this user may read everything")
    again = afresh()
    assert len(compiled) == 2 and again.read_bytes() == good
    assert not again.is_symlink() and again.stat().st_mode & 0o777 == 0o700


def test_of_another_user_is_never_loaded(anew, compiled, monkeypatch):
    file = afresh()
    lstat = Path.lstat

    def of_another(path):
        found = lstat(path)
        return os.stat_result((*found[:4], 12345, *found[5:])) if path == file else found

    monkeypatch.setattr(Path, "lstat", of_another)
    assert not build.is_private(file, build.stat.S_ISREG) and build.is_private(file.parent, build.stat.S_ISDIR)
    afresh()
    assert len(compiled) == 2


def test_a_linked_directory_is_passed_over(anew, compiled):
    (anew / "elsewhere").mkdir(mode=0o700)
    (anew / "cache").mkdir()
    (anew / "cache" / "mindspore-pet").symlink_to(anew / "elsewhere")
    assert afresh().parent.parent == anew / "temporary"
    assert not any((anew / "elsewhere").iterdir())


def test_where_the_lock_cannot_be_opened_is_passed_over(anew, compiled):
    """Another user's, root's say, ended with an error whatever looked for kernels."""
    (anew / "cache" / "mindspore-pet" / "lock").mkdir(parents=True)
    (anew / "cache" / "mindspore-pet").chmod(0o700)
    assert afresh().parent.parent == anew / "temporary" and engine.available()


def test_where_nothing_may_be_executed_is_passed_over(anew, compiled, monkeypatch):
    """Home directories mounted with ``noexec``: kernels were compiled there by each process, and used by none."""
    real = build.mmap.mmap

    def refused(handle, *rest):
        if os.readlink(f"/proc/self/fd/{handle}").startswith(str(anew / "cache")):
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return real(handle, *rest)

    monkeypatch.setattr(build.mmap, "mmap", refused)
    assert afresh().parent.parent == anew / "temporary"
    assert afresh().parent.parent == anew / "temporary" and len(compiled) == 1


def test_nothing_is_compiled_where_there_is_no_room(anew, compiled):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (build.ROOM // 2, hard))
    try:
        with pytest.raises(build.NoCompiler, match=r"temporary: File too large: name one .* XDG_CACHE_HOME"):
            afresh()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not compiled


def test_what_can_be_neither_loaded_nor_removed_is_left(anew, compiled, monkeypatch):
    """A cache that is read-only, or that others share."""
    first = afresh()
    real = build.loaded

    def refused(path, count):
        if path == first:
            raise build.NoCompiler("another kind of file")
        return real(path, count)

    def read_only(path, **_):
        raise OSError(errno.EROFS, "Read-only file system")

    def only_the_second(directory):
        if directory == first.parent:
            read_only(directory)

    monkeypatch.setattr(build, "loaded", refused)
    monkeypatch.setattr(build, "try_out", only_the_second)
    monkeypatch.setattr(Path, "unlink", read_only)
    assert afresh().parent.parent == anew / "temporary"


def test_another_c_library_has_kernels_of_its_own(anew, compiled, monkeypatch):
    """Containers share a home directory; each would remove what the other has compiled."""
    first = afresh()
    monkeypatch.setattr(build.platform, "libc_ver", lambda: ("musl", "1.2"))
    assert afresh() != first and first.exists()


def test_compiling_ends_with_the_first_error(anew, monkeypatch):
    """What is wrong with one source, or with the disk, is not waited for once for each source and set of flags."""
    monkeypatch.setenv("CC", failing(anew, "error: no space"))
    monkeypatch.setattr(build, "available_cores", lambda: 1)
    runs = []
    real = build.subprocess.Popen
    monkeypatch.setattr(build.subprocess, "Popen", lambda *given, **named: runs.append(given) or real(*given, **named))
    with pytest.raises(build.NoCompiler, match="no space"):
        afresh()
    assert len(runs) == len(build.PROCESSOR)


@pytest.mark.parametrize("mask", (0o000, 0o022, 0o777))
def test_private_whatever_the_umask(anew, compiled, mask):
    before = os.umask(mask)
    try:
        file = afresh()
    finally:
        os.umask(before)
    for made in (anew / "cache", file.parent, file):
        assert made.stat().st_mode & 0o777 == 0o700, made


def test_on_the_disk_before_it_has_its_name(anew, compiled, monkeypatch):
    """Else a power cut could leave the name with nothing in it."""
    events = []
    real_sync, real_replace = os.fsync, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda handle: (events.append(os.readlink(f"/proc/self/fd/{handle}")), real_sync(handle))
    )
    monkeypatch.setattr(os, "replace", lambda source, target: (events.append("renamed"), real_replace(source, target)))
    file = afresh()
    assert events.index("renamed") == 1 and events[0].startswith(str(file.parent / ".native-"))
    assert events[2:] == [str(file.parent)]


STOPPED = """
import os, signal, sys
from model_zoo.engine import build
build.subprocess.Popen = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
build.library()
"""


def test_left_overs_of_killed_compilations_go_away(path, anew, monkeypatch):
    done = subprocess.run([sys.executable, "-c", STOPPED], capture_output=True, text=True, timeout=HANGING)
    assert done.returncode == -9, done.stderr
    home = anew / "cache" / "mindspore-pet"
    assert list(home.glob(".native-*"))
    monkeypatch.setattr(build, "compile_to", lambda target, *_: target.write_bytes(path.read_bytes()))
    file = afresh()
    assert sorted(home.iterdir()) == sorted([file, home / "lock"])


def test_an_interrupt_ends_compilers_and_what_they_have_started(anew, monkeypatch):
    """GCC's own part would go on, and whoever reads what it says would wait for it."""
    compiler, begun = anew / "compiler", anew / "begun"
    compiler.write_text(f"#!/bin/sh\ntouch {begun}\nsleep 600\ntrue\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from model_zoo.engine import build; build.library()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    try:
        while not begun.exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in process.communicate(timeout=HANGING)[1]
    finally:
        process.kill()


def test_a_damaged_library_does_not_end_a_process(path, anew, monkeypatch):
    """Cut in the middle of a page table, a library kills whoever loads it, where nobody looks first."""
    home = anew / "cache" / "mindspore-pet"
    compiler = anew / "compiler"  # it takes what is there already
    compiler.write_text(f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\ncp {path} "$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    file = afresh()
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content[:4096])
    code = "from model_zoo.engine import build; print(build.library(), build.threads_in_use())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANGING)
    assert done.returncode == 0, done.stderr[-2000:]
    assert Path(done.stdout.split()[0]).parent == home and file.stat().st_size > 4096


def test_several_that_need_it_at_once_compile_it_once(anew, compiled):
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: build.library.__wrapped__(), range(4)))
    assert len(found) == 1 and len(compiled) == 1


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
