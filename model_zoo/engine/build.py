"""Compiles the C sources in csrc for the processor at hand, once, and keeps the result."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import mmap
import os
import platform
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from model_zoo import progress
from model_zoo.atomic import cache_directory, locked, make_private, sync, until_exit
from model_zoo.errors import InputError
from model_zoo.posix import fcntl
from model_zoo.resources import available_cores

SOURCES = Path(__file__).parent / "csrc"
COMMON = ("-std=gnu11", "-O3", "-shared", "-fPIC", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-w")
NATIVE = ("-march=native", "-mprefer-vector-width=512")
FUSED = "--param=avoid-fma-max-bits=0"
"""GCC multiplies and adds apart in some loops for AMD's processors and at once in others: a sum's bits would depend on
how many rows are computed with it."""

PROCESSOR = ((*NATIVE, FUSED), ("-march=native", FUSED), NATIVE, ("-march=native",), ("-mcpu=native",), ())
"""Flags for the processor at hand, the best first; a compiler takes the first ones that it knows."""

CUT_SHORT = ("killed", "terminated program", "out of memory", "memory exhausted", "cannot allocate", "no space left")
"""What compilers say where it is not the flags that they fail for: with others they would make slower kernels, to be
kept."""

STAGE = ".native-"
"""How the directories begin that compilations work in."""

ROOM = 8 << 20
"""Bytes that a compilation takes at most in its directory, with what compilers write for themselves."""

TEMPORARY = ("TMPDIR", "ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")
"""Environment variables that name where a compiler puts what it needs meanwhile."""

SWITCH = "PET_NATIVE"
"""Set to 0, the environment variable turns off the kernels, and the fused operators of an accelerator."""

THREADS = "PET_NATIVE_THREADS"
"""How many threads the kernels use; default what `default_threads` finds."""


class NoCompiler(Exception):
    """Why there are no native kernels, in one line."""


def directories() -> list[Path]:
    """Where compiled kernels may be kept: the user's cache, and this user's directory among the temporary ones."""
    user = os.getuid() if hasattr(os, "getuid") else ""
    temporary = Path(tempfile.gettempdir()) / f"mindspore-pet-{user}"
    return [*filter(None, [cache_directory()]), temporary]


def is_private(path: Path, kind: Callable[[int], bool]) -> bool:
    """Whether `path` is of this kind (``stat.S_ISDIR``, ``stat.S_ISREG``; no link), owned by this user or root, and
    writable for its owner alone: what is loaded from there runs with this user's rights."""
    try:
        found = path.lstat()
    except OSError:
        return False
    ours = not hasattr(os, "getuid") or found.st_uid in (os.getuid(), 0)
    return ours and kind(found.st_mode) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def usable_directory() -> Path:
    """The first of `directories` where kernels can be compiled and loaded, or one that is gone when the process ends.
    Raises NoCompiler where there is none."""
    for directory in directories():
        with suppress(OSError):
            make_private(directory)
            if is_private(directory, stat.S_ISDIR):
                try_out(directory)
                return directory
    try:
        directory = until_exit()
        try_out(directory)
    except OSError as error:
        place = f"{tempfile.gettempdir()}: {error.strerror}"
        raise NoCompiler(
            f"there is no directory where they could be compiled and loaded; {place}: name one with {ROOM >> 20} MB of "
            "room whose files may be executed (no noexec): export XDG_CACHE_HOME=/…"
        ) from error
    return directory


def try_out(directory: Path) -> None:
    """Raises OSError where there is no room for a compilation, where nothing may be executed (``noexec``), or where the
    lock is another user's, root's say."""
    open(directory / "lock", "a").close()
    with tempfile.TemporaryFile(dir=directory) as file:
        file.write(bytes(ROOM))
        file.flush()
        mmap.mmap(file.fileno(), mmap.PAGESIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC).close()


def compiler() -> list[str]:
    """The command: ``$CC``, or the first C compiler on the path, or else that of the package ziglang (clang, with a C
    library's headers): small container images have none of their own."""
    try:
        named = shlex.split(os.environ.get("CC", ""))
    except ValueError as error:
        raise NoCompiler(f"CC is {os.environ['CC']!r}, which is no command: {error}") from error
    if named:
        if shutil.which(named[0]) is None:
            raise NoCompiler(f"CC is {named[0]}, which is not on the path")
        return named
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    package = find_spec("ziglang")
    if package is not None and package.origin:
        return [str(Path(package.origin).with_name("zig")), "cc"]
    raise NoCompiler(
        "no C compiler (cc, gcc or clang) is on the path; install one, such as gcc, name it in CC, or "
        "pip install 'mindspore-pet[compiler]'"
    )


def processor() -> str:
    """What the compiled code may depend on: a home directory may be shared by unlike machines and containers."""
    system = f"{platform.machine()} {platform.libc_ver()}"
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        found = [line for line in lines if line.lower().startswith(("flags", "features", "model name"))]
        return system + "".join(sorted(set(found)))
    except OSError:
        return system + platform.processor()


def threads() -> int:
    """How many threads the kernels are to use. Raises InputError where `THREADS` is no number."""
    asked = os.environ.get(THREADS, "")
    if not asked:
        return default_threads()
    if not (asked.isdigit() and int(asked) > 0):
        raise InputError(f"{THREADS} is {asked!r}; a whole number above 0 was expected")
    return int(asked)


def default_threads() -> int:
    """As many as there are cores for this process, or ``OMP_NUM_THREADS`` if that is fewer."""
    cores = available_cores()
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(asked)) if asked.isdigit() and int(asked) > 0 else cores


