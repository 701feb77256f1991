"""Text files as they are, or compressed, by the last part of their names."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from pathlib import Path
from typing import IO, BinaryIO, cast

from pet.installation import needed

BROKEN = (EOFError, OSError, zlib.error, lzma.LZMAError)
"""What is raised within a file that is cut off or damaged."""
AT_ONCE = 1 << 20


def _zstandard(path: Path) -> BinaryIO:
    """Python itself has none of this before 3.14."""
    pyarrow = needed("pyarrow", "arrow", f"{path}: reading .zst")
    return io.BufferedReader(pyarrow.input_stream(str(path), compression="zstd"))


OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": _zstandard}


def inner_suffix(path: Path) -> str:
    """``.jsonl`` of ``rows.jsonl`` and of ``rows.jsonl.gz``, in small letters."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in OPENERS else suffix


def inner_stem(path: Path) -> str:
    """``rows`` of ``rows.jsonl`` and of ``rows.jsonl.gz``."""
    return Path(path.stem).stem if is_compressed(path) else path.stem


def is_compressed(path: Path) -> bool:
    """Whether a file's name says so."""
    return path.suffix.lower() in OPENERS


def open_bytes(path: Path, offset: int = 0) -> BinaryIO:
    """A file's content from a byte of it on. In a compressed one all that stands before is read for it.

    Raises:
        InputError: it ends in ``.zst``, and pyarrow is not installed.
    """
    if not is_compressed(path):
        stream = open(path, "rb")  # noqa: SIM115 - of the caller
        stream.seek(offset)
        return stream
    stream = cast(BinaryIO, OPENERS[path.suffix.lower()](path))
    while offset > 0 and (block := stream.read(min(offset, AT_ONCE))):
        offset -= len(block)
    return stream


def open_text(path: Path, offset: int = 0) -> IO[str]:
    """The same as text in UTF-8, with its line ends and a byte-order mark as they are, so that bytes can be counted."""
    return io.TextIOWrapper(open_bytes(path, offset), encoding="utf-8", newline="")
