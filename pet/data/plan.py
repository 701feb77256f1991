"""Assigns the samples of one epoch to rows and batches: a pure function of seed and epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model_zoo.errors import InputError

from .packing import bucket_edges, packed_order

# Samples packed at a time. More gains nothing in rows filled; fewer lets the company a sample keeps change each epoch.
# The samples of a window are packed together, however many its rows give: so they fill as many rows in every epoch.
PACKED_TOGETHER = 16384
# Lengths of "longest" are rounded up to this, so that there are few of them: each costs a compilation.
LENGTH_STEP = 64
# Lengths of "buckets" where none are given, for the same reason.
BUCKETS = 4


@dataclass
class Rows:
    """Rows of samples in two flat arrays: a million of them take no objects of Python.

    Attributes:
        members: (samples,) int64, the indices of the samples, row after row.
        sizes: (rows,) int64, how many samples each row has.
    """

    members: np.ndarray
    sizes: np.ndarray

    def __post_init__(self) -> None:
        self.ends = np.cumsum(self.sizes, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, span: slice) -> list[np.ndarray]:
        """The samples of each of these rows."""
        numbers = range(*span.indices(len(self)))
        return [self.members[self.ends[number] - self.sizes[number] : self.ends[number]] for number in numbers]

    def reordered(self, order: np.ndarray) -> Rows:
        """The rows of these numbers."""
        sizes = self.sizes[order]
        # of each place the distance to where its sample stands here
        shift = (self.ends - self.sizes)[order] - (np.cumsum(sizes) - sizes)
        return Rows(self.members[np.repeat(shift, sizes) + np.arange(sizes.sum())], sizes)


@dataclass
class Plan:
    """The rows of one epoch, in order.

    Attributes:
        rows: the samples of each row; steps · rows_per_step of them, padded with empty rows at the end.
        lengths: (steps,) tokens in the rows of each optimizer step; one shape throughout a step.
        rows_per_step: rows in an optimizer step, over all ranks and accumulated batches.
    """

    rows: Rows
    lengths: np.ndarray
    rows_per_step: int

    @property
    def steps(self) -> int:
        return len(self.lengths)


def make_plan(
    lengths: np.ndarray,
    *,
    packing: str,
    max_length: int,
    rows_per_step: int,
    shuffle: bool,
    seed: int,
    epoch: int,
    buckets: Sequence[int] | None = None,
    window: int = 0,
    documents: int = 1,
    drop_last: bool = False,
) -> Plan:
    """Arrange samples of these ``lengths`` into rows.

    Where a sample has several ``documents``, ``lengths`` and the rows are of documents, those of a sample lie side by
    side, and a row has room for ``documents × max_length`` tokens.

    The order of rows depends on the seed, the epoch (and the window, when streaming) alone, not on how a step is
    divided into batches and ranks: 8 x 1, 4 x 2 and 2 x 4 rows per step see the same rows in every step. (With
    ``buckets`` the rows of a step share a length, so the order depends on ``rows_per_step`` too, and still not on how
    it is divided.)

    ``drop_last`` leaves out the rows at the end that fill no step, unless they are all there is.
    """
    random = np.random.default_rng([seed, epoch, window])
    lengths, max_length = lengths.reshape(-1, documents).sum(axis=1), max_length * documents
    count = len(lengths)
    order = random.permutation(count) if shuffle else np.arange(count)
    if packing == "pack":
        rows = _packed(lengths, order, max_length, count if window else PACKED_TOGETHER)
        if shuffle:
            rows = rows.reordered(random.permutation(len(rows)))
        step_lengths = np.full(-(-len(rows) // rows_per_step), max_length, np.int64)
    elif packing == "buckets":
        order, step_lengths = _bucket(lengths, order, buckets, max_length, rows_per_step, random if shuffle else None)
        rows = Rows(order, np.ones(len(order), np.int64))
    else:
        rows = Rows(order, np.ones(count, np.int64))
        step_lengths = np.full(-(-count // rows_per_step), max_length, np.int64)
        if packing == "longest" and count:
            longest = np.maximum.reduceat(lengths[order], np.arange(0, count, rows_per_step))
            step_lengths = np.minimum(-(-longest // LENGTH_STEP) * LENGTH_STEP, max_length)
    if drop_last and len(rows) > rows_per_step:
        step_lengths = step_lengths[: len(rows) // rows_per_step]
        rows = rows.reordered(np.arange(len(step_lengths) * rows_per_step))
    missing = len(step_lengths) * rows_per_step - len(rows)
    members = (rows.members[:, None] * documents + np.arange(documents)).reshape(-1)
    sizes = np.concatenate([rows.sizes * documents, np.zeros(missing, np.int64)])
    return Plan(Rows(members, sizes), step_lengths, rows_per_step)


def _packed(lengths: np.ndarray, order: np.ndarray, max_length: int, together: int) -> Rows:
    """Samples packed in this order, so many at a time."""
    members, sizes = [], []
    for part in np.array_split(order, max(1, -(-len(order) // max(1, together)))):
        placed, counts = packed_order(lengths[part], max_length)
        members.append(part[placed])
        sizes.append(counts)
    return Rows(np.concatenate(members), np.concatenate(sizes))


def _bucket(
    lengths: np.ndarray,
    order: np.ndarray,
    buckets: Sequence[int] | None,
    max_length: int,
    rows_per_step: int,
    random: np.random.Generator | None,
) -> tuple[np.ndarray, np.ndarray]:
    """The samples in full steps of like length, and the length of each step; what does not fill a step moves on to the
    next longer bucket."""
    if len(order) == 0:
        return order, np.zeros(0, np.int64)
    edges = np.asarray(sorted(buckets) if buckets else bucket_edges(lengths, BUCKETS, max_length))
    if (longest := lengths.max()) > edges[-1]:  # of a pair, which has room for two answers
        raise InputError(f"data.buckets: the longest is {edges[-1]}, but a sample with all its documents has {longest}")
    bucket_of = np.searchsorted(edges, lengths[order])
    steps, step_lengths = [], []
    waiting = np.zeros(0, np.int64)
    for bucket, edge in enumerate(edges.tolist()):
        waiting = np.concatenate([waiting, order[bucket_of == bucket]])
        full = len(waiting) // rows_per_step
        steps.append(waiting[: full * rows_per_step].reshape(full, rows_per_step))
        step_lengths.append(np.full(full, edge, np.int64))
        waiting = waiting[full * rows_per_step :]
    whole, its_lengths = np.concatenate(steps), np.concatenate(step_lengths)
    if random is not None:
        shuffled = random.permutation(len(whole))
        whole, its_lengths = whole[shuffled], its_lengths[shuffled]
    if len(waiting):
        its_lengths = np.append(its_lengths, edges[np.searchsorted(edges, lengths[waiting].max())])
    return np.concatenate([whole.reshape(-1), waiting]), its_lengths
