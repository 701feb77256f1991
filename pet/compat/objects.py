"""Runs whose model or data are objects of a script: the core's trainer, with a recipe's settings beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from mindspore.dataset import MindDataset

from adapters.apply import check_base, delete_adapter, list_adapters, trainable_parameters
from adapters.saving import load_adapter, save_adapter
from model_zoo.checkpoint.reading import load_into
from model_zoo.checkpoint.safetensors_io import write_file
from model_zoo.errors import InputError
from model_zoo.turns import in_turn
from pet.compat.results import bring_checkpoint
from pet.data.dataset import IGNORED
from pet.data.finding import find_files, kind_of
from pet.data.load import load_dataset
from pet.data.token_rows import learnt_beside
from pet.data.wrap import from_mindspore, is_mindspore_dataset
from pet.files import atomic_directory
from pet.names import find_model
from pet.recipe.loading import from_dict
from pet.train.agreement import check_alike, compare
from pet.train.feed import as_feed, shared_loader
from pet.train.objectives import make_objective
from pet.train.prepare import (
    Prepared,
    attach_adapter,
    data_settings,
    held_out_settings,
    load_model,
    load_tokenizer,
    make_distributed_context,
)
from pet.train.run import execute, locked, measure as measure_prepared, save_model
from pet.train.settings import total_steps

TRAINED = "trained.safetensors"
"""What is trained of a cell of no family, in a run directory."""


@dataclasses.dataclass
class Objects:
    """What a script gives.

    Attributes:
        model, tokenizer: None where the recipe says which.
        train, evaluation: files, a loader, a MindSpore Dataset, a list of batches, or an indexable dataset of
            dictionaries; None for the recipe's files.
        collate_fn: from samples of an indexable dataset to a batch.
        forward_step: the script's own forward.
        rates: the learning rate of each step, counted from 0; None for the recipe's.
        metrics: from the batches of the evaluation to further numbers.
        steps: how many the run has, known before the first of `rates` is asked for.
    """

    model: Any = None
    tokenizer: Any = None
    train: Any = None
    evaluation: Any = None
    collate_fn: Callable | None = None
    forward_step: Callable | None = None
    rates: Callable[[int], float] | None = None
    metrics: Callable[[Iterable], dict[str, float]] | None = None
    steps: int = 0

    def measures(self, feed) -> Callable[[], dict[str, float]] | None:
        """What every evaluation over a feed asks for more: of all rows, in each process."""
        if not self.metrics or feed is None:
            return None
        whole = feed.alone() if hasattr(feed, "alone") else feed
        return in_turn(lambda: self.metrics(whole.batches()))


def recipe_beside_objects(translation, name: str, resumed: str | Path | None = None):
    """The recipe of settings beside a model that is an object, with whatever adapter it has. A run lying in its output
    directory is written over, as with other systems' scripts.

    Args:
        resumed: a run or checkpoint directory to go on from.

    Raises:
        InputError: wrong settings, or no checkpoint there.
    """
    settings = {"model.path": ".", "adapter.method": "none", **translation.settings}
    recipe = from_dict({}, settings, name=name, check_files=False)
    recipe.train.resume, recipe.output.force = bool(resumed), not resumed
    if resumed:
        bring_checkpoint(resumed, recipe.output.dir)
    return recipe


def make_feed(data, recipe, model, tokenizer, distributed, objects: Objects, train: bool = True):
    """A feed of whatever form the data has.

    Raises:
        InputError: a form that is not known, or files without a tokenizer.
    """
    if data is None or hasattr(data, "batches"):
        return data
    accumulation = recipe.train.accumulation if train else 1
    if not is_mindspore_dataset(data) and hasattr(data, "__len__") and not len(data):
        raise InputError(f"Trainer: the {'training' if train else 'evaluation'} data are empty")
    settings = data_settings(recipe) if train else held_out_settings(recipe)
    if isinstance(data, (list, tuple)) and data and _ids(data[0]) is not None:
        return as_feed([_labelled(one, settings) for one in data], accumulation, model)
    rows = recipe.train.batch_size if train else recipe.eval.batch_size or recipe.train.batch_size
    collate_fn = None
    own = is_mindspore_dataset(data)
    if own:  # which has left out what it leaves out
        settings = settings.of(settings, drop_last=False)
    if (records := as_records(data) if own or tokenizer is None else None) is not None:
        limit = settings.max_length if "max_length" in recipe.data.model_fields_set else _room(model)
        dataset = from_mindspore(records, limit, *settings.of_ids)
        longest = max(len(dataset[index][0]) for index in range(len(dataset)))
        settings = settings.of(settings, max_length=max(2, longest))
        if own and "batch_size" not in recipe.train.model_fields_set and train:
            rows = max(data.get_batch_size(), 1) * distributed.data_size
    elif isinstance(data, (str, Path)) or (
        isinstance(data, (list, tuple)) and all(isinstance(one, (str, Path)) for one in data)
    ):
        if tokenizer is None:
            raise InputError("Trainer: files are tokenised; give tokenizer=")
        dataset = load_dataset(data, tokenizer, settings=settings)
    elif hasattr(data, "__len__") and hasattr(data, "__getitem__") and not isinstance(data, Mapping):
        dataset, collate_fn = data, objects.collate_fn
    else:
        raise InputError(
            f"Trainer: data is a {type(data).__name__}; files, a MindSpore Dataset, a list of batches or an indexable "
            "dataset was expected"
        )
    return shared_loader(dataset, rows, settings, model, tokenizer, distributed, accumulation, collate_fn)


def as_records(data: Any) -> Any:
    """MindRecord files as a MindSpore Dataset: they hold ids, which need no tokenizer; and a Dataset itself. None of
    anything else."""
    if is_mindspore_dataset(data):
        return data
    paths = [data] if isinstance(data, (str, Path)) else data
    if not isinstance(paths, (list, tuple)) or not all(isinstance(one, (str, Path)) for one in paths):
        return None
    files = find_files(paths)
    if any(kind_of(file) != "mindrecord" for file in files):
        return None
    return MindDataset([str(file) for file in files], shuffle=False)


def _ids(entry: Any) -> np.ndarray | None:
    """A batch's ``(B, S)``; None of what is no batch."""
    ids = entry.get("input_ids") if isinstance(entry, dict) else None
    try:
        ids = np.asarray(ids)
    except ValueError:  # rows of different lengths
        return None
    return ids if ids.ndim == 2 else None


