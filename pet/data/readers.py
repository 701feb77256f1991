"""Files to records, one at a time: JSON, JSONL, CSV and plain text, also compressed; MindRecord, Parquet and Arrow.

Nothing here holds a whole file in memory. A record is a dict of columns with the line it stands on. What cannot be read
is noted with file and line, and reading goes on where that is possible, so that one run tells all that is wrong.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from model_zoo.atomic import LFS_POINTER, NOT_FETCHED
from model_zoo.errors import first_line

from .binary import read_arrow, read_mindrecord
from .compressed import BROKEN, inner_suffix, is_compressed, open_bytes, open_text
from .finding import TEXTS, kind_of
from .records import BARE, BEGINNING, Place, Problems, Record, misfit, type_name

READ_AT_ONCE = 1 << 20
BLANKS = " \t\r\n\ufeff"
"""What may stand between JSON's values; a byte-order mark before the first."""
OTHERS = {
    **dict.fromkeys((b"\xff\xfe", b"\xfe\xff"), "is UTF-16; save the file as UTF-8"),
    b"\x1f\x8b": "is compressed by gzip; its name must end in .gz",
    b"BZh": "is compressed by bzip2; its name must end in .bz2",
    b"\xfd7zXZ\x00": "is compressed by xz; its name must end in .xz",
    b"\x28\xb5\x2f\xfd": "is compressed by zstd; its name must end in .zst",
    b"PK\x03\x04": "is a zip archive; unpack it",
    b"PAR1": "is Parquet; its name must end in .parquet",
    b"ARROW1": "is Arrow; its name must end in .arrow",
}
"""How files begin that are no text in UTF-8, whatever their names say, and what is said of them."""
NULS = "holds a NUL byte: no text, or another encoding than UTF-8 (UTF-16, for one)"
LINE = re.compile(rb"[^\r\n]*(?:\r*\n|\r)|[^\r\n]+")
"""A line with its end: LF, CR, or some CR and LF, which a program that takes LF for the end makes of CR LF."""
BLANK_LINE = re.compile(rb"(?:\n|\r(?!\r*\n))[ \t]*(?:\r*\n|\r)")
BEHIND = {("[", "["): "value or ]", ("value or ]", "]"): "", (",", ","): "value", (",", "]"): ""}
"""What is expected in a list of JSON, and the character that comes -> what is expected next; empty: nothing."""
HALF = re.compile("[\\ud800-\\udfff]")
# A text longer than this many characters is handed on in pieces, so that a book without a blank line fits in memory.
LONGEST_TEXT = 1 << 20


def read_records(path: Path, problems: Problems, place: Place = BEGINNING) -> Iterator[Record]:
    """The records of one file, from ``place`` on.

    Args:
        place: :attr:`Record.place` of the record before the first wanted one. Reading continues there; only MindRecord
            skips what comes before, and what is compressed is unpacked from its beginning.
    """
    with open(path, "rb") as stream:
        beginning = stream.read(len(LFS_POINTER))
    if beginning == LFS_POINTER:
        problems.add(path, None, NOT_FETCHED)
        return
    other = next((kind for mark, kind in OTHERS.items() if beginning.startswith(mark)), None)
    if other is not None and kind_of(path) in TEXTS and not is_compressed(path):
        problems.add(path, None, other)
        return
    try:
        yield from _read(path, problems, place)
    except BROKEN as error:
        if not is_compressed(path):
            raise
        problems.add(path, None, f"not a readable {path.suffix.lower()} file: {first_line(error)}")


def _read(path: Path, problems: Problems, place: Place) -> Iterator[Record]:
    kind = kind_of(path)
    if path.stat().st_size == 0:
        problems.add(path, None, "the file is empty")
        return
    if kind in ("json", "jsonl"):
        # many published sets call their JSON lines ".json", and some a list of rows ".jsonl"
        kind = "json" if _first_character(path) == "[" else "jsonl"
    readers: dict[str, Callable[..., Iterator[Record]]] = {
        "json": _read_json,
        "jsonl": _read_jsonl,
        "csv": _read_csv,
        "text": _read_text,
        "mindrecord": read_mindrecord,
        "arrow": read_arrow,
    }
    found, before = place != BEGINNING, len(problems)
    for record in readers[kind](path, problems, place):
        found = True
        yield record
    if not found and len(problems) == before:
        problems.add(path, None, "the file has no rows")