def switched_off() -> bool:
    """Whether nothing but plain operators is asked for."""
    return os.environ.get(SWITCH) == "0"


@functools.cache
def library() -> Path:
    """The compiled kernels, loaded and told how many threads to use.

    Raises:
        NoCompiler: switched off, Windows, no compiler, or one that fails; the message says which.
        InputError: `THREADS` is no number.
    """
    if switched_off():
        raise NoCompiler(f"{SWITCH}=0")
    if fcntl is None:
        raise NoCompiler("they are written for POSIX, which this system is not")
    count = threads()
    command = compiler()
    sources = sorted(path for path in SOURCES.iterdir() if path.suffix in (".c", ".h"))
    digest = hashlib.sha256(f"{command} {COMMON} {PROCESSOR} {processor()}".encode())
    for path in sources:
        digest.update(path.name.encode() + path.read_bytes())
    key = digest.hexdigest()[:16]
    for directory in directories():
        path = kept(directory, key)
        if path is not None:
            with suppress(NoCompiler):  # may not be loaded from there
                return loaded(path, count)
            with suppress(OSError):
                path.unlink()
    directory = usable_directory()
    with locked(directory / "lock") as alone:
        path = kept(directory, key)  # another process may have made it meanwhile
        if path is None:
            if alone:  # whoever made these is dead
                for left in directory.glob(f"{STAGE}*"):
                    shutil.rmtree(left, ignore_errors=True)
            path = build(command, [str(path) for path in sources if path.suffix == ".c"], directory, key)
    return loaded(path, count)


def kept(directory: Path, key: str) -> Path | None:
    """The library of this key in a directory, if nobody else can have put it there and its content is whole.

    A damaged file must be found before it is loaded: loading one that was cut off ends the process. What is damaged is
    removed.
    """
    if not is_private(directory, stat.S_ISDIR):
        return None
    for path in sorted(directory.glob(f"native-{key}-*.so")):
        with suppress(OSError):
            if is_private(path, stat.S_ISREG) and path.name == file_name(key, path.read_bytes()):
                return path
            path.unlink()
    return None


def file_name(key: str, content: bytes) -> str:
    """A library's name has its key and its content's digest, so that both appear in one rename."""
    return f"native-{key}-{hashlib.sha256(content).hexdigest()}.so"


def loaded(path: Path, count: int) -> Path:
    """The library after a look whether it can be loaded, which a directory of data may forbid."""
    try:
        ctypes.CDLL(str(path)).pet_use_threads(count)
    except (OSError, AttributeError) as error:
        raise NoCompiler(f"{path} cannot be loaded: {error}") from error
    return path


def threads_in_use() -> int:
    """How many threads the kernels have."""
    return ctypes.CDLL(str(library())).pet_threads()


def build(command: list[str], sources: list[str], directory: Path, key: str) -> Path:
    """Compiles into a file of a directory, which is whole or absent."""
    try:
        with tempfile.TemporaryDirectory(dir=directory, prefix=STAGE) as stage:
            target = Path(stage) / "native.so"
            compile_to(target, command, sources)
            target.chmod(0o700)
            sync(target)
            path = directory / file_name(key, target.read_bytes())
            os.replace(target, path)
            sync(directory)
            return path
    except OSError as error:
        raise NoCompiler(f"{directory} cannot be written: {error}") from error


def compile_to(target: Path, command: list[str], sources: list[str]) -> None:
    """Runs the compiler, for as many sources at once as there are cores, with its files beside the target. Raises
    NoCompiler with its first error."""
    objects = [str(target.with_name(f"{Path(source).stem}.o")) for source in sources]
    each = [["-c", source, "-o", made] for source, made in zip(sources, objects, strict=True)]
    started: list[subprocess.Popen] = []
    with ThreadPoolExecutor(available_cores()) as pool:
        try:
            for flags in PROCESSOR:
                progress.tick((compile_to, *flags))
                failed: list[str] = []
                run = functools.partial(compiler_run, [*command, *COMMON, *flags], target.parent, started, failed)
                list(pool.map(run, each))
                run([*objects, "-o", str(target), "-lm", "-lpthread"])
                if not failed and target.is_file():
                    return
                failed = failed or ["error: it ended well and wrote no file"]
        finally:
            for process in started:  # after Ctrl-C, with what a compiler has started itself
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
    first = next((line for line in failed[0].splitlines() if "error" in line), failed[0][:200])
    raise NoCompiler(f"{command[0]} cannot compile them: {first.strip()}")


def compiler_run(
    command: list[str], temporary: Path, started: list[subprocess.Popen], failed: list[str], words: list[str]
) -> None:
    """Runs a compiler, which is put among those that were started. What it says where it fails goes to `failed`; where
    another one has failed, nothing is run."""
    if failed:
        return
    try:
        process = subprocess.Popen(
            [*command, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            env={**os.environ, **dict.fromkeys(TEMPORARY, str(temporary)), "LC_ALL": "C"},
        )
        started.append(process)
        said = process.communicate(timeout=300)[1]
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoCompiler(f"{command[0]} does not run: {error}") from error
    cut_short = next((line for line in said.splitlines() if any(word in line.lower() for word in CUT_SHORT)), None)
    if process.returncode < 0 or (process.returncode and cut_short):
        raise NoCompiler(f"{command[0]} was cut short: {cut_short or f'signal {-process.returncode}'}")
    if process.returncode:
        failed.append(said or f"error: exit code {process.returncode}")
