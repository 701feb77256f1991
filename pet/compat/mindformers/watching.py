"""What scripts ask of MindFormers' trainer beside its runs: its callbacks, the job file of a model's name, data of
tuples, and which run a call goes on with."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pet.compat.ckpt.doors import holds_weights
from pet.compat.mindformers.book import task_config
from pet.compat.mindformers.padding import EARLIER
from pet.compat.mindformers.saving import place_of
from pet.compat.mindformers.script_config import MindFormerConfig
from pet.compat.modelarts import DEFAULT_OUTPUT
from pet.compat.translation import path_in, switched_on
from pet.data.wrap import is_mindspore_dataset
from pet.launching.environment import read_job
from pet.recipe.callback_names import is_named

log = logging.getLogger("pet")


def _name(one: Any) -> str:
    return str(one["type"] if isinstance(one, dict) else getattr(one, "__name__", type(one).__name__))


ROWS = 8
"""Of a batch of MindFormers' trainer, where nothing says it."""


def in_columns(data: Any, names: Any) -> Any:
    """Data of tuples (a function that yields them, an iterable, an indexable) as a MindSpore Dataset, by the names of
    their columns, which have those of later releases; all else stays."""
    if not is_mindspore_dataset(data):
        rows = callable(data) or hasattr(data, "__iter__") or hasattr(data, "__getitem__")
        if not names or not rows or isinstance(data, (str, list, tuple)):
            return data
        from mindspore.dataset import GeneratorDataset

        data = GeneratorDataset(data, list(names), shuffle=False).batch(ROWS)
    found = {name: EARLIER[name] for name in data.get_col_names() if name in EARLIER}
    return data.rename([*found], [*found.values()]) if found else data


class Watched:
    """A trainer whose callbacks can be added and taken away.

    Attributes:
        callbacks: objects of `pet.train.callbacks`.
        named_callbacks: those by MindFormers' names.
    """

    callbacks: list
    named_callbacks: list
    model_and_tokenizer: Callable[..., tuple]

    def save_model(self, output_dir: str | os.PathLike | None = None, internal_call: bool = False) -> None:
        """Writes the model that `predict` asks, and its tokenizer where it has one, for ``from_pretrained``: a Hugging
        Face checkpoint; of a model with an adapter the adapter alone, as PEFT reads it, and of several those that are
        not called default in directories of their names, as PEFT has them. Of a job the first process writes.

        Args:
            output_dir: default: where a model's ``save_pretrained`` writes.
            internal_call: says nothing here.
        """
        from adapters.apply import list_adapters
        from adapters.saving import save_adapter

        model, tokenizer = self.model_and_tokenizer(asks=False)
        if read_job().rank == 0:
            place, names = place_of(output_dir, None), list_adapters(model)
            for name in names:
                save_adapter(model, place if len(names) == 1 or name == "default" else Path(place) / name, name)
            if not names:
                model.save_pretrained(place)
            if tokenizer is not None:
                tokenizer.save_pretrained(place)

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


def way_of(arguments: Mapping[str, Any], checkpoint: Any, resume: Any) -> tuple[Any, Any]:
    """(what a call starts from, what it goes on with).

    Args:
        arguments: ``resume_training`` says whether a run goes on, or the name of its checkpoint, and
            ``resume_from_checkpoint`` the place of either. Without the former a run goes on, as with transformers.
        checkpoint, resume: what the call says itself, which counts before that.
    """
    place, said = arguments.get("resume_from_checkpoint"), arguments.get("resume_training")
    if resume is not None or (place is None and said is None):
        return checkpoint, resume
    start, name = checkpoint or place or None, path_in(said)
    run = isinstance(start, (str, os.PathLike)) and not holds_weights(start)
    goes_on = (not checkpoint and (run or start is True)) if said is None else name or switched_on(said)
    if not goes_on:
        return start, False
    if name is not None:
        home = start if run else arguments.get("output_dir") or DEFAULT_OUTPUT
        return None if run else start, name if Path(name).is_dir() else Path(home) / "checkpoints" / name
    return (None, start) if run else (None if start is True else start, True)


def _makes(callback: Any) -> bool:
    """Whether this makes one of MindFormers' callbacks, whose classes are functions here."""
    return callable(callback) and is_named(getattr(callback, "__name__", None))
