"""The process that a chat template is rendered in (`renderer.py`), seen from this side."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from model_zoo.programs import file_program

TOO_LONG = -getattr(signal, "SIGPROF", 0)
"""The exit code of a process that took too much processor time."""


class Worker:
    """The process of a template; `first` is what it is told first."""

    def __init__(self, first: Mapping[str, Any]):
        self.first = first
        self.process: subprocess.Popen | None = None
        self.ended = ""
        """Why the last answer did not come."""
        self.lock = threading.Lock()

    def ask(self, values: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
        """The program's answers. Raises OSError or ValueError where it has ended; the next call starts it anew."""
        line = json.dumps(values) + "\n"  # before anything is asked: what no JSON can hold is a TypeError
        with self.lock:
            try:
                if self.process is None:
                    self.start()
                self.process.stdin.write(line)
                self.process.stdin.flush()
                return json.loads(self.process.stdout.readline())
            except BaseException as error:  # an interrupt, too: an answer that nobody read would be taken for the next
                self.ended = self.stop(error)
                raise

    def stop(self, error: BaseException) -> str:
        """Ends the process; what it ended by before that."""
        if self.process is None:
            return f"its process could not be started ({error})"
        code = _stop(self.process, patience=1.0 if isinstance(error, (OSError, ValueError)) else 0.0)
        self.process = None
        if code == TOO_LONG:
            return f"it needs more than {self.first['seconds']:g} s of processor time for one conversation"
        return f"its process ended with exit code {code}"

    def start(self) -> None:
        """Starts the program and gives it the template."""
        self.process = subprocess.Popen(
            file_program(Path(__file__).with_name("renderer.py")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        weakref.finalize(self, _stop, self.process)
        self.process.stdin.write(json.dumps(self.first) + "\n")


_WORKERS: weakref.WeakValueDictionary[tuple[str, float], Worker] = weakref.WeakValueDictionary()


def worker_of(first: Mapping[str, Any]) -> Worker:
    """The process of a template, the same for all who ask for it."""
    key = first["template"], first["seconds"]
    found = _WORKERS.get(key)
    if found is None:
        found = _WORKERS[key] = Worker(first)
    return found


def _stop(process: subprocess.Popen, patience: float = 0.0) -> int:
    """Ends a process, unless it ends by itself within so many seconds; its exit code."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience)
    process.kill()
    code = process.wait()
    for stream in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):  # what it did not read
            stream.close()
    return code
