"""Whatever a user calls training data, as something that gives the micro-batches of a step.

A feed has ``steps_per_epoch(epoch)`` (None where the data streams), ``batches(epoch, start)`` from micro-batch
``start`` on, and may have ``where(batch)``, the origin of its samples, and ``part_of_epoch(epoch, steps)``, where steps
alone do not tell. `pet.data.Loader` is one.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from adapters.registry import registry
from model_zoo.ascend import on_ascend
from model_zoo.atomic import check_name
from model_zoo.engine import available, uses_kernel
from model_zoo.errors import InputError
from model_zoo.layers import AttentionCore
from pet.auto import AutoTokenizer
from pet.data import DataSettings, is_mindspore_dataset, load_dataset, make_loader
from pet.data.dataset import IGNORED
from pet.data.packing import causal_layout
from pet.data.settings import FULL
from pet.recipe.classes import rows_of
from pet.recipe.training import Train
from pet.train.batch import check_tokens, complete, layout_of, say_unread
from pet.train.distributed import DistributedContext

log = logging.getLogger("pet")


class BatchList:
    """Ready batches in a fixed order, for training in code.

    Args:
        batches: dictionaries with ``input_ids`` and, where they are not the same, ``labels`` ``(B, S)``;
            ``attention_mask`` (1 for real tokens), ``position_ids``, ``start`` and ``end`` where they are not the
            family's own; ``label`` of each row, where texts are judged; other numbers for a ``forward_step``.
        accumulation: micro-batches per optimizer step; the last step of an epoch has those that are left.
        model: its family says which tokens see each other.

    Raises:
        InputError: no batch, a missing key, shapes that do not fit, or no label in any row. Rows without one are said.
    """

    def __init__(self, batches: Sequence[dict[str, Any]], accumulation: int = 1, model=None):
        if len(batches) < accumulation:
            raise InputError(f"{len(batches)} batches are too few for a step of {accumulation}")
        self.list = [complete(batch, model, index) for index, batch in enumerate(batches)]
        say_unread(batches[0])
        for index, batch in enumerate(self.list):
            check_tokens(batch, model, f"batch {index}")
        self.check_labels()
        self.accumulation = accumulation

    def check_labels(self) -> None:
        """Rows of padding alone need no label: they fill up a batch."""
        rows, without = 0, []
        for index, batch in enumerate(self.list):
            real, labelled = is_real(batch).any(1), (batch["labels"][:, 1:] != IGNORED).any(1)
            rows += int(real.sum())
            without += [f"batch {index}, row {row}" for row in np.flatnonzero(real & ~labelled)]
        if without:
            lacking = f"a label after the first token ({IGNORED} everywhere)"
            if len(without) == rows:
                raise InputError(f"none of the {rows} rows has {lacking}: there is nothing to learn")
            log.warning(
                "%d of %d rows are not learnt: they lack %s; the first is %s", len(without), rows, lacking, without[0]
            )

    def steps_per_epoch(self, epoch: int = 0) -> int:
        """Optimizer steps in the list."""
        return -(-len(self.list) // self.accumulation)

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[dict[str, Any]]:
        """The list from ``start`` on."""
        yield from self.list[start:]

    def where(self, batch: dict[str, Any]) -> list[str]:
        """``batch 3, row 0`` and so on, or the sample ids that the batch brought."""
        return [str(sample) for sample in batch["sample_ids"]]


def is_real(batch: dict[str, Any]) -> np.ndarray:
    """(B, S) which tokens of a batch are not padding.

    Padding sees itself alone and is seen by nobody: a token that sees no other is real only if the next one's interval
    starts there (the drawings in `pet.data.packing`).
    """
    start = np.asarray(batch["start"])
    own = np.arange(start.shape[1])
    real = (start != own) | (np.asarray(batch["end"]) != own + 1)
    real[:, :-1] |= start[:, 1:] == own[:-1]
    return real


def count_useful(batch: dict[str, Any]) -> int:
    """Tokens of a batch that are not padding."""
    return int(is_real(batch).sum())


def shares_question(model, settings) -> bool:
    """Whether two answers may stand on both sides of one question (`pet.data.packing`): attention then looks at tokens
    behind its own, which Ascend's operators leave out in a causal model, and not through a window."""
    windows = getattr(getattr(model, "config", None), "windows", None)
    return windows is not None and not on_ascend() and all(not each or each >= settings.max_length for each in windows)


def look_ahead(model) -> None:
    """Makes a model ready for questions between their two answers. C kernels go by each token's interval in any case;
    plain operators of a causal model leave out what is behind a token's block, and are given all keys of a row."""
    for _, cell in () if available() else model.cells_and_names():
        if isinstance(cell, AttentionCore) and cell.causal:
            fast, cell.causal = cell.fast, False
            uses_kernel(cell, "attention", causal=False, **cell.numbers)
            cell.fast = fast


def placing(settings: DataSettings, model) -> dict[str, Any]:
    """``settings`` and ``layout`` of a loader whose batches are for a model (`MetaModel` will do)."""
    shares = settings.share_question and shares_question(model, settings)
    return {"settings": DataSettings.of(settings, share_question=shares), "layout": layout_of(model)}


