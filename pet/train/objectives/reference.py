"""The reference that preferences are measured against: its log-probabilities, computed once and kept on disk.

The reference never changes: it is the model without its adapters, or an adapter that the run started from. So its
log-probabilities are computed before the first step, and a step costs no more than one over the same tokens. They lie
beside the tokenised data, named by a digest of all that they depend on: a resumed run, or another one over the same
base and data, reads them. Where a step needs more of it (data that streams, KTO's z₀), it is computed in that step, by
the same weights: what is trained then has the values it began with for so long.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from adapters.registry import registry, started_from_file
from model_zoo.checkpoint.parameters import read_parameter, write_parameter
from model_zoo.engine import kernels_name, token_cross_entropy
from model_zoo.errors import InputError, similar
from model_zoo.graph import evaluating
from model_zoo.turns import changed
from model_zoo.unwritable import CannotWrite
from pet.data.cache import writable_directory
from pet.data.dataset import IGNORED
from pet.data.streaming import StreamLoader
from pet.files import atomic_file
from pet.recipe.fields import ADAPTERS_OFF, REFERENCES
from pet.train.compiled import Compiled
from pet.train.objectives.base import through
from pet.train.objectives.causal import CausalLM, head_numbers, plain_head, shift_labels
from pet.train.origins import weights

log = logging.getLogger("pet")

ADAPTER = "reference"
"""The name of an adapter that is the reference, while it is on the model."""

VERSION = 2  # goes into every digest: raise it when the same input gives other numbers than before


class Reference:
    """A reference's log-probabilities of the answers of a run's feeds.

    Args:
        chosen: ``train.reference``: None or ``precompute``, ``adapters_off``, or an adapter's directory.

    Attributes:
        known: for training (True) and evaluation: the key of a document → the log-probability, at each of its tokens,
            of the token after it where that is learnt, else 0.
        as_it_is: the reference is the model as it is before the first step: with the adapter that was loaded into it,
            or without any where every weight is trained.
        asked_in_steps: it is needed in every step, whatever is computed before the first one.
        before: what is trained and belongs to the reference, with its values before the first step, where steps ask.
        model: of the last `begin`.
        score: gives the `Score` of that model as it is when this is called.
    """

    def __init__(self, chosen: str | None = None):
        self.by_batch = chosen == ADAPTERS_OFF
        self.directory = None if chosen in REFERENCES else chosen
        self.known: dict[bool, dict[Any, np.ndarray]] = {}
        self.as_it_is = self.asked_in_steps = False
        self.before: list[tuple[Any, np.ndarray]] = []
        self.in_steps = False  # whether they ask for the answers themselves
        self.model: Any = None
        self.score: Callable[[], Score] | None = None
        self.scores: dict[tuple, Score] = {}

    def begin(self, model, feed, training: bool, distributed, compiled: bool = True) -> None:
        """Computes, or reads, what is needed of a feed's answers.

        Raises:
            InputError: the reference is an adapter that is not on a model that was divided, or that cannot be loaded.
        """
        offset = getattr(model, "position_offset", 0)
        self.model, self.score = model, functools.partial(self.score_of, model, distributed, compiled, offset)
        if not training and False in self.known:
            return
        self.distributed = distributed
        if training:
            self.known, self.scores, self.before, self.in_steps = {}, {}, [], False  # what is there is another run's
            if not (self.directory is None or distributed.divides_model or self.is_missing(model)):
                registry(model).delete(ADAPTER)
            self.as_it_is = not (self.by_batch or self.directory) and started_from_file(model)
            if not (self.by_batch or self.directory or self.as_it_is):
                say_left_out(model)
            by_batch = self.by_batch or isinstance(feed, StreamLoader)
            self.asked_in_steps |= by_batch
            if self.asked_in_steps:
                self.hold(model)
            if by_batch:
                self.in_steps = True
                return
        with self.on(model):
            self.known[training] = kept(self.score(), feed, distributed)

    def origins(self, model) -> dict[str, list]:
        """The digest of what the reference has of its own (`pet.train.origins`): the adapters that are in it, and what
        is trained of the base. A directory's adapter is asked for by its name; of a divided model there is none."""
        if self.directory is not None or self.distributed.divides_model:
            return {}
        with self.on(model):
            inside = registry(model).running
            own = [each for each in model.get_parameters() if getattr(each, "adapter", None) in inside]
            own += [each for each in model.get_parameters() if each.requires_grad and not hasattr(each, "adapter")]
            found = weights(own)
        digest = hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()
        return {"train.reference": [["what the run began with", digest]]} if found else {}

    def score_of(self, model, distributed, compiled: bool, offset: int) -> Score:
        """That of a model as it is now: made once, whatever it is asked for. Compiling takes most of its time."""
        state = getattr(model, "adapter_state", None), getattr(model, "product_precision", "fp32")
        key = (id(model), *state, compiled, offset)
        if key not in self.scores:
            self.scores[key] = Score(model, distributed, compiled, offset)
        return self.scores[key]

    def hold(self, model) -> None:
        """Keeps what the reference consists of: an adapter on the model, and the values of what is trained otherwise.
        The trained adapter's own count where that is what the run started from."""
        if self.is_missing(model):
            self.attach(model)
        trained = [parameter for parameter in model.get_parameters() if parameter.requires_grad]
        own = [parameter for parameter in trained if self.as_it_is or getattr(parameter, "adapter", None) is None]
        self.before = [(parameter, read_parameter(parameter).copy()) for parameter in own]

    def is_missing(self, model) -> bool:
        """Whether an adapter that is the reference is still to be loaded."""
        if self.directory is None or ADAPTER in registry(model).adapters:
            return False
        if self.distributed.divides_model:
            raise InputError(f"train.reference: load it as {ADAPTER!r} before the model is divided")
        return True

    def of(self, batch: dict[str, Any], documents: np.ndarray, training: bool) -> list[list[np.ndarray]]:
        """The log-probabilities of each row's documents."""
        if training and self.in_steps:
            with self.on(self.model):
                return self.score()(batch)
        known = self.known[training]
        return [[known[key] for key in keys] for keys in keys_of(batch, documents)]

    def attach(self, model) -> None:
        """Loads the adapter that is the reference into a whole model; what is trained stays so."""
        from adapters.saving import load_adapter

        if self.directory is None:
            return
        trained = {id(parameter) for parameter in model.get_parameters() if parameter.requires_grad}
        try:
            load_adapter(model, self.directory, name=ADAPTER, activate=False)
        except InputError as error:
            hint = "" if Path(self.directory).is_dir() else similar(self.directory, REFERENCES)
            raise InputError(f"train.reference: {error}{hint}") from error
        for module in registry(model).get(ADAPTER).modules.values():
            for parameter in module.get_parameters():
                parameter.buffer = True  # it is none of the model's weights
        for parameter in model.get_parameters():
            parameter.requires_grad = id(parameter) in trained

    @contextlib.contextmanager
    def on(self, model):
        """The model as the reference within the block."""
        if missing := self.is_missing(model):
            self.attach(model)
        if self.directory is not None:
            way = registry(model).only((ADAPTER,))
        else:
            bare = hasattr(model, "adapter_state") and not self.as_it_is
            way = registry(model).disabled() if bare else contextlib.nullcontext()
        try:
            with changed(self.exchange, self.exchange), way:
                yield
        finally:
            if missing:
                registry(model).delete(ADAPTER)

    def exchange(self) -> None:
        """Puts the values before the first step in the place of those of now, or back."""
        for parameter, other in self.before:
            now = read_parameter(parameter).copy()
            write_parameter(parameter, other)
            other[...] = now

    def end(self, model) -> None:
        """Lets go of what no step asks for: graphs, and the adapter that was loaded before the model was divided."""
        if self.asked_in_steps:
            return
        self.scores.clear()
        if not (self.directory is None or self.is_missing(model)):
            registry(model).delete(ADAPTER)


