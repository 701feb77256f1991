"""``--output``: one command at a time, in a place that is free."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

from model_zoo.atomic import files_below, written_through
from model_zoo.errors import InputError
from model_zoo.posix import fcntl
from model_zoo.unwritable import UNFINISHED
from pet.cli.parser import Parser

log = logging.getLogger("pet")


def check_output_file(path: str | None) -> None:
    """Refuses before the work what writing a file would refuse after it: a directory, or a place that is read-only.
    A device or a pipe is written into, wherever it is."""
    if not path or written_through(path):
        return
    if Path(path).is_dir():
        raise InputError(f"--output {path}: is a directory, expected a file")
    place = _existing(Path(path))
    if not os.access(place, os.W_OK):
        raise InputError(f"--output {path}: {place} cannot be written to")


@contextlib.contextmanager
def sole_writer(given: str) -> Iterator[None]:
    """Keeps other commands from writing to `given` within the block: what is free for two is there for the second when
    it has done its work, and would be replaced. Names what commands that were killed have left beside it.

    Raises:
        InputError: another command is writing there.
    """
    output = Path(given).absolute()
    place = _existing(output)
    path = place / f".{'+'.join(output.relative_to(place).parts)}{UNFINISHED}lock"
    held = None if written_through(output) or fcntl is None else _lock(path, given)
    if held is None:  # no file can be made there, which whoever writes will say
        yield
        return
    try:
        for left in _left(output):
            size = sum(file.stat().st_size for file in (files_below(left) if left.is_dir() else [left]))
            log.warning(
                "%s: %.1f MB that a command left which was killed; delete it, unless a program is writing it",
                left.relative_to(Path.cwd()) if left.is_relative_to(Path.cwd()) else left,
                size / 1e6,
            )
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(held)


@contextlib.contextmanager
def free_output(options: argparse.Namespace) -> Iterator[Path]:
    """The place of ``--output``, for commands that also have ``--force``; no other command writes there within the
    block.

    Raises:
        InputError: something is there, and ``--force`` is not given; see `sole_writer`.
    """
    output = Path(options.output)
    with sole_writer(options.output):
        there = any(output.iterdir()) if output.is_dir() else output.exists()
        if there and not options.force:
            raise InputError(f"--output {output}: is there already; give another place, or --force")
        yield output


@contextlib.contextmanager
def uploading(parser: Parser, options: argparse.Namespace) -> Iterator[None]:
    """Uploads the ``--output`` that the block writes, where ``--hub`` says where to. The repository is made before it.

    Raises:
        InputError: see `pet.hub.Repository`.
    """
    if options.hub is None:
        parser.idle(options, "without --hub", "private")
        yield
        return
    from pet.hub import Repository

    repository = Repository(options.hub, options.private or None)
    repository.make()
    yield
    print(f"uploaded: {repository.fill(options.output, Path(options.output).resolve().name)}")


def _existing(path: Path) -> Path:
    """The directory that is there, of those above `path`."""
    return next((parent for parent in path.absolute().parents if parent.exists()), path)


def _lock(path: Path, given: str) -> int | None:
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        except BlockingIOError:
            os.close(handle)
            raise InputError(
                f"--output {given}: another command is writing there; wait until it has ended, or give another place"
            ) from None
        except OSError:  # a file system without locks
            return handle
        os.close(handle)  # whoever held it has ended meanwhile, and taken it away


def _left(output: Path) -> list[Path]:
    """What is called as a file or a directory is while it becomes `output`."""
    name, stem, suffix = map(re.escape, (output.name, output.stem, output.suffix))
    mark = re.escape(UNFINISHED)
    called = re.compile(rf"\.+{name}{mark}(?!lock$).*" + (rf"|\.{stem}{mark}.*{suffix}" if suffix else ""))
    found = output.parent.iterdir() if output.parent.is_dir() else ()
    return sorted(path for path in found if called.fullmatch(path.name))
