"""What objectives over pairs of answers have in common: log-probabilities of whole answers, over a reference's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mindspore import ops

from model_zoo.layers import int_range
from pet.train.objectives.base import Objective, positive, sums_of, through
from pet.train.objectives.causal import CausalLM, learnt_next
from pet.train.objectives.reference import Reference, counts_of, documents_of, picked_of_hidden, picked_of_logits


class Preference(Objective):
    """A loss over pairs of answers to one question, the preferred one first; per pair, divided by their number.

    A pair's answers are two documents of a row. Beside the labels a batch has, for each token, the number of its pair
    in the row; 1.0 where the token after it is learnt and the preferred answer's, else 0.0; the same for the other
    answer; and the reference's log-probability of the token after it where that is learnt.

    Args:
        beta: how strongly the model is held to the reference.
        sft_weight: of the preferred answer's mean negative log-likelihood, added to the loss (Pang et al. 2024).
        reference: ``train.reference``, see `pet.train.objectives.reference.Reference`.

    Attributes:
        uses_reference: whether the loss compares with a reference.
        per_token: answers count by the mean of their tokens' log-probabilities, not by the sum.
    """

    arrays = ("labels", "pair", "own", "other", "reference")
    documents = 2
    counted = "pairs"
    sums = 9
    reported = True
    uses_reference = True
    per_token = False
    default_beta = 0.1

    def __init__(self, beta: float | None = None, sft_weight: float = 0.0, reference: str | None = None):
        super().__init__()
        self.beta = self.default_beta if beta is None else beta
        self.sft_weight, self.reference = sft_weight, Reference(reference)
        self.token = CausalLM()

    # Batches

    def prepare(self, batch: dict[str, Any], training: bool) -> dict[str, Any]:
        documents = documents_of(batch)
        found = np.zeros(documents.shape, np.float32)
        if self.uses_reference:
            for row, values in enumerate(self.reference.of(batch, documents, training)):
                for number, value in enumerate(values):
                    own = documents[row] == number
                    found[row, own] = value[len(value) - own.sum() :]
        learnt = learnt_next(batch["labels"])
        own = learnt * (documents % 2 == 0)
        pairs = {"pair": documents // 2, "own": own, "other": learnt - own}
        return {**batch, "document": documents, **pairs, "reference": found}

    def count(self, batch: dict[str, Any]) -> int:
        return count_pairs(batch)

    def begin(self, model, feed, training: bool, distributed, compiled: bool = True) -> None:
        """Has the reference's log-probabilities of a feed's answers; errors are those of `Reference.begin`."""
        if self.uses_reference:
            self.reference.begin(model, feed, training, distributed, compiled)
            if training:
                self.origins = self.reference.origins(model)

    def begun(self, model) -> None:
        self.reference.end(model)

    # Graph code

    def by_pair(self, picked, pair, own, other, reference):
        """Log-probabilities ``(N,)`` of labels → of each pair, at its place ``(N,)``, for one answer and the other: the
        sums over the reference's, the sums themselves, and the numbers of tokens."""
        rows, length = pair.shape
        place = (pair + int_range(rows).reshape(rows, 1) * length).reshape(-1)
        own, other, ratio = own.reshape(-1), other.reshape(-1), picked - reference.reshape(-1)
        found = []
        for value in (ratio * own, ratio * other, picked * own, picked * other, own, other):
            found.append(ops.unsorted_segment_sum(value, place, rows * length))
        return found

    def of_picked(self, picked, *arrays):
        """→ per pair: loss, rewards of both answers, log-probabilities of both, and 1.0 where there is a pair."""
        better, worse, chosen, rejected, chosen_tokens, rejected_tokens = self.by_pair(picked, *arrays)
        there = positive(chosen_tokens) * positive(rejected_tokens)
        if self.per_token:
            better, worse = better / ops.maximum(chosen_tokens, 1.0), worse / ops.maximum(rejected_tokens, 1.0)
        losses = self.losses(better - (1.0 - there), worse - (1.0 - there))  # a finite place where there is no pair
        if self.sft_weight > 0:
            losses = losses - self.sft_weight * chosen / ops.maximum(chosen_tokens, 1.0)
        return losses * there, self.beta * better * there, self.beta * worse * there, chosen, rejected, there

    def losses(self, better, worse):
        """Log-probabilities of both answers, over the reference's where there is one ``(N,)`` → losses ``(N,)``."""
        raise NotImplementedError(f"{type(self).__name__}.losses")

    def measures_of(self, picked, arrays):
        pair, own, other, reference = arrays[1:]
        losses, better, worse, chosen, rejected, there = self.of_picked(picked, pair, own, other, reference)
        ahead, won = positive(better - worse) * there, positive(chosen - rejected) * there
        divergence = moved(picked, own + other, reference)
        return sums_of(losses, ahead, won, better, worse, chosen, rejected, *divergence)

    def loss(self, logits, *arrays):
        return self.measure(logits, *arrays)[0]

    def measure(self, logits, *arrays):
        return self.measures_of(picked_of_logits(self.token, logits, arrays[0]), arrays)

    def forward(self, model, fast: bool = False) -> Callable:
        return through(model, self.measure, self.by_hidden(picked_of_hidden(model)) if fast else None)

    def measure_of_hidden(self, model) -> Callable | None:
        return self.by_hidden(picked_of_hidden(model, measured=True))

    def by_hidden(self, picked: Callable | None) -> Callable | None:
        if picked is None:
            return None

        def of_hidden(hidden, *arrays):
            return self.measures_of(picked(hidden, arrays[0]), arrays)

        return of_hidden

    def metrics(self, sums, count: int) -> dict[str, float]:
        """``loss``; ``reward_accuracy``, the share of pairs whose preferred answer has the higher reward;
        ``win_rate``, the share whose preferred answer is the more probable one; ``reward_margin`` between the two; the
        rewards and log-probabilities of each, all per pair; with a reference ``kl``, see `moved`."""
        *sums, square, tokens = sums
        loss, ahead, won, better, worse, chosen, rejected = (value / max(count, 1) for value in sums)
        found = {
            "loss": loss,
            "reward_accuracy": ahead,
            "win_rate": won,
            "reward_margin": better - worse,
            "reward_chosen": better,
            "reward_rejected": worse,
            "logp_chosen": chosen,
            "logp_rejected": rejected,
        }
        return {**found, "kl": square / max(tokens, 1)} if self.uses_reference else found


def moved(picked, learnt, reference):
    """½(log π − log π_ref)² of the answers' tokens, and 1.0 for each of them. The quotient of their sums estimates the
    divergence from the reference per token (k2 of Schulman 2020, "Approximating KL divergence"), on the answers of the
    data: it is never negative, and 0 for a fresh adapter. Graph code."""
    learnt = learnt.reshape(-1)
    ratio = (picked - reference.reshape(-1)) * learnt
    return 0.5 * ratio * ratio, learnt


def count_pairs(batch: dict[str, Any]) -> int:
    """Pairs of a prepared batch; they lie in a row."""
    return sum(count // 2 for count in counts_of(batch, batch["document"]))
