"""The head and the loss of what it predicts in one, for training and for measuring: by a kernel (`loss.c`), or by
MindSpore's operators."""

from __future__ import annotations

import functools

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.common import _Function

from model_zoo.engine.call import Function, as_it_is, outputs
from model_zoo.engine.cells import Eagerly, available, operator
from model_zoo.engine.ops import OPS
from model_zoo.engine.plain import (
    cast,
    column_sum,
    late,
    maximum,
    part,
    product,
    product_rows,
    reshape,
    tile,
    zeros_like,
)

CHUNK_BYTES = 16 * 2**20
"""How much memory the logits of one piece take, if that is `CHUNK_ROWS` rows or more."""

CHUNK_ROWS = 256
"""Rows below which a product with the head's weight is bound by reading the weight."""

POWERS_OF_TWO = tuple(2**power for power in range(20))

product_columns, transpose = ops.MatMul(transpose_a=True, transpose_b=True), ops.Transpose()
log_softmax, gather, pick, exp = ops.LogSoftmax(-1), ops.Gather(), ops.GatherD(), ops.Exp()
join_first, mean = ops.Concat(0), ops.ReduceMean()


def chunk_rows(vocabulary: int) -> int:
    """How many rows of logits one piece has."""
    rows = CHUNK_BYTES // (4 * vocabulary) + 1
    return rows if rows > CHUNK_ROWS else CHUNK_ROWS


class PlainCrossEntropy(nn.Cell):
    """Summed cross-entropy of ``hidden·weightᵀ`` against targets, without ever holding all logits.

    The gradient of the hidden states is computed along with the loss, piece by piece, which costs no more than the
    plain backward pass and leaves ``(N, H)`` to keep instead of ``(N, V)``: ``(p − onehot)·W`` is ``p·W − W[target]``.
    Smoothed by ε it is ``(p − (1 − ε)·onehot − ε/V)·W``. The weight is taken as frozen.
    """

    def __init__(self, ignored: int, smoothing: float = 0.0):
        super().__init__()
        self.ignored, self.smoothing = ignored, smoothing

    def weighted_rows(self, p, weight):
        """``p·weight``. oneDNN reads a right factor in place, at half the speed, unless its width is a power of two."""
        if weight.shape[1] in POWERS_OF_TWO:
            return product(p, weight)
        return transpose(product_columns(weight, p), (1, 0))

    def piece(self, hidden, weight, targets):
        rows, width = hidden.shape
        learnt = cast(targets != self.ignored, ms.float32)
        index = maximum(targets, zeros_like(targets))
        log_p = log_softmax(product_rows(hidden, weight))  # (n, V)
        wanted, row = reshape(pick(log_p, 1, reshape(index, (rows, 1))), (rows,)), gather(weight, index, 0)
        if self.smoothing > 0:
            wanted = (1.0 - self.smoothing) * wanted + self.smoothing * mean(log_p, 1)
            row = (1.0 - self.smoothing) * row + self.smoothing * mean(weight, 0)
        loss = -column_sum(wanted * learnt, 0)
        gradient = self.weighted_rows(exp(log_p), weight) - row
        return loss, gradient * tile(reshape(learnt, (rows, 1)), (1, width))

    def construct(self, hidden, weight, targets):
        """Hidden ``(N, H)``, weight ``(V, H)``, targets ``(N,)`` → the summed loss, and its gradient ``(N, H)``."""
        rows, width = hidden.shape
        size = chunk_rows(weight.shape[0])
        weight = weight.astype(ms.float32)
        if size >= rows:
            return self.piece(hidden, weight, targets)
        total, gradients = 0.0, ()
        for first in range(0, rows, size):
            count = size if first + size < rows else rows - first
            if first > 0:  # one after the other: all at once they would hold all logits after all
                hidden = late(hidden, gradients[-1])
            loss, gradient = self.piece(
                part(hidden, (first, 0), (count, width)), weight, part(targets, (first,), (count,))
            )
            total = total + loss
            gradients += (gradient,)
        return total, join_first(gradients)

    def bprop(self, hidden, weight, targets, out, dout):
        return out[1] * dout[0], zeros_like(weight), zeros_like(targets)


class HeadKernel(nn.Cell):
    """A head and its cross-entropy by one C function, `function`: the losses, outputs as large as those of `like`, and
    room to work in."""

    function, like, scaling = "linear_cross_entropy", ("hidden",), "scale"

    def __init__(self, low: str = "", cap: float = 0.0, smoothing: float = 0.0, apart: float = 0.0):
        super().__init__()
        like = self.like

        @outputs(2 + len(like))
        def shapes(hidden, weight, targets, numbers):
            known = {"losses": [hidden[0]], "hidden": hidden, "weight": weight}
            # kernels compute in place, so that what `chunk_rows` allows for holds twice the rows
            room = [min(hidden[0], 2 * chunk_rows(weight[0])), weight[0] + 2 * hidden[1] + 2]
            return known["losses"], *(known[name] for name in like), room

        self.numbers = Tensor(np.array([cap, smoothing, apart], np.float32))
        self.kernel, self.scaled = Function(self.function + low, shapes), operator(OPS[self.scaling])


