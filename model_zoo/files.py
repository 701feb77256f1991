"""Files that are whole or absent: whatever is interrupted leaves the old content, never half of the new."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from model_zoo.errors import InputError


@contextmanager
def atomic_write(path: str | Path) -> Iterator[BinaryIO]:
    """A binary file to write to; it appears under `path` when the block ends well, and vanishes when it raises."""
    path = Path(path)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp makes files that only their owner can read
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def write_text(path: str | Path, text: str) -> None:
    """Writes a text file in UTF-8, whole or not at all."""
    with atomic_write(path) as file:
        file.write(text.encode("utf-8"))


def write_json(path: str | Path, value: object, **options) -> None:
    """Writes JSON the way Hugging Face does: indented by two, keys in order, ending in a newline."""
    write_text(path, json.dumps(value, **{"indent": 2, "sort_keys": True, "ensure_ascii": False, **options}) + "\n")


@contextmanager
def staged(directory: str | Path) -> Iterator[Path]:
    """A staging directory beside the final names: its files move into `directory` together when the block ends well.

    When the block raises, nothing in `directory` has changed, and a directory that did not exist before does not exist
    afterwards. Files of the same name are replaced, others stay.
    """
    directory = Path(directory)
    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory}: is a file, a directory was expected")
    created = [parent for parent in (directory, *directory.parents) if not parent.exists()]
    stage = None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=".partial-", dir=directory))
        yield stage
        for file in sorted(stage.iterdir()):
            os.replace(file, directory / file.name)
        stage.rmdir()
    except BaseException:
        if stage is not None:
            shutil.rmtree(stage, ignore_errors=True)
        for parent in created:
            with suppress(OSError):
                parent.rmdir()
        raise


def read_json(path: str | Path, expected: str = "a JSON object") -> dict:
    """The object in a JSON file; InputError names the file and the place of a mistake."""
    path = Path(path)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: not found, {expected} was expected") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}, column {error.colno}: not valid JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: {expected} was expected, it holds a {type(value).__name__}")
    return value


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
