"""Files that are whole or absent: whatever is interrupted leaves the old content, never half of the new."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from model_zoo.errors import InputError

# What a write in progress is called. Whatever bears this mark after a crash may be deleted.
UNFINISHED = ".unfinished-"


@contextmanager
def atomic_write(path: str | Path) -> Iterator[BinaryIO]:
    """A binary file to write to; it appears under `path` when the block ends well, and vanishes when it raises."""
    path = Path(path)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}{UNFINISHED}", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp makes files that only their owner can read
        os.replace(temporary, path)
        sync(path.parent)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def write_text(path: str | Path, text: str) -> None:
    """Writes a text file in UTF-8, whole or not at all."""
    with atomic_write(path) as file:
        file.write(text.encode("utf-8"))


def write_json(path: str | Path, value: object, **options) -> None:
    """Writes JSON the way Hugging Face does: indented by two, keys in order, ending in a newline."""
    write_text(path, json.dumps(value, **{"indent": 2, "sort_keys": True, "ensure_ascii": False, **options}) + "\n")


@contextmanager
def staged(directory: str | Path, replaces: Iterable[str] = ()) -> Iterator[Path]:
    """A staging directory whose files take their places in `directory` when the block ends well.

    Args:
        directory: the destination. When it does not exist, or is empty, it appears whole, by one rename. Otherwise
            files of the same name are replaced one by one, and others stay.
        replaces: globs of older files that must not stay beside the new ones (the shards of another checkpoint).

    When the block raises, `directory` is as it was, also if that is absent.
    """
    directory = Path(directory)
    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory}: is a file, a directory was expected")
    directory.parent.mkdir(parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(prefix=f".{directory.name}{UNFINISHED}", dir=directory.parent))
    try:
        yield stage
        os.chmod(stage, 0o777 & ~_umask())
        for file in stage.iterdir():
            sync(file)
        if not directory.exists() or not any(directory.iterdir()):
            os.replace(stage, directory)
        else:
            written = sorted(file.name for file in stage.iterdir())
            for name in written:
                os.replace(stage / name, directory / name)
            for pattern in replaces:
                for old in directory.glob(pattern):
                    if old.name not in written:
                        old.unlink()
            stage.rmdir()
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        raise
    sync(directory.parent)


def read_json(path: str | Path, expected: str = "a JSON object") -> dict:
    """The object in a JSON file; InputError names the file and the place of a mistake."""
    path = Path(path)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: not found, {expected} was expected") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}, column {error.colno}: not valid JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: {expected} was expected, it holds a {type(value).__name__}")
    return value


def sync(path: Path) -> None:
    """Makes what was written outlast a power cut; a file system that cannot do so is left alone."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """One process at a time; the others wait. Where the file system has no locks all go on, and are told False."""
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX)
            alone = True
        except OSError:
            alone = False
        yield alone


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