def say_left_out(model) -> None:
    """Says which adapters have learnt before and are no part of a reference that is the base."""
    state = registry(model)
    for name in (*state.running, *state.merged_names):
        if state.get(name).learnt:
            log.warning(
                "reference: the base without adapter %r, which was trained before; saved and loaded (pet.save_adapter, "
                "pet.load_adapter) it is the reference, or merged (pet.merge_and_unload) part of it",
                name,
            )


def kept(score: Score, feed, distributed) -> dict[Any, np.ndarray]:
    """The log-probabilities of a feed's answers by a model as it is, by their keys; those of a dataset from disk
    where they are there, and on disk afterwards. No digest says what a model of the user's own computes."""
    if not hasattr(feed, "dataset") or not hasattr(score.model, "family"):
        return dict(computed(score, feed))
    lengths = np.asarray(feed.dataset.lengths)
    name = digest(score.model, feed, distributed, score.compiled)
    file = writable_directory(feed.settings.cache_dir) / f"reference-{name}.npz"
    whole = read(file, int(lengths.sum()))
    ends = np.cumsum(lengths)
    if distributed.any(whole is None):  # all compute together, or none
        whole = np.zeros(int(lengths.sum()), np.float32)
        for key, values in computed(score, feed):
            whole[ends[key] - len(values) : ends[key]] = values  # what a pair shares is there once
        if distributed.data_size > 1:
            whole = np.asarray(distributed.sum_numbers(whole.tolist()), np.float32)
        try:
            atomic_file(file, lambda temporary: write(temporary, whole))
            log.info("reference: log-probabilities of %d answers cached in %s", len(lengths), file)
        except CannotWrite as error:
            log.warning("reference: %s; another run computes the log-probabilities again", error)
    else:
        log.info("reference: log-probabilities of %d answers read from %s", len(lengths), file)
    return dict(enumerate(np.split(whole, ends[:-1])))


