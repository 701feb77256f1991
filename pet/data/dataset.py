"""Tokenised samples side by side in three flat arrays, in memory or mapped from a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# What a label is where nothing is to be learnt (Hugging Face's convention).
IGNORED = -100


@dataclass
class Counts:
    """What happened to the rows of the files on their way to samples.

    Attributes:
        rows: rows read.
        samples: samples that came of them (a raw text may give several).
        cut: samples shortened to ``max_length``.
        dropped_long: samples left out because they were longer than ``max_length``.
        dropped_unlabelled: samples left out because no token of them would be trained on, for instance when the
            question alone fills ``max_length``.
    """

    rows: int = 0
    samples: int = 0
    cut: int = 0
    dropped_long: int = 0
    dropped_unlabelled: int = 0

    def add(self, other: Counts) -> None:
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def __str__(self) -> str:
        return (
            f"{self.samples} samples from {self.rows} rows; {self.cut} cut, {self.dropped_long} dropped as too long, "
            f"{self.dropped_unlabelled} dropped for having nothing to learn"
        )


@dataclass
class TokenDataset:
    """Samples of different lengths, each a pair (token ids, which of them are labels).

    Attributes:
        tokens: (N,) int32, all samples one after the other.
        trained: (N,) uint8, 1 where the token is a label.
        offsets: (samples + 1,) int64; sample i is ``tokens[offsets[i]:offsets[i + 1]]``.
        origin: (samples, 2) int64, for each sample the index of its file in ``files`` and its line (or row) there.
        files: names of the files.
        counts: rows cut and dropped on the way.
    """

    tokens: np.ndarray
    trained: np.ndarray
    offsets: np.ndarray
    origin: np.ndarray
    files: list[str] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self.lengths: np.ndarray = np.diff(self.offsets)
        self._label_counts: np.ndarray | None = None

    @classmethod
    def from_samples(cls, samples: Iterable[tuple[Sequence[int], Sequence[bool]]]) -> TokenDataset:
        """From pairs (ids, trained) in memory.

        Raises:
            ValueError: a sample has no tokens, or its two parts differ in length.
        """
        ids_list, trained_list = [], []
        for number, (ids, trained) in enumerate(samples):
            if len(ids) == 0 or len(ids) != len(trained):
                raise ValueError(f"sample {number} has {len(ids)} tokens and {len(trained)} label marks")
            ids_list.append(np.asarray(ids, np.int32))
            trained_list.append(np.asarray(trained, np.uint8))
        offsets = np.zeros(len(ids_list) + 1, np.int64)
        np.cumsum([len(ids) for ids in ids_list], out=offsets[1:])
        origin = np.stack([np.zeros(len(ids_list), np.int64), np.arange(len(ids_list), dtype=np.int64)], axis=1)
        counts = Counts(rows=len(ids_list), samples=len(ids_list))
        tokens = np.concatenate(ids_list) if ids_list else np.zeros(0, np.int32)
        trained_flat = np.concatenate(trained_list) if trained_list else np.zeros(0, np.uint8)
        return cls(tokens, trained_flat, offsets, origin, ["memory"], counts)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """``(ids (S,) int32, trained (S,) bool)`` of one sample."""
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        span = slice(self.offsets[index], self.offsets[index + 1])
        return np.asarray(self.tokens[span]), np.asarray(self.trained[span]).astype(bool)

    def select(self, indices: Sequence[int]) -> TokenDataset:
        """The samples at ``indices`` as a dataset of its own, for instance a held-out part."""
        indices = np.asarray(indices, np.int64)
        parts = [self[int(index)] for index in indices]
        chosen = TokenDataset.from_samples(parts)
        chosen.origin, chosen.files = self.origin[indices], self.files
        return chosen

    @property
    def label_counts(self) -> np.ndarray:
        """(samples,) number of labels in each; the first token never counts, since nothing predicts it."""
        if self._label_counts is None:
            sums = np.zeros(len(self.trained) + 1, np.int64)
            np.cumsum(self.trained, out=sums[1:])
            first = self.trained[self.offsets[:-1]].astype(np.int64) if len(self) else np.zeros(0, np.int64)
            self._label_counts = sums[self.offsets[1:]] - sums[self.offsets[:-1]] - first
        return self._label_counts

    def where(self, index: int) -> str:
        """``file:line`` a sample came from, for reports."""
        file, line = self.origin[index]
        return f"{self.files[file]}:{line}"

    def summary(self) -> dict[str, Any]:
        """The counts, the tokens and the lengths in numbers."""
        lengths = self.lengths
        return {
            **vars(self.counts),
            "tokens": int(lengths.sum()),
            "label_tokens": int(self.label_counts.sum()),
            "shortest": int(lengths.min()) if len(self) else 0,
            "longest": int(lengths.max()) if len(self) else 0,
            "mean_length": float(lengths.mean()) if len(self) else 0.0,
        }
