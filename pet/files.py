"""Writes that are whole or absent.

A process can be killed at any moment. What it leaves behind must then be the old file, the new file, or nothing, never
half of one. So everything is written beside its destination, flushed to the disk, and renamed over it: a rename within
one directory is atomic on POSIX file systems.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from model_zoo.atomic import files_below, replacing, settled, sync, write_text
from model_zoo.errors import nearest
from model_zoo.posix import fcntl
from model_zoo.unwritable import UNFINISHED, explained

log = logging.getLogger("pet")

__all__ = [
    "UNFINISHED",
    "absent",
    "append_text",
    "atomic_directory",
    "atomic_file",
    "beside",
    "copy",
    "finite",
    "json_text",
    "literal",
    "lock",
    "matching",
    "recover",
    "sweep",
    "write_json",
    "write_text",
]


def append_text(path: str | os.PathLike, text: str) -> None:
    """Puts ``text`` at the end of the file ``path`` as UTF-8, all of it or nothing."""
    content = memoryview(text.encode("utf-8"))
    with explained(path, len(content)), open(path, "ab", buffering=0) as stream:
        before, done = stream.seek(0, os.SEEK_END), 0
        try:
            while done < len(content):
                done += stream.write(content[done:])
        except OSError:
            stream.truncate(before)
            raise


def finite(value: Any) -> Any:
    """A value of JSON with None for what is no number there: NaN and the infinities."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON that every program reads, see `finite`; keys keep their order, and characters stay what they are."""
    write = functools.partial(json.dumps, indent=indent, ensure_ascii=False, allow_nan=False)
    try:
        return write(value)
    except ValueError:
        return write(finite(value))


def write_json(path: str | os.PathLike, value: Any, indent: int | None = 2) -> None:
    """Put ``value`` into the file ``path`` as `json_text`, all of it or nothing."""
    write_text(path, json_text(value, indent) + "\n")


ADDRESS = re.compile(r"(^|/)[a-z][a-z0-9+.-]+:/.")
"""An address as a path has it, which keeps one of its slashes."""


def absent(path: Path) -> str:
    """What is said of a path where nothing is, with the names beside it that come near."""
    if path.is_symlink():
        return f"a link to {os.readlink(path)}, which is not there"
    if ADDRESS.search(str(path)):
        return "an address, and no file of this machine; download what is there first"
    return f"no such file or directory{beside(path)}"


def beside(path: Path) -> str:
    """What is called nearly so in the same directory, for an error message."""
    try:
        return nearest(path.name, [entry.name for entry in path.parent.iterdir()])
    except OSError:
        return f" ({path.parent} does not exist either)"


def matching(path: Path) -> list[Path]:
    """The files that a pattern like ``data/*.jsonl`` matches, by name; none where something is called so itself."""
    above = literal(path)
    pattern = path.relative_to(above)
    if os.path.lexists(path) or not set("*?[") & set(str(pattern)):
        return []
    return sorted(found for found in above.glob(str(pattern)) if found.is_file())


def literal(path: Path) -> Path:
    """The part of a pattern that is there as it stands: the directory in which it is looked for."""
    return next((above for above in path.parents if above.is_dir()), path)


def atomic_file(path: str | os.PathLike, writer: Callable[[str], Any]) -> None:
    """For writers that want a file name of their own: ``writer(temporary_name)``, then flush and rename to ``path``.

    The temporary name has the suffix of ``path``, because some libraries choose a format by it.
    """
    with explained(path):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, Path(path).suffix) as temporary:
        writer(temporary)


def copy(source: str | os.PathLike, target: str | os.PathLike) -> None:
    """Copy a file, or all files of a directory, each of them whole or not at all. Files in the way are replaced."""
    source = Path(source)
    for file in files_below(source) if source.is_dir() else [source]:
        atomic_file(Path(target) / file.relative_to(source), functools.partial(shutil.copyfile, file))


@contextlib.contextmanager
def atomic_directory(path: str | os.PathLike) -> Iterator[Path]:
    """Fill a directory that appears, whole, when the block ends without an exception.

    The block is given a temporary directory beside ``path``. When it ends, every file in it is flushed to the disk and
    the directory takes the place of ``path``. If ``path`` existed it is moved aside first and deleted last: a
    directory cannot be replaced in one step, so between the two renames the old one is under its ``.unfinished-``
    name, and :func:`recover` puts it back after a crash in that moment.
    """
    with explained(path), _filled(Path(path)) as stage, explained(path):
        yield stage


@contextlib.contextmanager
def _filled(path: Path) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    recover(path)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}{UNFINISHED}", dir=path.parent))
    try:
        yield temporary
        settled(temporary)
        aside = _aside(path)
        if path.exists():
            os.rename(path, aside)
        try:
            os.rename(temporary, path)
        except OSError:
            if aside.exists() and not path.exists():
                os.rename(aside, path)
            raise
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync(path.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _aside(path: Path) -> Path:
    return path.parent / f".{path.name}{UNFINISHED}previous"


def recover(path: str | os.PathLike) -> None:
    """Finish what a crash within :func:`atomic_directory` left half done.

    If ``path`` is gone and its predecessor stands beside it, the predecessor comes back; if both are there, the
    predecessor is deleted.
    """
    path = Path(path)
    aside = _aside(path)
    if not aside.exists():
        return
    if path.exists():
        shutil.rmtree(aside, ignore_errors=True)
    else:
        os.rename(aside, path)


def lock(directory: str | os.PathLike) -> int:
    """Locks a directory for this process until it closes the handle that is returned, or is gone, however it ends.

    The lock is on the directory itself, so that no file is left behind. Where the file system knows no such locks
    (some network file systems) a warning says so.

    Raises:
        BlockingIOError: a living process has it, or has just deleted it.
        OSError: it cannot be opened.
    """
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.isdir(directory) or not os.path.samestat(os.fstat(handle), os.stat(directory)):
            raise BlockingIOError
    except BlockingIOError:
        os.close(handle)
        raise
    except OSError as error:
        log.warning("%s cannot be locked (%s): make sure that no other job writes there", directory, error.strerror)
    return handle


def sweep(directory: str | os.PathLike) -> None:
    """Delete what interrupted writes left in ``directory`` (not below it). Only call this where one process writes."""
    for entry in Path(directory).iterdir():
        if UNFINISHED in entry.name and not entry.name.endswith(f"{UNFINISHED}previous"):
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                with contextlib.suppress(FileNotFoundError):
                    entry.unlink()
