"""Runs in short-lived processes: one process for all keeps every compiled step, and grows to 5 GB."""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from . import Problem, attempt

BATCH = 5
"""Runs of one process: importing MindSpore is then a small part of the time, and memory stays below 2 GB."""


class Unfinished(Exception):
    """The time is up; what has run is kept, and the next count goes on from there."""


def problems(module: str, jobs: dict[str, Any], work: Path, seconds: float | None = None) -> dict[str, Problem | None]:
    """What went wrong in each run, None where nothing did.

    Args:
        module: has a function ``run(arguments)``.
        jobs: name of each run -> its arguments, as JSON can hold them. A name must say all that its run depends on.
        work: results are kept here by their names; those that are here are not run again.
        seconds: no process is started after this time.

    Raises:
        Unfinished: there was too little of it.
    """
    kept, begin = work / "results.jsonl", time.monotonic()
    while waiting := {name: job for name, job in jobs.items() if name not in read(kept)}:
        print(f"{len(jobs) - len(waiting)} of {len(jobs)} have run", flush=True)
        if seconds is not None and time.monotonic() - begin > seconds:
            raise Unfinished(f"{len(waiting)} of {len(jobs)} runs are left")
        batch = dict(list(waiting.items())[:BATCH])
        ran = subprocess.run(
            [sys.executable, "-m", __name__, module, kept],
            input=json.dumps(batch),
            text=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        if ran.returncode:  # whatever ended it, the runs after this one have not begun
            stopped = next(name for name in batch if name not in read(kept))
            note(kept, stopped, ("fails", f"its process ended with {ran.returncode}"))
    found = read(kept)
    return {name: found[name] for name in jobs}


def waiting(jobs: Mapping[str, Any], kept: Path, seconds: float | None, what: str = "runs") -> Iterator[str]:
    """The names of jobs whose results are not kept yet, one after the other.

    Raises:
        Unfinished: the seconds are over.
    """
    begin = time.monotonic()
    for name in jobs:
        if name in read(kept):
            continue
        if seconds is not None and time.monotonic() - begin > seconds:
            raise Unfinished(f"{len(jobs.keys() - read(kept).keys())} of {len(jobs)} {what} are left")
        yield name


def in_copy(action: Callable[[], Any], seconds: float, log: str | os.PathLike = os.devnull) -> int:
    """Does something in a copy of this process, which is ended after so many seconds; its exit code.

    Args:
        log: where its output goes.
    """
    begin, child = time.monotonic(), os.fork()
    if not child:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        action()
        os._exit(0)
    ended = status = 0
    while not ended:
        time.sleep(0.05)
        ended, status = os.waitpid(child, os.WNOHANG)
        if time.monotonic() - begin > seconds and not ended:
            os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status)


def name_of(recipe: dict[str, Any]) -> str:
    """A run's name out of all that it depends on."""
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()


def read(kept: Path) -> dict[str, Problem | None]:
    """Results by the names of their runs."""
    lines = kept.read_text("utf-8").splitlines() if kept.is_file() else []
    return {name: problem and tuple(problem) for name, problem in map(json.loads, lines)}


def note(kept: Path, name: str, problem: Problem | None) -> None:
    """Adds a result."""
    with kept.open("a", encoding="utf-8") as file:
        file.write(json.dumps([name, problem]) + "\n")


def main() -> None:
    module, kept = importlib.import_module(sys.argv[1]), Path(sys.argv[2])
    logging.getLogger("pet").setLevel(logging.ERROR)
    for name, arguments in json.load(sys.stdin).items():
        note(kept, name, attempt(module.run, arguments)[1])


if __name__ == "__main__":
    main()