def computed(score: Score, feed):
    """The keys of a feed's documents and their log-probabilities."""
    for batch in feed.batches(0, 0):
        for keys, values in zip(keys_of(batch, documents_of(batch)), score(batch), strict=True):
            yield from zip(keys, values, strict=True)


def write(file: str, values: np.ndarray) -> None:
    """Puts numbers into a file with a check sum."""
    with open(file, "wb") as stream:
        np.savez(stream, values=values)


def read(file: Path, length: int) -> np.ndarray | None:
    """So many numbers out of a file; None where there is none. A damaged one is None too, with a warning."""
    if not file.is_file():
        return None
    try:
        with np.load(file, allow_pickle=False) as stored:
            values = stored["values"]
        if values.shape != (length,) or values.dtype != np.float32:
            raise ValueError(f"{values.shape} numbers, {length} expected")
        return values
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zipfile.error) as error:
        log.warning("%s: damaged log-probabilities of a reference (%s); computing them again", file, error)
        return None


def digest(model, feed, distributed, compiled: bool) -> str:
    """What the log-probabilities of a dataset's answers depend on: every number of the model as it is, how it
    computes, the tokens, and how these lie in rows (which changes roundings)."""
    import pet

    found, state = hashlib.blake2b(digest_size=16), registry(model)
    layout = [distributed.data_size, distributed.tensor_rank, distributed.size]
    how = [VERSION, pet.__version__, compiled, kernels_name(), layout, feed.batch_size, feed.accumulation]
    how += [model.config.to_dict(), [vars(state.get(name).config) for name in state.running]]
    names = ("packing", "max_length", "buckets", "shuffle", "seed", "share_question")
    how += [getattr(model, "product_precision", "fp32"), getattr(model, "position_offset", 0)]
    how += [getattr(feed.settings, name) for name in names] + [feed.dataset.documents]
    found.update(json.dumps(how, sort_keys=True, default=plain).encode())
    for parameter in model.get_parameters():
        if getattr(parameter, "adapter", None) in (None, *state.running):
            found.update(f"{parameter.name} {parameter.dtype} {parameter.shape}\0".encode())
            found.update(np.ascontiguousarray(read_parameter(parameter)).view(np.uint8).data)
    for index in range(len(feed.dataset)):
        found.update(np.ascontiguousarray(feed.dataset[index][0], np.int32).data)
        found.update(feed.dataset.labels(index).data)
        found.update(b"\0")
    return found.hexdigest()


