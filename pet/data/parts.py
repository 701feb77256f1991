"""A part of a data set's rows, as Hugging Face's datasets say it of a split: ``:1000``, ``:5%``, ``80%:``, ``5:10``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

from model_zoo.errors import InputError

from .finding import find_files
from .readers import read_records
from .records import Problems

T = TypeVar("T")


def with_parts(
    paths: str | Path | Iterable[str | Path], parts: Sequence[str] | None
) -> Iterator[tuple[list[Path], str | None]]:
    """The files of each data set with its part; those of all sets together where there are no parts.

    Args:
        paths: one for each data set.
        parts: one for each path, or one for all.

    Raises:
        InputError: another number of parts; or see `find_files`.
    """
    if not parts:
        yield find_files(paths), None
        return
    paths = [paths] if isinstance(paths, (str, Path)) else list(paths)
    if len(parts) not in (1, len(paths)):
        raise InputError(f"data.rows: {len(parts)} parts for {len(paths)} paths; one for each or one for all")
    for path, part in zip(paths, parts if len(parts) == len(paths) else list(parts) * len(paths), strict=True):
        yield find_files([path]), part


def part_of(part: str | None, rows: Iterable[T], files: Iterable[Path]) -> Iterator[T]:
    """Those of the rows of ``files`` that a part names; they are counted first where it names shares."""
    total = sum(1 for file in files for _ in read_records(file, Problems())) if part and "%" in part else 0
    edges = [edge.partition("%") for edge in (part or ":").split(":")]
    return islice(rows, *(None if not n else round(int(n) * total / 100) if share else int(n) for n, share, _ in edges))
