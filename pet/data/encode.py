"""Rows to samples: token ids, and which of them are learnt."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from model_zoo import progress
from model_zoo.errors import InputError, located
from model_zoo.resources import available_cores
from pet.recipe.fields import is_template_file

from .classified import whole_text
from .dataset import Counts
from .messages import last_question
from .row import Row
from .settings import DataSettings
from .shorten import kept, kept_of_pairs, places_in, turns_of, within
from .template import chat_template, controls_in, filled, parse_template, unread
from .workers import NoWorkers, Workers

log = logging.getLogger("pet.data")
T = TypeVar("T")

# Rows sent to a worker at a time: enough that sending costs little, few enough that all have something to do.
CHUNK = 512
# Nor more than so many characters, so that chunks of books fit in memory.
CHUNK_SIZE = 1 << 22
# What makes fewer chunks than this is tokenised before a worker has been started.
WORTH_WORKERS = 8
# A text of so many characters that must be tokenised as a whole is worth a warning.
LONG_TEXT = 1 << 24
# Bytes that the libraries keep for each of its characters meanwhile.
KEPT_PER_CHARACTER = 50
LINE_EVERY = 30.0
"""Seconds between lines about data that takes a while, where there is no terminal."""


@dataclass
class Encoded:
    """The samples of a chunk of rows.

    Attributes:
        samples: (ids int32, trained int32) each.
        rows: for each sample the place of its row in the chunk.
        counts: what was cut and dropped.
    """

    samples: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)


@dataclass
class Encoder:
    """Turns rows into samples with one tokenizer and one set of settings; can be sent to another process.

    Conversations go through ``tokenizer.example(messages, train_on=…)``, the model family's own prompt. With a template
    the text before the answer is encoded as it stands, with the tokenizer's special tokens, then the answer and the end
    token. A raw text begins with the tokenizer's opening tokens, ends with its end token, and is learnt as a whole.
    """

    tokenizer: Any
    settings: DataSettings
    own: dict[Path, Encoder] = field(default_factory=dict)
    """Of files whose rows are read in a way of their own."""
    any_order: bool = field(init=False, default=False)
    """Whether the order of roles is the matter of a chat template: the tokenizer's own, or a file's. One that stands in
    a recipe, as those of other programs do, is for questions and answers in turn."""

    def __post_init__(self) -> None:
        """A chat template becomes the tokenizer's own.

        Raises:
            InputError: it cannot be read, or the text of a template is wrong.
        """
        template, own = self.settings.template, getattr(self.tokenizer, "template", None)
        self.any_order = (template is None and own is not None) or is_template_file(template)
        if (jinja := chat_template(template)) is not None:
            self.tokenizer = self.tokenizer.with_chat_template(*jinja)
            self.settings = DataSettings.of(self.settings, template=None)
        else:
            for text in filter(None, (template, self.settings.template_without_input)):
                parse_template(text)

    @classmethod
    def of_files(cls, tokenizer: Any, settings: DataSettings, own: Mapping[Path, Mapping[str, Any]]) -> Encoder:
        """With settings of some files' own, by their names in ``data``."""
        made: dict[str, Encoder] = {}
        for given in own.values():
            if (key := repr(given)) not in made:
                made[key] = cls(tokenizer, DataSettings.of(settings, **given))
        return cls(tokenizer, settings, {path: made[repr(given)] for path, given in own.items()})

    def of(self, path: Path) -> Encoder:
        """The encoder of a file."""
        return self.own.get(path, self)

    def every(self) -> list[Encoder]:
        """This one, and each that files have of their own."""
        return list({id(one): one for one in (self, *self.own.values())}.values())

    def reading(self, path: Path) -> dict[str, Any]:
        """What :func:`pet.data.formats.read_file` takes for a file."""
        return {**self.of(path).settings.reading, "any_order": self.of(path).any_order}

    def __getstate__(self) -> dict[str, Any]:
        """What is sent to a process. Rows are read in this one, and no other needs a function of the user's own."""
        return {**vars(self), "settings": DataSettings.of(self.settings, conversations=None)}

    def options(self, row: Row) -> dict[str, Any]:
        """What of a row and of the settings goes to the tokenizer's ``prompt`` and ``example`` beside messages."""
        thinking = self.settings.enable_thinking if row.thinking is None else row.thinking
        given = {"tools": row.tools, "enable_thinking": thinking}
        return {name: value for name, value in given.items() if value is not None}

    def __call__(self, rows: list[Row]) -> Encoded:
        encoded = Encoded(counts=Counts(rows=len(rows)))
        emptied = self._emptied()
        for number, row in enumerate(rows):
            progress.tick()
            own = self.of(row.path)
            if own.tokenizer is None and row.tokens is None:
                raise InputError(f"{row.where}: a text needs a tokenizer; give one of pet.AutoTokenizer")
            encoded.counts.beside |= dict.fromkeys(row.beside)
            encoded.counts.met |= dict.fromkeys(row.met)
            for what in unread(row, own.tokenizer, own.settings):
                encoded.counts.note_unread(what, row.where)
            if own.is_empty(row):
                encoded.counts.note_empty(row.where)
                continue
            for documents in own._fit(row, encoded.counts):
                if not all(len(ids) if row.is_judged else any(trained[1:]) for ids, trained in documents):
                    encoded.counts.dropped_unlabelled += 1
                    continue
                if len(documents) > 1 and all(ids == documents[0][0] for ids, _ in documents[1:]):
                    encoded.counts.dropped_equal += 1
                    continue
                for ids, trained in documents:
                    encoded.samples.append((np.asarray(ids, np.int32), np.asarray(trained, np.int32)))
                    encoded.rows.append(number)
        encoded.counts.samples = len(encoded.samples) // self.settings.documents
        encoded.counts.empty_thoughts = self._emptied() - emptied
        return encoded

    def _emptied(self) -> int:
        """Answers that the chat template has put behind an empty thought so far."""
        templates = {id(t): t for one in self.every() if (t := getattr(one.tokenizer, "template", None)) is not None}
        return sum(template.empty_thoughts for template in templates.values())

    def is_empty(self, row: Row) -> bool:
        """Whether an answer that would be learnt, or a raw text, has no word in it: only an end would be learnt."""
        if row.messages is None:
            return row.text is not None and not row.text.strip()
        for messages in (row.messages, *row.others):
            answers = [message for message in messages if message["role"] == "assistant"]
            learnt = answers if self.settings.train_on == "answers" else answers[-1:]
            learnt = [answer for answer in learnt if answer.get("weight") != 0]
            if not all(answer["content"].strip() or answer.get("tool_calls") for answer in learnt):
                return True
        return False

    def tokens(self, row: Row, messages: list[dict[str, Any]] | None = None) -> tuple[list[int], list[bool]]:
        """All ids of a row that is no text, unless a label says what it is, and which are labels; not yet cut.
        ``messages``: one of its documents, by default the first."""
        messages = messages or row.messages
        if row.text is not None:
            ids = whole_text(self.tokenizer, row.text, row.text_pair)
            return ids, [True] * len(ids)
        if row.tokens is not None:
            return row.tokens
        if row.segments is not None:
            every = [(self.tokenizer.encode_written(text), learnt) for text, learnt in row.segments]
            trained = [learnt or self.settings.train_on == "all" for ids, learnt in every for _ in ids]
            return [number for ids, _ in every for number in ids], trained
        if self.settings.template is None:
            with located(row.where):
                ids, trained = self.tokenizer.example(messages, train_on=self.settings.train_on, **self.options(row))
            return list(ids), list(trained)
        question = self.prompt(row, messages)
        answer = self.tokenizer.encode(messages[-1]["content"], add_special_tokens=False) + self._end()
        learnt = messages[-1].get("weight") != 0
        return question + answer, [self.settings.train_on == "all"] * len(question) + [learnt] * len(answer)

    def text_ids(self, row: Row) -> np.ndarray:
        """All ids of a raw text and its end. They are made a piece at a time where the tokenizer can do so: a list of
        them takes ten times the memory."""
        pieces = getattr(self.tokenizer, "encode_pieces", None)
        if len(row.text) > LONG_TEXT and not getattr(self.tokenizer, "marks", ""):
            log.warning(
                "%s: a text of %d MB is tokenised as a whole, since pieces of it might get other tokens from this "
                "tokenizer; that takes about %.1f GB of memory",
                row.where,
                len(row.text) / 1e6,
                len(row.text) * KEPT_PER_CHARACTER / 1e9,
            )
        found = pieces(row.text) if pieces else [self.tokenizer.encode(row.text, add_special_tokens=False)]
        return np.concatenate([*(np.asarray(ids, np.int32) for ids in found), np.asarray(self._end(), np.int32)])

    def prompt(self, row: Row, messages: list[dict[str, Any]] | None = None) -> list[int]:
        """The ids that a model is given to answer the last question of a row's messages.

        Raises:
            InputError: a template is set and the row has several questions, or tools.
        """
        messages = messages or row.messages
        messages = messages[:-1] if messages[-1]["role"] == "assistant" else messages
        if self.settings.template is None:
            with located(row.where):
                return list(self.tokenizer.prompt(messages, **self.options(row)))
        if sum(message["role"] == "user" for message in messages) > 1:
            raise InputError(f"{row.where}: several questions, but data.template has room for one")
        if row.tools or any(message.get("tool_calls") for message in row.messages):
            raise InputError(f"{row.where}: tools or calls of them, but data.template has no place for any")
        system = messages[0]["content"] if messages[0]["role"] == "system" else ""
        template = (not row.input and self.settings.template_without_input) or self.settings.template
        apart = any(name == "input" for _, name in parse_template(template))
        asked = row.prompt if apart else last_question(messages)  # which holds the input
        pieces = filled(template, {"prompt": asked, "input": row.input, "system": system})
        if controls_in(self.tokenizer, [text for text, fills in pieces if not fills]):
            return self.tokenizer.encode_filled(pieces)
        return self._without_end(self.tokenizer.encode("".join(text for text, _ in pieces), add_special_tokens=True))

    def _opening(self) -> list[int]:
        """What stands before any text: [BOS], or [gMASK] <sop>, as the tokenizer has it."""
        opening = self._without_end(self.tokenizer.encode("", add_special_tokens=True))
        first = self.tokenizer.bos_token_id
        return opening or ([first] if first is not None else [])

    def _without_end(self, ids: list[int]) -> list[int]:
        """GPT-2's tokenizer puts the end token on both sides; the one at the back is not wanted before an answer."""
        ids = list(ids)
        while len(ids) > 1 and ids[-1] == self.tokenizer.eos_token_id:
            ids.pop()
        return ids

    def _end(self) -> list[int]:
        return [] if self.tokenizer.eos_token_id is None else [self.tokenizer.eos_token_id]

    def _fit(self, row: Row, counts: Counts) -> Iterator[list[tuple[list[int], list[bool]]]]:
        """The samples of a row, each its documents, within ``max_length``."""
        limit = self.settings.max_length
        if row.messages is None and self.settings.template is not None:
            raise InputError(f"{row.where}: no question and answer, which data.template needs")
        if row.text is not None and not row.is_judged:
            yield from self._fit_text(row, counts)
            return
        whole = [self.tokens(row, messages) for messages in (row.messages, *row.others)]
        limits = None if row.messages is None else self.settings
        documents = [within(one, self.tokenizer, limits) for one in whole]
        counts.limited += documents != whole
        longest = max(len(ids) for ids, _ in documents)
        if counts.left_out(longest, self.settings):
            return
        if longest <= limit:
            yield documents
        else:
            counts.cut += 1
            if row.text is not None:
                ids = whole_text(self.tokenizer, row.text, row.text_pair, limit)
                yield [(ids, [True] * len(ids))]
                return
            places = self._kept(row, limit) if self.settings.too_long == "shorten" else [range(limit)] * len(documents)
            yield [places_in(one, stay) for one, stay in zip(documents, places, strict=True)]

    def _kept(self, row: Row, limit: int) -> list[list[int]]:
        """Which tokens stay of each document of a row that is too long."""
        if row.messages is None:
            return [list(range(limit))]
        own = replace(self, settings=DataSettings.of(self.settings, train_on="answers"))
        every = [turns_of(own.tokens(row, messages)[1]) for messages in (row.messages, *row.others)]
        if self.settings.compares or len(every) > 1:
            return kept_of_pairs(every, limit)
        one_end = "{{ ends }}" in (getattr(self.tokenizer, "chat_template", None) or "")
        return [kept(every[0], limit, last_first=self.settings.train_on == "last", one_end=one_end)]

    def _fit_text(self, row: Row, counts: Counts) -> Iterator[list[tuple[np.ndarray, np.ndarray]]]:
        """A raw text within ``max_length``. Nothing of it is lost: each piece opens like a text of its own."""
        head, body, limit = np.asarray(self._opening(), np.int32), self.text_ids(row), self.settings.max_length
        length, room = len(head) + len(body), limit - len(head)
        if counts.left_out(length, self.settings):
            return
        if length > limit and room < 2:
            raise InputError(f"data.max_length: {limit} leaves no room for text after {len(head)} opening tokens")
        counts.divided += length > limit
        for at in range(0, max(1, len(body) - (len(head) == 0)), max(room, 1)):  # none of one token: it follows nothing
            ids = np.concatenate([head, body[at : at + room]])
            yield [(ids, np.arange(len(ids)) >= len(head))]


