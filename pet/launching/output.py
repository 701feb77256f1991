"""What a worker writes: to its log, rank 0's to the terminal, too."""

from __future__ import annotations

import codecs
import contextlib
import os
import subprocess
import sys
import threading
from io import FileIO

KEPT = 65536
"""Bytes of the end that are kept: of a worker that fails they are shown, whether its log took them or not."""
SHOWN = 60
"""Lines of a failed worker that are shown, of one without a traceback its last `LAST`."""
LAST = 20
FAULTS = ("Traceback (most recent call last)", "Fatal Python error")


class Output(threading.Thread):
    """Passes on what a worker writes, to each place until that takes no more: a full disk, which is said, or a closed
    terminal. It is read to its end all the same: the worker would wait, or end at a line that it cannot write.

    Args:
        rank: the worker's.
        process: the worker, with a pipe as its output.
        log: its open file, without a buffer.
        show: whether to write to the terminal.

    Attributes:
        end: what it wrote last.
    """

    def __init__(self, rank: int, process: subprocess.Popen, log: FileIO, show: bool):
        super().__init__(name=f"output of rank {rank}", daemon=True)
        self.rank, self.process, self.log, self.end = rank, process, log, b""
        self.decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self.takers = [self._to_log, self._to_terminal] if show else [self._to_log]
        self.start()

    def run(self) -> None:
        with self.log:
            while chunk := os.read(self.process.stdout.fileno(), 65536):
                self.end = (self.end + chunk)[-KEPT:]
                for taker in list(self.takers):
                    try:
                        taker(chunk)
                    except (OSError, ValueError) as error:
                        self.takers.remove(taker)
                        if taker == self._to_log:
                            self._say(error)

    def _to_log(self, chunk: bytes) -> None:
        while chunk:
            chunk = chunk[self.log.write(chunk) :]

    def _to_terminal(self, chunk: bytes) -> None:
        sys.stdout.write(self.decode(chunk))  # a character may be cut between two of them
        sys.stdout.flush()

    def _say(self, error: Exception) -> None:
        why = getattr(error, "strerror", None) or error
        with contextlib.suppress(OSError, ValueError):
            print(
                f"pet launch: {self.log.name}: cannot be written: {why}; the job goes on, and what rank {self.rank} "
                "says from here on is not kept",
                file=sys.stderr,
                flush=True,
            )

    def last_words(self) -> list[str]:
        """Its traceback where there is one, else its last lines."""
        text = self.end.decode(errors="replace")
        begin = max(text.rfind(mark) for mark in FAULTS)
        # Python ends its dump with a list of all modules in C, which says nothing
        lines = [line for line in text[max(0, begin) :].splitlines() if not line.startswith("Extension modules:")]
        return lines[:SHOWN] if begin >= 0 else lines[-LAST:]
