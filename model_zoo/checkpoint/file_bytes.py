"""The bytes of a file, read where they are asked for.

Files are not mapped into memory: where somebody cuts a mapped file off, the system ends the process that reads it
(SIGBUS), without a word.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Any

from model_zoo.atomic import LFS_POINTER, NOT_FETCHED, open_file
from model_zoo.errors import InputError, nearest

WINDOW = 4096
"""Bytes that are kept of what stands around a few that were asked for."""
CHUNK = 4 * 2**20
"""Bytes that are copied or written at once."""


class FileBytes:
    """An open file. Several threads may read at once.

    Attributes:
        size: in bytes, when it was opened.

    Raises:
        InputError: it is no regular file, or only a Git LFS pointer.
        OSError: as ``open`` does.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._file = open_file(path, buffering=0)
        self.size = self._file.seek(0, 2)
        self._lock = threading.Lock()
        self._window, self._begin = b"", 0
        if self[0 : len(LFS_POINTER)] == LFS_POINTER:
            raise InputError(f"{path}: {NOT_FETCHED}")

    def close(self) -> None:
        self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()

    def read_into(self, start: int, out) -> None:
        """Fills a buffer of bytes with those from ``start`` on. Raises InputError: the file is shorter than it was."""
        view, done = memoryview(out), 0
        while done < len(view):
            count = self._read(start + done, view[done:])
            if not count:
                raise InputError(
                    f"{self.path}: ends at byte {start + done} and had {self.size} bytes when it was opened: somebody "
                    "writes to it; start again when it is whole"
                )
            done += count

    def _read(self, start: int, view: memoryview) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self._file.fileno(), [view], start)
        with self._lock:
            self._file.seek(start)
            return self._file.readinto(view)

    def ahead(self, start: int, count: int) -> None:
        """Asks the system for bytes that will be read soon."""
        if hasattr(os, "posix_fadvise") and start < self.size:
            os.posix_fadvise(self._file.fileno(), start, count, os.POSIX_FADV_WILLNEED)

    def __getitem__(self, place: int | slice) -> int | bytes:
        """A byte, or the few in a slice, which ends at the end of the file."""
        start, stop = (place, place + 1) if isinstance(place, int) else (place.start, min(place.stop, self.size))
        if stop > self.size:
            raise IndexError(f"it ends at byte {self.size}")
        if not self._begin <= start <= stop <= self._begin + len(self._window):
            window = bytearray(min(max(WINDOW, stop - start), self.size - start))
            self.read_into(start, window)
            self._window, self._begin = bytes(window), start
        found = self._window[start - self._begin : stop - self._begin]
        return found[0] if isinstance(place, int) else found


class TensorFile(contextlib.AbstractContextManager):
    """A file of tensors while it is open. Sub-classes find in `scan` which there are.

    Attributes:
        tensors: {name: what is known of it}.

    Raises:
        InputError: it cannot be read.
    """

    tensors: dict[str, Any]

    def __init__(self, path: str | Path):
        self.path = Path(path)
        try:
            self._bytes = FileBytes(self.path)
            self.scan()
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read ({error.strerror or error})") from None

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the file. Arrays that were read stay valid: they are copies."""
        self._bytes.close()

    def info(self, name: str) -> Any:
        """What is known of a tensor."""
        if name not in self.tensors:
            raise InputError(f"{self.path}: there is no tensor {name!r}{nearest(name, self.tensors)}")
        return self.tensors[name]