def _first_character(path: Path) -> str:
    with open_bytes(path) as stream:
        while block := stream.read(4096):
            if block := block.removeprefix(b"\xef\xbb\xbf").lstrip():
                return chr(block[0])
    return ""


def _lines(path: Path, problems: Problems, place: Place) -> Iterator[tuple[int, str, int]]:
    """``(line number, line without its end, byte after it)``; a line that is not UTF-8 is noted and left out. CR alone
    ends a line, too."""
    offset, line = place
    with open_bytes(path, offset) as stream:
        for raw in chain.from_iterable(map(_cut, stream)):
            line += 1
            offset += len(raw)
            if b"\x00" in raw:  # every line may have some
                problems.add(path, line, NULS)
                return
            try:
                # a byte-order mark, as some editors write it, is no part of the first line
                yield line, raw.decode("utf-8-sig" if line == 1 else "utf-8").rstrip("\r\n"), offset
            except UnicodeDecodeError as error:
                wrong = f"not UTF-8: byte {raw[error.start]:#04x} at column {error.start + 1}"
                problems.add(path, line, f"{wrong}; save the file as UTF-8")


def _cut(raw: bytes) -> Sequence[bytes]:
    """What ends with LF as the lines that it is, of which those before the last end with CR."""
    return LINE.findall(raw) if b"\r" in raw.rstrip(b"\r\n") else (raw,)


def _read_jsonl(path: Path, problems: Problems, place: Place) -> Iterator[Record]:
    for line, text, offset in _lines(path, problems, place):
        if not text.strip():
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            if text.strip() == "{":  # every line would be another problem
                problems.add(
                    path, line, "an object over several lines; expected one per line, or a list of them alone: [ … ]"
                )
                return
            problems.add(path, line, f"broken JSON: {_json_error(error)}; expected one JSON object per line")
            continue
        if (wrong := _no_row(value)) is None:
            yield Record(line, value, (offset, line))
        else:
            problems.add(path, line, wrong)


def _no_row(value: Any) -> str | None:
    """Why the value of a JSON text is no row; None where it is one."""
    if not isinstance(value, dict):
        return f"expected a JSON object, found {type_name(value)}"
    half = next((name for name in value if not name.isascii() and HALF.search(name)), None)
    return None if half is None else f"column {half!r}: half of a surrogate pair: no valid Unicode"


def _json_error(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg.removesuffix(' starting at')} at column {error.colno}"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def _read_json(path: Path, problems: Problems, place: Place) -> Iterator[Record]:
    """A list of objects, decoded object by object from a window over the file."""
    decoder = json.JSONDecoder()
    # of the last record: the byte behind it, the line it ended on, the one it began on, its number
    offset, line, begins, number = place if place != BEGINNING else (0, 1, 0, 0)
    buffer, at, ended = "", 0, False
    counted = 0  # up to here the buffer's bytes are part of `offset`
    expected = "," if number else "["

    with open_text(path, offset) as stream:

        def fill() -> bool:
            """Read on; what was used up is forgotten. False at the end of the file."""
            nonlocal buffer, at, counted, offset, ended
            # a value longer than the window is decoded from its beginning each time: twice as much, for few times
            if block := stream.read(max(READ_AT_ONCE, len(buffer) - at)):
                offset += len(buffer[counted:at].encode())
                buffer, at, counted = buffer[at:] + block, 0, 0
            ended = not block
            return not ended

        try:
            while True:
                while at < len(buffer) and buffer[at] in BLANKS:
                    line += buffer[at] == "\n"
                    at += 1
                if at == len(buffer):
                    if fill():
                        continue
                    if expected != "":
                        problems.add(path, line, "the list is not closed; expected ]")
                    return
                character = buffer[at]
                if expected == "":
                    problems.add(path, line, "text after the end of the list")
                    return
                if (expected, character) in BEHIND:
                    at, expected = at + 1, BEHIND[expected, character]
                    continue
                if expected in ("[", ","):
                    problems.add(path, line, f"broken JSON: expected {expected!r} or ']', found {character!r}")
                    return
                try:
                    value, stop = decoder.raw_decode(buffer, at)
                    # a number or a word at the border of the window may go on beyond it
                    if stop == len(buffer) and not ended and fill():
                        continue
                except (ValueError, RecursionError) as error:
                    position = getattr(error, "pos", at)
                    # cut off by the window, or wrong wherever it ends? Errors far from the border are the latter.
                    torn = len(buffer) - position < 64 or str(error).startswith("Unterminated")
                    if torn and not ended and fill():
                        continue
                    where = line + buffer.count("\n", at, position)
                    problems.add(path, where, f"broken JSON: {_json_error(error)}")
                    return
                before, begins = begins, line
                line += buffer.count("\n", at, stop)
                at = stop
                expected = ","
                number += 1
                offset, counted = offset + len(buffer[counted:at].encode()), at
                if (wrong := _no_row(value)) is None:
                    yield Record(begins, value, (offset, line, begins, number), number if begins == before else 0)
                else:
                    problems.add(path, begins, wrong)
        except UnicodeDecodeError:
            problems.add(path, line, "not UTF-8 at or after this line; save the file as UTF-8")