def as_feed(
    data,
    accumulation: int | None = 1,
    model=None,
    settings=None,
    distributed: DistributedContext | None = None,
):
    """A feed as it is; a list of batches as a `BatchList`; a file of rows as a loader over it.

    Args:
        accumulation: batches of a step; None: data for an evaluation, which has no steps.
        settings: a recipe's ``train`` section, for files; default: its defaults.

    Raises:
        InputError: it is none of these, its steps are of another number of batches, or what is wrong with the files.
    """
    if isinstance(data, (str, os.PathLike)):
        check_name(data)
        return file_feed(data, model, accumulation or 1, settings or Train(), distributed or DistributedContext())
    if hasattr(data, "batches") and hasattr(data, "steps_per_epoch"):
        if getattr(data, "layout", None) is causal_layout:  # none was given
            data.layout = layout_of(model)
        how = getattr(data, "settings", None)
        if getattr(how, "share_question", False):
            if not shares_question(model, how):
                raise InputError(
                    "a loader with share_question: attention of this model looks through windows shorter than "
                    "max_length, or is the device's operator; leave it out"
                )
            look_ahead(model)
        own = getattr(data, "accumulation", accumulation)  # its epoch's steps, and what fills up the last one
        if accumulation is not None and own != accumulation:
            raise InputError(
                f"training data: a loader with accumulation {own}, but train.accumulation is {accumulation}"
            )
        return data
    if isinstance(data, (list, tuple)) and data and isinstance(data[0], dict):
        return BatchList(data, accumulation or 1, model)
    found, what = type(data).__name__, "evaluation data" if accumulation is None else "training data"
    if isinstance(data, (list, tuple)):
        found = f"a {found} of {type(data[0]).__name__}" if data else f"an empty {found}"
    elif is_mindspore_dataset(data) or (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        found += "; pet.data.make_loader(it, batch_size) makes a loader of it"
    elif hasattr(data, "__iter__"):
        found += "; list(it) is one if it gives batches and ends"
    raise InputError(f"{what}: expected a file, a pet.data.Loader or a list of batches, found {found}")


def file_feed(path: str | os.PathLike, model, accumulation: int, settings: Train, distributed: DistributedContext):
    """Packed rows of a file or a directory of files, in any of the forms that a recipe's ``data.train`` takes.

    The objective says how rows are read, and ``seed`` their order. The tokenizer is the one beside the model's
    checkpoint; a row has at most 512 tokens, or as many as the model has room for.

    Raises:
        InputError: what is wrong with the files; no tokenizer; a batch that the processes cannot share evenly.
    """
    registry(model)  # a name is no model
    directory, dims = getattr(model, "loaded_from", None), getattr(getattr(model, "config", None), "dims", None)
    if directory is None or dims is None:
        raise InputError(
            f"{path}: a model that is not from a checkpoint directory has no tokenizer; make batches by "
            "pet.data.load_dataset and pet.data.make_loader"
        )
    if settings.batch_size % distributed.data_size:
        raise InputError(f"batch_size: {settings.batch_size} rows cannot be shared by {distributed.data_size} replicas")
    tokenizer = AutoTokenizer.from_pretrained(directory)
    room = getattr(model, "room", dims.context)
    length = max(2, min(DataSettings.model_fields["max_length"].default, room))
    longer = FULL if length == room else "pet.data.load_dataset (max_length) and make_loader make longer ones"
    how = DataSettings(max_length=length, longer=longer, seed=settings.seed, **rows_of(settings.objective))
    dataset = load_dataset(path, tokenizer, settings=how)
    return shared_loader(dataset, settings.batch_size, how, model, tokenizer, distributed, accumulation)


def shared_loader(data, rows: int, settings, model, tokenizer, distributed, accumulation: int = 1, collate_fn=None):
    """This process's share of batches over a dataset (`pet.data.make_loader`), laid out as the model wants them.

    Args:
        rows: in a batch, over all processes.
        settings: a `pet.data.DataSettings`.
        tokenizer: its padding token fills rows; None: 0.
    """
    return make_loader(
        data,
        max(1, rows // distributed.data_size),
        collate_fn=collate_fn,
        **placing(settings, model),
        pad_token_id=getattr(tokenizer, "pad_token_id", None) or 0,
        accumulation=accumulation,
        rank=distributed.data_rank,
        world_size=distributed.data_size,
        pieces=distributed.micro_batches,
    )


def steps(feed, accumulation: int, epoch: int, start: int, model=None) -> Iterator[list[dict[str, Any]]]:
    """The micro-batches of each optimizer step of an epoch, from step ``start`` on.

    Raises:
        InputError: ids or labels that `model` has no row for.
    """
    batches = checked(feed, feed.batches(epoch, start * accumulation), model)
    while group := list(itertools.islice(batches, accumulation)):
        yield group


def checked(feed, batches: Iterable[dict[str, Any]], model) -> Iterator[dict[str, Any]]:
    """The batches of a feed, each checked by `check_tokens` before it is handed on."""
    for batch in batches:
        check_tokens(batch, model, lambda batch=batch: ", ".join(where(feed, [batch])[:3]) or "a batch")
        yield batch


def check_counted(objective, feed, training: bool = True) -> None:
    """Refuses data of which the objective counts nothing: its steps would change nothing, and a loss of 0 be measured.

    Raises:
        InputError: a list of batches with nothing in it that is counted, or a loader that does not keep together the
            documents that are compared.
    """
    what, counted = "training data" if training else "evaluation data", objective.counted
    if isinstance(feed, BatchList) and not any(objective.count(objective.prepare(one, training)) for one in feed.list):
        raise InputError(f"{what}: no batch has {counted}: there is nothing to {'learn' if training else 'measure'}")
    wanted = getattr(objective, "documents", 1)
    found = getattr(getattr(feed, "dataset", None), "documents", wanted)
    if found % wanted:
        raise InputError(
            f"{what}: {counted} are of {wanted} documents, and the loader's dataset has documents = {found}; set it to "
            f"{wanted} where neighbours belong together"
        )


def where(feed, batches: Sequence[dict[str, Any]]) -> list[str]:
    """The samples of a step, for a report."""
    found = []
    for batch in batches:
        if hasattr(feed, "where"):
            found.extend(map(str, feed.where(batch)))
        else:
            found.extend(map(str, batch.get("sample_ids", [])))
    return found
