"""A reward model: a score for each answer, so that the preferred one of two has the higher score."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mindspore import ops

from model_zoo.errors import InputError
from model_zoo.labels import Labels
from pet.train.objectives.base import Objective, log_sigmoid, positive, sums_of, through
from pet.train.objectives.preference import count_pairs
from pet.train.objectives.reference import counts_of, documents_of


class Reward(Objective):
    """``−log σ(s_c − s_r − m)`` of the scores of both answers, per pair (Bradley & Terry 1952; Ouyang et al. 2022).

    A score is the head's number (`adapters.score`) at the last token of a dialogue. It starts at 0, so that the first
    loss is ln 2. m is the data's margin (Touvron et al. 2023), 0 where it has none.

    Args:
        center_rewards_coefficient: of ``(s_c + s_r)²``, added to the loss (Eisenstein et al. 2023).
    """

    arrays = ("chosen", "rejected", "paired", "margin")
    judges = True
    documents = 2
    counted = "pairs"
    sums = 4
    reported = True

    def __init__(self, center_rewards_coefficient: float = 0.0):
        super().__init__()
        self.centering = center_rewards_coefficient

    @staticmethod
    def extend(model, data=None, seed: int = 0) -> None:
        from adapters.score import add_head

        add_head(model, model.labels or Labels.plain(1))

    def begin(self, model, feed, training: bool, distributed, compiled: bool = True) -> None:
        if (count := len(model.labels.names)) != 1:
            raise InputError(f"reward: the model's head has {count} labels; one number was expected")

    def prepare(self, batch: dict[str, Any], training: bool) -> dict[str, Any]:
        """Adds, for each pair of a row at the place of its number: the places of both answers' last tokens, 1.0, and
        its margin."""
        documents = documents_of(batch)
        chosen, rejected = np.zeros(documents.shape, np.int32), np.zeros(documents.shape, np.int32)
        paired, margin = np.zeros(documents.shape, np.float32), np.zeros(documents.shape, np.float32)
        for row, count in enumerate(counts_of(batch, documents)):
            first, last = (np.searchsorted(documents[row], np.arange(count), side=side) for side in ("left", "right"))
            # a document that lies backwards begins with its last token, whose interval no other token shares
            backwards = np.asarray(batch["start"])[row, np.minimum(first + 1, last - 1)] == first + 1
            last = np.where(backwards, first, last - 1)
            chosen[row, : count // 2], rejected[row, : count // 2] = last[::2], last[1::2]
            paired[row, : count // 2] = 1.0
            if "said" in batch:
                margin[row, : count // 2] = [said or 0.0 for said in batch["said"][row][::2]]
        own = {"chosen": chosen, "rejected": rejected, "paired": paired, "margin": margin}
        return {**batch, "document": documents, **own}

    def count(self, batch: dict[str, Any]) -> int:
        return count_pairs(batch)

    # Graph code

    def of_pairs(self, scores, chosen, rejected, paired, margin):
        """The head's numbers ``(B·S, 1)`` → per pair ``(B, S)``: loss and both scores."""
        scores = scores.reshape(chosen.shape).astype(paired.dtype)
        better, worse = ops.gather_elements(scores, 1, chosen), ops.gather_elements(scores, 1, rejected)
        losses = -log_sigmoid(better - worse - margin)
        if self.centering > 0:
            losses = losses + self.centering * ops.square(better + worse)
        return losses * paired, better * paired, worse * paired

    def loss(self, scores, *arrays):
        return self.of_pairs(scores, *arrays)[0].sum()

    def measure(self, scores, *arrays):
        losses, better, worse = self.of_pairs(scores, *arrays)
        return sums_of(losses, positive(better - worse), better, worse)

    def forward(self, model, fast: bool = False) -> Callable:
        return through(model, self.measure, None)

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
