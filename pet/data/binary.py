"""Readers of files that are no text: MindRecord, Parquet and Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from model_zoo.errors import first_line
from pet.installation import needed

from .records import Problems, Record

ROWS_AT_ONCE = 1024
"""Rows that are Python's objects at a time; a file's own batches may be the whole of it."""


def read_arrow(path: Path, problems: Problems, place: tuple[int, int]) -> Iterator[Record]:
    """Parquet, and Arrow's own files and streams (as Hugging Face's datasets keep them); by the package pyarrow.

    Raises:
        InputError: pyarrow is not installed.
    """
    pyarrow = needed("pyarrow", "arrow", f"{path}: reading {path.suffix.lower()}")
    number = 0
    try:
        for batch in _batches(path):
            for at in range(max(0, place[0] - number), batch.num_rows, ROWS_AT_ONCE):
                for row, columns in enumerate(batch.slice(at, ROWS_AT_ONCE).to_pylist(), start=number + at + 1):
                    yield Record(row, columns, (row, 0))
            number += batch.num_rows
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        problems.add(path, None, f"not a readable {path.suffix.lower()[1:]} file: {first_line(error)}")


def _batches(path: Path) -> Iterator[Any]:
    if path.suffix.lower() == ".parquet":
        from pyarrow import parquet

        with parquet.ParquetFile(path) as file:
            yield from file.iter_batches(batch_size=ROWS_AT_ONCE)
        return
    from pyarrow import ipc, memory_map

    with memory_map(str(path)) as source:
        with open(path, "rb") as stream:
            is_file = stream.read(6) == b"ARROW1"
        if is_file:
            with ipc.open_file(source) as reader:
                yield from (reader.get_batch(index) for index in range(reader.num_record_batches))
        else:
            with ipc.open_stream(source) as reader:
                yield from reader


def read_mindrecord(path: Path, problems: Problems, place: tuple[int, int]) -> Iterator[Record]:
    """MindSpore's own format; needs the ``.db`` index that was written beside the file."""
    from mindspore.mindrecord import FileReader

    try:
        reader = FileReader(str(path))
    except Exception as error:  # its errors are of many classes, one for each way a file can be broken
        reason = str(error).strip().splitlines()
        problems.add(path, None, f"not a readable MindRecord file: {reason[-1] if reason else type(error).__name__}")
        return
    try:
        for number, columns in enumerate(reader.get_next(), start=1):
            if number > place[0]:
                yield Record(number, columns, (number, 0))
    finally:
        reader.close()
