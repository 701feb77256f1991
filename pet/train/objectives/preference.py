"""What objectives over pairs of answers have in common: log-probabilities of whole answers, and the reference's.

The reference is the model without its adapters, or an adapter that the run started from. Its log-probabilities do not
change, so they are computed once, before the first step; a step then costs no more than one over the same tokens.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from mindspore import ops

from model_zoo.engine import token_cross_entropy
from model_zoo.errors import InputError
from model_zoo.layers import int_range
from pet.data.dataset import IGNORED
from pet.recipe.classes import OPTIONS
from pet.train.compiled import Compiled
from pet.train.objectives.base import Objective, through
from pet.train.objectives.causal import CausalLM, head_numbers, plain_head, shift_labels

log = logging.getLogger("pet")


class Preference(Objective):
    """A loss over pairs of answers to one question, the preferred one first; per pair, divided by their number.

    A pair's answers are two documents of a row. Beside the labels a batch has, for each token, the number of its
    document in the row, and for each pair of a row, at the place of its number, the reference's log-probabilities.

    Args:
        beta: how strongly the model is held to the reference.
        sft_weight: of the preferred answer's mean negative log-likelihood, added to the loss (Pang et al. 2024).
        reference: directory of the adapter that is the reference; None: the base without adapters.

    Attributes:
        uses_reference: whether the loss compares with a reference.
        per_token: answers count by the mean of their tokens' log-probabilities, not by the sum.
    """

    arrays = ("labels", "document", "reference_chosen", "reference_rejected")
    documents = 2
    counted = "pairs"
    sums = 7
    uses_reference = True
    per_token = False
    default_beta = 0.1

    def __init__(self, beta: float | None = None, sft_weight: float = 0.0, reference: str | None = None):
        super().__init__()
        self.beta = self.default_beta if beta is None else beta
        self.sft_weight, self.directory = sft_weight, reference
        self.token = CausalLM()
        self.known: dict[bool, dict[Any, float]] = {}

    @classmethod
    def from_settings(cls, settings) -> Preference:
        return cls(**{name: getattr(settings, name) for name, users in OPTIONS.items() if settings.objective in users})

    # Batches

    def prepare(self, batch: dict[str, Any], training: bool) -> dict[str, Any]:
        documents = documents_of(batch)
        chosen, rejected = np.zeros(documents.shape, np.float32), np.zeros(documents.shape, np.float32)
        if self.uses_reference:
            known = self.known.get(training, {})
            for row, keys in enumerate(keys_of(batch, documents)):
                values = [known[key] for key in keys]
                chosen[row, : len(values[::2])], rejected[row, : len(values[1::2])] = values[::2], values[1::2]
        return {**batch, "document": documents, "reference_chosen": chosen, "reference_rejected": rejected}

    def count(self, batch: dict[str, Any]) -> int:
        return count_pairs(batch)

    def begin(self, model, feed, training: bool, distributed, compiled: bool = True) -> None:
        """Computes the reference's log-probabilities of a feed's answers.

        Raises:
            InputError: the feed streams, or this process has a part of the model only.
        """
        if not self.uses_reference or training in self.known:
            return
        if feed.steps_per_epoch(0) is None:
            raise InputError("data.streaming: the reference's log-probabilities are computed before the first step")
        if not distributed.can_generate:
            raise InputError("parallel.pipeline: the reference needs the whole model; orpo and simpo have none")
        known: dict[Any, float] = {}
        with self.as_reference(model, distributed):
            for keys, values in answers(model, feed, compiled):
                known.update(zip(keys, values, strict=True))
        if distributed.data_size > 1 and hasattr(feed, "dataset"):
            own = np.zeros(len(feed.dataset))
            own[list(known)] = list(known.values())
            known = dict(enumerate(distributed.sum_numbers(own.tolist())))
        self.known[training] = known

    @contextlib.contextmanager
    def as_reference(self, model, distributed):
        """The model as the reference within the block."""
        from adapters.apply import delete_adapter, disable_adapters, set_adapter
        from adapters.registry import registry
        from adapters.saving import load_adapter

        if self.directory is None:
            with disable_adapters(model) if hasattr(model, "adapter_state") else contextlib.nullcontext():
                yield
            return
        if distributed.divides_model:
            raise InputError("train.reference: an adapter as reference needs the whole model in each process")
        selected = list(registry(model).selected)
        load_adapter(model, self.directory, name="reference")
        try:
            set_adapter(model, "reference")
            yield
        finally:
            set_adapter(model, selected)
            delete_adapter(model, "reference")

    # Graph code

    def by_pair(self, picked, labels, document):
        """Log-probabilities ``(N,)`` of labels → of each pair, at its place ``(N,)``: the sums of both answers, and
        their numbers of tokens."""
        rows, length = labels.shape
        size = rows * length
        place = (document // 2 + int_range(rows).reshape(rows, 1) * length).reshape(-1)
        learnt = (shift_labels(labels) != IGNORED).reshape(-1).astype(picked.dtype)
        own = (document % 2 == 0).reshape(-1).astype(picked.dtype) * learnt
        other = learnt - own
        found = []
        for value in (picked * own, picked * other, own, other):
            found.append(ops.unsorted_segment_sum(value, place, size))
        return found

    def of_picked(self, picked, labels, document, reference_chosen, reference_rejected):
        """→ per pair: loss, rewards of both answers, log-probabilities of both, and 1.0 where there is a pair."""
        chosen, rejected, chosen_tokens, rejected_tokens = self.by_pair(picked, labels, document)
        there = (chosen_tokens > 0).astype(picked.dtype) * (rejected_tokens > 0).astype(picked.dtype)
        better, worse = chosen - reference_chosen.reshape(-1), rejected - reference_rejected.reshape(-1)
        if self.per_token:
            better, worse = better / ops.maximum(chosen_tokens, 1.0), worse / ops.maximum(rejected_tokens, 1.0)
        losses = self.losses(better - (1.0 - there), worse - (1.0 - there))  # a finite place where there is no pair
        if self.sft_weight > 0:
            losses = losses - self.sft_weight * chosen / ops.maximum(chosen_tokens, 1.0)
        return losses * there, self.beta * better * there, self.beta * worse * there, chosen, rejected, there

    def losses(self, better, worse):
        """Log-probabilities of both answers, over the reference's where there is one ``(N,)`` → losses ``(N,)``."""
        raise NotImplementedError(f"{type(self).__name__}.losses")

    def loss_of(self, picked, arrays):
        return self.of_picked(picked, *arrays)[0].sum()

    def measures_of(self, picked, arrays):
        losses, better, worse, chosen, rejected, there = self.of_picked(picked, *arrays)
        ahead = (better > worse).astype(there.dtype) * there
        won = (chosen > rejected).astype(there.dtype) * there
        return losses.sum(), ahead.sum(), won.sum(), better.sum(), worse.sum(), chosen.sum(), rejected.sum()

    def loss(self, logits, *arrays):
        return self.loss_of(picked_of_logits(self.token, logits, arrays[0]), arrays)

    def measure(self, logits, *arrays):
        return self.measures_of(picked_of_logits(self.token, logits, arrays[0]), arrays)

    def loss_of_hidden(self, model) -> Callable | None:
        return self.by_hidden(picked_of_hidden(model), self.loss_of)

    def measure_of_hidden(self, model) -> Callable | None:
        return self.by_hidden(picked_of_hidden(model, measured=True), self.measures_of)

    def by_hidden(self, picked: Callable | None, then: Callable) -> Callable | None:
        if picked is None:
            return None

        def of_hidden(hidden, *arrays):
            return then(picked(hidden, arrays[0]), arrays)

        return of_hidden

    def metrics(self, sums, count: int) -> dict[str, float]:
        """``loss``; ``reward_accuracy``, the share of pairs whose preferred answer has the higher reward;
        ``win_rate``, the share whose preferred answer is the more probable one; ``reward_margin`` between the two; the
        rewards and log-probabilities of each. All per pair."""
        loss, ahead, won, better, worse, chosen, rejected = (value / max(count, 1) for value in sums)
        return {
            "loss": loss,
            "reward_accuracy": ahead,
            "win_rate": won,
            "reward_margin": better - worse,
            "reward_chosen": better,
            "reward_rejected": worse,
            "logp_chosen": chosen,
            "logp_rejected": rejected,
        }


