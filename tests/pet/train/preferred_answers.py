"""An objective in one file: of two answers, prefer the first. A user's module could look like this."""

from __future__ import annotations

import numpy as np
from mindspore import ops

from pet.data.dataset import IGNORED
from pet.train.objectives.causal import CausalLM, shift_labels


def conversations(columns):
    """``{"question", "good", "bad"}`` → the two documents that are compared."""
    if columns["good"] == columns["bad"]:
        raise ValueError("both answers are the same")
    question = {"role": "user", "content": columns["question"]}
    return [[question, {"role": "assistant", "content": columns[name]}] for name in ("good", "bad")]


class PreferredAnswers(CausalLM):
    """−log σ(β · (log p(good) − log p(bad))), per pair. Also measured: how often the good answer is more probable.

    Beside the labels it takes, per token: the number of its pair, and +1 in the good answer, −1 in the bad one.
    """

    arrays = ("labels", "pair", "sign")
    documents = 2
    counted = "pairs"
    conversations = staticmethod(conversations)

    def prepare(self, batch, training):
        start, labels = np.asarray(batch["start"]), np.asarray(batch["labels"])
        rows, length = start.shape
        document = np.cumsum(start == np.arange(length), axis=1) - 1  # padding has documents of its own, without labels
        pair = document // 2 + np.arange(rows)[:, None] * length
        learnt = labels != IGNORED
        return {**batch, "pair": pair.astype(np.int32), "sign": np.where(learnt, 1 - 2 * (document % 2), 0)}

    def count(self, batch):
        return len(np.unique(np.asarray(batch["pair"])[np.asarray(batch["sign"]) != 0]))

    def margins(self, logits, labels, pair, sign):
        """(B·S,) log p(good) − log p(bad) of the pairs, and 1.0 where there is a pair."""
        targets = shift_labels(labels).reshape(-1)
        picked, learnt = self.label_log_probabilities(self.log_probabilities(logits), targets)
        # position t predicts token t + 1: pair and sign are that token's
        pair, sign = (ops.concat((array[:, 1:], array[:, :1] * 0), 1).reshape(-1) for array in (pair, sign))
        total = ops.unsorted_segment_sum(picked * learnt * sign.astype(picked.dtype), pair, targets.size)
        there = ops.unsorted_segment_sum(learnt, pair, targets.size)
        return total, (there > 0).astype(picked.dtype)

    def loss(self, logits, labels, pair, sign):
        margin, there = self.margins(logits, labels, pair, sign)
        return -(ops.logsigmoid(0.1 * margin) * there).sum()

    def measure(self, logits, labels, pair, sign):
        margin, there = self.margins(logits, labels, pair, sign)
        return -(ops.logsigmoid(0.1 * margin) * there).sum(), ((margin > 0).astype(there.dtype) * there).sum()

    def metrics(self, sums, count):
        return {"loss": sums[0] / count, "preferred": sums[1] / count}
