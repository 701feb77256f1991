"""Tokenised samples side by side in three flat arrays, in memory or mapped from a file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from model_zoo import progress
from model_zoo.errors import InputError

# What a label is where nothing is to be learnt (Hugging Face's convention).
IGNORED = -100
COUNTED_TOGETHER = 1024
"""Samples whose labels are counted at a time."""


def place_name(path: Path | str, line: int, row: int) -> str:
    """``file:line``, with the number of the row where the line holds several."""
    return f"{path}:{line}" + (f" (row {row})" if row else "")


def with_labels(
    ids: Sequence[int], labels: Sequence[int], ahead: bool, other: bool = False, padding: int | None = None
) -> tuple[list[int], list[int]]:
    """Token ids, and the mark of each (`model_zoo.tokenizers.prompts`).

    Args:
        ahead: whether each label stands one place before its token, so that the last one is a token more.
        other: whether a label may be another id than its token's.
        padding: an id behind which nothing is learnt; None: there is none.

    Raises:
        InputError: a label is none.
    """
    how = "one place ahead" if ahead else "not shifted"
    if ahead:
        ids = [*ids, *(label for label in labels[-1:] if label != IGNORED)]
        labels = [IGNORED, *labels[: len(ids) - 1]]
    for place, (token, label) in enumerate(zip(ids, labels, strict=True)):
        if label not in (token, IGNORED) and not (other and 0 <= label < 1 << 31):
            expected = "a token id" if other else f"the same id (labels are {how}; data.other_labels: true takes any)"
            raise InputError(
                f"labels: {label} at place {place}, where input_ids has {token}; expected {expected}, or {IGNORED} "
                "where nothing is learnt"
            )
    marks = [
        int(label == token) if label in (token, IGNORED) else ~label for token, label in zip(ids, labels, strict=True)
    ]
    if padding is not None:
        marks = [mark * (before != padding) for before, mark in zip([None, *ids], marks, strict=False)]
    return list(ids), marks


@dataclass
class Counts:
    """What happened to the rows of the files on their way to samples.

    Attributes:
        rows: rows read.
        samples: samples that came of them (a raw text may give several).
        cut: samples shortened to ``max_length``.
        limited: samples whose question or answer was shortened to ``max_prompt`` or ``max_answer``.
        divided: raw texts that gave several samples because they were longer; nothing of them is lost.
        dropped_long: samples left out because they were longer than ``max_length``.
        dropped_short: samples left out because they were shorter than ``min_length``.
        dropped_unlabelled: samples left out because no token of them would be trained on, for instance when the
            question alone fills ``max_length``.
        dropped_empty: rows left out because an answer of theirs, or their text, is empty.
        first_empty: ``file:line`` of the first of these.
        unread: what rows say that is not read -> their number, and ``file:line`` of the first.
        beside: the names of other columns, which mean nothing to any loader.
        met: the roles of ``data.columns`` and words of ``data.roles`` that some row has.
        dropped_equal: rows left out because the answers that they compare are the same once they are cut.
        repeated: samples left out because their tokens and labels are those of an earlier one.
        empty_thoughts: answers without the thought that the prompt of the chat template opens.
        longest: tokens of the longest row, before it is cut.
    """

    rows: int = 0
    samples: int = 0
    cut: int = 0
    limited: int = 0
    divided: int = 0
    dropped_long: int = 0
    dropped_short: int = 0
    dropped_unlabelled: int = 0
    dropped_empty: int = 0
    first_empty: str = ""
    dropped_equal: int = 0
    repeated: int = 0
    empty_thoughts: int = 0
    longest: int = 0
    unread: dict[str, tuple[int, str]] = field(default_factory=dict)
    beside: dict[str, None] = field(default_factory=dict)
    met: dict[str, None] = field(default_factory=dict)

    def add(self, other: Counts) -> None:
        longest, first = max(self.longest, other.longest), self.first_empty or other.first_empty
        self.beside |= other.beside
        self.met |= other.met
        for name in self.__dataclass_fields__.keys() - {"longest", "first_empty", "unread", "beside", "met"}:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.longest, self.first_empty = longest, first
        for what, (number, where) in other.unread.items():
            self.note_unread(what, where, number)

    def left_out(self, length: int, settings: Any) -> bool:
        """Notes the length of a sample; whether it is left out for that by the settings."""
        short = length < (settings.min_length or 0)
        long = not short and length > settings.max_length and settings.too_long == "drop"
        self.longest = max(self.longest, length)
        self.dropped_short, self.dropped_long = self.dropped_short + short, self.dropped_long + long
        return short or long

    def note_unread(self, what: str, where: str, number: int = 1) -> None:
        """Something that further rows say and that is not read; ``where``: the first of these."""
        before, first = self.unread.get(what, (0, where))
        self.unread[what] = before + number, first

    def note_empty(self, where: str) -> None:
        """One more row whose answer or text is empty."""
        self.dropped_empty += 1
        self.first_empty = self.first_empty or where

    @property
    def dropped(self) -> int:
        """All that was left out."""
        return (
            self.dropped_long + self.dropped_short + self.dropped_unlabelled + self.dropped_empty + self.dropped_equal
        )

    def __str__(self) -> str:
        divided = f"{self.divided} divided, " if self.divided else ""
        short = f"{self.dropped_short} as too short, " if self.dropped_short else ""
        empty = f", {self.dropped_empty} dropped for an empty answer" if self.dropped_empty else ""
        empty += f", {self.dropped_equal} whose answers are the same once cut" if self.dropped_equal else ""
        empty += f", {self.repeated} left out as repeated" if self.repeated else ""
        return (
            f"{self.samples} samples from {self.rows} rows; {divided}{self.cut} cut, "
            f"{self.dropped_long} dropped as too long, {short}{self.dropped_unlabelled} without an answer to learn from"
            f"{empty}"
        )

    def findings(self, max_length: int, longer: str = "raise it") -> list[str]:
        """What a user should know of rows that were cut or left out, a sentence each.

        Args:
            max_length, longer: of `DataSettings`.
        """
        rows, found = f"of {self.rows} rows are", []
        if self.cut or self.dropped_long:
            long = f"{self.cut} {rows} cut" if self.cut else f"{self.dropped_long} {rows} left out"
            lost = (
                f", {self.dropped_unlabelled} of them have no answer left"
                if self.cut and self.dropped_unlabelled
                else ""
            )
            found.append(
                f"{long} at data.max_length={max_length}{lost}; {longer} (the longest has {self.longest} tokens)"
            )
        elif self.dropped_unlabelled:
            found.append(f"{self.dropped_unlabelled} {rows} left out: none of their tokens is a label")
        if self.limited:
            found.append(f"{self.limited} {rows} cut at data.max_prompt or data.max_answer")
        if self.dropped_short:
            found.append(f"{self.dropped_short} {rows} left out: they have fewer tokens than data.min_length")
        if self.dropped_equal:
            found.append(
                f"{self.dropped_equal} {rows} left out: cut at data.max_length={max_length} their answers are the "
                f"same; {longer}"
            )
        if self.dropped_empty:
            found.append(
                f"{self.dropped_empty} {rows} left out: their answer or text is empty (the first: {self.first_empty})"
            )
        for what, (number, first) in self.unread.items():
            found.append(f"{what} is not read in {number} of {self.rows} rows (the first: {first})")
        if self.empty_thoughts:
            found.append(
                f"{self.empty_thoughts} answers have no thought, which the prompt of the chat template opens: they are "
                "learnt behind an empty one"
            )
        if self.repeated:
            found.append(
                f"{self.repeated} of {self.samples + self.repeated} samples are left out by data.deduplicate: their "
                "tokens and labels are those of earlier ones"
            )
        return found


@dataclass
class TokenDataset:
    """Samples of different lengths, each a pair (token ids, which of them are labels).

    Attributes:
        tokens: (N,) int32, the samples one after the other.
        trained: (N,) int32, the mark of each token: not 0 where something is learnt; `~label` where the label is not
            the token itself.
        starts: (samples,) int64, where each begins in ``tokens``.
        lengths: (samples,) int64, tokens in each.
        origin: (samples, 3) int64, for each sample the index of its file in ``files``, its line there, and the number
            of its row where the line holds several (otherwise 0).
        files: names of the files.
        counts: rows cut and dropped on the way.
        documents: how many neighbouring entries make one sample and stay together (an objective that compares); where
            it is more than 1, the arrays above have an entry for each of its documents.
        said: what the data says of samples (`pet.data.row.Row.label`), each once.
        said_of: (samples,) which of these of each; None: nothing.
        own: settings of files whose rows are read in a way of their own.
    """

    tokens: np.ndarray
    trained: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    origin: np.ndarray
    files: list[str] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    documents: int = 1
    said: list[Any] = field(default_factory=list)
    said_of: np.ndarray | None = None
    own: dict[str, dict[str, Any]] = field(default_factory=dict)
    _label_counts: np.ndarray | None = field(default=None, repr=False)

    @classmethod
    def from_samples(
        cls, samples: Iterable[tuple[Sequence[int], Sequence[bool]]], said: Sequence[Any] | None = None
    ) -> TokenDataset:
        """From pairs (ids, trained) in memory, and what is said of each.

        Raises:
            ValueError: a sample has no tokens, or its two parts differ in length.
        """
        ids_list, trained_list = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
        for number, (ids, trained) in enumerate(samples):
            if len(ids) == 0 or len(ids) != len(trained):
                raise ValueError(f"sample {number} has {len(ids)} tokens and {len(trained)} label marks")
            ids_list.append(np.asarray(ids, np.int32))
            trained_list.append(np.asarray(trained, np.int32))
        lengths = np.asarray([len(ids) for ids in ids_list[1:]], np.int64)
        origin = np.zeros((len(lengths), 3), np.int64)
        origin[:, 1] = np.arange(len(lengths))
        counts = Counts(rows=len(lengths), samples=len(lengths))
        tokens, trained = np.concatenate(ids_list), np.concatenate(trained_list)
        found = cls(tokens, trained, starts_of(lengths), lengths, origin, ["memory"], counts)
        if said is not None:
            found.said, found.said_of = list(said), np.arange(len(found))
        return found

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """``(ids (S,) int32, trained (S,) bool)`` of one sample."""
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        span = slice(self.starts[index], self.starts[index] + self.lengths[index])
        return np.asarray(self.tokens[span]), self.marks(index).astype(bool)

    def marks(self, index: int) -> np.ndarray:
        """``trained`` of one sample."""
        return np.asarray(self.trained[self.starts[index] : self.starts[index] + self.lengths[index]])

    def labels(self, index: int) -> np.ndarray:
        """(S,) labels of one sample; -100 is not learnt."""
        ids, marks = self.tokens[self.starts[index] : self.starts[index] + self.lengths[index]], self.marks(index)
        return np.where(marks < 0, ~marks, np.where(marks, ids, IGNORED)).astype(np.int32)

    def label(self, index: int) -> Any:
        """What the data says of a sample; None: nothing."""
        return None if self.said_of is None else self.said[self.said_of[index]]

    def select(self, indices: Sequence[int] | np.ndarray) -> TokenDataset:
        """The samples at ``indices`` as a dataset of its own, over the same tokens."""
        indices = np.asarray(indices, np.int64)
        origin, beside = np.asarray(self.origin)[indices], self.counts.beside
        return replace(
            self,
            starts=self.starts[indices],
            lengths=self.lengths[indices],
            origin=origin,
            said_of=None if self.said_of is None else self.said_of[indices],
            counts=Counts(len(np.unique(origin, axis=0)), len(indices) // self.documents, beside=beside),
            _label_counts=self.label_counts[indices],
        )

    def without_repeated(self, other: TokenDataset | None = None) -> TokenDataset:
        """The first of each sample, by the tokens and labels of its documents; of those alone that `other` lacks."""
        seen = set() if other is None else set(other.digests())
        first = []
        for sample, digest in enumerate(self.digests()):
            if digest not in seen:
                seen.add(digest)
                first.append(sample)
        found = self.select(np.arange(len(self)).reshape(-1, self.documents)[first].reshape(-1))
        repeated = self.counts.samples - len(first)
        found.counts = replace(self.counts, samples=len(first), repeated=repeated)
        return found

    def digests(self) -> Iterator[bytes]:
        """A digest of each sample's tokens and labels, and of what is said of it."""
        for first in range(0, len(self), self.documents):
            progress.tick()
            digest = hashlib.blake2b(digest_size=16)
            for index in range(first, first + self.documents):
                digest.update(np.int64(self.lengths[index]).tobytes() + self[index][0].tobytes())
                digest.update(self.marks(index).tobytes() + repr(self.label(index)).encode())
            yield digest.digest()

    @property
    def label_counts(self) -> np.ndarray:
        """(samples,) number of labels in each; the first token never counts, since nothing predicts it."""
        if self._label_counts is None:
            found = np.zeros(len(self), np.int64)
            # samples lie one behind the other here: a selection brings its counts along. In pieces, as NumPy makes
            # numbers of eight bytes of all marks that it adds up at once.
            for first in range(0, len(self), COUNTED_TOGETHER):
                piece = slice(first, first + COUNTED_TOGETHER)
                begins, ends = self.starts[piece], self.starts[piece] + self.lengths[piece]
                labels = np.asarray(self.trained[begins[0] : ends[-1]]) != 0
                found[piece] = np.add.reduceat(labels, begins - begins[0], dtype=np.int64) - labels[begins - begins[0]]
            self._label_counts = found
        return self._label_counts

    def where(self, index: int) -> str:
        """``file:line`` a sample came from, for reports."""
        file, line, row = self.origin[index]
        return place_name(self.files[file], line, row)


def starts_of(lengths: np.ndarray) -> np.ndarray:
    """Where samples of these lengths begin when they lie one behind the other."""
    return np.cumsum(lengths, dtype=np.int64) - lengths