def _read_csv(path: Path, problems: Problems, place: Place) -> Iterator[Record]:
    """The first row names the columns. Quoted values may hold line breaks."""
    try:
        for _, names, behind in _csv_rows(path, problems, BEGINNING):
            header = [name.strip() for name in names]
            if _check_header(path, problems, header):
                yield from _csv_records(path, problems, header, behind if place == BEGINNING else place)
            return
    except UnicodeDecodeError:
        problems.add(path, None, "not UTF-8; save the file as UTF-8")


def _csv_rows(path: Path, problems: Problems, place: Place) -> Iterator[tuple[int, list[str], Place]]:
    """``(line on which it begins, values, place behind it)`` of each row from ``place`` on, which is (byte, line)."""
    csv.field_size_limit(1 << 30)
    offset, line = place
    with open_text(path, offset) as stream:

        def lines() -> Iterator[str]:
            nonlocal offset, line
            for text in stream:
                offset, line = offset + len(text.encode()), line + 1
                yield text.removeprefix("\ufeff") if line == 1 else text

        reader = csv.reader(lines(), delimiter=_separator(path), strict=True)
        while True:
            begins = line + 1
            try:
                values = next(reader, None)
            except csv.Error as error:
                found_by_python = str(error) == "line contains NUL"  # of 3.10
                problems.add(path, begins, NULS if found_by_python else f"broken CSV: {error}{BARE}")
                return
            if values is None:
                return
            if any("\x00" in value for value in values):
                problems.add(path, begins, NULS)
                return
            yield begins, values, (offset, line)


def _separator(path: Path) -> str:
    return "\t" if inner_suffix(path) == ".tsv" else ","


def _check_header(path: Path, problems: Problems, header: list[str]) -> bool:
    # pandas' index has no name, and spreadsheets write the empty columns beside a table
    names = [name for name in header if name]
    if len(set(names)) < len(names) or not names:
        problems.add(path, 1, f"the first row must name each column once, found {', '.join(header) or 'an empty line'}")
        return False
    separator = _separator(path)
    others = [mark for mark in ";\t," if mark in header[0] and mark != separator]
    if len(header) == 1 and others:
        found = f"found one column, {header[0]!r}, with {others[0]!r} in its name"
        problems.add(path, 1, f"columns must be separated by {separator!r}; {found}")
        return False
    return True


def _csv_records(path: Path, problems: Problems, header: list[str], place: Place) -> Iterator[Record]:
    for begins, values, behind in _csv_rows(path, problems, place):
        if not values:  # an empty line
            continue
        if (wrong := misfit(header, values, _separator(path))) is None:
            yield Record(begins, {name: value for name, value in zip(header, values, strict=True) if name}, behind)
        else:
            problems.add(path, begins, wrong)


def _read_text(path: Path, problems: Problems, place: Place) -> Iterator[Record]:
    """Texts are separated by blank lines; where there are none, each line is a text."""
    with open_bytes(path) as stream:
        by_line = BLANK_LINE.search(stream.read(READ_AT_ONCE).strip()) is None
    lines: list[str] = []
    size, begins, after = 0, 0, place
    for line, text, offset in _lines(path, problems, place):
        if lines and (by_line or not text.strip() or size > LONGEST_TEXT):
            yield Record(begins, {"text": "\n".join(lines)}, after)
            lines, size = [], 0
        if text.strip():
            begins = begins if lines else line
            lines.append(text)
            size += len(text)
        after = (offset, line)
    if lines:
        yield Record(begins, {"text": "\n".join(lines)}, after)
