"""Files to records, one at a time: JSON, JSONL, CSV and plain text, also compressed; MindRecord, Parquet and Arrow.

Nothing here holds a whole file in memory. A record is a dict of columns with the line it stands on. What cannot be read
is noted with file and line, and reading goes on where that is possible, so that one run tells all that is wrong.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from model_zoo.atomic import LFS_POINTER, NOT_FETCHED, files_below, read_json, special_kind
from model_zoo.errors import InputError, first_line, nearest

from .binary import read_arrow, read_mindrecord
from .compressed import BROKEN, OPENERS, inner_suffix, is_compressed, open_bytes, open_text
from .records import BEGINNING, Place, Problems, Record, misfit, type_name

SUFFIXES = (".json", ".jsonl", ".csv", ".tsv", ".txt", ".text", ".mindrecord", ".parquet", ".arrow")
EXPECTED = f"{', '.join(SUFFIXES)} (files of text also with {', '.join(OPENERS)} behind)"
DESCRIPTIONS = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json")
"""What Hugging Face's datasets and LLaMA-Factory say of the files beside."""
SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""The words in names of files and directories that Hugging Face's datasets take for a split's."""
READ_AT_ONCE = 1 << 20
UNDECODED = re.compile("[\ud800-\udfff]")
"""What Python makes of bytes in a name that are not UTF-8."""
BLANKS = " \t\r\n\ufeff"
"""What may stand between JSON's values; a byte-order mark before the first."""
# A text longer than this many characters is handed on in pieces, so that a book without a blank line fits in memory.
LONGEST_TEXT = 1 << 20


def find_files(paths: str | Path | Iterable[str | Path]) -> list[Path]:
    """The data files behind ``paths``: files themselves, and for a directory all data files in and below it, by name.

    Hidden files, MindRecord's index files (``.db``), descriptions of data (`DESCRIPTIONS`), and files of other kinds in
    a directory are passed over.

    Raises:
        InputError: a path does not exist, a directory has no data file, or those of several splits (what is held out
            would be trained on), or a file is of an unknown kind. All of them.
    """
    problems = Problems()
    files: list[Path] = []
    for path in [paths] if isinstance(paths, (str, Path)) else list(paths):
        path = Path(path).expanduser()
        if path.is_dir():
            inside = sorted(
                entry
                for entry in files_below(path)
                if entry.is_file()
                and kind_of(entry)
                and not any(part.startswith(".") for part in entry.relative_to(path).parts)
                and _is_data(entry)
            )
            if not inside:
                problems.add(path, None, f"no data file in this directory; expected {EXPECTED}")
            if len(splits := _splits(entry.relative_to(path) for entry in inside)) > 1:
                found = ", ".join(f"{split} ({example})" for split, example in splits.items())
                problems.add(path, None, f"holds more than one split: {found}; name the files or the directory of one")
            files += inside
        elif (special := special_kind(path)) is not None:
            problems.add(path, None, f"is {special}, a regular file was expected")
        elif not path.exists():
            there = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
            problems.add(path, None, f"no such file or directory{nearest(path.name, there)}")
        elif kind_of(path) is None:
            problems.add(path, None, f"not a data file; expected a name ending in {EXPECTED}")
        else:
            files.append(path)
    for path in files:
        if UNDECODED.search(str(path)):  # no report of the run could name it
            problems.add(ascii(str(path)), None, "the name is not UTF-8, as archives from Windows have them; rename it")
        if not os.access(path, os.R_OK):
            problems.add(path, None, "the file cannot be read; its permissions forbid it")
    problems.raise_if_any()
    if not files:
        raise InputError("no data files were given")
    kept: dict[Path, Path] = {}
    for path in files:  # MindRecord reads a numbered set as a whole whichever of its parts is opened
        kept.setdefault(_set_name(path), path)
    return list(kept.values())


def _is_data(file: Path) -> bool:
    """Whether a file in a directory is no description of others, and nothing that Hugging Face's datasets have put
    beside a saved data set (``map``, ``filter``), which would be the same rows again."""
    try:
        saved = [part["filename"] for part in read_json(file.with_name("state.json"))["_data_files"]]
    except (InputError, KeyError, TypeError):
        saved = [file.name]
    return file.name not in DESCRIPTIONS and file.name in saved


def _splits(names: Iterable[Path]) -> dict[str, Path]:
    """The splits that names speak of, each with the first such name."""
    found: dict[str, Path] = {}
    for name in names:
        words = re.split(r"[\W\d_]+", str(name).lower())
        for split in SPLITS:
            if not set(SPLITS[split]).isdisjoint(words):
                found.setdefault(split, name)
    return found


