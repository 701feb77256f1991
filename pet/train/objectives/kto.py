"""Answers with a label, desirable or not, instead of pairs (Ethayarajh et al. 2024)."""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import ops

from model_zoo.errors import InputError, shown
from model_zoo.layers import int_range
from pet.data.dataset import IGNORED
from pet.data.loader import Loader
from pet.data.packing import collate
from pet.recipe.rules import EXCHANGED
from pet.train.objectives.base import positive, sums_of
from pet.train.objectives.causal import learnt_next
from pet.train.objectives.preference import Preference
from pet.train.objectives.reference import counts_of, documents_of


class KTO(Preference):
    """``λ_D·(1 − σ(β(r − z₀)))`` for a desirable answer, ``λ_U·(1 − σ(β(z₀ − r)))`` for another, per answer.

    r is the answer's log-probability over the reference's. z₀ is the mean of r over questions with the answers to other
    questions, at least 0 and without gradient: an estimate of how far the model has moved. It is taken over the batch
    of all processes, by two forward passes more; in evaluation the reference's share is computed once.

    Args:
        desirable_weight, undesirable_weight: λ_D and λ_U.
    """

    arrays = ("labels", "document", "learnt", "reference", "weight", "moved")
    documents = 1
    counted = "answers"
    sums = 9

    def __init__(
        self,
        beta: float | None = None,
        reference: str | None = None,
        desirable_weight: float = 1.0,
        undesirable_weight: float = 1.0,
    ):
        super().__init__(beta, reference=reference)
        self.reference.asked_in_steps = True
        self.weights = desirable_weight, undesirable_weight
        self.held_out: dict[int, list[float]] = {}

    def begin(self, model, feed, training: bool, distributed, compiled: bool = True) -> None:
        from pet.train.batch import layout_of

        if not isinstance(feed, Loader):
            raise InputError("kto: the labels are those of a dataset; a pet.data.Loader was expected")
        if feed.batch_size % 2:
            raise InputError(f"kto: {feed.batch_size} rows in a batch; {EXCHANGED}")
        super().begin(model, feed, training, distributed, compiled)
        self.distributed, self.layout = distributed, layout_of(model)
        if training:
            self.held_out = {}
        elif not self.held_out:
            with self.reference.on(model):
                self.held_out = {batch.index: self.of_others(batch) for batch in feed.batches(0)}

    def of_others(self, batch: dict[str, Any]) -> list[float]:
        """The log-probabilities of a batch's mismatched answers, by the model as it is."""
        mixed = mismatched(batch, documents_of(batch), self.layout)
        return [float(value.sum(dtype=np.float64)) for row in self.reference.score()(mixed) for value in row]

    def prepare(self, batch: dict[str, Any], training: bool) -> dict[str, Any]:
        liked = [[desirable(one) for one in labels] for labels in batch["said"]]
        moved = self.moved(batch, training)
        batch = super().prepare(batch, training)
        weight = np.zeros(batch["document"].shape, np.float32)
        for row, own in enumerate(liked):
            weight[row, : len(own)] = np.where(own, self.weights[0], -self.weights[1])
        learnt, moved = learnt_next(batch["labels"]), np.full(weight.shape, moved, np.float32)
        return {**batch, "learnt": learnt, "weight": weight, "moved": moved}

    def moved(self, batch: dict[str, Any], training: bool) -> float:
        """z₀ of a batch of the loader."""
        mine = self.of_others(batch)
        if training:
            with self.reference.on(self.reference.model):
                theirs = self.of_others(batch)
        else:
            theirs = self.held_out[batch.index]
        total, count = self.distributed.sum_numbers([sum(mine) - sum(theirs), float(len(mine))])
        return max(0.0, total / max(count, 1.0))

    def count(self, batch: dict[str, Any]) -> int:
        return sum(counts_of(batch, batch["document"]))

    # Graph code

    def of_answers(self, picked, document, learnt, reference, weight, moved):
        """→ per answer ``(N,)``: loss, reward, log-probability, 1.0 if desirable, 1.0 if not."""
        rows, length = document.shape
        place = (document + int_range(rows).reshape(rows, 1) * length).reshape(-1)
        learnt, weight = learnt.reshape(-1), weight.reshape(-1)
        ratio = ops.unsorted_segment_sum((picked - reference.reshape(-1)) * learnt, place, rows * length)
        whole = ops.unsorted_segment_sum(picked * learnt, place, rows * length)
        gain = self.beta * ops.sign(weight) * (ratio - moved.reshape(-1))
        losses = ops.abs(weight) * (1.0 - ops.sigmoid(gain))
        return losses, self.beta * ratio, whole, positive(weight), positive(-weight)

    def measures_of(self, picked, arrays):
        losses, rewards, whole, liked, others = self.of_answers(picked, *arrays[1:])
        moved = arrays[-1].reshape(-1)
        above = positive(rewards - self.beta * moved)
        right, theirs = above * liked + (1.0 - above) * others, moved * (liked + others)
        of_liked, of_others = (rewards * liked, whole * liked, liked), (rewards * others, whole * others, others)
        return sums_of(losses, right, *of_liked, *of_others, theirs)

    def metrics(self, sums, count: int) -> dict[str, float]:
        """``loss``; ``reward_accuracy``, the share of answers on the right side of z₀; the mean rewards of both kinds
        and the margin between them; the log-probabilities of both; ``kl``, the mean z₀. Without an answer of a kind
        there is no mean of it."""
        loss, right, chosen, chosen_logp, liked, rejected, rejected_logp, others, moved = sums
        count = max(count, 1)
        found = {"loss": loss / count, "reward_accuracy": right / count}
        if liked and others:
            found["reward_margin"] = chosen / liked - rejected / others
        if liked:
            found |= {"reward_chosen": chosen / liked, "logp_chosen": chosen_logp / liked}
        if others:
            found |= {"reward_rejected": rejected / others, "logp_rejected": rejected_logp / others}
        return {**found, "kl": moved / count}


def desirable(label: Any) -> bool:
    """A label as a truth value; also NumPy's, and 0 or 1. Raises InputError: it is something else, or missing."""
    if not isinstance(label, (bool, int, float, np.generic)) or label not in (True, False):
        raise InputError(f"kto: an answer's label is {shown(label)}; true or false was expected")
    return bool(label)


def mismatched(batch: dict[str, Any], documents: np.ndarray, layout) -> dict[str, Any]:
    """A batch of the same shape whose questions have other questions' answers: those before them in the same two rows,
    so that it does not depend on how rows are divided over processes. What does not fit in the rows is left out."""
    ids, labels = np.asarray(batch["input_ids"]), np.asarray(batch["labels"])
    counts, length = counts_of(batch, documents), ids.shape[1]
    rows: list[list] = [[] for _ in ids]
    for pair in range(0, len(ids), 2):
        both = range(pair, min(pair + 2, len(ids)))
        found = [(row, documents[row] == number) for row in both for number in range(counts[row])]
        if len(found) < 2:
            continue
        replies = [ids[row, own & (labels[row] != IGNORED)] for row, own in found]
        for (row, own), reply in zip(found, replies[-1:] + replies[:-1], strict=True):
            question = ids[row, own & (labels[row] == IGNORED)]
            whole = np.concatenate((question, reply))[:length]
            room = [each for each in both if sum(len(one) for one, _ in rows[each]) + len(whole) <= length]
            if room and len(whole) > len(question):
                rows[room[0]].append((whole, np.arange(len(whole)) >= len(question)))
    positions = np.asarray(batch["position_ids"])
    return collate(rows, length, layout=layout, position_rows=positions.shape[1] if positions.ndim == 3 else 1)
