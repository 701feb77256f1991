"""How kernels come about: compiled once, kept, and done without where that fails."""

from __future__ import annotations

import errno
import logging
import os
import resource
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mindspore as ms
import pytest
from mindspore import ops
from waiting import HANGING

from model_zoo import activations, engine, layers
from model_zoo.engine import build
from model_zoo.errors import InputError

HERE = Path(__file__).parent


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