def encode_rows(
    rows: Iterable[Row], encoder: Encoder, *, progress: bool = True, pool: Workers | Literal["own"] | None = "own"
) -> Iterator[tuple[list[Row], Encoded]]:
    """Encode rows chunk by chunk, in this process or in several, in the order of the rows.

    Args:
        rows: read as they are needed.
        encoder: the tokenizer and settings; ``settings.workers`` says how many processes.
        progress: show how far it is, for data that takes a while.
        pool: workers that run already, and hold this encoder; "own": some for these rows, where they are many.

    Yields:
        A chunk of rows and its samples.
    """
    chunks = chunked(rows)
    held = list(islice(chunks, WORTH_WORKERS))
    own = None
    if pool == "own":
        pool = own = start_workers(encoder) if len(held) == WORTH_WORKERS else None

    sent: list[list[Row]] = []

    def feed() -> Iterator[list[Row]]:
        for source in (held, chunks):
            for chunk in source:
                sent.append(chunk)
                yield chunk

    encoded = pool.map(feed()) if pool is not None else map(encoder, feed())
    try:
        pairs = ((sent.pop(0), samples) for samples in encoded)
        yield from shown(pairs, "tokenising", lambda pair: len(pair[0])) if progress else pairs
    finally:
        if own is not None:
            own.close()


