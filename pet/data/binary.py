"""Readers of files that are no text: MindRecord, Parquet and Arrow."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from model_zoo.atomic import json_value
from model_zoo.errors import first_line
from pet.installation import needed

from .records import Place, Problems, Record

ROWS_AT_ONCE = 1024
"""Rows that are Python's objects at a time; a file's own batches may be the whole of it."""
READ_AT_ONCE = 1 << 20
"""Bytes of a column that are read at a time: else all that a row group has of it, which may be the whole file."""
JSON, EXTENSION = "arrow.json", b"ARROW:extension:name"
"""Arrow's type of texts that are JSON, and where a field says its type to a pyarrow that does not know it."""

Read = Callable[[Any], Any]


def read_arrow(path: Path, problems: Problems, place: Place) -> Iterator[Record]:
    """Parquet, and Arrow's own files and streams (as Hugging Face's datasets keep them); by the package pyarrow.

    Raises:
        InputError: pyarrow is not installed.
    """
    pyarrow = needed("pyarrow", "arrow", f"{path}: reading {path.suffix.lower()}")
    try:
        for number, batch in _batches(path, place[0]):
            if twice := [name for name, count in Counter(batch.schema.names).items() if count > 1]:
                problems.add(path, None, f"each column must have a name of its own, found {', '.join(twice)} twice")
                return
            batch.validate(full=True)  # pyarrow follows wrong offsets out of its memory, which ends the process
            decode = decoder_of(batch.schema)
            for at in range(max(0, place[0] - number), batch.num_rows, ROWS_AT_ONCE):
                for row, columns in enumerate(batch.slice(at, ROWS_AT_ONCE).to_pylist(), start=number + at + 1):
                    yield Record(row, decode({name: without_nulls(one) for name, one in columns.items()}), (row, 0))
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        problems.add(path, None, f"not a readable {path.suffix.lower()[1:]} file: {first_line(error)}")


def decoder_of(fields: Iterable[Any]) -> Read:
    """What makes of structures with these fields the same with values in the place of their JSON, which Hugging Face's
    datasets write where the rows of a column differ (``Json``): calls of tools, their schemas, texts beside parts."""
    known = {field.name: read for field in fields if (read := reader_of(field)) is not None}
    if not known:
        return lambda row: row
    return lambda row: {name: known[name](value) if name in known else value for name, value in row.items()}


def reader_of(field: Any) -> Read | None:
    """The same for a field's value; None where there is no JSON in it."""
    from pyarrow import types

    kind = field.type
    if getattr(kind, "extension_name", (field.metadata or {}).get(EXTENSION, b"").decode()) == JSON:
        return lambda value: value if value is None else json_value(value)
    if hasattr(kind, "value_field"):  # a list's
        read = reader_of(kind.value_field)
        return None if read is None else lambda value: value if value is None else [read(one) for one in value]
    parts = list(kind) if types.is_struct(kind) else []
    if not any(map(reader_of, parts)):
        return None
    read = decoder_of(parts)
    return lambda value: value if value is None else read(value)


def without_nulls(value: Any) -> Any:
    """A value without those fields of its structures that are null: in a table every structure of a column has the
    fields of all of them, so that a call of tools would have the arguments of all other tools, and learn them."""
    if isinstance(value, dict):
        return {name: without_nulls(part) for name, part in value.items() if part is not None}
    if isinstance(value, list) and isinstance(next((part for part in value if part is not None), None), (dict, list)):
        return [without_nulls(part) for part in value]
    return value


def _batches(path: Path, skipped: int) -> Iterator[tuple[int, Any]]:
    """``(rows before it, batch)`` of all batches; a Parquet file's row groups within the first ``skipped`` rows are
    left out, which would have to be decoded.
    """
    if path.suffix.lower() == ".parquet":
        from pyarrow import parquet

        # of newer ones pre_buffer is on unless said otherwise, and reads a whole row group at once
        with parquet.ParquetFile(path, buffer_size=READ_AT_ONCE, pre_buffer=False) as file:
            groups = range(file.num_row_groups)
            ends = list(accumulate(file.metadata.row_group(group).num_rows for group in groups))
            first = bisect_right(ends, skipped)
            batches = file.iter_batches(ROWS_AT_ONCE, row_groups=groups[first:])
            yield from _numbered(batches, ends[first - 1] if first else 0)
        return
    from pyarrow import ipc, memory_map

    with memory_map(str(path)) as source:
        with open(path, "rb") as stream:
            is_file = stream.read(6) == b"ARROW1"
        if is_file:
            with ipc.open_file(source) as reader:
                yield from _numbered((reader.get_batch(index) for index in range(reader.num_record_batches)), 0)
        else:
            with ipc.open_stream(source) as reader:
                yield from _numbered(reader, 0)


def _numbered(batches: Iterable[Any], number: int) -> Iterator[tuple[int, Any]]:
    for batch in batches:
        yield number, batch
        number += batch.num_rows


def read_mindrecord(path: Path, problems: Problems, place: Place) -> Iterator[Record]:
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
