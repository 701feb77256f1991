"""Files to a dataset, a dataset to a held-out part, and a sample back to its question."""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from model_zoo.arguments import check_argument, checked, is_several
from model_zoo.errors import InputError, nearest, shown

from .cache import cached
from .dataset import Counts, TokenDataset
from .encode import Encoder, tell
from .finding import find_files
from .formats import read_rows
from .messages import ROLE_COLUMNS, last_question
from .parts import with_parts
from .row import Row
from .settings import DataSettings
from .streaming import StreamDataset

log = logging.getLogger("pet.data")

OnePath = str | os.PathLike | Mapping[str, Any]
Paths = OnePath | Iterable[OnePath]


def entries_of(paths: Paths) -> list[Any]:
    """Paths in a list; those that say how they are read are a recipe's `pet.recipe.data.DataPath`."""
    from pet.recipe.data import DataPath
    from pet.recipe.problems import checked as checked_section

    every = [paths] if isinstance(paths, (str, os.PathLike, Mapping)) or not is_several(paths) else list(paths)
    for one in every:
        check_argument("data", "str | Path | dict", one)
    return [checked_section(DataPath, "data", dict(one)) if isinstance(one, Mapping) else one for one in every]


def own_settings(paths: Iterable[Any]) -> dict[Path, dict[str, Any]]:
    """The settings of files that are read in a way of their own. Raises InputError where a file has two of them."""
    from pet.recipe.data import WITHOUT_QUESTIONS

    said: dict[Path, dict[str, Any]] = {}
    for path in paths:
        own = getattr(path, "own", {})
        if own.get("format") in WITHOUT_QUESTIONS:  # nor a template of all rows
            own = {"template": None, "template_without_input": None, **own}
        for file in find_files([path]):
            if said.setdefault(file, own) != own:
                raise InputError(f"{file}: is named twice in data, to be read in two ways; keep one of them")
    return {file: own for file, own in said.items() if own}


def load_dataset(
    paths: Paths, tokenizer: Any, *, settings: Any = None, progress: bool = True, unlike: TokenDataset | None = None
) -> TokenDataset | StreamDataset:
    """Read and tokenise files, or take what was tokenised before from the cache.

    Args:
        paths: a file, a directory of files, or several; one that is read in a way of its own is a mapping, as in a
            recipe: ``{"path": "rows.jsonl", "format": "chat"}``.
        tokenizer: has ``example``, ``prompt``, ``encode``, ``save_pretrained`` and the ids of its special tokens. None
            for rows of token ids alone.
        settings: a :class:`DataSettings`, a recipe's ``data`` section, or a mapping of their names.
        progress: show how far it is: by a line that changes on a terminal, elsewhere by one now and then.
        unlike: with ``settings.deduplicate``, samples that this dataset has are left out, too.

    Returns:
        The samples. With ``settings.streaming`` an index of the rows, which are tokenised as they are used.

    Raises:
        InputError: what is wrong with the files, all of it together; or no sample is left.
    """
    settings = DataSettings.of(settings)
    if tokenizer is not None and not hasattr(tokenizer, "save_pretrained"):
        raise InputError(f"tokenizer is {shown(tokenizer)}; one of pet.AutoTokenizer was expected")
    paths = entries_of(paths)
    files, own = find_files(paths), own_settings(paths)
    encoder = Encoder.of_files(tokenizer, settings, own)
    if settings.streaming:
        for name, why in {"deduplicate": "data cannot be compared", "rows": "files are read as a whole"}.items():
            if getattr(settings, name):
                raise InputError(f"data.{name}: streaming {why}; leave out data.streaming")
        return StreamDataset(files, encoder)

    def rows() -> Iterable[Row]:
        return read_rows(paths, limit=settings.max_samples, parts=settings.rows, own=encoder.reading)

    parts = [(len(found), part) for found, part in with_parts(paths, settings.rows)] if settings.rows else ""
    dataset = cached(rows, encoder, files, parts, progress=progress)
    dataset.own = {str(path): settings for path, settings in own.items()}
    if settings.deduplicate:
        dataset = dataset.without_repeated(unlike)
    source = ", ".join(map(str, files[:3]))
    if len(dataset) == 0:
        found = dataset.counts.findings(settings.max_length, settings.longer)
        raise InputError(f"{source}: no sample is left: {'; '.join([str(dataset.counts), *found])}")
    tell(dataset.counts, settings, source)
    tell_unmet(dataset.counts, (one.settings for one in encoder.every()), source)
    return dataset