def chunked(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Lists of at most `CHUNK` rows, which end with the row that brings them to `CHUNK_SIZE` characters."""
    chunk, size = [], 0
    for row in rows:
        chunk.append(row)
        size += row.size
        if len(chunk) == CHUNK or size >= CHUNK_SIZE:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def shown(items: Iterable[T], what: str, rows: Callable[[T], int]) -> Iterator[T]:
    """Hands items on, and shows how many rows they were so far: by a tqdm line on a terminal, elsewhere by a line now
    and then; what is soon over shows nothing."""
    from tqdm import tqdm

    bar = tqdm(desc=what, unit=" rows", disable=not progress.redrawn(sys.stderr), leave=False, delay=1)
    count, said = 0, time.monotonic()
    try:
        for item in items:
            count += rows(item)
            bar.update(rows(item))
            if bar.disable and time.monotonic() - said >= LINE_EVERY:
                said = time.monotonic()
                with contextlib.suppress(OSError):  # a full disk, or nobody reads it any more
                    print(f"{what}: {count:,} rows so far", file=sys.stderr, flush=True)
            yield item
    finally:
        bar.close()


def tell(counts: Counts, settings: DataSettings, source: str) -> None:
    """Warns of rows that were cut or left out.

    Raises:
        InputError: less than half of the rows remain.
    """
    findings = counts.findings(settings.max_length, settings.longer)
    if 2 * counts.dropped > counts.rows:
        raise InputError(
            f"{source}: {counts.rows - counts.dropped} of {counts.rows} rows remain, at least half is expected; "
            + "; ".join(findings)
        )
    for finding in findings:
        log.warning("%s: %s", source, finding)


def start_workers(encoder: Encoder) -> Workers | None:
    """The processes that the settings ask for; None where this one is to do it alone."""
    wanted = encoder.settings.workers
    # beyond 16 the reader in this process is the slow part
    count = min(available_cores(), 16) if wanted is None else wanted
    if count < 2 or Workers.within:  # a module that is imported for the tokenizer may load data itself
        return None
    try:
        return Workers(encoder, count)
    except NoWorkers as why:
        log.warning("%s; one process tokenises", why)
        return None