def _set_name(path: Path) -> Path:
    return Path(str(path).rstrip("0123456789")) if kind_of(path) == "mindrecord" else path


def parts_of(path: Path) -> list[Path]:
    """All files that are read when ``path`` is: itself, or every part of its MindRecord set."""
    if kind_of(path) != "mindrecord":
        return [path]
    return sorted(other for other in path.parent.iterdir() if kind_of(other) and _set_name(other) == _set_name(path))


def kind_of(path: Path) -> str | None:
    """``"json"``, ``"jsonl"``, ``"csv"``, ``"text"``, ``"mindrecord"`` or ``"arrow"`` by the file's name, or None."""
    suffix = inner_suffix(path)
    kinds = {".json": "json", ".jsonl": "jsonl", ".csv": "csv", ".tsv": "csv", ".txt": "text", ".text": "text"}
    if not is_compressed(path):
        # MindSpore numbers the parts of a set: rows.mindrecord0, rows.mindrecord1; their .db files are indices
        suffix = ".mindrecord" if suffix.rstrip("0123456789") == ".mindrecord" else suffix
        kinds |= {".parquet": "arrow", ".arrow": "arrow", ".mindrecord": "mindrecord"}
    return kinds.get(suffix)


def read_records(path: Path, problems: Problems, place: Place = BEGINNING) -> Iterator[Record]:
    """The records of one file, from ``place`` on.

    Args:
        path: a file of a known kind.
        problems: takes what is wrong.
        place: :attr:`Record.place` of the record before the first wanted one. Reading continues there; only MindRecord
            skips what comes before, and what is compressed is unpacked from its beginning.
    """
    with open(path, "rb") as stream:
        if stream.read(len(LFS_POINTER)) == LFS_POINTER:
            problems.add(path, None, NOT_FETCHED)
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
    if kind == "json":
        # many published sets call their JSON lines ".json"
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
    """``(line number, line without its end, byte after it)``; a line that is not UTF-8 is noted and left out."""
    offset, line = place
    with open_bytes(path, offset) as stream:
        for raw in stream:
            line += 1
            offset += len(raw)
            try:
                # a byte-order mark, as some editors write it, is no part of the first line
                yield line, raw.decode("utf-8-sig" if line == 1 else "utf-8").rstrip("\r\n"), offset
            except UnicodeDecodeError as error:
                wrong = f"not UTF-8: byte {raw[error.start]:#04x} at column {error.start + 1}"
                problems.add(path, line, f"{wrong}; save the file as UTF-8")
                if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):  # UTF-16, whose other lines are none
                    return


def _read_jsonl(path: Path, problems: Problems, place: Place) -> Iterator[Record]:
    for line, text, offset in _lines(path, problems, place):
        if not text.strip():
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            if text.strip() == "{":  # every line would be another problem
                problems.add(
                    path, line, "an object over several lines; expected one per line, or a list of them: [ … ]"
                )
                return
            problems.add(path, line, f"broken JSON: {_json_error(error)}; expected one JSON object per line")
            continue
        if isinstance(value, dict):
            yield Record(line, value, (offset, line))
        else:
            problems.add(path, line, f"expected a JSON object, found {type_name(value)}")


def _json_error(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno}"
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
                if expected in ("[", ",") and (character == expected or (expected == "," and character == "]")):
                    at += 1
                    expected = "" if character == "]" else ("value or ]" if expected == "[" else "value")
                    continue
                if expected == "value or ]" and character == "]":
                    at += 1
                    expected = ""
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
                if isinstance(value, dict):
                    yield Record(begins, value, (offset, line, begins, number), number if begins == before else 0)
                else:
                    problems.add(path, begins, f"expected a JSON object, found {type_name(value)}")
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
                problems.add(path, begins, f"broken CSV: {error}")
                return
            if values is None:
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
        if (wrong := misfit(header, values)) is None:
            yield Record(begins, {name: value for name, value in zip(header, values, strict=True) if name}, behind)
        else:
            problems.add(path, begins, wrong)


def _read_text(path: Path, problems: Problems, place: Place) -> Iterator[Record]:
    """Texts are separated by blank lines; where there are none, each line is a text."""
    with open_bytes(path) as stream:
        by_line = re.search(rb"\n[ \t\r]*\n", stream.read(READ_AT_ONCE).strip()) is None
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
