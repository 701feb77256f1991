"""What scripts ask of MindFormers' trainer beside its runs: its callbacks, the job file of a model's name, and data of
tuples."""

from __future__ import annotations

import logging
from typing import Any

from pet.compat.mindformers.book import task_config
from pet.compat.mindformers.script_config import MindFormerConfig
from pet.data.wrap import is_mindspore_dataset
from pet.recipe.callback_names import is_named

log = logging.getLogger("pet")


def _name(callback: Any) -> str:
    return str(
        callback["type"] if isinstance(callback, dict) else getattr(callback, "__name__", type(callback).__name__)
    )


ROWS = 8
"""Of a batch of MindFormers' trainer, where nothing says it."""


def in_columns(data: Any, names: Any) -> Any:
    """Data of tuples (a function that yields them, an iterable, an indexable) as a MindSpore Dataset, by the names of
    their columns; all else stays."""
    rows = callable(data) or hasattr(data, "__iter__") or hasattr(data, "__getitem__")
    if not names or not rows or isinstance(data, (str, list, tuple)) or is_mindspore_dataset(data):
        return data
    from mindspore.dataset import GeneratorDataset

    return GeneratorDataset(data, list(names), shuffle=False).batch(ROWS)


class Watched:
    """A trainer whose callbacks can be added and taken away.

    Attributes:
        callbacks: objects of `pet.train.callbacks`.
        named_callbacks: those by MindFormers' names.
    """

    callbacks: list
    named_callbacks: list

    @staticmethod
    def get_task_config(task: str, model_name: str) -> MindFormerConfig:
        """See `task_config`."""
        return task_config(task, model_name)

    def add_callback(self, callback: Any) -> None:
        """Adds a callback, or one of a class."""
        name = _name(callback)
        if name in self.callback_list.split("\n"):
            log.warning("Trainer: %s is added once more", name)
        callback = callback() if isinstance(callback, type) or _makes(callback) else callback
        (self.named_callbacks if is_named(callback) else self.callbacks).append(callback)

    def pop_callback(self, callback: Any) -> Any:
        """Takes a callback away, or the first of a class, and gives it; one that is not there is given back."""
        whole = isinstance(callback, type) or _makes(callback)
        for kept in (self.callbacks, self.named_callbacks):
            for place, one in enumerate(kept):
                if one is callback or (whole and _name(one) == _name(callback)):
                    return kept.pop(place)
        return callback

    def remove_callback(self, callback: Any) -> None:
        """Takes it away."""
        self.pop_callback(callback)

    @property
    def callback_list(self) -> str:
        """The names of their classes, one on each line."""
        return "\n".join(map(_name, (*self.named_callbacks, *self.callbacks)))


def _makes(callback: Any) -> bool:
    """Whether this makes one of MindFormers' callbacks, whose classes are functions here."""
    return callable(callback) and is_named(getattr(callback, "__name__", None))