def _labelled(batch: Mapping[str, Any], settings) -> Mapping[str, Any]:
    """A batch with labels where it has neither these nor a mask, but is known to have padding. What is no batch stays:
    the feed names it."""
    ids = None if settings.padding is None else _ids(batch)
    if ids is None or "labels" in batch or "attention_mask" in batch:
        return batch
    return {**batch, "labels": np.where(learnt_beside(ids, settings.padding, settings.padding_ends), ids, IGNORED)}


def _room(model) -> int | None:
    """Tokens that a row may have, of which the last is only predicted; None for cells of the script's own."""
    dims = getattr(getattr(model, "config", None), "dims", None)
    return dims.context + 1 if dims is not None else None


def put_weights(model, weights: str | None, adapter: str | Path | None) -> None:
    """Gives a script's model what a run has trained: its adapter, in the place of the model's own, or all weights.

    Args:
        weights, adapter: a checkpoint directory and an adapter directory; None for what there is not.

    Raises:
        InputError: they are of another model.
    """
    if weights is not None:
        load_into(model, find_model(weights))
    if adapter is not None:
        name = next(iter(list_adapters(model)), None)
        if name is not None:
            delete_adapter(model, name)
        load_adapter(model, adapter, name or "default")


def assemble(recipe, objects: Objects, distributed, adapter: Path | None = None) -> tuple[Any, Any]:
    """The model with the recipe's adapter, or a trained one, and its tokenizer, which may be None."""
    tokenizer = objects.tokenizer
    if tokenizer is None and (objects.model is None or recipe.model.tokenizer not in (None, recipe.model.path)):
        tokenizer = load_tokenizer(recipe)
    own = objects.model is not None
    model = objects.model if own else load_model(recipe)
    if adapter is not None and not own:
        load_adapter(model, adapter)
    # an adapter, or a choice of parameters, that the script has made itself is left as it is
    elif not own or (recipe.adapter.method != "none" and not list_adapters(model)):
        attach_adapter(model, recipe, tokenizer)
    if own and list_adapters(model) and not distributed.divides_model:  # else it would end when it is saved
        check_base(model)
    check_alike(recipe, distributed, adapter=adapter, model=model)
    return distributed.prepare(model), tokenizer


