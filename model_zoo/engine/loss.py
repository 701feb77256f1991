"""The head and the loss of what it predicts as one kernel (`loss.c`), for training and for measuring."""

from __future__ import annotations

import functools

from mindspore import nn

from model_zoo import fused
from model_zoo.engine.kernels import operator, outputs
from model_zoo.fused import column_sum, zeros_like


def loss_room(hidden, weight):
    """Of the head's kernels: they compute in place, so that what `fused.chunk_rows` allows for holds twice the rows."""
    rows = min(hidden[0], 2 * fused.chunk_rows(weight[0]))
    return [rows, weight[0] + 2 * hidden[1] + 2]


@outputs(3)
def with_gradient(hidden, weight, targets):
    return [hidden[0]], hidden, loss_room(hidden, weight)


@outputs(4)
def with_both_gradients(hidden, weight, targets):
    return [hidden[0]], hidden, weight, loss_room(hidden, weight)


@outputs(3)
def with_ranks(hidden, weight, targets):
    return [hidden[0]], [hidden[0]], loss_room(hidden, weight)


class LinearCrossEntropy(nn.Cell):
    """See `fused.LinearCrossEntropyKernel`; targets that do not count are negative, and cost nothing."""

    def __init__(self):
        super().__init__()
        self.kernel = operator("linear_cross_entropy", with_gradient)

    def construct(self, hidden, weight, targets):
        losses, gradient, _ = self.kernel(hidden, weight, targets)
        return column_sum(losses, 0), gradient

    def bprop(self, hidden, weight, targets, out, dout):
        return out[1] * dout[0], zeros_like(weight), zeros_like(targets)


class TrainedLinearCrossEntropy(nn.Cell):
    """The same where the weight is trained as well: the third output is its gradient."""

    def __init__(self):
        super().__init__()
        self.kernel = operator("linear_cross_entropy_trained", with_both_gradients)

    def construct(self, hidden, weight, targets):
        losses, gradient, weight_gradient, _ = self.kernel(hidden, weight, targets)
        return column_sum(losses, 0), gradient, weight_gradient

    def bprop(self, hidden, weight, targets, out, dout):
        return out[1] * dout[0], out[2] * dout[0], zeros_like(targets)


class RankedCrossEntropy(nn.Cell):
    """For measuring: hidden ``(N, H)``, weight ``(V, H)``, targets ``(N,)``, negative where a row does not count → the
    summed loss, and how many targets are ranked first. Of equal logits the first one is."""

    def __init__(self):
        super().__init__()
        self.kernel = operator("ranked_cross_entropy", with_ranks)

    def construct(self, hidden, weight, targets):
        losses, first, _ = self.kernel(hidden, weight, targets)
        return column_sum(losses, 0), column_sum(first, 0)


trained_linear_cross_entropy = functools.cache(TrainedLinearCrossEntropy)
ranked_cross_entropy = functools.cache(RankedCrossEntropy)