class LaunchHead(_Function):
    """A head outside of graphs. Its loss alone is a result, and what nobody asks for gets no gradient: MindSpore would
    make zeros for the others, as large as the head's weight."""

    @staticmethod
    def forward(ctx, cell, *inputs):
        made = cell.construct(*inputs)
        ctx.cell, ctx.made = cell, (None, *made[1:])  # see `cells.apart`
        return made[0]

    @staticmethod
    def backward(ctx, dout):
        found = ctx.cell.gradients(ctx.made, dout)
        return None, *found, *[None] * (3 - len(found))


class LinearCrossEntropy(HeadKernel):
    """See `PlainCrossEntropy`; targets that do not count are negative, and cost nothing."""

    def __call__(self, hidden, weight, targets):
        if Eagerly.depth:
            return (LaunchHead.apply(self, hidden, as_it_is(weight), targets),)
        return super().__call__(hidden, weight, targets)

    def construct(self, hidden, weight, targets):
        losses, gradient, _ = self.kernel(hidden, weight, targets, self.numbers)
        return column_sum(losses, 0), gradient

    def gradients(self, out, dout):
        """Of the hidden states, and of the weight if it is trained."""
        return (self.scaled(out[1], dout),)

    def bprop(self, hidden, weight, targets, out, dout):
        found = self.gradients(out, dout[0])
        return found[0], found[1] if len(found) > 1 else zeros_like(weight), zeros_like(targets)


class TrainedLinearCrossEntropy(LinearCrossEntropy):
    """The same where the weight is trained as well: the third output is its gradient."""

    function, like = "linear_cross_entropy_trained", ("hidden", "weight")

    def construct(self, hidden, weight, targets):
        losses, gradient, weight_gradient, _ = self.kernel(hidden, weight, targets, self.numbers)
        return column_sum(losses, 0), gradient, weight_gradient

    def gradients(self, out, dout):
        return self.scaled(out[1], dout), self.scaled(out[2], dout)


class RankedCrossEntropy(HeadKernel):
    """For measuring: hidden ``(N, H)``, weight ``(V, H)``, targets ``(N,)``, negative where a row does not count → the
    summed loss, and how many targets are ranked first. Of equal logits the first one is."""

    function, like = "ranked_cross_entropy", ("losses",)

    def construct(self, hidden, weight, targets):
        losses, first, _ = self.kernel(hidden, weight, targets, self.numbers)
        return column_sum(losses, 0), column_sum(first, 0)


class TokenCrossEntropy(LinearCrossEntropy):
    """The same for each row by itself: losses ``(N,)``, 0 where the target is negative, and their gradients ``(N, H)``.
    The weight is taken as frozen."""

    scaling = "scale_rows"

    def construct(self, hidden, weight, targets):
        losses, gradient, _ = self.kernel(hidden, weight, targets, self.numbers)
        return losses, gradient

    def gradients(self, out, dout):
        return (self.scaled(out[1], reshape(dout, (out[1].shape[0], 1))),)


class MeasuredTokens(RankedCrossEntropy):
    """`TokenCrossEntropy` without gradients, for measuring: losses ``(N,)`` first."""

    def construct(self, hidden, weight, targets):
        losses, first, _ = self.kernel(hidden, weight, targets, self.numbers)
        return losses, first


def logit_bytes(tokens: int, vocabulary: int) -> int:
    """The most that a piece's logits and their gradient take."""
    tensors = 1 if available() else 2  # the kernel computes in place, and takes twice the rows for it
    return 4 * vocabulary * tensors * min(tokens, 2 // tensors * chunk_rows(vocabulary))


@functools.cache
def shared(kind: type, *arguments) -> nn.Cell:
    """One cell for all, so that it is parsed once."""
    return kind(*arguments)


def cross_entropy(
    ignored: int, trained: bool, low: str = "", cap: float = 0.0, smoothing: float = 0.0, apart: float = 0.0
):
    """``(hidden (N, H), weight (V, H), targets (N,))`` → the summed loss first; never all logits at once. The gradients
    are computed along with the loss.

    Args:
        ignored: the target of rows that do not count.
        trained: whether the weight gets a gradient.
        low: "_bf16" for products of rounded factors, else "".
        cap: logits become ``cap·tanh(logit/cap)``; 0 for as they are.
        smoothing: ε; what is wanted is ``(1 − ε)·onehot + ε/V``.
        apart: with it rows 2i and 2i + 1 are a pair with one target, and so much times ``KL(p‖q) + KL(q‖p)`` of each is
            added.

    Returns:
        A cell, or None where there is none.
    """
    if available() and ignored < 0:
        return shared(TrainedLinearCrossEntropy if trained else LinearCrossEntropy, low, cap, smoothing, apart)
    return None if trained or low or cap or apart else shared(PlainCrossEntropy, ignored, smoothing)


def ranked_cross_entropy(low: str = "", cap: float = 0.0):
    """`RankedCrossEntropy`, or None without C kernels. ``low`` and ``cap`` as in `cross_entropy`."""
    return shared(RankedCrossEntropy, low, cap) if available() else None


def token_cross_entropy(measured: bool = False, low: str = "", cap: float = 0.0):
    """`TokenCrossEntropy`, or without gradients `MeasuredTokens`; None without C kernels. ``low`` and ``cap`` as in
    `cross_entropy`."""
    return shared(MeasuredTokens if measured else TokenCrossEntropy, low, cap) if available() else None