def tell_unmet(counts: Counts, every: Iterable[DataSettings], source: str) -> None:
    """Warns of a column that no row has, of those that rows may lack, and of messages to be left out that are none.

    Args:
        every: the settings of all files, and of those that are read in a way of their own.
    """
    for settings in every:
        for role, name in settings.columns.items():
            if name and role not in (*counts.met, *ROLE_COLUMNS):
                hint = nearest(name, counts.beside)
                log.warning(
                    "%s: data.columns: no row has a column %r, which is to be the %s%s", source, name, role, hint
                )
        for word, role in settings.roles.items():
            if not role and word not in counts.met:
                log.warning("%s: data.roles: no message to be left out is by %r", source, word)


@checked
def mix_dataset(dataset: TokenDataset, paths: Paths, weights: Sequence[float], seed: int = 0) -> TokenDataset:
    """The samples of several sets in the proportions of their weights.

    A set of weight 2 is there twice in an epoch; of one of weight 0.25 a quarter of the samples is, chosen by the seed.

    Args:
        dataset: of all the paths.
        paths: those that it was loaded from; each is one set, a directory with all its files.
        weights: one for each path.

    Raises:
        InputError: the data streams, there are more or fewer weights than paths, or one is no number of times.
    """
    if isinstance(dataset, StreamDataset):
        raise InputError("data.mix: streaming data cannot be mixed; leave out data.streaming")
    paths = entries_of(paths)
    if len(weights) != len(paths):
        raise InputError(f"data.mix: {len(weights)} weights for {len(paths)} paths; one each was expected")
    if odd := [weight for weight in weights if not 0 <= weight < math.inf]:
        raise InputError(f"data.mix: a weight of {odd[0]}; a number of at least 0 was expected")
    files = np.asarray(dataset.origin)[:, 0]
    chosen = []
    for number, (path, weight) in enumerate(zip(paths, weights, strict=True)):
        inside = {str(file) for file in find_files([path])}
        those = [index for index, name in enumerate(dataset.files) if name in inside]
        # the documents of a comparison stand together
        own = np.flatnonzero(np.isin(files, those)).reshape(-1, dataset.documents)
        whole, part = divmod(weight, 1)
        drawn = np.random.default_rng([seed, 0x313, number]).permutation(len(own))[: round(len(own) * part)]
        chosen += [own] * int(whole) + [own[np.sort(drawn)]]
    mixed = np.concatenate(chosen).reshape(-1)
    if not len(mixed):
        raise InputError("data.mix: no sample is left; the weights are too small for so few rows")
    return dataset.select(mixed)


