"""Compiles the C sources beside this file for the processor at hand, once, and keeps the result."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
COMMON = ("-std=gnu11", "-O3", "-shared", "-fPIC", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-w")
PROCESSOR = (("-march=native", "-mprefer-vector-width=512"), ("-march=native",), ("-mcpu=native",), ())
"""Flags for the processor at hand, the best first; a compiler takes the first ones that it knows."""

SWITCH = "PET_NATIVE"
"""Set to 0, the environment variable turns the kernels off."""


THREADS = "PET_NATIVE_THREADS"
"""How many threads the kernels use; default what `default_threads` finds."""


class NoCompiler(Exception):
    """Why there are no native kernels, in one line."""


def cache_directory() -> Path:
    """Where compiled kernels are kept: the user's cache, or a temporary directory where that cannot be written."""
    wanted = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mindspore-pet"
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        if os.access(wanted, os.W_OK):
            return wanted
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="mindspore-pet-"))


def compiler() -> list[str]:
    """The command: ``$CC``, or the first C compiler on the path."""
    named = shlex.split(os.environ.get("CC", ""))
    if named:
        if shutil.which(named[0]) is None:
            raise NoCompiler(f"CC is {named[0]}, which is not on the path")
        return named
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    raise NoCompiler("no C compiler (cc, gcc or clang) is on the path")


def processor() -> str:
    """What the compiled code may depend on: a home directory may be shared by unlike machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        found = [line for line in lines if line.lower().startswith(("flags", "features", "model name"))]
        return platform.machine() + "".join(sorted(set(found)))
    except OSError:
        return platform.machine() + platform.processor()


def default_threads() -> int:
    """As many as there are cores for this process, or ``OMP_NUM_THREADS`` if that is fewer."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(asked)) if asked.isdigit() and int(asked) > 0 else cores


@functools.cache
def library() -> Path:
    """The compiled kernels.

    Raises:
        NoCompiler: switched off, no compiler, or one that fails; the message says which.
    """
    if os.environ.get(SWITCH) == "0":
        raise NoCompiler(f"{SWITCH}=0")
    os.environ.setdefault(THREADS, str(default_threads()))
    command = compiler()
    sources = sorted(path for path in HERE.iterdir() if path.suffix in (".c", ".h"))
    digest = hashlib.sha256(" ".join([*command, *COMMON, processor()]).encode())
    for path in sources:
        digest.update(path.name.encode() + path.read_bytes())
    directory = cache_directory()
    target = directory / f"native-{digest.hexdigest()[:16]}.so"
    if not target.exists():
        build(command, [str(path) for path in sources if path.suffix == ".c"], target)
    return target


def build(command: list[str], sources: list[str], target: Path) -> None:
    """Compiles into ``target``, which is whole or absent."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".native-", suffix=".so")
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
