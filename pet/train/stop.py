"""Why a run ends before its last step, and with which exit code.

SIGTERM     a cluster's notice: the step in hand is finished, everything is saved, exit code 143
SIGINT      Ctrl-C: the same, exit code 130; a second one stops at once
NaN, Inf    the update is not made; the batch's samples and the last good checkpoint are named, exit code 1
exploding   the same, when the loss is many times its recent median
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import statistics
import threading
from collections import deque
from collections.abc import Iterable, Iterator

# Steps whose median counts as the recent loss, and how many there must be before it means anything.
RECENT = 32
ENOUGH = 8


class RunFailed(Exception):
    """The run cannot go on; the message says what happened and what is left. Exit code 1."""


class Interrupted(SystemExit):
    """A signal ended the run, after everything was saved. ``code`` is 128 + its number."""


class Signals:
    """Notes SIGTERM and SIGINT while the loop runs, so that it can end between two steps.

    Attributes:
        received: the signal's number, or None.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.handled: tuple[int, ...] = ()

    def _handle(self, number: int, frame) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
        if number == signal.SIGINT:
            os.write(2, b"\nending after this step, with everything saved; Ctrl-C again ends at once\n")

    def renew(self) -> None:
        """Takes the signals back: compiling a graph, MindSpore puts a handler over them that makes SIGINT a SIGTERM."""
        for number in self.handled:
            signal.signal(number, self._handle)

    @property
    def exit_code(self) -> int:
        """128 + the signal's number, as shells count."""
        return 128 + (self.received or 0)

    @contextlib.contextmanager
    def watch(self) -> Iterator[Signals]:
        """Handles both signals within the block. In a thread other than the main one, signals are left alone."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        self.handled = tuple(before)
        try:
            self.renew()
            yield self
        finally:
            self.handled = ()
            for number, handler in before.items():
                signal.signal(number, handler)


class LossWatch:
    """Tells a loss that explodes from one that wiggles.

    A loss is too high when it is ``ratio`` times the median of the recent ones *and* above every loss of the first
    steps: near zero, a hard batch can be many times the median without anything being wrong.

    Args:
        ratio: None looks for nothing.
    """

    def __init__(self, ratio: float | None):
        self.ratio = ratio
        self.recent: deque[float] = deque(maxlen=RECENT)
        self.first: float = 0.0
        self.seen = 0

    @property
    def limit(self) -> float:
        """The highest loss that is still believed."""
        if self.ratio is None or len(self.recent) < ENOUGH:
            return math.inf
        return max(self.ratio * statistics.median(self.recent), self.first)

    def add(self, loss: float) -> None:
        """Takes note of a step's loss."""
        if self.seen < ENOUGH:
            self.first = max(self.first, loss)
        self.seen += 1
        self.recent.append(loss)

    def state(self) -> dict:
        """What a checkpoint must hold."""
        return {"recent": list(self.recent), "first": self.first, "seen": self.seen}

    def load(self, state: dict) -> None:
        """Goes on from :meth:`state`."""
        self.recent = deque(state["recent"], maxlen=RECENT)
        self.first, self.seen = state["first"], state["seen"]


def failure(step: int, what: str, samples: Iterable[str], last_good: str | None) -> RunFailed:
    """The error of a step that cannot be used."""
    samples = list(samples)
    shown = ", ".join(samples[:16]) + (f" and {len(samples) - 16} more" if len(samples) > 16 else "")
    kept = f"the last good checkpoint is {last_good}" if last_good else "no checkpoint had been written yet"
    return RunFailed(
        f"step {step}: {what}; samples of this step: {shown}. The weights were not updated; {kept}. "
        "A lower learning rate, a longer warm-up or clipping usually helps"
    )
