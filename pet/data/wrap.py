"""Data that is not in files: MindSpore datasets, and indexable datasets with a ``collate_fn`` of their own."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from model_zoo import progress
from model_zoo.arguments import checked
from model_zoo.errors import InputError, nearest, shown
from model_zoo.settings import require

from .columns import names_of
from .dataset import IGNORED, TokenDataset
from .loader import Batch, BatchSource
from .packing import placed
from .settings import DataSettings
from .token_rows import hides, learnt_beside, taught

log = logging.getLogger("pet")


def is_mindspore_dataset(data: Any) -> bool:
    """Whether ``data`` is a MindSpore Dataset, told without importing MindSpore."""
    return hasattr(data, "create_dict_iterator") and hasattr(data, "get_batch_size")


def _alone(data: Any) -> None:
    """Takes what else is made of the same data set from the record of who reads it: MindSpore reads trees only, and a
    script may well make training and evaluation data out of one.
    """
    for child in getattr(data, "children", ()):
        child.parent = [weakref.ref(data)]
        _alone(child)


def from_mindspore(
    data: Any,
    max_length: int | None = None,
    padding: int | None = None,
    padding_ends: bool = False,
    labels_ahead: bool = False,
    other_labels: bool = False,
) -> TokenDataset:
    """The samples of a MindSpore Dataset of token ids, read once into memory.

    Args:
        data: has a column ``input_ids`` of rows (S,) or batches (B, S), as
            ``GeneratorDataset(…, column_names=["input_ids"]).batch(4)``; optional columns ``labels`` (unshifted, -100
            is not learnt) and ``attention_mask`` (0 is padding, and is left out; one of (S, S) a row is not read).
            Without labels every token is one.
        max_length: longer rows are divided into pieces of this length; one of a single token, which teaches nothing, is
            left out.
        padding, padding_ends: of rows without a mask; see `pet.recipe.data.Data`.
        labels_ahead, other_labels: of the labels; see there.

    Raises:
        InputError: no such column, columns of different shapes, or nothing to learn.
    """
    _alone(data)
    names = list(data.get_col_names())
    if "input_ids" not in names:
        raise InputError(f"dataset: no column 'input_ids'{nearest('input_ids', names)}")
    own = ("input_ids", "labels", "attention_mask")
    there = {column: [name for name in names_of(column) if name in names] for column in own}
    read = {column: found[0] for column, found in there.items() if found}
    samples, seen = [], ""
    rows = iter(data.create_dict_iterator(output_numpy=True, num_epochs=1))
    while True:
        with progress.pausing():  # the user's own generator may run
            columns = next(rows, None)
        if columns is None:
            break
        square = "attention_mask" in read and columns[read["attention_mask"]].ndim > columns[read["input_ids"]].ndim
        if square:  # (S, S) of each row, as MindFormers' GLM rows have it: which tokens are real is not told
            seen = read.pop("attention_mask")
            log.warning("dataset: %s says who sees whom, which the model's family does", seen)
        if seen and hides(columns[seen]):
            raise InputError(f"dataset: {seen} hides tokens from later ones; expected a row for each document")
        parts = {role: np.atleast_2d(columns[name]) for role, name in read.items()}
        shapes = {name: part.shape for name, part in parts.items()}
        if len(set(shapes.values())) != 1:
            raise InputError(f"dataset: columns must have one shape, found {shapes}")
        if not np.issubdtype(parts["input_ids"].dtype, np.integer):
            raise InputError(f"dataset: input_ids must be whole numbers, found {parts['input_ids'].dtype}")
        for row, ids in enumerate(parts["input_ids"]):
            kept = parts["attention_mask"][row] != 0 if "attention_mask" in parts else slice(None)
            labels = parts["labels"][row][kept].tolist() if "labels" in parts else None
            of_ids = (padding, padding_ends, labels_ahead, other_labels)
            ids, trained = map(np.asarray, taught(ids[kept].tolist(), labels, "attention_mask" in parts, *of_ids))
            piece = max_length or max(len(ids), 1)
            for at in range(0, len(ids), piece):
                if trained[at + 1 : at + piece].any():
                    samples.append((ids[at : at + piece], trained[at : at + piece]))
    if not samples:
        raise InputError("dataset: no row with anything to learn")
    return TokenDataset.from_samples(samples)


class CollateLoader(BatchSource):
    """Batches that the user's own ``collate_fn`` makes of an indexable dataset of dicts.

    Batches have the arrays that :class:`pet.data.loader.Loader` gives: what ``collate_fn`` leaves out is added
    (``labels`` are the tokens that are not padding; positions and visibility follow ``layout``). Further keys are
    handed on. The order, ranks and resuming are the Loader's. The last batch has the rows that are left; where a rank
    has none, or ``pieces`` have to be equal, copies of its first row, with all labels -100, make up for them. Every
    batch has the length that ``collate_fn`` gives it, and each length is compiled once: padding to a fixed one is
    cheapest.

    Args:
        dataset: ``len`` and ``[index]``.
        batch_size: rows on each rank.
        collate_fn: from a list of samples to a dict of arrays, lists or tensors with ``input_ids`` (B, S). By default
            samples of one length are stacked, key by key.
        settings: ``drop_last``, ``shuffle`` and ``seed`` are used here.
        pieces: micro-batches into which every batch is cut.
        division: ``layout``, ``pad_token_id``, ``accumulation``, ``rank``, ``world_size``, as for the Loader.
    """

    @checked
    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        settings: DataSettings | None = None,
        *,
        collate_fn: Callable[[list[Any]], Mapping[str, Any]] | None = None,
        pieces: int = 1,
        **division: Any,
    ) -> None:
        super().__init__(dataset, batch_size, settings, **division)
        require("loader", "pieces", pieces, int, ge=1)
        self.collate_fn, self.pieces = collate_fn or stack, pieces

    def _check(self) -> None:
        if len(self.dataset) == 0:
            raise InputError("dataset: no rows")

    def steps_per_epoch(self, epoch: int = 0) -> int:
        """Optimizer steps in an epoch."""
        full, left = divmod(len(self.dataset), self.rows_per_step)
        return full + bool(left and not (full and self.settings.drop_last))

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[Batch]:
        """The batches of ``epoch`` from number ``start`` on."""
        count = len(self.dataset)
        order = np.arange(count)
        if self.settings.shuffle:
            order = np.random.default_rng([self.settings.seed or 0, epoch]).permutation(count)
        total = self.batches_per_epoch(epoch)
        places = total * self.batch_size * self.world_size
        order = np.concatenate([order[:places], np.full(max(0, places - count), -1)])
        shares = order.reshape(total, self.world_size, self.batch_size)
        for index in range(start, total):
            batch = self._make(shares[index, self.rank])
            batch.index = index
            yield batch

    def _make(self, members: np.ndarray) -> Batch:
        real = members[members >= 0].tolist()
        rows = max(1, -(-len(real) // self.pieces)) * self.pieces
        filled = real + [real[0] if real else 0] * (rows - len(real))
        with progress.pausing():  # the user's own code: nobody knows how long it takes
            given = self.collate_fn([self.dataset[index] for index in filled])
        if not isinstance(given, Mapping):
            raise InputError(f"collate_fn gave {shown(given)}; a dictionary with input_ids was expected")
        values = {name: np.asarray(value) for name, value in given.items()}
        if "input_ids" not in values:
            raise InputError(f"collate_fn: the batch has no 'input_ids'{nearest('input_ids', values)}")
        ids = values["input_ids"] = values["input_ids"].astype(np.int32)
        if ids.ndim != 2 or len(ids) != rows:
            raise InputError(f"collate_fn: input_ids must be ({rows}, S), found {ids.shape}")
        real_tokens = np.asarray(values.get("attention_mask", np.ones_like(ids)))
        if real_tokens.shape != ids.shape:  # FlagAI's masks are (B, 1, S, S): which tokens are real is not told
            real_tokens = np.ones_like(ids)
        real_tokens = real_tokens != 0
        given, pad = values.get("labels"), self.settings.padding
        bare = given is None and "attention_mask" not in values and pad is not None
        real_tokens = ids != pad if bare else real_tokens
        # what follows padding cannot be predicted from it
        after_real = np.pad(real_tokens[:, :-1], ((0, 0), (1, 0)))
        trained = real_tokens & after_real if given is None else given != IGNORED
        trained = learnt_beside(ids, pad, self.settings.padding_ends) if bare else trained
        made = placed(ids, real_tokens, self.layout)
        labels = np.where(trained, ids if given is None else given, IGNORED).astype(np.int32)
        labels[len(real) :] = IGNORED
        batch = Batch({**made, **values, "labels": labels})
        for name in ("position_ids", "start", "end"):
            batch[name] = np.asarray(batch[name], np.int32)
        batch["sample_ids"] = [[index] for index in real] + [[] for _ in range(rows - len(real))]
        return batch


def stack(samples: list[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """The default ``collate_fn``: samples of one length, key by key."""
    if odd := [sample for sample in samples if not isinstance(sample, Mapping)]:
        raise InputError(
            f"dataset: a sample is a {type(odd[0]).__name__}; expected a dictionary with input_ids, or a collate_fn "
            "that makes batches of the samples"
        )
    names = list(samples[0])
    batch = {}
    for name in names:
        try:
            batch[name] = np.stack([np.asarray(sample[name]) for sample in samples])
        except (KeyError, ValueError) as error:
            raise InputError(f"dataset: {name!r} cannot be stacked ({error}); give a collate_fn that pads") from None
    return batch
