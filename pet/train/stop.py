"""Why a run ends before its last step, and with which exit code.

SIGTERM     a cluster's notice: the step in hand is finished, everything is saved, exit code 143
SIGHUP      the terminal was closed: the same, exit code 129
SIGINT      Ctrl-C: the same, exit code 130; a second one ends at once. A program gets it as KeyboardInterrupt
NaN, Inf    the update is not made; the batch's samples and the last good checkpoint are named, exit code 1
exploding   the same, when the loss is many times its recent median
an error    of a callback, an evaluation or the data: the same as far as it can be (`Saving.rescue`), exit code 1
"""

from __future__ import annotations

import contextlib
import math
import signal
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from model_zoo.errors import first_line
from model_zoo.limits import shortage
from pet import interrupts
from pet.launching.environment import read_job

# Steps whose median counts as the recent loss, and how many there must be before it means anything.
RECENT = 32
ENOUGH = 8

HARD = 20.0
"""What one that is counted may add to a step's summed loss: that of a probability of 2e-9."""

# What a run is doing, for the progress line, and what it answers to a signal then.
LOADING, MEASURING_BASE, STEPS, MEASURING, WRITING = "compiling", "evaluating the base", "", "evaluating", "writing"
ANNOUNCED = {
    MEASURING_BASE: "ending; no step has been made yet",
    MEASURING: "ending; the evaluation is left, and made again when the run is resumed",
    WRITING: "ending; what is not measured or written yet is when the run is resumed",
}
NO_CHECKPOINT = "there is no checkpoint yet to go on from"


class RunFailed(Exception):
    """The run cannot go on; the message says what happened and what is left. Exit code 1."""


class Interrupted(SystemExit):
    """A signal ended the run, after everything was saved. ``code`` is 128 + its number."""


class InterruptedByKeyboard(Interrupted, KeyboardInterrupt):
    """Ctrl-C in a program of the user's own, which may expect KeyboardInterrupt; without a word where it does not."""


class EvaluationLeft(Exception):
    """A signal came while the model was measured; the evaluation is made again when the run is resumed."""


class Signals:
    """Notes SIGTERM, SIGHUP and SIGINT while a run lasts, so that it can end where everything can be saved.

    Attributes:
        received, since: the signal's number, or None; and when it came.
        announce: what the user is told when a signal comes.
        can_leave_evaluations: an evaluation is left between two batches. Where several processes measure together it
            is finished, since all must make the same calls.
        last_checkpoint: the newest checkpoint that there is.
        renew: takes the signals back from MindSpore, see `pet.interrupts.handled_by`.
    """

    def __init__(
        self,
        announce: Callable[[], str] = lambda: "ending",
        can_leave_evaluations: bool = True,
        last_checkpoint: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.received: int | None = None
        self.since = 0.0
        self.announce, self.last_checkpoint = announce, last_checkpoint
        self.can_leave_evaluations = can_leave_evaluations
        self.renew: Callable[[], None] = lambda: None

    def receive(self, number: int) -> None:
        """Called with each signal, on the command line in another thread."""
        if self.received is not None:
            if interrupts.pressed_again(number, self.since):
                interrupts.end_at_once(number)
            return
        self.received, self.since = number, time.monotonic()
        # of a job's processes Ctrl-C reaches the launcher, which passes another signal on
        name = "" if read_job().launcher == "pet" else f"{signal.Signals(number).name}: "
        interrupts.say(f"{name}{self.announce()}; Ctrl-C again ends at once")

    def share(self, objects: Callable[[object], list]) -> bool:
        """Whether any process received a signal, which is then that of all: they end with one exit code.

        Args:
            objects: gives everybody's, as `DistributedContext.objects`.
        """
        self.received = next((number for number in objects(self.received) if number is not None), None)
        return self.received is not None

    def interruption(self, done: str) -> BaseException:
        """What is to be raised when the run has ended; ``done`` says where, at Python's prompt and in notebooks: there
        SystemExit would end the session, or be taken for an attempt to do so."""
        code = 128 + (self.received or 0)
        if self.received != signal.SIGINT or interrupts.listening():
            return Interrupted(code)
        return KeyboardInterrupt(done) if hasattr(sys, "ps1") else InterruptedByKeyboard(code)

    @contextlib.contextmanager
    def watch(self) -> Iterator[Signals]:
        """Receives the signals within the block."""
        global _watching
        with interrupts.handled_by(self.receive) as self.renew:
            before, _watching = _watching, self
            try:
                yield self
            finally:
                _watching = before


_watching: Signals | None = None


def signalled() -> bool:
    """Whether a signal is ending the run."""
    return _watching is not None and _watching.received is not None


def remainder(main: bool = True) -> str:
    """What is left of a run that ends now, by no doing of its own; empty where none is watched.

    Args:
        main: whether this is the main process: of the others some see no checkpoint, since it lies on another machine.
    """
    if _watching is None:
        return ""
    return "--resume goes on" if _watching.last_checkpoint() is not None else NO_CHECKPOINT if main else ""


def check_signals() -> None:
    """Called between the batches of an evaluation.

    Raises:
        EvaluationLeft: a signal came, and the evaluation need not be finished.
    """
    if _watching is not None and _watching.received is not None and _watching.can_leave_evaluations:
        raise EvaluationLeft


class LossWatch:
    """Tells a loss that explodes from one that wiggles.

    A loss is too high when it is ``ratio`` times the median of the recent ones *and* above every loss of the first
    steps: near zero, a hard batch can be many times the median without anything being wrong. Nor is one token, pair or
    text of the step that is learnt by heart and wrong (`HARD`): where few are counted it alone makes the mean so high.

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


def failure(step: int, what: str, samples: Iterable[str], last_good: str | None, way: str = "") -> RunFailed:
    """The error of a step that cannot be used; `way` is one more that may help."""
    samples = list(samples)
    shown = ", ".join(samples[:16]) + (f" and {len(samples) - 16} more" if len(samples) > 16 else "")
    kept = f"the last good checkpoint is {last_good}" if last_good else "no checkpoint had been written yet"
    return RunFailed(
        f"step {step}: {what}; samples of this step: {shown}. The weights were not updated; {kept}. "
        f"A lower learning rate, a longer warm-up or clipping usually helps{way}"
    )


def no_memory(trainer, error: BaseException) -> RunFailed:
    """The error of memory, or of threads, that could not be had: what to lower, and which limit to raise."""
    lacking, limit = shortage(error) or (first_line(error), "")
    settings, rows, last = trainer.settings, trainer.eval_settings.batch_size, trainer.last_checkpoint()
    if trainer.phase in (MEASURING_BASE, MEASURING, WRITING):
        what, lower = "the evaluation", f"eval.batch_size ({rows or settings.batch_size})"
    else:
        lower = f"train.batch_size ({settings.batch_size}; train.accumulation keeps the rows of a step)"
        what = f"step {min(trainer.position.step + 1, trainer.total_steps)}"
    recompute = "" if settings.recompute else ", or set train.recompute: true"
    kept = f"; the last checkpoint is {last}" if last else ""
    raised = f"{limit}; or " if limit else ""
    return RunFailed(f"{what}: {lacking}; {raised}lower {lower} or data.max_length{recompute}{kept}")
