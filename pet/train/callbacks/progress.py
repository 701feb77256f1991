"""The progress line: step, loss, last evaluation, time left; then speed, rate and memory where there is room."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time

from model_zoo.progress import redrawn, takes_a_line
from pet.train.callbacks.base import Callback

# What 80 columns must show comes first; of the rest what fits is shown.
FORMAT = "step {n_fmt}/{total_fmt} {bar:6} {desc}ETA {remaining} | elapsed {elapsed}{postfix}"


def short(number: float) -> str:
    """A number for a narrow place: ``1.2k``, ``34``."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return f"{number:.0f}"


def fitting(ncols: int | None = None, postfix: str | None = None, **shape) -> str:
    """tqdm's line with as many of the last numbers as have room: tqdm would cut one in two, which is another number."""
    from tqdm import tqdm

    while ncols and postfix and len(tqdm.format_meter(postfix=postfix, **shape)) > ncols:
        postfix = postfix.rpartition(", ")[0]
    return tqdm.format_meter(ncols=ncols, postfix=postfix, **shape)


class Progress(Callback):
    """One tqdm line on a terminal or in a notebook; elsewhere a line now and then, each with a newline.

    A thread draws it, so that the clock also runs while the model is measured or compiled.

    Args:
        every_seconds: pause between lines where there is no terminal.
    """

    def __init__(self, every_seconds: float = 10.0):
        self.every_seconds = every_seconds
        self.bar = None

    def start(self, trainer) -> None:
        from tqdm.auto import tqdm

        shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        notebook = hasattr(shell, "kernel")
        self.live = notebook or redrawn(sys.stderr)
        self.bar = tqdm(
            total=trainer.total_steps,
            initial=trainer.position.step,
            unit="step",
            dynamic_ncols=self.live,
            file=sys.stderr if self.live else open(os.devnull, "w"),  # noqa: SIM115 - closed at the end of the run
            bar_format=None if notebook else FORMAT,
        )
        if not notebook:
            self.bar.format_meter = fitting
        self.bar._time = time.monotonic  # the clock may be set back
        self.bar.start_t = self.bar.last_print_t = time.monotonic()
        evaluated = [line["eval_loss"] for line in trainer.history if "eval_loss" in line]
        self.loss, self.evaluated, self.phase = None, evaluated[-1] if evaluated else None, ""
        self.stopped = threading.Event()
        self.clock = threading.Thread(target=self.tick, args=(trainer,), name="progress", daemon=True)
        self.clock.start()

    def tick(self, trainer) -> None:
        """Draws the line until the run ends."""
        while not self.stopped.wait(1.0 if self.live else self.every_seconds):
            self.phase = trainer.phase
            self.draw()

    def draw(self) -> None:
        """Writes the line as it is now."""
        self.describe()
        if self.live:
            self.bar.refresh()
        elif takes_a_line(sys.stderr):
            with contextlib.suppress(OSError):  # a full disk, or nobody reads it any more: no reason to end a run
                print(str(self.bar), file=sys.stderr, flush=True)

    def describe(self) -> None:
        """Gives the bar what it is to show before the time left."""
        loss = None if self.loss is None else f"loss {self.loss:.4f}"
        evaluated = None if self.evaluated is None else f"eval {self.evaluated:.4f}"
        words = [word for word in (self.phase, loss, evaluated) if word]
        end = " | " if self.bar.bar_format and words else ""  # tqdm's own line has a colon there
        self.bar.set_description_str(" | ".join(words) + end, refresh=False)

    def step(self, trainer, record) -> None:
        if self.bar is None:
            return
        self.loss, self.evaluated = record["loss"], record.get("eval_loss", self.evaluated)
        speed, memory = short(record["useful_tokens_per_second"]), record["memory_mb"]
        self.bar.set_postfix_str(f"{speed} tok/s, lr {record['learning_rate']:.2e}, {memory:.0f} MB", refresh=False)
        self.phase = ""
        self.describe()
        self.bar.update(record["step"] - self.bar.n)

    def end(self, trainer, summary) -> None:
        if self.bar is not None:
            self.stopped.set()
            self.clock.join()
            self.phase = ""
            self.draw()
            self.bar.close()
            if not self.live:
                self.bar.fp.close()
            self.bar = None
