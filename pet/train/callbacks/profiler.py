"""Where the time of a few steps goes, by MindSpore's own profiler."""

from __future__ import annotations

import logging
from pathlib import Path

from pet.train.callbacks.base import Callback

log = logging.getLogger("pet")


class Profiler(Callback):
    """Profiles some steps into ``<run>/profile``, for MindStudio Insight or a look at its CSV files.

    Args:
        first: the first profiled step, counted from 1; the steps before it compile. Of a shorter run, its last step.
    """

    needs_directory = every_step = True

    def __init__(self, first: int = 3, steps: int = 3):
        self.first, self.steps = first, steps
        self.profiler = None

    def _begin(self, trainer) -> None:
        from mindspore.profiler import Profiler as Recorder

        path = Path(trainer.directory) / "profile"
        path.mkdir(parents=True, exist_ok=True)
        self.profiler = Recorder(output_path=str(path))

    def start(self, trainer) -> None:
        self.first = max(trainer.position.step + 1, min(self.first, trainer.total_steps))
        if trainer.position.step + 1 == self.first:
            self._begin(trainer)

    def step(self, trainer, record) -> None:
        if self.profiler is not None and record["step"] >= self.first + self.steps - 1:
            self._finish()
        elif self.profiler is None and record["step"] == self.first - 1:
            self._begin(trainer)

    def _finish(self) -> None:
        try:
            self.profiler.analyse()
        except Exception as error:  # a profile is a convenience; the run must not end for want of one
            log.warning("the profile could not be analysed: %s", error)
        self.profiler = None

    def end(self, trainer, summary) -> None:
        if self.profiler is not None:
            self._finish()
