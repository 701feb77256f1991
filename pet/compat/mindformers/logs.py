"""MindFormers' logger: what a script tells it is shown, and kept where MindFormers' shell wrappers look for logs."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from model_zoo.errors import InputError
from pet.files import write_text
from pet.launching.environment import read_job

FORMAT = "%(asctime)s - %(name)s[%(filename)s:%(lineno)d] - %(levelname)s - %(message)s"
FILES = {"info.log": logging.INFO, "error.log": logging.ERROR}
"""In ``LOG_MF_PATH/rank_N``, with the lowest level that each has."""


class _Shown(logging.Handler):
    """Writes to standard output as it is then: a test or a notebook may put another one there."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stdout, flush=True)


class _Kept(logging.FileHandler):
    """One of `FILES`."""


logger = logging.getLogger("mindformers")
if not logger.handlers:
    logger.addHandler(_Shown())
    logger.handlers[0].setFormatter(logging.Formatter(FORMAT))
    logger.setLevel(logging.INFO)
    logger.propagate = False


def keep() -> None:
    """Also writes to ``LOG_MF_PATH/rank_N/info.log`` and ``error.log`` from now on, this library's warnings as well."""
    place = os.environ.get("LOG_MF_PATH")
    if not place or any(isinstance(handler, _Kept) for handler in logger.handlers):
        return
    directory = Path(place).expanduser() / f"rank_{read_job().rank}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handlers = [_Kept(directory / name, encoding="utf-8", delay=True) for name in FILES]
        (directory / "info.log").touch()
    except OSError as error:
        logger.warning("LOG_MF_PATH: %s: %s; no log is kept there", directory, error.strerror)
        return
    own = logging.getLogger("pet")
    if not own.hasHandlers() and logging.lastResort is not None:  # which steps in only where there is no other
        own.addHandler(logging.lastResort)
    for handler, level in zip(handlers, FILES.values(), strict=True):
        handler.setLevel(level)
        handler.setFormatter(logging.Formatter(FORMAT))
        logger.addHandler(handler)
        own.addHandler(handler)


def note(kind: type[BaseException], error: BaseException, trace) -> None:
    """Keeps what ends a script, in the files alone: it is shown elsewhere."""
    told = (str(error), None) if issubclass(kind, InputError) else ("the script failed", (kind, error, trace))
    record = logger.makeRecord(logger.name, logging.ERROR, sys.argv[0], 0, told[0], (), told[1])
    for handler in logger.handlers:
        if isinstance(handler, _Kept):
            handler.handle(record)


def report(answers: list, file: str) -> None:
    """Shows the answers of a script and writes them to a file, once for all processes, as MindFormers does."""
    logger.info("output result is: %s", answers)
    if read_job().rank:
        return
    try:
        write_text(Path(file), str(answers))
    except OSError as error:
        logger.warning("%s: %s; the answers stand above", file, error.strerror)
    else:
        logger.info("output result is saved at: %s", file)
