"""Callbacks: called at five moments of a run, so that what stands beside the training (files, pictures, trackers, a
user's own) is no part of its loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model_zoo import progress
from model_zoo.arguments import is_several
from model_zoo.errors import InputError
from pet.recipe.classes import MOMENTS, find_callback


class Callback:
    """Told of a run's moments. Override those that matter; all do nothing by themselves.

    The trainer is given to each: ``trainer.model``, ``trainer.directory`` (a Path, or None), ``trainer.total_steps``,
    ``trainer.history``, and ``trainer.stop(reason)``, which ends the run after the present step with all saved.
    A callback is called in the main process only.

    Attributes:
        needs_directory: it writes into the run directory, so that there has to be one.
        every_step: `step` is called after every step, whatever ``train.log_every``.
    """

    needs_directory = every_step = False

    def start(self, trainer) -> None:
        """Before the first step of this process; ``trainer.position.step`` is above 0 in a resumed run."""

    def step(self, trainer, record: dict[str, Any]) -> None:
        """After each step that ``train.log_every`` has logged, and each with an evaluation. ``record`` is what
        metrics.jsonl gets: step, loss, learning_rate, gradient_norm, …"""

    def evaluation(self, trainer, record: dict[str, Any]) -> None:
        """After an evaluation: step, and the metrics by name."""

    def save(self, trainer, path: Path) -> None:
        """After a checkpoint is written to ``path``."""

    def end(self, trainer, summary: dict[str, Any]) -> None:
        """After the last step, also of a run that was stopped, and after an error (``summary["error"]``)."""


def make_callback(name: str, args: dict[str, Any] | None = None) -> Callback:
    """A callback by its name; see `pet.recipe.classes.find_callback`."""
    args = args or {}
    cls = find_callback(name, args)
    with progress.pausing():
        return cls(**args)


def make_callbacks(wanted: Any, directory: bool = True) -> list[Callback]:
    """From callbacks, names, and a recipe's entries with ``name`` and ``args``.

    Args:
        directory: whether the run has one.

    Raises:
        InputError: one is no callback, or writes into a directory that there is not.
    """
    made: list[Any] = []
    for entry in () if wanted is None else wanted if is_several(wanted) else [wanted]:
        if isinstance(entry, str):
            made.append(make_callback(entry))
        elif hasattr(entry, "name") and hasattr(entry, "args"):
            made.append(make_callback(entry.name, entry.args))
        elif missing := [moment for moment in MOMENTS if not callable(getattr(entry, moment, None))]:
            what = entry.__name__ if isinstance(entry, type) else type(entry).__name__
            raise InputError(f"callbacks: {what} has no {missing[0]}(); derive it from pet.train.callbacks.Callback")
        elif isinstance(entry, type):
            raise InputError(f"callbacks: {entry.__name__} is a class; give an instance, {entry.__name__}()")
        else:
            made.append(entry)
        if not directory and getattr(made[-1], "needs_directory", False):
            raise InputError(f"callbacks: {type(made[-1]).__name__} writes a file; give the trainer a directory")
    return made
