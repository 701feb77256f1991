"""Data that is tokenised while it is used: an index of windows of rows, and a loader that goes through them.

The rows are read once to see that all of them can be used, and to note where each window of ``stream_window`` rows
begins; that index is kept in the cache directory. A window goes on in the next file, and ends early where its rows are
long. An epoch takes the windows in an order of its own, tokenises each, and packs its samples by themselves; the next
window is made ready meanwhile. A window's last step is filled up with padding. Since a window gives the same number of
steps in every epoch, that number is noted once known, and ``batches(epoch, start=k)`` goes straight to the window that
holds batch k; a window not yet noted is tokenised to count it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from model_zoo.checkpoint.digests import Damaged, read_sealed, sealed
from model_zoo.errors import InputError
from model_zoo.unwritable import CannotWrite
from pet.files import write_json
from pet.recipe.rules import STEP_PER_WINDOW

from .cache import check_unchanged, encoder_digest, fallback, file_versions, reason, writable_directory
from .compressed import is_compressed
from .dataset import Counts, TokenDataset
from .encode import CHUNK, CHUNK_SIZE, WORTH_WORKERS, Encoder, encode_rows, shown, start_workers, tell
from .finding import kind_of
from .formats import read_file
from .loader import Batch, Loader
from .plan import Plan
from .records import BEGINNING, Place, Problems
from .row import Row
from .settings import DataSettings
from .workers import Workers

log = logging.getLogger("pet.data")

WINDOW_SIZE = 1 << 26
"""Characters after which a window ends: its texts and its tokens are in memory at once, and those of the next one."""
MANY_WINDOWS = 32
"""Windows of a file without places to go on from, compressed or MindRecord, that are worth a warning."""
VERSION = 2
"""Of the index: raise it when the same files give other windows than before."""
Span = tuple[int, Place, int]
"""Rows of a window that stand in one file: (its index, place to read from, rows)."""


class StreamDataset:
    """Rows of files in windows, tokenised on demand.

    Attributes:
        files: in order.
        windows: for each window its spans.
        rows: how many in all.

    Raises:
        InputError: what is wrong with the files, all of it together; or the settings do not go with streaming.
    """

    def __init__(self, files: list[Path], encoder: Encoder) -> None:
        settings = encoder.settings
        if settings.packing == "buckets" and not settings.buckets:
            raise InputError("data.buckets: streaming cannot choose the lengths by the data; expected a list of them")
        self.files = [str(path) for path in files]
        self.encoder, self.settings, self._told = encoder, settings, False
        self.documents = settings.documents
        self._versions = [file_versions([path]) for path in files]
        digest = encoder_digest(encoder, files)
        key = json.dumps([VERSION, self._versions, settings.stream_window, digest])
        name = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
        self._notes_path = writable_directory(settings.cache_dir) / f"stream-{name}.json"
        self._notes = self._read_notes()
        if "windows" not in self._notes:
            self._notes = {"windows": list(self._index()), "steps": {}}
            self._check_unchanged(range(len(files)))
            self._keep_notes()
        self.windows: list[list[Span]] = [
            [(file, tuple(place), rows) for file, place, rows in spans] for spans in self._notes["windows"]
        ]
        self.rows = sum(rows for spans in self.windows for _, _, rows in spans)
        for file, count in Counter(file for spans in self.windows for file, _, _ in spans).items():
            packed = is_compressed(files[file])
            if count >= MANY_WINDOWS and (packed or kind_of(files[file]) == "mindrecord"):
                log.warning(
                    "%s: is %s from its beginning for each of its %d windows; %s, or raise data.stream_window",
                    files[file],
                    "unpacked" if packed else "read",
                    count,
                    "unpack it once" if packed else "save it as Parquet or JSON lines",
                )

    def _read_notes(self) -> dict[str, Any]:
        if not self._notes_path.exists():
            return {}
        try:
            return read_sealed(self._notes_path)
        except (InputError, KeyError, Damaged) as error:
            log.warning("%s: damaged index of data that streams (%s); making it again", self._notes_path, error)
            return {}

    def _read(self, file: int, place: Place, problems: Problems) -> Iterator[Any]:
        path = Path(self.files[file])
        return read_file(path, problems, place=place, **self.encoder.reading(path))

    def _index(self) -> Iterator[list[Span]]:
        problems = Problems()
        left = self.settings.max_samples
        spans, rows, size = [], 0, 0  # of the window that is being filled
        for file in range(len(self.files)):
            place, begun = BEGINNING, 0
            read = islice(self._read(file, BEGINNING, problems), left)
            for row in shown(read, f"reading {Path(self.files[file]).name}", lambda row: 1):
                begun, rows, size = begun + 1, rows + 1, size + row.size
                if rows == self.settings.stream_window or size >= WINDOW_SIZE:
                    yield [*spans, (file, place, begun)]
                    spans, rows, size, place, begun = [], 0, 0, row.place, 0
                left = None if left is None else left - 1
            if begun:
                spans.append((file, place, begun))
        if spans:
            yield spans
        problems.raise_if_any()

    def _check_unchanged(self, files: Iterable[int]) -> None:
        for file in files:
            check_unchanged(self._versions[file], [Path(self.files[file])])

    def span_rows(self, span: Span, problems: Problems) -> Iterator[Row]:
        """The rows of a span."""
        file, place, rows = span
        return islice(self._read(file, place, problems), rows)

    @functools.cached_property
    def pool(self) -> Workers | None:
        """Processes that tokenise, where there are rows enough. Every epoch has the same ones: to start some takes
        seconds, and later they might be of another version of this library, installed meanwhile."""
        size = sum(Path(file).stat().st_size for file in self.files)
        large = self.rows >= WORTH_WORKERS * CHUNK or size >= WORTH_WORKERS * CHUNK_SIZE
        pool = start_workers(self.encoder) if large else None
        if pool is not None:
            weakref.finalize(self, pool.close)
        return pool

    def window(self, number: int) -> TokenDataset:
        """The samples of one window.

        Raises:
            InputError: a file was written to since the rows were counted.
        """
        spans, problems = self.windows[number], Problems()
        numbers = {Path(self.files[file]): file for file, _, _ in spans}
        read = chain.from_iterable(self.span_rows(span, problems) for span in spans)
        samples, origin, said, counts = [], [], [], Counts()
        try:
            for chunk, encoded in encode_rows(read, self.encoder, progress=False, pool=self.pool):
                samples += encoded.samples
                origin += [(numbers[chunk[row].path], chunk[row].line, chunk[row].row) for row in encoded.rows]
                said += [chunk[row].label for row in encoded.rows]
                counts.add(encoded.counts)
            problems.raise_if_any()
        finally:  # which is the reason of whatever was wrong
            self._check_unchanged(numbers.values())
        dataset = TokenDataset.from_samples(samples, said)
        dataset.documents = self.settings.documents
        dataset.origin, dataset.files = np.asarray(origin, np.int64).reshape(-1, 3), self.files
        dataset.counts = counts
        if not self._told and counts.findings(self.settings.max_length):
            self._told = True
            tell(counts, self.settings, ", ".join(self.files[:3]))
        return dataset

    def known_steps(self, key: str) -> dict[int, int]:
        """Steps of each window that has been counted, for one way of dividing rows into steps."""
        return {int(number): steps for number, steps in self._notes["steps"].get(key, {}).items()}

    def note_steps(self, key: str, number: int, steps: int) -> None:
        """Keep the steps of a window for later runs."""
        known = self._notes["steps"].setdefault(key, {})
        if known.get(str(number)) != steps:
            known[str(number)] = steps
            self._keep_notes()

    def _keep_notes(self) -> None:
        try:
            write_json(self._notes_path, sealed(self._notes), indent=None)
        except CannotWrite as error:  # the cache became full
            self._notes_path = fallback(self._notes_path.parent, reason(error)) / self._notes_path.name
            write_json(self._notes_path, sealed(self._notes), indent=None)


class StreamLoader(Loader):
    """A :class:`Loader` over a :class:`StreamDataset`; arguments and batches are the same.

    ``steps_per_epoch`` is None until every window has been counted, in this run or an earlier one; so a schedule needs
    a number of steps of its own. ``sample_ids`` are ``file:line``.
    """

    dataset: StreamDataset

    def __init__(
        self,
        dataset: StreamDataset,
        batch_size: int,
        settings: DataSettings | None = None,
        **division: Any,
    ) -> None:
        super().__init__(dataset, batch_size, settings or dataset.settings, **division)

    @property
    def _key(self) -> str:
        """What the number of steps of a window depends on."""
        chosen = self.settings
        shared = " shared" * chosen.share_question
        return f"{chosen.packing} {chosen.max_length} {chosen.buckets} {self.rows_per_step}{shared}"

    def _check(self) -> None:
        if not self.dataset.windows:
            raise InputError(f"{', '.join(self.dataset.files[:3])}: no rows")
        if self.settings.drop_last:
            raise InputError(f"data.drop_last: {STEP_PER_WINDOW}")

    def _first_ids(self) -> np.ndarray:
        for span in chain.from_iterable(self.dataset.windows):
            for row in self.dataset.span_rows(span, Problems()):
                encoded = self.dataset.encoder([row])
                if encoded.samples:
                    return encoded.samples[0][0]
        raise InputError(f"{', '.join(self.dataset.files[:3])}: no row has anything to learn")

    def plan(self, epoch: int) -> Plan:
        raise InputError("data.streaming: the rows of an epoch are not known before it is over")

    def steps_per_epoch(self, epoch: int = 0) -> int | None:
        known = self.dataset.known_steps(self._key)
        return sum(known.values()) if len(known) == len(self.dataset.windows) else None

    def part_of_epoch(self, epoch: int, steps: int) -> float:
        """Which part of an epoch its first steps are, by the rows of their windows: these are known from the beginning,
        so that a first run counts as later ones do."""
        known, rows = self.dataset.known_steps(self._key), 0.0
        for number in self._order(epoch):
            size = sum(count for _, _, count in self.dataset.windows[number])
            if steps < known.get(number, 0):
                return (rows + size * steps / known[number]) / self.dataset.rows
            if number not in known:
                break
            rows, steps = rows + size, steps - known[number]
        return rows / self.dataset.rows

    def _order(self, epoch: int) -> list[int]:
        """The windows of an epoch."""
        order = list(range(len(self.dataset.windows)))
        if self.settings.shuffle:
            order = np.random.default_rng([self.settings.seed or 0, epoch]).permutation(len(order)).tolist()
        return order

    def __len__(self) -> int:
        batches = self.batches_per_epoch()
        if batches is None:
            raise TypeError("a streaming loader has no length before all of its windows have been counted")
        return batches

    def shapes(self, epoch: int = 0) -> list[tuple[int, int]]:
        """The (B, S) that may come; ``longest`` has every multiple of 64."""
        chosen = self.settings
        longest = chosen.max_length * self.dataset.documents
        if chosen.packing == "buckets":
            lengths = sorted(chosen.buckets)
        elif chosen.packing == "longest":
            lengths = [min(length, longest) for length in range(64, longest + 64, 64)]
        else:
            lengths = [longest]
        return [(self.batch_size, int(length)) for length in lengths]

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[Batch]:
        order, known = self._order(epoch), self.dataset.known_steps(self._key)
        shift = 0
        # straight to the window that holds `start`, as far as windows have been counted
        while order and order[0] in known and shift + known[order[0]] * self.accumulation <= start:
            shift += known[order.pop(0)] * self.accumulation
        _ = self.dataset.pool  # started by this thread
        with ThreadPoolExecutor(1) as ahead:
            ready = ahead.submit(self.dataset.window, order[0]) if order else None
            for place, number in enumerate(order):
                window = ready.result()
                if place + 1 < len(order):
                    ready = ahead.submit(self.dataset.window, order[place + 1])
                plan = self._make_plan(window, epoch, number + 1)
                if self.rank == 0:
                    self.dataset.note_steps(self._key, number, plan.steps)
                count = plan.steps * self.accumulation
                for batch in self._batches(window, plan, max(0, start - shift), shift):
                    batch["sample_ids"] = [[window.where(sample) for sample in row] for row in batch["sample_ids"]]
                    yield batch
                shift += count

    def where(self, batch: Batch) -> list[str]:
        return [sample for row in batch["sample_ids"] for sample in row]
