"""What happens beside training: five moments, and everything that wants to be told of them."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from model_zoo.errors import InputError, nearest


class Callback:
    """Told of a run's moments. Override those that matter; all do nothing by themselves.

    The trainer is given to each: ``trainer.model``, ``trainer.directory`` (a Path, or None), ``trainer.total_steps``,
    ``trainer.history``, and ``trainer.stop(reason)``, which ends the run after the present step with all saved.
    A callback is called in the main process only.
    """

    def start(self, trainer) -> None:
        """Before the first step of this process; ``trainer.position.step`` is above 0 in a resumed run."""

    def step(self, trainer, record: dict[str, Any]) -> None:
        """After a step. ``record`` is what metrics.jsonl gets: step, loss, learning_rate, gradient_norm, …"""

    def evaluation(self, trainer, record: dict[str, Any]) -> None:
        """After an evaluation: step, and the metrics by name."""

    def save(self, trainer, path: Path) -> None:
        """After a checkpoint is written to ``path``."""

    def end(self, trainer, summary: dict[str, Any]) -> None:
        """After the last step, also of a run that was stopped, and after an error (``summary["error"]``)."""


BUILT_IN = {
    "progress": "pet.train.callbacks.progress:Progress",
    "metrics": "pet.train.callbacks.records:MetricsFile",
    "samples": "pet.train.callbacks.records:SamplesFile",
    "csv": "pet.train.callbacks.records:CsvFile",
    "tensorboard": "pet.train.callbacks.tensorboard:TensorBoard",
    "plot": "pet.train.callbacks.plot:LossPlot",
    "profiler": "pet.train.callbacks.profiler:Profiler",
}


MOMENTS = ("start", "step", "evaluation", "save", "end")


def find_callback(name: str, args: dict[str, Any]) -> type[Callback]:
    """The class of a built-in name, or of ``module:Class`` found on the Python path or in the current directory.

    It is not called: a name of anything else that can be called, such as ``os:system``, goes no further than this.

    Raises:
        InputError: no such name, module or class; no class with a `Callback`'s methods; or arguments that its
            constructor does not take.
    """
    target = BUILT_IN.get(name, name)
    module_name, colon, class_name = target.partition(":")
    if not colon:
        raise InputError(f"callbacks: {name!r} is neither built in nor module:Class{nearest(name, BUILT_IN)}")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the module's own, too
        raise InputError(f"callbacks: {name!r}: module {module_name!r} cannot be imported: {error}") from error
    cls = getattr(module, class_name, None)
    if cls is None:
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        raise InputError(f"callbacks: {module_name!r} has no {class_name!r}{nearest(class_name, classes)}")
    if not isinstance(cls, type) or not all(callable(getattr(cls, moment, None)) for moment in MOMENTS):
        raise InputError(
            f"callbacks: {name!r} is no callback; expected a class with the methods {', '.join(MOMENTS)}, such as one "
            "that inherits from pet.train.callbacks.Callback"
        )
    try:
        inspect.signature(cls).bind(**args)
    except TypeError as error:
        raise InputError(f"callbacks: {name!r} with {args}: {error}") from error
    return cls


def make_callback(name: str, args: dict[str, Any] | None = None) -> Callback:
    """A callback by its name; see `find_callback`."""
    args = args or {}
    return find_callback(name, args)(**args)


def make_callbacks(wanted: Iterable) -> list[Callback]:
    """From callbacks, names, and a recipe's entries with ``name`` and ``args``."""
    made = []
    for entry in wanted:
        if isinstance(entry, str):
            made.append(make_callback(entry))
        elif hasattr(entry, "name") and hasattr(entry, "args"):
            made.append(make_callback(entry.name, entry.args))
        else:
            made.append(entry)
    return made
