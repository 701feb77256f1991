"""Batches of one shape, or few, in an order that can be taken up again at any batch."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np

from model_zoo.arguments import check_argument, checked
from model_zoo.errors import InputError

from .dataset import TokenDataset
from .packing import LayoutFunction, causal_layout, collate, shared_tokens
from .plan import Plan, make_plan
from .settings import DataSettings


class Batch(dict):
    """A batch: a dict of NumPy arrays (see :func:`pet.data.packing.collate`) and ``sample_ids``.

    Attributes:
        index: its place in the epoch.
    """

    index: int


class BatchSource:
    """What loaders have in common: the data, and how rows are divided. The arguments are described at `Loader`."""

    @checked
    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        settings: DataSettings | None = None,
        *,
        layout: LayoutFunction | None = None,
        pad_token_id: int | None = 0,
        accumulation: int = 1,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        check_argument("layout", "Callable | None", layout)
        if min(batch_size, accumulation, world_size) < 1 or not 0 <= rank < world_size:
            raise InputError(
                f"batch size {batch_size}, accumulation {accumulation} and world_size {world_size} must be at least 1, "
                f"and rank {rank} below world_size"
            )
        self.dataset, self.batch_size, self.accumulation = dataset, batch_size, accumulation
        self.rank, self.world_size = rank, world_size
        self.settings, self.pad_token_id = settings or DataSettings(), pad_token_id or 0
        self._check()
        self.layout = layout or causal_layout

    def alone(self) -> BatchSource:
        """The same rows for one process."""
        other = copy.copy(self)
        other.rank, other.world_size = 0, 1
        return other

    @property
    def rows_per_step(self) -> int:
        """Rows of an optimizer step, over all ranks."""
        return self.batch_size * self.accumulation * self.world_size

    def batches_per_epoch(self, epoch: int = 0) -> int | None:
        """Batches in an epoch: steps x accumulation."""
        steps = self.steps_per_epoch(epoch)
        return None if steps is None else steps * self.accumulation

    def __len__(self) -> int:
        return self.batches_per_epoch()


class Loader(BatchSource):
    """Turns samples into batches.

    An epoch is ``steps`` optimizer steps, each of ``accumulation`` batches, each of ``batch_size`` rows on every one of
    ``world_size`` ranks. Ranks take neighbouring rows of the same global batch. Every sample comes exactly once in an
    epoch; the last step is filled up with rows of padding, whose labels are all -100, so no shape changes and no sample
    is left out or counted twice.

    The order is a function of ``seed``, ``epoch`` and the rows in a step. ``batches(epoch, start=k)`` begins at batch k
    without making the k before it.

    Args:
        dataset: the samples.
        batch_size: B, rows in a batch of one rank.
        settings: ``packing``, ``max_length``, ``buckets``, ``drop_last``, ``shuffle``, ``seed`` and ``share_question``
            are used here.
        layout: positions and visibility of one document. Left out: causal, and for training and measuring a model
            (:class:`pet.Trainer`) that model's, which with a prefix or a prompt begins behind it.
        pad_token_id: what stands in padded places.
        accumulation: batches in an optimizer step.
        rank, world_size: which rows of the global batch to take. Ranks that hold parts of one model share a rank here.

    Raises:
        InputError: the dataset is empty, has no label, or has a sample longer than ``max_length``.
    """

    dataset: TokenDataset
    _plan: tuple[tuple[int, int], Plan] | None = None
    _shared: tuple[TokenDataset, np.ndarray] | None = None

    @property
    def layout(self) -> LayoutFunction:
        """Positions and visibility of one document."""
        return self._layout

    @layout.setter
    def layout(self, layout: LayoutFunction) -> None:
        self._layout = layout
        self._position_rows = len(np.atleast_2d(layout(self._first_ids())[0]))

    def _check(self) -> None:
        if len(self.dataset) == 0:
            raise InputError(f"no sample is left to load: {self.dataset.counts}")
        if not self.dataset.label_counts.any():
            raise InputError(f"none of the {len(self.dataset)} samples has a label: there is nothing to learn")
        longest = int(self.dataset.lengths.argmax())
        if self.dataset.lengths[longest] > self.settings.max_length:
            raise InputError(
                f"{self.dataset.where(longest)}: sample of {self.dataset.lengths[longest]} tokens, "
                f"max_length is {self.settings.max_length}"
            )

    def _first_ids(self) -> np.ndarray:
        return self.dataset[0][0]

    def plan(self, epoch: int) -> Plan:
        """The rows of an epoch; the last one asked for is kept."""
        key = epoch, self.rows_per_step
        if self._plan is None or self._plan[0] != key:
            self._plan = (key, self._make_plan(self.dataset, epoch, 0))
        return self._plan[1]

    def shared(self, dataset: TokenDataset) -> np.ndarray | None:
        """(pairs,) the tokens that each pair of documents shares; None where they share none."""
        if not self.settings.share_question or dataset.documents != 2:
            return None
        if self._shared is None or self._shared[0] is not dataset:
            pairs = range(0, len(dataset), 2)
            found = [shared_tokens(dataset[index], dataset[index + 1], self.layout) for index in pairs]
            self._shared = (dataset, np.asarray(found, np.int64))
        return self._shared[1]

    def row_lengths(self, dataset: TokenDataset) -> np.ndarray:
        """(documents,) the tokens that each takes in a row: of a pair that shares some, the second one has the rest."""
        lengths, shared = np.array(dataset.lengths), self.shared(dataset)
        if shared is not None:
            lengths[1::2] -= shared
        return lengths

    def _make_plan(self, dataset: TokenDataset, epoch: int, window: int) -> Plan:
        return make_plan(
            self.row_lengths(dataset),
            packing=self.settings.packing,
            max_length=self.settings.max_length,
            rows_per_step=self.rows_per_step,
            shuffle=self.settings.shuffle,
            seed=self.settings.seed or 0,
            epoch=epoch,
            buckets=self.settings.buckets,
            window=window,
            documents=dataset.documents,
            drop_last=self.settings.drop_last,
        )

    def steps_per_epoch(self, epoch: int = 0) -> int | None:
        """Optimizer steps in an epoch. Packing may save or need a row more in another epoch, so ask for each."""
        return self.plan(epoch).steps

    def shapes(self, epoch: int = 0) -> list[tuple[int, int]]:
        """The distinct (B, S) of an epoch; each is compiled once. ``pack`` and ``none`` have one."""
        return [(self.batch_size, int(length)) for length in np.unique(self.plan(epoch).lengths)]

    def padding(self, epoch: int = 0) -> float:
        """Share of an epoch's tokens that are padding, rows that only fill up the last step included."""
        plan = self.plan(epoch)
        processed = int(plan.lengths.sum()) * plan.rows_per_step
        return 1.0 - float(self.row_lengths(self.dataset)[plan.rows.members].sum()) / processed

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[Batch]:
        """The batches of ``epoch`` from number ``start`` on, this rank's rows of each.

        Each is a :class:`Batch` with ``input_ids``, ``labels``, ``start``, ``end`` (B, S), ``position_ids`` (B, S) or
        (B, 2, S), and ``sample_ids``: for each row the list of its samples' indices in the dataset. ``said`` has
        what the data says of each (`TokenDataset.label`), for objectives that learn that.
        """
        yield from self._batches(self.dataset, self.plan(epoch), start, 0)

    def _batches(self, dataset: TokenDataset, plan: Plan, start: int, shift: int) -> Iterator[Batch]:
        """Batches of one plan; ``shift`` is what is added to their index (and nothing else)."""
        per_batch = self.batch_size * self.world_size
        shared = self.shared(dataset)
        for index in range(start, plan.steps * self.accumulation):
            first = index * per_batch + self.rank * self.batch_size
            members = [row.tolist() for row in plan.rows[first : first + self.batch_size]]
            rows = [[(*dataset[sample], dataset.labels(sample)) for sample in row] for row in members]
            batch = Batch(
                collate(
                    rows,
                    int(plan.lengths[index // self.accumulation]),
                    pad_token_id=self.pad_token_id,
                    layout=self.layout,
                    position_rows=self._position_rows,
                    shared=None if shared is None else [[int(shared[one // 2]) for one in row[::2]] for row in members],
                )
            )
            batch["sample_ids"] = members
            batch["said"] = [[dataset.label(sample) for sample in row] for row in members]
            batch.index = shift + index
            yield batch

    def where(self, batch: Batch) -> list[str]:
        """``file:line`` of every sample of a batch, for a report on a batch that went wrong."""
        return [self.dataset.where(sample) for row in batch["sample_ids"] for sample in row]
