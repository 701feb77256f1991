"""Which files paths speak of, and of what kind each is by its name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from model_zoo.atomic import check_name, files_below, read_json, special_kind
from model_zoo.errors import InputError
from pet.files import absent, literal, matching

from .compressed import OPENERS, inner_stem, inner_suffix, is_compressed
from .records import Problems

KINDS = {".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "csv"}
KINDS |= {".txt": "text", ".text": "text", ".mindrecord": "mindrecord", ".parquet": "arrow", ".arrow": "arrow"}
TEXTS = ("json", "jsonl", "csv", "text")
EXPECTED = f"{', '.join(KINDS)} (files of text also with {', '.join(OPENERS)} behind)"
DESCRIPTIONS = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json")
"""What Hugging Face's datasets and LLaMA-Factory say of the files beside."""
SUMS = ("md5", "sha1", "sha256", "sha512")
TEXTS_BESIDE = ("readme", "license", "licence", "copying", "notice", "changelog", "citation", "requirements")
TEXTS_BESIDE += ("vocab", "checksum", "checksums", *(f"{sum}{end}" for sum in SUMS for end in ("", "sum", "sums")))
"""Names of texts about data or code, which would be learnt as if they were data."""
SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""The words in names of files and directories that Hugging Face's datasets take for a split's."""
UNDECODED = re.compile("[\ud800-\udfff]")
"""What Python makes of bytes in a name that are not UTF-8."""


def kind_of(path: Path) -> str | None:
    """``"json"``, ``"jsonl"``, ``"csv"``, ``"text"``, ``"mindrecord"`` or ``"arrow"`` by the file's name, or None."""
    suffix = inner_suffix(path)
    # MindSpore numbers the parts of a set: rows.mindrecord0, rows.mindrecord1; their .db files are indices
    kind = KINDS.get(".mindrecord" if suffix.rstrip("0123456789") == ".mindrecord" else suffix)
    return None if is_compressed(path) and kind not in TEXTS else kind


def find_files(paths: str | Path | Iterable[str | Path]) -> list[Path]:
    """The data files behind ``paths``: files themselves, for a directory all data files in and below it, by name, and
    for a pattern (``data/*.jsonl``) those that it matches.

    Hidden files, MindRecord's index files (``.db``), descriptions of data (`DESCRIPTIONS`), texts about them
    (`TEXTS_BESIDE`) and files of other kinds in a directory are passed over.

    Raises:
        InputError: a path does not exist, a directory has no data file, or those of several splits (what is held out
            would be trained on), or a file that is compressed and not, or a file is of an unknown kind. All of them.
    """
    problems = Problems()
    files: list[Path] = []
    for path in [paths] if isinstance(paths, (str, Path)) else list(paths):
        if path == "":
            problems.add("data", None, "an empty text is no path; it would be the current directory")
            continue
        check_name(path)
        path = Path(path).expanduser()
        matched = matching(path)
        if path.is_dir() or matched:
            files += _files_of(path, files_below(path) if path.is_dir() else matched, problems)
        elif (special := special_kind(path)) is not None:
            problems.add(path, None, f"is {special}, a regular file was expected")
        elif not path.exists():
            problems.add(path, None, absent(path))
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


def _files_of(path: Path, found: Iterable[Path], problems: Problems) -> list[Path]:
    """The data files among those in a directory, or among those that a pattern matches."""
    above = path if path.is_dir() else literal(path)
    inside = sorted(
        entry
        for entry in found
        if entry.is_file()
        and kind_of(entry)
        and not any(part.startswith(".") for part in entry.relative_to(above).parts)
        and _is_data(entry)
    )
    if not inside:
        where = "in this directory" if path.is_dir() else "matches this pattern"
        problems.add(path, None, f"no data file {where}; expected {EXPECTED}")
    if len(splits := _splits(entry.relative_to(above) for entry in inside)) > 1:
        shown = ", ".join(f"{split} ({example})" for split, example in splits.items())
        problems.add(path, None, f"holds more than one split: {shown}; name the files or the directory of one")
    known = set(inside)
    for entry in inside:
        if is_compressed(entry) and (unpacked := entry.with_suffix("")) in known:
            twice = f"{entry.relative_to(above)} and {unpacked.relative_to(above)}"
            problems.add(path, None, f"holds {twice}, which would be the same rows again; name the files that count")
    return inside


def _is_data(file: Path) -> bool:
    """Whether a file in a directory is no description of others, no text about them, and nothing that Hugging Face's
    datasets have put beside a saved data set (``map``, ``filter``), which would be the same rows again."""
    try:
        saved = [part["filename"] for part in read_json(file.with_name("state.json"))["_data_files"]]
    except (InputError, KeyError, TypeError):
        saved = [file.name]
    about = kind_of(file) == "text" and inner_stem(file).lower() in TEXTS_BESIDE
    return file.name not in DESCRIPTIONS and file.name in saved and not about


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
