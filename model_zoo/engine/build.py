"""Compiles the C sources in csrc for the processor at hand, once, and keeps the result."""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

from model_zoo.cores import available_cores
from model_zoo.errors import InputError

SOURCES = Path(__file__).parent / "csrc"
COMMON = ("-std=gnu11", "-O3", "-shared", "-fPIC", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-w")
PROCESSOR = (("-march=native", "-mprefer-vector-width=512"), ("-march=native",), ("-mcpu=native",), ())
"""Flags for the processor at hand, the best first; a compiler takes the first ones that it knows."""

SWITCH = "PET_NATIVE"
"""Set to 0, the environment variable turns the kernels off."""

THREADS = "PET_NATIVE_THREADS"
"""How many threads the kernels use; default what `default_threads` finds."""


class NoCompiler(Exception):
    """Why there are no native kernels, in one line."""


def directories() -> list[Path]:
    """Where compiled kernels may be kept: the user's cache, and this user's directory among the temporary ones."""
    found = []
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    if os.path.isabs(cache):
        found.append(Path(cache) / "mindspore-pet")
    user = os.getuid() if hasattr(os, "getuid") else ""
    return [*found, Path(tempfile.gettempdir()) / f"mindspore-pet-{user}"]


def is_mine(directory: Path) -> bool:
    """Whether a directory is there and nobody else may put kernels into it."""
    try:
        found = directory.stat()
    except OSError:
        return False
    ours = not hasattr(os, "getuid") or found.st_uid in (os.getuid(), 0)
    return ours and stat.S_ISDIR(found.st_mode) and not found.st_mode & stat.S_IWOTH


def writable_directory() -> Path:
    """The first of `directories` that can be written, or one that is gone when the process ends."""
    for directory in directories():
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory):
                pass
        except OSError:
            continue
        if is_mine(directory):
            return directory
    try:
        directory = Path(tempfile.mkdtemp(prefix="mindspore-pet-"))
    except OSError as error:
        raise NoCompiler(f"there is no directory for them: {error}") from error
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def compiler() -> list[str]:
    """The command: ``$CC``, or the first C compiler on the path."""
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
    raise NoCompiler("no C compiler (cc, gcc or clang) is on the path; install one, such as gcc, or name it in CC")


def processor() -> str:
    """What the compiled code may depend on: a home directory may be shared by unlike machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        found = [line for line in lines if line.lower().startswith(("flags", "features", "model name"))]
        return platform.machine() + "".join(sorted(set(found)))
    except OSError:
        return platform.machine() + platform.processor()


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


@functools.cache
def library() -> Path:
    """The compiled kernels, loaded and told how many threads to use.

    Raises:
        NoCompiler: switched off, no compiler, or one that fails; the message says which.
        InputError: `THREADS` is no number.
    """
    if os.environ.get(SWITCH) == "0":
        raise NoCompiler(f"{SWITCH}=0")
    count = threads()
    command = compiler()
    sources = sorted(path for path in SOURCES.iterdir() if path.suffix in (".c", ".h"))
    digest = hashlib.sha256(" ".join([*command, *COMMON, processor()]).encode())
    for path in sources:
        digest.update(path.name.encode() + path.read_bytes())
    name = f"native-{digest.hexdigest()[:16]}.so"
    for directory in directories():
        if is_mine(directory) and (directory / name).is_file():
            try:
                return loaded(directory / name, count)
            except NoCompiler:  # cut off, when a machine went down: made anew
                continue
    target = writable_directory() / name
    build(command, [str(path) for path in sources if path.suffix == ".c"], target)
    return loaded(target, count)


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


def build(command: list[str], sources: list[str], target: Path) -> None:
    """Compiles into ``target``, which is whole or absent."""
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=".native-", suffix=".so")
    except OSError as error:
        raise NoCompiler(f"{target.parent} cannot be written: {error}") from error
    os.close(handle)
    try:
        for flags in PROCESSOR:
            try:
                result = subprocess.run(
                    [*command, *COMMON, *flags, *sources, "-o", name, "-lm", "-lpthread"],
                    capture_output=True,
                    text=True,
                    stdin=subprocess.DEVNULL,
                    timeout=300,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise NoCompiler(f"{command[0]} does not run: {error}") from error
            if result.returncode == 0:
                os.replace(name, target)
                return
        first = next((line for line in result.stderr.splitlines() if "error" in line), result.stderr[:200])
        raise NoCompiler(f"{command[0]} cannot compile them: {first.strip()}")
    finally:
        if os.path.exists(name):
            os.unlink(name)
