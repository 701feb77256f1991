"""The next token: cross-entropy over the tokens that have a label, with label smoothing or R-Drop where asked for.

The loss is a sum; the step divides it by the labels of its whole global batch. Dividing once, at the end, is what makes
a batch of 8 equal to four batches of 2 whose rows have uneven lengths. ``ops.log_softmax`` and a gather are used:
``ops.cross_entropy`` takes over twenty times as long on a CPU, and MindSpore keeps more memory of each call of
``ops.LogSoftmax``, as of ``Tensor.sum`` than of ``ReduceSum``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import ops

from model_zoo.engine import cross_entropy, precision_suffix, ranked_cross_entropy
from model_zoo.layers import Linear, is_product
from pet.data.dataset import IGNORED
from pet.train.objectives.base import ADD, MODEL_ARRAYS, Objective, perplexity

# primitives: MindSpore parses some fifty functions of its own for indices of tensors, in every graph; and of these it
# keeps nothing, as it does of Concat, ZerosLike and casts that run outside of graphs
_cut, _pad, _turn = ops.Slice(), ops.Pad(((0, 0), (0, 1))), ops.Transpose()


def shift_labels(labels):
    """``(B, S)`` labels, where position t is the token itself → targets, where position t is the token after it."""
    batch, length = labels.shape
    if length == 1:  # nothing is behind it, and of slices without columns MindSpore gives what lies in memory
        return labels * 0 + IGNORED
    return _pad(_cut(labels, (0, 1), (batch, length - 1)) - IGNORED) + IGNORED  # it pads with zeros


def count_labels(labels: np.ndarray) -> int:
    """Label tokens of a batch ``(B, S)``; nothing predicts the first column."""
    return int((np.asarray(labels)[:, 1:] != IGNORED).sum())


def learnt_next(labels: np.ndarray) -> np.ndarray:
    """``(B, S)`` labels → 1.0 where the token after a position is learnt, else 0.0."""
    learnt = np.asarray(labels)[:, 1:] != IGNORED
    return np.pad(learnt, ((0, 0), (0, 1))).astype(np.float32)


class CausalLM(Objective):
    """Summed cross-entropy of the next token.

    Args:
        label_smoothing: ε; the target distribution is ``(1 − ε)·onehot + ε/V`` (Szegedy et al. 2016; torch's form).
    """

    sums = 2
    apart = 0.0
    """What the divergence of the rows of a pair adds to the loss, as `model_zoo.engine.cross_entropy` takes it."""

    def __init__(self, label_smoothing: float = 0.0):
        super().__init__()
        self.label_smoothing = label_smoothing
        self.pick = ops.GatherD()

    @classmethod
    def from_settings(cls, settings) -> CausalLM:
        if settings.r_drop_alpha > 0:
            return RDrop(settings.r_drop_alpha, settings.label_smoothing)
        return cls(settings.label_smoothing)

    def count(self, batch: dict[str, Any]) -> int:
        return count_labels(batch["labels"])

    def log_probabilities(self, logits):
        """Logits ``(B, S, V)`` or ``(B·S, V)`` → log-probabilities ``(B·S, V)`` in float32."""
        return ops.log_softmax(logits.reshape(-1, logits.shape[-1]).astype(ms.float32), -1)

    def label_log_probabilities(self, log_probabilities, targets):
        """Per token ``(N,)``: the log-probability of its label, and 1.0 where it has one (0.0 elsewhere)."""
        learnt = (targets != IGNORED).astype(ms.float32)
        index = ops.maximum(targets, 0).reshape(-1, 1)
        return self.pick(log_probabilities, 1, index).reshape(-1), learnt

    def token_losses(self, log_probabilities, labels):
        """Log-probabilities ``(B·S, V)``, labels ``(B, S)`` → per token ``(B·S,)``: its loss, smoothed and 0.0 where it
        has no label, and 1.0 where it has one."""
        picked, learnt = self.label_log_probabilities(log_probabilities, shift_labels(labels).reshape(-1))
        losses = -picked
        if self.label_smoothing > 0:
            losses = (1.0 - self.label_smoothing) * losses - self.label_smoothing * log_probabilities.mean(-1)
        return losses * learnt, learnt

    def loss(self, logits, labels):
        return ADD(self.token_losses(self.log_probabilities(logits), labels)[0])

    loss_by_pieces = loss
    """The loss that the engine's is the same as; another one, of a user's sub-class, needs the logits."""

    def measure(self, logits, labels):
        """Plain cross-entropy, and the number of labels that the model ranks first."""
        log_probabilities = self.log_probabilities(logits)
        targets = shift_labels(labels).reshape(-1)
        picked, learnt = self.label_log_probabilities(log_probabilities, targets)
        ranked_first = (log_probabilities.argmax(-1).astype(ms.int32) == targets).astype(ms.float32)
        return -(picked * learnt).sum(), (ranked_first * learnt).sum()

    def metrics(self, sums, count: int) -> dict[str, float]:
        """``loss`` and ``perplexity`` per label token; ``accuracy``, the share of labels ranked first."""
        loss = sums[0] / max(count, 1)
        return {"loss": loss, "perplexity": perplexity(loss), "accuracy": sums[1] / max(count, 1)}

    def loss_of_hidden(self, model) -> Callable | None:
        """The gradients are computed along with the loss; without C kernels only that of the hidden states is, so that
        the head must be frozen then."""
        head = plain_head(model)
        if head is None or type(self).loss is not type(self).loss_by_pieces:
            return None
        numbers = *head_numbers(model, head), self.label_smoothing, self.apart
        summed = cross_entropy(IGNORED, head.weight.requires_grad, *numbers)
        if summed is None:
            return None

        def by_head(hidden, labels):
            hidden, targets = self.arranged(hidden, shift_labels(labels))
            return summed(hidden, head.weight, targets.reshape(-1))[0]

        return by_head

    def arranged(self, hidden, targets):
        """Hidden states ``(B·S, H)`` and targets ``(B, S)`` in the order in which the loss by pieces wants them."""
        return hidden, targets

    def measure_of_hidden(self, model) -> Callable | None:
        head = plain_head(model)
        if head is None or type(self).measure is not CausalLM.measure:
            return None
        measured = ranked_cross_entropy(*head_numbers(model, head))
        if measured is None:
            return None

        def by_head(hidden, labels):
            return measured(hidden, head.weight, shift_labels(labels).reshape(-1))

        return by_head


class DFT(CausalLM):
    """Dynamic fine-tuning (Wu et al. 2025): the loss of each token times its own probability, through which no gradient
    goes. Evaluation measures the plain loss."""

    def loss(self, logits, labels):
        losses, _ = self.token_losses(self.log_probabilities(logits), labels)
        return ADD(losses * ops.stop_gradient(ops.exp(-losses)))


class RDrop(CausalLM):
    """R-Drop (Liang et al. 2021): each row twice under different dropout, and a penalty where the two differ.

    The loss is the cross-entropy of all rows, and ``α/4 · (KL(p‖q) + KL(q‖p))`` for every label token of both rows of a
    pair. Rows 2i and 2i + 1 are the same sample. Evaluation measures the plain loss of single rows.

    Args:
        alpha: α.
    """

    def __init__(self, alpha: float, label_smoothing: float = 0.0):
        super().__init__(label_smoothing)
        self.alpha, self.apart = alpha, alpha / 2.0

    def prepare(self, batch: dict[str, Any], training: bool) -> dict[str, Any]:
        """In training, every row twice, one after the other."""
        if not training:
            return batch
        names = (*MODEL_ARRAYS, *self.arrays)
        return {**batch, **{name: np.repeat(np.asarray(batch[name]), 2, axis=0) for name in names}}

    def arranged(self, hidden, targets):
        """What belongs to the same token of a pair, one behind the other."""
        batch, length = targets.shape

        def beside(rows):
            return _turn(rows.reshape(batch // 2, 2, length, -1), (0, 2, 1, 3)).reshape(batch * length, -1)

        return beside(hidden), beside(targets)

    def loss(self, logits, labels, alpha=None):
        batch, length = labels.shape
        log_probabilities = self.log_probabilities(logits)
        losses, learnt = self.token_losses(log_probabilities, labels)
        pairs = log_probabilities.reshape(batch // 2, 2, length, -1)
        probabilities = ops.exp(pairs)
        # p·(log p − log q) + q·(log q − log p)
        apart = (probabilities[:, 0] - probabilities[:, 1]) * (pairs[:, 0] - pairs[:, 1])  # (B/2, S, V)
        divergence = ADD(apart, -1) * learnt.reshape(batch // 2, 2, length)[:, 0]
        weight = self.alpha if alpha is None else alpha
        # every label token stands in both rows, so that each pair's divergence counts twice in the sum
        return ADD(losses) + weight / 2.0 * ADD(divergence)

    loss_by_pieces = loss


def head_numbers(model, head) -> tuple[str, float]:
    """The precision of the product and the cap of the logits, as `model_zoo.engine.cross_entropy` takes them."""
    return precision_suffix(head.product), model.config.logit_cap


def plain_head(model):
    """The head's cell, if it is nothing but a float32 product, so that loss and head can be computed in one; else
    None."""
    family = getattr(model, "family", None)
    if family is None:
        return None
    cell = model
    for part in family.head.split("."):
        cell = getattr(cell, part, None)
    plain = type(cell) is Linear and cell.bias is None and is_product(cell.product)
    return cell if plain and model.dtype == ms.float32 else None
