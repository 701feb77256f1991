"""Files in and out.

What is written is whole or absent: whatever is interrupted leaves the old content, never half of the new. What is read
is a regular file, and what is wrong with it is an `InputError` that names it.
"""

from __future__ import annotations

import atexit
import errno
import io
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from model_zoo import progress
from model_zoo.errors import InputError, shown
from model_zoo.posix import fcntl
from model_zoo.unwritable import UNFINISHED, UNSYNCED, explained


@contextmanager
def atomic_write(path: str | Path, size: int | None = None) -> Iterator[BinaryIO]:
    """A binary file to write to; it appears under `path` when the block ends well, and vanishes when it raises.

    Raises:
        CannotWrite: the disk is full or may not be written to. ``size`` is what the message says is needed.
    """
    with replacing(path, size=size) as temporary, open(temporary, "wb") as file:
        yield file


@contextmanager
def replacing(path: str | Path, suffix: str = "", size: int | None = None) -> Iterator[str]:
    """The name of an empty file beside `path`, with a suffix, that takes its place as in `atomic_write`. A device or a
    pipe stays what it is, and gets what was written."""
    path = Path(path)
    _refuse_directory(path)
    through = written_through(path)
    with explained(path, size):
        stem = path.name.removesuffix(suffix)
        where = None if through else path.parent
        handle, temporary = tempfile.mkstemp(suffix, f".{stem}{UNFINISHED}", where)
        os.close(handle)
        try:
            with explained(path, size, temporary):  # looks at the disk before what was written is deleted
                yield temporary
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            if through:
                with open(temporary, "rb") as source, open(path, "ab") as target:
                    shutil.copyfileobj(source, target)
                os.unlink(temporary)
                return
            os.chmod(temporary, default_mode(0o666))
            os.replace(temporary, path)
            sync(path.parent)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise


def write_text(path: str | Path, text: str) -> None:
    """Writes a text file in UTF-8, whole or not at all. Parent directories are created."""
    content = text.encode("utf-8")
    with explained(path):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, len(content)) as file:
        file.write(content)


def write_json(path: str | Path, value: object, **options) -> None:
    """Writes JSON the way Hugging Face does: indented by two, keys in order, ending in a newline."""
    write_text(path, json.dumps(value, **{"indent": 2, "sort_keys": True, "ensure_ascii": False, **options}) + "\n")


@contextmanager
def staged(directory: str | Path, replaces: Iterable[str] = (), size: int | None = None) -> Iterator[Path]:
    """A staging directory whose files take their places in `directory` when the block ends well.

    Args:
        directory: the destination. When it does not exist, or is empty, it appears whole, by one rename. Otherwise
            files of the same name are replaced one by one, and others stay; as they are in one that cannot be
            replaced: a mount point, or one in a directory that may not be written to. A link is followed.
        replaces: globs of older files that must not stay beside the new ones (the shards of another checkpoint).
        size: bytes that the files will have, where that is known.

    When the block raises, `directory` is as it was, also if that is absent.

    Raises:
        CannotWrite: the disk is full or may not be written to.
    """
    place = Path(directory).resolve()
    with explained(directory, size), _taking_place(place, replaces) as stage, explained(directory, size):
        yield stage


@contextmanager
def _taking_place(directory: Path, replaces: Iterable[str]) -> Iterator[Path]:
    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory}: is a file, a directory was expected")
    directory.parent.mkdir(parents=True, exist_ok=True)
    fixed = directory.is_dir() and (os.path.ismount(directory) or not os.access(directory.parent, os.W_OK))
    place = directory if fixed else directory.parent
    stage = Path(tempfile.mkdtemp(prefix=f".{directory.name}{UNFINISHED}", dir=place))
    try:
        yield stage
        written = settled(stage)
        if not directory.exists() or not any(directory.iterdir()):
            os.replace(stage, directory)
        else:
            places = [directory / file.relative_to(stage) for file in written]
            for file, place in zip(written, places, strict=True):
                place.parent.mkdir(parents=True, exist_ok=True)
                os.replace(file, place)
            for pattern in replaces:
                for old in directory.glob(pattern):
                    if old not in places:
                        old.unlink()
            shutil.rmtree(stage)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        raise
    sync(directory.parent)


def settled(stage: Path) -> list[Path]:
    """The files of a directory that has been filled; they are on the disk, and it has a plain one's permissions."""
    os.chmod(stage, default_mode(0o777))
    written = files_below(stage)
    for path in (*written, *{file.parent for file in written}):
        sync(path)
    return written


SPECIAL = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
"""What is no file, though it lies in a directory: reading it may wait for ever or never end."""


