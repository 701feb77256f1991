"""Files that cannot be written: which, why, and what helps."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# What a write in progress is called. Whatever bears this mark after a crash may be deleted.
UNFINISHED = ".unfinished-"


# What the system says when a file cannot be written, and what helps.
REASONS = {
    errno.ENOSPC: ("the disk is full", "free some space or write to another place"),
    errno.EDQUOT: ("the disk quota is used up", "free some space or write to another place"),
    errno.EFBIG: ("the file is larger than the system allows", "raise the limit (ulimit -f) or write to another place"),
    errno.EROFS: ("the file system is read-only", "write to another place"),
    errno.EACCES: ("permission denied", "change the permissions or write to another place"),
    errno.EEXIST: ("a file is in the way", "write to another place"),
    errno.ENOTDIR: ("a file is in the way", "write to another place"),
    errno.EPERM: ("not permitted", "change the permissions or write to another place"),
    errno.ENAMETOOLONG: ("the name is too long", "give a shorter one"),
    errno.EMFILE: ("too many files are open (ulimit -n)", "raise that limit"),
    errno.ENFILE: ("the system has too many files open", "close other programs"),
    errno.EIO: ("the disk reports an error", "see the system's log, or write to another place"),
}
WRITING = {**REASONS, errno.ENOENT: ("its directory is gone", "make it anew or write to another place")}
"""The same of a file that is being written."""
UNSYNCED = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""What the system says of bytes that it had taken and could not put on the disk."""


class CannotWrite(OSError):
    """A file cannot be written; the message says which, why, how much is needed, and what to do."""

    def __str__(self) -> str:
        return self.strerror


def _final(path: str | Path) -> Path:
    """A path whose parts have the names that they get at the end."""
    mark, parts = re.compile(rf"^\.(.+){re.escape(UNFINISHED)}.*$"), list(Path(path).parts)
    while any(map(mark.match, parts)):  # one within another has the marks of both
        parts = [mark.sub(r"\1", part) for part in parts]
    return Path(*parts)


def _place_of(error: OSError) -> str | os.PathLike | None:
    """The file that an error names, of a copy the one that is written; None where it names none."""
    place = error.filename if error.filename2 is None else error.filename2
    return place if isinstance(place, (str, os.PathLike)) else None


def what_is_in_the_way(error: OSError) -> str | None:
    """``place: reason`` of a system's error that a user can mend, of reading or writing; None of others."""
    place = _place_of(error)
    return f"{_final(place)}: {REASONS[error.errno][0]}" if error.errno in REASONS and place is not None else None


def _is_about(error: OSError, path: Path) -> bool:
    """Whether an error may be of writing `path`, and not of another file that is read meanwhile."""
    place = _place_of(error)
    if place is None or UNFINISHED in os.fspath(place):
        return True
    place, path = Path(place).absolute(), path.absolute()
    return place.is_relative_to(path) or path.is_relative_to(place)


def _number(error: OSError, unfinished: str | None) -> int | None:
    """The system's number of an error. NumPy's ``tofile`` says only how little of an array was taken: another byte for
    that file shows why."""
    if not re.fullmatch(r"\d+ requested and \d+ written", str(error)):
        return error.errno
    try:
        with open(unfinished or os.devnull, "ab", buffering=0) as file:
            file.write(b"\0")
    except OSError as shows:
        return shows.errno
    return errno.ENOSPC


def _reason(number: int, path: Path, size: int | None) -> tuple[str, str]:
    """Why `path` cannot be written, and what helps."""
    what, remedy = WRITING[number]
    if number not in (errno.ENOSPC, errno.EDQUOT):
        return what, remedy
    place = next((parent for parent in path.absolute().parents if parent.exists()), Path("/"))
    system = os.statvfs(place) if hasattr(os, "statvfs") else None
    if number == errno.ENOSPC and system is not None and system.f_files and not system.f_favail:
        return f"the disk takes no more than its {system.f_files:,} files", "delete some or write to another place"
    needed = f", {size / 1e6:.1f} MB are needed" if size is not None else ""
    return f"{what}: {shutil.disk_usage(place).free / 1e6:.1f} MB are free{needed}", remedy


@contextmanager
def explained(path: str | Path, size: int | None = None, unfinished: str | None = None) -> Iterator[None]:
    """Turns the system's error of writing `path` into `CannotWrite`.

    Args:
        path: what is written; parts of it that are called so only while they are written get their final name. Errors
            of files elsewhere pass through.
        size: bytes that it will have, where that is known.
        unfinished: the file that is written, where that is another, to be thrown away.
    """
    try:
        yield
    except CannotWrite:
        raise
    except OSError as error:
        number = _number(error, unfinished)
        there = number == errno.ENOENT and Path(path).parent.is_dir()  # then what is not there was to be read
        if number not in WRITING or there or not _is_about(error, Path(path)):
            raise
        what, remedy = _reason(number, Path(path), size)
        raise CannotWrite(number, f"{_final(path)}: cannot be written: {what}; {remedy}") from error
