"""The training loss, as a sum over label tokens; whoever calls it divides by their number over the whole global batch.

Dividing once, at the end, is what makes a batch of 8 equal to four batches of 2 whose rows have uneven lengths.
``LogSoftmax`` and a gather are used because ``ops.cross_entropy`` takes over twenty times as long on a CPU.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import nn, ops

IGNORED = -100
"""The label of a token that is not learnt (Hugging Face's convention)."""


def shift_labels(labels):
    """``(B, S)`` labels, where position t is the token itself → targets, where position t is the token after it."""
    last = ops.full_like(labels[:, :1], IGNORED)
    return ops.concat((labels[:, 1:], last), 1)


class CausalLoss(nn.Cell):
    """Summed cross-entropy of the next token, with label smoothing and R-Drop where asked for.

    Args:
        label_smoothing: ε; the target distribution is ``(1 − ε)·onehot + ε/V`` (Szegedy et al. 2016; torch's form).
        r_drop_alpha: α of R-Drop (Liang et al. 2021). Rows 2i and 2i + 1 must then be the same sample under different
            dropout, and ``α/4 · (KL(p‖q) + KL(q‖p))`` is added for every label token of both rows.
    """

    def __init__(self, label_smoothing: float = 0.0, r_drop_alpha: float = 0.0):
        super().__init__()
        self.label_smoothing = label_smoothing
        self.r_drop_alpha = r_drop_alpha
        self.log_softmax = ops.LogSoftmax(-1)
        self.pick = ops.GatherD()

    def log_probabilities(self, logits):
        """Logits ``(B, S, V)`` or ``(B·S, V)`` → log-probabilities ``(B·S, V)`` in float32."""
        return self.log_softmax(logits.reshape(-1, logits.shape[-1]).astype(ms.float32))

    def token_losses(self, log_probabilities, targets):
        """Per token ``(N,)``: the loss, and 1.0 where the token is a label (0.0 elsewhere)."""
        learnt = (targets != IGNORED).astype(ms.float32)
        index = ops.maximum(targets, 0).reshape(-1, 1)
        losses = -self.pick(log_probabilities, 1, index).reshape(-1)  # (N,)
        if self.label_smoothing > 0:
            losses = (1.0 - self.label_smoothing) * losses - self.label_smoothing * log_probabilities.mean(-1)
        return losses, learnt

    def divergence(self, log_probabilities, batch: int):
        """``KL(p‖q) + KL(q‖p)`` between each row and its twin, per token ``(B/2, S)``."""
        vocabulary = log_probabilities.shape[-1]
        pairs = log_probabilities.reshape(batch // 2, 2, -1, vocabulary)
        first, second = pairs[:, 0], pairs[:, 1]  # (B/2, S, V)
        # p·(log p − log q) + q·(log q − log p)
        return ((ops.exp(first) - ops.exp(second)) * (first - second)).sum(-1)

    def construct(self, logits, labels):
        """Logits ``(B, S, V)`` or ``(B·S, V)``, labels ``(B, S)`` → the summed loss, a float32 scalar."""
        targets = shift_labels(labels).reshape(-1)
        log_probabilities = self.log_probabilities(logits)
        losses, learnt = self.token_losses(log_probabilities, targets)
        total = (losses * learnt).sum()
        if self.r_drop_alpha > 0:
            batch, length = labels.shape
            learnt_rows = learnt.reshape(batch // 2, 2, length)[:, 0]
            # every label token stands in both rows, so that each pair's divergence counts twice in the sum
            total = (
                total + self.r_drop_alpha / 4.0 * 2.0 * (self.divergence(log_probabilities, batch) * learnt_rows).sum()
            )
        return total


class EvaluationLoss(CausalLoss):
    """Plain cross-entropy and the number of label tokens that the model ranks first, both as sums."""

    def construct(self, logits, labels):
        targets = shift_labels(labels).reshape(-1)
        log_probabilities = self.log_probabilities(logits)
        losses, learnt = self.token_losses(log_probabilities, targets)
        ranked_first = (log_probabilities.argmax(-1).astype(ms.int32) == targets).astype(ms.float32)
        return (losses * learnt).sum(), (ranked_first * learnt).sum()
