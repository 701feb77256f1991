"""Assigns the samples of one epoch to rows and batches: a pure function of seed and epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .packing import bucket_edges, first_fit_decreasing

# Samples packed at a time. More gains nothing in rows filled; fewer lets the company a sample keeps change each epoch.
PACKED_TOGETHER = 16384
# Lengths of "longest" are rounded up to this, so that there are few of them: each costs a compilation.
LENGTH_STEP = 64
# Lengths of "buckets" where none are given, for the same reason.
BUCKETS = 4


@dataclass
class Plan:
    """The rows of one epoch, in order.

    Attributes:
        rows: for each row the indices of its samples; steps · rows_per_step of them, padded with empty rows at the end.
        lengths: (steps,) tokens in the rows of each optimizer step; one shape throughout a step.
        rows_per_step: rows in an optimizer step, over all ranks and accumulated batches.
    """

    rows: list[np.ndarray]
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
) -> Plan:
    """Arrange samples of these ``lengths`` into rows.

    Where a sample has several ``documents``, ``lengths`` and the rows are of documents, those of a sample lie side by
    side, and a row has room for ``documents × max_length`` tokens.

    The order of rows depends on the seed, the epoch (and the window, when streaming) alone, not on how a step is
    divided into batches and ranks: 8 x 1, 4 x 2 and 2 x 4 rows per step see the same rows in every step. (With
    ``buckets`` the rows of a step share a length, so the order depends on ``rows_per_step`` too, and still not on how
    it is divided.)
    """
    random = np.random.default_rng([seed, epoch, window])
    lengths, max_length = lengths.reshape(-1, documents).sum(axis=1), max_length * documents
    count = len(lengths)
    order = random.permutation(count) if shuffle else np.arange(count)
    if packing == "pack":
        rows: list[np.ndarray] = []
        for part in np.array_split(order, max(1, -(-count // PACKED_TOGETHER))):
            rows.extend(part[members] for members in first_fit_decreasing(lengths[part], max_length))
        if shuffle:
            rows = [rows[index] for index in random.permutation(len(rows))]
        step_lengths = np.full(-(-len(rows) // rows_per_step), max_length, np.int64)
    elif packing == "buckets":
        rows, step_lengths = _bucket(lengths, order, buckets, max_length, rows_per_step, random if shuffle else None)
    else:
        rows = [order[index : index + 1] for index in range(count)]
        step_lengths = np.full(-(-count // rows_per_step), max_length, np.int64)
        if packing == "longest":
            for step in range(len(step_lengths)):
                longest = int(lengths[order[step * rows_per_step : (step + 1) * rows_per_step]].max())
                step_lengths[step] = min(-(-longest // LENGTH_STEP) * LENGTH_STEP, max_length)
    if documents > 1:
        rows = [(row[:, None] * documents + np.arange(documents)).reshape(-1) for row in rows]
    missing = len(step_lengths) * rows_per_step - len(rows)
    rows.extend(np.zeros(0, np.int64) for _ in range(missing))
    return Plan(rows, step_lengths, rows_per_step)


def _bucket(
    lengths: np.ndarray,
    order: np.ndarray,
    buckets: Sequence[int] | None,
    max_length: int,
    rows_per_step: int,
    random: np.random.Generator | None,
) -> tuple[list[np.ndarray], np.ndarray]:
    """Full steps of like length; what does not fill a step moves on to the next longer bucket."""
    if len(order) == 0:
        return [], np.zeros(0, np.int64)
    edges = np.asarray(sorted(buckets) if buckets else bucket_edges(lengths, BUCKETS, max_length))
    bucket_of = np.searchsorted(edges, lengths[order])
    steps: list[tuple[np.ndarray, int]] = []
    waiting = np.zeros(0, np.int64)
    for bucket, edge in enumerate(edges.tolist()):
        waiting = np.concatenate([waiting, order[bucket_of == bucket]])
        full = len(waiting) // rows_per_step * rows_per_step
        steps.extend((part, edge) for part in waiting[:full].reshape(-1, rows_per_step))
        waiting = waiting[full:]
    if random is not None:
        steps = [steps[index] for index in random.permutation(len(steps))]
    if len(waiting):
        steps.append((waiting, int(edges[np.searchsorted(edges, lengths[waiting].max())])))
    rows = [part[index : index + 1] for part, _ in steps for index in range(len(part))]
    return rows, np.asarray([edge for _, edge in steps], np.int64)
