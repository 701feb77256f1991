"""What every reader of files gives: records, and notes of what is wrong."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_zoo.errors import InputError

Place = tuple[int, ...]
"""Where reading goes on: numbers that the reader of a kind of file knows the meaning of, and nobody else."""
BEGINNING: Place = (0, 0)
"""The place before the first record of any file."""


PYTHONS = re.compile(r"\s*\[\s*\{\s*'(role|from|content|value)'\s*:")
"""How messages begin where pandas, or Hugging Face's datasets, wrote them into CSV: as Python shows a list."""


class Problems:
    """What was wrong with the files: of each the first messages, with the lines that they are true of."""

    SHOWN = 12

    def __init__(self) -> None:
        self._lines: dict[str, dict[str, list[int | None]]] = {}
        self._total: dict[str, int] = {}

    def add(self, path: Path | str, line: int | None, message: str) -> None:
        """Note a problem of ``path``, at ``line`` (None: of the file as a whole)."""
        name = str(path)
        self._total[name] = self._total.get(name, 0) + 1
        messages = self._lines.setdefault(name, {})
        if message in messages or len(messages) < self.SHOWN:
            messages.setdefault(message, []).append(line)

    def __len__(self) -> int:
        return sum(self._total.values())

    def raise_if_any(self) -> None:
        """Raise one InputError with what was noted so far."""
        if not self._total:
            return
        found = []
        for name, messages in self._lines.items():
            for message, lines in messages.items():
                place = name if lines[0] is None else f"{name}:{lines[0]}"
                found.append(f"{place}: {message}" + (f" (also {_some(lines[1:])})" if lines[1:] else ""))
            told = sum(map(len, messages.values()))
            if self._total[name] > told:
                found.append(f"{name}: … and {self._total[name] - told} more ({self._total[name]} in all)")
        raise InputError.collect(found)


BARE = "; a quotation mark that is text is doubled, within a value in quotation marks (as by pandas' to_csv)"
"""What is to be done with tables, as many of tabs are, whose quotation marks are text."""


def misfit(header: list[str], values: list[str], separator: str) -> str | None:
    """What is wrong with a row of CSV, if anything. Messages that are no JSON, or rows, would be learnt as a text."""
    if len(values) != len(header):
        return f"expected {len(header)} values as in the first row, found {len(values)}"
    lines = "\t".join(values).split("\n") if separator == "\t" and len(header) > 1 else ()
    if len(lines) > 1 and all(line.count("\t") == len(header) - 1 and line[:1] != "\t" for line in lines):
        return f"{len(lines)} lines, each a row by itself, would be one row{BARE}"
    named = zip(header, values, strict=True)
    name = next((name for name, value in named if name and PYTHONS.match(value)), None)
    written = "expected messages in JSON, found a list as Python shows it; save such data as JSON lines (to_json)"
    return None if name is None else f"column {name!r}: {written}"


def _some(lines: list[int]) -> str:
    """``lines 2, 3, 4 and 46 more``."""
    rest = f" and {len(lines) - 3} more" if len(lines) > 3 else ""
    return f"line{'s' * (len(lines) > 1)} {', '.join(map(str, lines[:3]))}{rest}"


@dataclass(slots=True)
class Record:
    """One row of a file.

    Attributes:
        line: where it begins: a line from 1 on; in a MindRecord file the number of the record.
        columns: its values by name.
        place: where reading can go on *after* this record, to be given to :func:`read_records`.
        row: its number in the file where another one begins on the same line (a JSON list), otherwise 0.
    """

    line: int
    columns: dict[str, Any]
    place: Place
    row: int = 0


NAMES = {bool: "true or false", dict: "an object", list: "a list", str: "a string", int: "a number", type(None): "null"}


def type_name(value: Any) -> str:
    """What a value is called in an error message, in JSON's words."""
    return NAMES.get(type(value), "a number" if isinstance(value, float) else type(value).__name__)