def run(recipe, objects: Objects, callbacks: Iterable = (), eval_schedule: dict | None = None) -> dict[str, Any]:
    """Trains, writes the run directory as `pet.train.run.start` does (but for recipe.yaml: objects cannot be read
    again from a file), and returns its summary.

    Args:
        recipe: its ``model``, ``adapter`` and ``data`` count as far as `objects` leaves them open.
        callbacks: more of them.
        eval_schedule: ``every_steps`` or ``every_epochs`` for evaluation data that is no file.
    """
    distributed = make_distributed_context(recipe)
    recipe = recipe.model_copy(update={"eval": recipe.eval.model_copy(update=eval_schedule or {})})
    with locked(recipe, distributed):
        prepared = Prepared(*assemble(recipe, objects, distributed), recipe.model.path)
        model, tokenizer = prepared.model, prepared.tokenizer
        data = objects.train if objects.train is not None else recipe.data.train
        held_out = objects.evaluation if objects.evaluation is not None else recipe.data.eval
        prepared.train_feed = make_feed(data, recipe, model, tokenizer, distributed, objects)
        prepared.eval_feed = make_feed(held_out, recipe, model, tokenizer, distributed, objects, train=False)
        check_feeds(prepared, distributed)
        objects.steps = total_steps(prepared.train_feed, recipe.train)
        objective = make_objective(recipe.train, objects.forward_step)
        how = {"rates": objects.rates, "save": save, "measures": objects.measures(prepared.eval_feed)}
        return execute(recipe, prepared, distributed, callbacks=callbacks, objective=objective, **how)


def check_feeds(prepared, distributed) -> None:
    """Of data in memory, how much there is.

    Raises:
        InputError: processes have different numbers of batches: one would wait for the others for ever.
    """
    feeds = {"data.train": prepared.train_feed, "data.eval": prepared.eval_feed}
    steps = {f"steps in {name}": feed.steps_per_epoch(0) for name, feed in feeds.items() if feed is not None}
    compare({"settings": steps}, distributed)


def save(recipe, prepared, directory: Path, model) -> str | None:
    """``adapter/`` where the model has one; else ``model/``, or `TRAINED` of a cell of no family.

    Returns:
        The directory that holds the trained weights under their own names, where there is one.
    """
    names = list_adapters(model)
    if names and getattr(model, "config", None) is not None:
        with atomic_directory(directory / "adapter") as stage:
            save_adapter(model, stage, name=recipe.adapter.name if recipe.adapter.method != "none" else names[0])
    elif getattr(model, "family", None) is not None:
        save_model(model, prepared.tokenizer, directory / "model")
        return "model"
    else:
        parameters = {parameter.name: parameter.asnumpy() for parameter in trainable_parameters(model)}
        directory.mkdir(parents=True, exist_ok=True)
        write_file(directory / TRAINED, parameters, {"format": "ms"})
        return "."
    return None


def measure(recipe, objects: Objects, adapter: Path | None = None) -> dict[str, float]:
    """Loss, perplexity and what else the recipe's ``eval`` asks of the logits, on the evaluation data.

    Args:
        recipe: says the model where `objects` have none.
        adapter: a trained adapter to put on the recipe's model, in the place of a new one.
    """
    distributed = make_distributed_context(recipe)
    if objects.model is None:
        model, tokenizer = assemble(recipe, objects, distributed, adapter)
    else:
        model, tokenizer = objects.model, objects.tokenizer
        check_alike(recipe, distributed, model=model)
    data = objects.evaluation if objects.evaluation is not None else recipe.data.eval
    if data is None:
        raise InputError("Trainer.evaluate: eval_dataset is missing; there is nothing to measure on")
    feed = make_feed(data, recipe, model, tokenizer, distributed, objects, train=False)
    prepared = Prepared(model, tokenizer, recipe.model.path, eval_feed=feed)
    check_feeds(prepared, distributed)
    objective, measures = make_objective(recipe.train, objects.forward_step), objects.measures(feed)
    return measure_prepared(recipe, prepared, distributed, objective, measures=measures)
