"""A reward model: a score for each answer, so that the preferred one of two has the higher score."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import ops

from model_zoo.errors import InputError
from model_zoo.graph import evaluating
from model_zoo.turns import turn
from pet.data.dataset import IGNORED
from pet.train.objectives.base import Objective, sums_of, through
from pet.train.objectives.preference import count_pairs
from pet.train.objectives.reference import counts_of, documents_of


class Reward(Objective):
    """``−log σ(s_c − s_r)`` of the scores of both answers, per pair (Bradley & Terry 1952; Ouyang et al. 2022).

    A score is the head's number (`adapters.score`) at the last token of a dialogue. It starts at 0, so that the first
    loss is ln 2.
    """

    arrays = ("chosen", "rejected", "paired")
    documents = 2
    counted = "pairs"
    sums = 4
    reported = True

    @staticmethod
    def extend(model) -> None:
        from adapters.score import add_score

        add_score(model)

    def begin(self, model, feed, training: bool, distributed, compiled: bool = True) -> None:
        if not getattr(model, "scoring", False):
            raise InputError("reward: the model has no head; expected a reward model's adapter")

    def prepare(self, batch: dict[str, Any], training: bool) -> dict[str, Any]:
        """Adds, for each pair of a row at the place of its number: the places of both answers' last tokens, and 1.0."""
        documents = documents_of(batch)
        chosen, rejected = np.zeros(documents.shape, np.int32), np.zeros(documents.shape, np.int32)
        paired = np.zeros(documents.shape, np.float32)
        for row, count in enumerate(counts_of(batch, documents)):
            first, last = (np.searchsorted(documents[row], np.arange(count), side=side) for side in ("left", "right"))
            # a document that lies backwards begins with its last token, whose interval no other token shares
            backwards = np.asarray(batch["start"])[row, np.minimum(first + 1, last - 1)] == first + 1
            last = np.where(backwards, first, last - 1)
            chosen[row, : count // 2], rejected[row, : count // 2] = last[::2], last[1::2]
            paired[row, : count // 2] = 1.0
        return {**batch, "document": documents, "chosen": chosen, "rejected": rejected, "paired": paired}

    def count(self, batch: dict[str, Any]) -> int:
        return count_pairs(batch)

    # Graph code

    def of_pairs(self, scores, chosen, rejected, paired):
        """The head's numbers ``(B·S, 1)`` → per pair ``(B, S)``: loss and both scores."""
        scores = scores.reshape(chosen.shape).astype(paired.dtype)
        better, worse = ops.gather_elements(scores, 1, chosen), ops.gather_elements(scores, 1, rejected)
        return -ops.logsigmoid(better - worse) * paired, better * paired, worse * paired

    def loss(self, scores, *arrays):
        return self.of_pairs(scores, *arrays)[0].sum()

    def measure(self, scores, *arrays):
        losses, better, worse = self.of_pairs(scores, *arrays)
        return sums_of(losses, (better > worse).astype(losses.dtype), better, worse)

    def forward(self, model, fast: bool = False) -> Callable:
        return through(model, None, scored(model, self.measure))

    measured = forward

    def metrics(self, sums, count: int) -> dict[str, float]:
        """``loss``; ``reward_accuracy``, the share of pairs whose preferred answer has the higher score; the mean
        scores of both answers and the margin between them. All per pair."""
        loss, ahead, chosen, rejected = (value / max(count, 1) for value in sums)
        return {
            "loss": loss,
            "reward_accuracy": ahead,
            "reward_margin": chosen - rejected,
            "reward_chosen": chosen,
            "reward_rejected": rejected,
        }


def scored(model, then: Callable) -> Callable:
    """``(hidden (B·S, H), *arrays)`` → what `then` makes of the head's numbers."""

    def of_hidden(hidden, *arrays):
        return then(model.score(hidden), *arrays)

    return of_hidden


def scores(model, input_ids, attention_mask=None) -> np.ndarray:
    """A reward model's scores ``(B,)`` of whole dialogues, at the last token of each.

    Args:
        model: with the adapter of a reward model (``train.objective: reward``, or PEFT's ``SEQ_CLS``).
        input_ids: ``(B, S)`` integers.
        attention_mask: ``(B, S)``, 1 for real tokens; default all real.

    Raises:
        InputError: the active adapter has no head, or arrays of a wrong form.
    """
    from pet.train.feed import check_tokens, complete
    from pet.train.step import tensors

    if not getattr(model, "scoring", False):
        raise InputError("scores: no active adapter has a reward model's head")
    batch = complete({"input_ids": input_ids, "attention_mask": attention_mask}, model)
    check_tokens(batch, model, "input_ids")
    real = batch["labels"] != IGNORED
    if not real.any(1).all():
        raise InputError("scores: attention_mask has a row without a token")
    with turn, evaluating(model):
        found = model.score(model.hidden_states(*tensors(batch, ()), None)).astype(ms.float32).asnumpy()
    return found.reshape(real.shape)[np.arange(len(real)), [np.flatnonzero(row)[-1] for row in real]]
