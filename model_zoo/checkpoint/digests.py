"""Whether a training checkpoint is what was written: its state.json has the digest of every file, and its own.

The trainer writes and reads these (`pet.train.checkpoint`). What lies in one for use without it, an adapter/ or a
model/, is checked wherever adapters and models are opened.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

from model_zoo import progress
from model_zoo.atomic import open_file, read_json
from model_zoo.errors import InputError, first_line

NAME = re.compile(r"(?:[\w.-]+-)?step-(\d{6,})")
STATE = "state.json"
# 1: all weights in weights.safetensors. 2: state.json says in which files they are. 3: several processes' files, with
# parts of tensors.
FORMAT = 3
MISSING = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
"""What the system says where a file is not there."""


class Damaged(Exception):
    """A checkpoint that is not what was written."""

    word = "damaged: "


class Unclear(Damaged):
    """One that may be whole: it cannot be read at present, or bears another one's name. To pass it over would be to
    write its steps again, and to delete it as a later one."""

    word = ""


def step_of(path: Path) -> int:
    """The step of a checkpoint directory."""
    return int(NAME.fullmatch(path.name).group(1))


def read_state(path: Path) -> dict[str, Any]:
    """What state.json says."""
    try:
        content = read_sealed(path / STATE)
    except (InputError, KeyError) as error:
        raise _unreadable(error)(f"{STATE} cannot be read ({error})") from error
    if content["format"] > FORMAT:
        raise InputError(f"{path}: written by a newer version (format {content['format']}, this one knows {FORMAT})")
    return content


def check_file(path: Path, name: str, expected: str) -> None:
    try:
        found = digest_file(path / name)
    except (OSError, InputError) as error:
        raise _unreadable(error)(f"{name} cannot be read ({first_line(error)})") from error
    if found != expected:
        raise Damaged(f"{name} has changed since it was written")


def check_name(path: Path, content: dict[str, Any]) -> None:
    """Raises Unclear where a directory is called after another step than that of what it holds."""
    if NAME.fullmatch(path.name) and content["step"] != step_of(path):
        raise Unclear(f"is of step {content['step']}; give it the name of that step, or move it away")


def _unreadable(error: Exception) -> type[Damaged]:
    """What a checkpoint is of which a file cannot be read: damaged where that is missing. But a disk or a network may
    have failed for a while, and permissions can be given."""
    cause = error if isinstance(error, OSError) else error.__context__
    return Unclear if isinstance(cause, OSError) and cause.errno not in MISSING else Damaged


def check_beside(directory: str | os.PathLike) -> None:
    """Checks what lies in a checkpoint for use without the trainer, such as its adapter/; nothing of other directories.
    Files that have not changed since are not read again.

    Raises:
        InputError: it is not what was written.
    """
    directory = Path(directory).resolve()
    path = directory.parent
    if NAME.fullmatch(path.name) and (path / STATE).is_file():
        there = (os.stat(file, follow_symlinks=file.exists()) for file in (path / STATE, *sorted(directory.rglob("*"))))
        _check(directory, path, tuple((one.st_ino, one.st_size, one.st_mtime_ns) for one in there))


@functools.lru_cache(64)
def _check(directory: Path, path: Path, versions: tuple) -> None:
    try:
        content = read_state(path)
        check_name(path, content)
        for name, digest in {**content["files"], **content.get("beside", {})}.items():
            if (path / name).is_relative_to(directory):
                check_file(path, name, digest)
    except Damaged as error:
        raise InputError(f"checkpoint {path}: {error.word}{error}") from error


def files_of(path: Path) -> list[str]:
    """The files that state.json names; none where it cannot be read."""
    try:
        return list(read_state(path)["files"])
    except (Damaged, InputError, KeyError):
        return []


def digest_file(path: Path) -> str:
    digest = hashlib.sha256()
    with open_file(path) as file:
        while block := file.read(1 << 20):
            progress.tick()
            digest.update(block)
    return digest.hexdigest()


def digest_of(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode("utf-8")).hexdigest()


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """The same with its digest, to be written as JSON."""
    return {"digest": digest_of(content), **content}


def read_sealed(path: Path) -> dict[str, Any]:
    """What a file of JSON holds that was written with its digest.

    Raises:
        InputError: it cannot be read. KeyError: it has no digest. Damaged: it has changed.
    """
    content = read_json(path)
    if content.pop("digest") != digest_of(content):
        raise Damaged(f"{path.name} has changed since it was written")
    return content
