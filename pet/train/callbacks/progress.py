"""The progress line: step, loss, learning rate, useful tokens per second, time left, memory."""

from __future__ import annotations

import sys

from pet.train.callbacks.base import Callback


def short(number: float) -> str:
    """A number for a narrow place: ``1.2k``, ``34``."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return f"{number:.0f}"


class Progress(Callback):
    """One tqdm line. Where the output is no terminal, a plain line now and then instead.

    Args:
        every_seconds: pause between lines where there is no terminal.
    """

    def __init__(self, every_seconds: float = 10.0):
        self.every_seconds = every_seconds
        self.bar = None

    def start(self, trainer) -> None:
        from tqdm import tqdm

        terminal = sys.stderr.isatty()
        self.bar = tqdm(
            total=trainer.total_steps,
            initial=trainer.position.step,
            unit="step",
            mininterval=0.1 if terminal else self.every_seconds,
            dynamic_ncols=terminal,
            file=sys.stderr,
            bar_format="step {n_fmt}/{total_fmt} {bar:12} {desc} | {elapsed} gone, {remaining} left",
        )
        self.bar.set_description_str("measuring and compiling", refresh=terminal)

    def step(self, trainer, record) -> None:
        if self.bar is None:
            return
        text = (
            f"loss {record['loss']:.4f} | lr {record['learning_rate']:.2e} | "
            f"{short(record['useful_tokens_per_second'])} tok/s | {record['memory_mb']:.0f} MB"
        )
        if "eval_loss" in record:
            text += f" | eval {record['eval_loss']:.4f}"
        self.bar.set_description_str(text, refresh=False)
        self.bar.update(record["step"] - self.bar.n)

    def end(self, trainer, summary) -> None:
        if self.bar is not None:
            self.bar.refresh()
            self.bar.close()
            self.bar = None