@checked
def split_dataset(dataset: TokenDataset, fraction: float, seed: int = 0) -> tuple[TokenDataset, TokenDataset]:
    """Hold out a share of the rows, rounded up, or a number of them: (what remains, what is held out).

    Whole rows are held out, so that no piece of a text that was cut into several samples is on both sides. The choice
    is a function of the seed and of the number of rows.

    Raises:
        InputError: the data streams, there are fewer than two rows or none would remain, or the fraction is neither
            below 1 nor a whole number.
    """
    if isinstance(dataset, StreamDataset):
        raise InputError("data.eval_fraction: streaming data cannot be divided; give data.eval a file of its own")
    if not (0 < fraction < 1 or (fraction >= 1 and fraction == int(fraction))):
        raise InputError(f"data.eval_fraction: expected a share below 1 or a number of rows, found {fraction}")
    _, row_of = np.unique(np.asarray(dataset.origin), axis=0, return_inverse=True)
    row_of = row_of.reshape(-1)
    rows = int(row_of.max()) + 1 if len(row_of) else 0
    if rows < 2:
        raise InputError(f"data.eval_fraction: rows to hold some out of: {rows}; at least 2 were expected")
    if fraction >= rows:
        raise InputError(f"data.eval_fraction: {int(fraction)} of {rows} rows leaves none to train on")
    held = int(fraction) if fraction >= 1 else min(math.ceil(rows * fraction), rows - 1)
    chosen = np.zeros(rows, bool)
    chosen[np.random.default_rng([seed, 0x5EED]).permutation(rows)[:held]] = True
    out = chosen[row_of]
    return dataset.select(np.flatnonzero(~out)), dataset.select(np.flatnonzero(out))


@dataclass(frozen=True)
class Question:
    """A sample as generation sees it.

    Attributes:
        prompt_ids: what the model continues.
        prompt: the last question, as text.
        reference: the answer in the data, with its thought and its calls of tools as the model learns to write them;
            empty where there is none.
        where: ``file:line``.
    """

    prompt_ids: list[int]
    prompt: str
    reference: str
    where: str


@checked
def load_questions(
    source: TokenDataset | Paths, tokenizer: Any, *, settings: Any = None, limit: int | None = None
) -> list[Question]:
    """The questions of files, or of the rows that a dataset's samples came from; for prediction and its metrics.

    Raw texts and tokenised rows have no question and are passed over, as are a dataset's answers that are undesirable:
    no answer is to be like them.

    Args:
        source: paths, whose rows need no answer; or a dataset that was loaded from files.
        tokenizer, settings: as for :func:`load_dataset`.
        limit: no more than so many.

    Raises:
        InputError: what is wrong with the files.
    """
    settings = DataSettings.of(settings)
    wanted: set[tuple[str, int, int]] | None = None
    if isinstance(source, TokenDataset):
        files, own = [Path(name) for name in source.files], {Path(name): one for name, one in source.own.items()}
        wanted = {(source.files[file], int(line), int(row)) for file, line, row in np.asarray(source.origin)}
    else:
        paths = entries_of(source)
        files, own = find_files(paths), own_settings(paths)
    encoder = Encoder.of_files(tokenizer, settings, own)
    questions: list[Question] = []
    for row in read_rows(files, limit=settings.max_samples, answers=wanted is not None, own=encoder.reading):
        if len(questions) == limit:
            if wanted is not None:
                break
            continue  # the rest is still read for what is wrong with it
        if row.messages is None:
            continue
        if wanted is not None and (row.label is False or (str(row.path), row.line, row.row) not in wanted):
            continue
        own, asked = encoder.of(row.path), last_question(row.messages)
        prompt = own.prompt(row)
        questions.append(Question(prompt, asked, _reference(own, row, prompt), row.where))
    return questions


def _reference(encoder: Encoder, row: Row, prompt: list[int]) -> str:
    """What the model is to answer to a prompt: the row's last answer as the prompt form writes it, with a thought or
    calls of tools; its bare text where the tokenizer does not give that back."""
    last, tokenizer = row.messages[-1], encoder.tokenizer
    said = last["content"]

    def shown(ids: list[int]) -> str:
        """As evaluation has an answer, up to its end."""
        ids = list(takewhile(lambda one: one not in tokenizer.eos_token_ids, ids))
        return tokenizer.decode(ids, skip_special_tokens=True).strip()

    if last["role"] != "assistant":
        return ""
    with contextlib.suppress(InputError):  # an answer that cannot be learnt
        ids, _ = encoder.tokens(row)
        exact = shown(tokenizer.encode(said, add_special_tokens=False)) == said.strip()
        if exact and ids[: len(prompt)] == prompt:
            return shown(ids[len(prompt) :])
    return said