def cache_directory() -> Path | None:
    """``mindspore-pet`` in the user's cache directory; None for a user without a home."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache) / "mindspore-pet" if os.path.isabs(cache) else None


def make_private(directory: Path) -> None:
    """Makes a directory, and what is missing above it, for this user alone, whatever the umask says: kernels are not
    loaded from where others may write, and data are not for others to read."""
    for path in reversed([path for path in (directory, *directory.parents) if not path.exists()]):
        path.mkdir(exist_ok=True)
        path.chmod(0o700)


def until_exit() -> Path:
    """A temporary directory that is gone when the process ends, for what has no place of its own."""
    directory = Path(tempfile.mkdtemp(prefix="mindspore-pet-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def check_name(name: str | Path) -> None:
    """Raises InputError where no file can have this name: too long, or with a NUL in it."""
    try:
        os.stat(name)
    except ValueError as error:
        raise InputError(f"{shown(str(name))}: no file can have this name ({error})") from None
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise InputError(f"{shown(str(name))}: no file can have this name ({error.strerror})") from None


def _refuse_directory(path: str | Path) -> None:
    if os.path.isdir(path):
        raise InputError(f"{path}: is a directory, a file was expected")


def special_kind(path: str | Path) -> str | None:
    """What is there, if it is no regular file, no directory and not absent: ``"a pipe"``, say."""
    try:
        return SPECIAL.get(stat.S_IFMT(os.stat(path).st_mode))
    except (OSError, ValueError):
        return None


def written_through(path: str | Path) -> bool:
    """Whether a path is a device (a file renamed over root's ``/dev/null`` is that of all programs), a pipe or the
    name of an open file, as ``/dev/stdout`` is."""
    return special_kind(path) is not None or (os.path.islink(path) and os.readlink(path).startswith("/proc/"))


def no_directory(path: str | Path) -> str:
    """What is said of a path that is no directory, though one was expected."""
    return "is a file" if Path(path).exists() else "no such directory"


def files_below(directory: str | Path) -> list[Path]:
    """All files in a directory and below it, by name. What cannot be read, or goes away meanwhile, is left out."""
    return sorted(Path(folder, name) for folder, _, names in os.walk(directory) for name in names)


def open_file(path: str | Path, buffering: int = -1) -> BinaryIO:
    """``open`` for reading bytes, for regular files only.

    Raises:
        InputError: a pipe, a socket or a device.
        OSError: as ``open`` does.
    """
    kind = special_kind(path)
    if kind is not None:
        raise InputError(f"{path}: is {kind}, a regular file was expected")
    return open(path, "rb", buffering)


LFS_POINTER = b"version https://git-lfs"
NOT_FETCHED = "only a Git LFS pointer, not the file itself; fetch it with 'git lfs pull'"


def is_pointer(path: str | Path) -> bool:
    """Whether a file is only a Git LFS pointer."""
    with open_file(path) as file:
        return file.read(len(LFS_POINTER)) == LFS_POINTER


def read_bytes(path: str | Path, expected: str = "a file") -> bytes:
    """The content of a file. Raises InputError where it is missing, cannot be read or is only a Git LFS pointer."""
    try:
        with open_file(path) as file:
            data = file.read()
    except FileNotFoundError:
        raise InputError(f"{path or repr(path)}: not found, {expected} was expected") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a directory, {expected} was expected") from None
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise InputError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if data.startswith(LFS_POINTER):
        raise InputError(f"{path}: {NOT_FETCHED}")
    return data


def read_text(path: str | Path, expected: str = "a text file") -> str:
    """The content of a text file without a byte-order mark, its lines' ends as Python has them. Raises InputError as
    `read_bytes`, and where it is not UTF-8."""
    try:
        return io.TextIOWrapper(io.BytesIO(read_bytes(path, expected)), "utf-8-sig").read()
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text, {expected} was expected") from None


def json_value(text: str) -> Any:
    """What a JSON text says. Raises ValueError, also where it is nested more deeply than Python's own reader goes."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_json(data: bytes, path: str | Path, expected: str = "a JSON object") -> dict:
    """The object in a JSON text; InputError names the file and the place of a mistake."""
    try:
        value = json_value(data.decode("utf-8"))
        if b"\\ud" in data.lower():  # half of a surrogate pair, which can neither be written nor printed
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}, column {error.colno}: not valid JSON ({error.msg})") from None
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: {expected} was expected, it holds a {type(value).__name__}")
    return value


def read_json(path: str | Path, expected: str = "a JSON object") -> dict:
    """The object in a JSON file; InputError names the file and the place of a mistake."""
    return parse_json(read_bytes(path, expected), path, expected)


def sync(path: Path) -> None:
    """Makes what was written outlast a power cut; a file system that cannot do so is left alone.

    Raises:
        OSError: what was written did not get to the disk: some file systems (NFS, quotas) say so only now.
    """
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno in UNSYNCED:
            raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(handle)


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """One process at a time; the others wait. Where the file system has no locks all go on, and are told False."""
    _refuse_directory(path)
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = open(path, "ab+", buffering=0)  # noqa: SIM115 - closed below; to write alone would wait at a pipe
    with stream:
        try:
            with progress.pausing():
                fcntl.flock(stream, fcntl.LOCK_EX)
            alone = True
        except (OSError, AttributeError):  # the latter where there is no fcntl
            alone = False
        yield alone


def default_mode(base: int) -> int:
    """The permissions that a plain ``open`` or ``mkdir`` would have given; temporary files are made private instead."""
    mask = os.umask(0)
    os.umask(mask)
    return base & ~mask