def plain(value: Any) -> Any:
    """What JSON has no form for, such as a set, as a text or a list in one order."""
    return sorted(map(str, value)) if isinstance(value, (set, frozenset)) else str(value)


def documents_of(batch: dict[str, Any]) -> np.ndarray:
    """``(B, S)`` the number of each token's document in its row; padding has numbers of its own, without labels."""
    if "document" in batch:
        return batch["document"]
    start = np.asarray(batch["start"])
    return (np.cumsum(start == np.arange(start.shape[1]), axis=1) - 1).astype(np.int32)


def counts_of(batch: dict[str, Any], documents: np.ndarray) -> list[int]:
    """How many documents each row has; each has labels."""
    learnt = np.asarray(batch["labels"]) != IGNORED
    return [int(own[mask].max()) + 1 if mask.any() else 0 for own, mask in zip(documents, learnt, strict=True)]


def keys_of(batch: dict[str, Any], documents: np.ndarray) -> list[list[Any]]:
    """What each row's documents are known by: their numbers in the dataset, or those in a row of the user's own."""
    found = []
    for samples, count in zip(batch["sample_ids"], counts_of(batch, documents), strict=True):
        own = isinstance(samples, list) and len(samples) == count
        found.append(list(samples) if own else [(samples, number) for number in range(count)])
    return found


class Score:
    """The log-probabilities of the learnt tokens of a batch's documents (`Reference.known`), a list for each row, by
    the model as it is when this is first called.

    Args:
        offset: the positions that the batches leave out in front, for an adapter that need not take part here.
    """

    def __init__(self, model, distributed, compiled: bool = True, offset: int = 0):
        from pet.train.step import in_whole

        self.model, self.compiled, self.offset = model, compiled, offset
        of_hidden = picked_of_hidden(model, measured=True) if compiled else None
        forward = through(model, functools.partial(picked_of_logits, CausalLM()), of_hidden)
        graph = Compiled(forward, compiled, functools.partial(in_whole, model), model.get_parameters())
        self.graph = distributed.wrap_measure(graph, model, None)

    def __call__(self, batch: dict[str, Any]) -> list[list[np.ndarray]]:
        from pet.train.measuring import fast
        from pet.train.step import tensors

        documents, labels = documents_of(batch), np.asarray(batch["labels"])
        batch = moved_back(batch, self.offset - getattr(self.model, "position_offset", 0))
        with evaluating(self.model), fast(self.model) if self.compiled else contextlib.nullcontext():
            picked = self.graph(*tensors(batch, ("labels",))).asnumpy().reshape(labels.shape)
        return [
            [values[own == number] for number in range(count)]
            for own, values, count in zip(documents, picked, counts_of(batch, documents), strict=True)
        ]


def moved_back(batch: dict[str, Any], offset: int) -> dict[str, Any]:
    """The batch with positions that begin so much earlier; the first of two rows says the place in the text."""
    if not offset:
        return batch
    positions = np.array(batch["position_ids"])
    place = positions if positions.ndim == 2 else positions[:, 0]
    place[...] = np.maximum(place - offset, 0)
    return {**batch, "position_ids": positions}


def picked_of_logits(token: CausalLM, logits, labels):
    """Logits → the log-probability of each position's label ``(N,)``, 0 where it has none. Graph code."""
    picked, learnt = token.label_log_probabilities(token.log_probabilities(logits), shift_labels(labels).reshape(-1))
    return picked * learnt


def picked_of_hidden(model, measured: bool = False) -> Callable | None:
    """``(hidden (N, H), labels) →`` the same without logits; None where that is unsupported."""
    head = plain_head(model)
    if head is None or (head.weight.requires_grad and not measured):
        return None
    losses = token_cross_entropy(measured, *head_numbers(model, head))
    if losses is None:
        return None

    def picked(hidden, labels):
        return -losses(hidden, head.weight, shift_labels(labels).reshape(-1))[0]

    return picked