def documents_of(batch: dict[str, Any]) -> np.ndarray:
    """``(B, S)`` the number of each token's document in its row; padding has numbers of its own, without labels."""
    start = np.asarray(batch["start"])
    return (np.cumsum(start == np.arange(start.shape[1]), axis=1) - 1).astype(np.int32)


def count_pairs(batch: dict[str, Any]) -> int:
    """Pairs of a prepared batch."""
    return sum(counts_of(batch, batch["document"])) // 2


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


def answers(model, feed, compiled: bool = True):
    """The keys and summed log-probabilities of each batch's documents, by the model as it is."""
    score = Score(model, compiled)
    for batch in feed.batches(0, 0):
        yield from zip(keys_of(batch, documents_of(batch)), score(batch), strict=True)


class Score:
    """The summed log-probabilities of a batch's documents, a list for each row, by the model as it is when this is
    first called."""

    def __init__(self, model, compiled: bool = True):
        from pet.train.step import in_whole

        self.model, self.compiled = model, compiled
        of_hidden = picked_of_hidden(model, measured=True) if compiled else None
        forward = through(model, functools.partial(picked_of_logits, CausalLM()), of_hidden)
        self.graph = Compiled(forward, compiled, functools.partial(in_whole, model), model.get_parameters())

    def __call__(self, batch: dict[str, Any]) -> list[list[float]]:
        from pet.train.measuring import fast
        from pet.train.step import tensors

        documents, labels = documents_of(batch), np.asarray(batch["labels"])
        training = self.model.training
        self.model.set_train(False)
        try:
            with fast(self.model) if self.compiled else contextlib.nullcontext():
                picked = self.graph(*tensors(batch, ("labels",))).asnumpy().astype(np.float64).reshape(labels.shape)
        finally:
            self.model.set_train(training)
        # position t has the log-probability of token t + 1
        sums = [np.bincount(own[1:], values[:-1]) for own, values in zip(documents, picked, strict=True)]
        return [one[:count].tolist() for one, count in zip(sums, counts_of(batch, documents), strict=True)]


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
