"""The fast path of the cells: the same values as the plain operators, with backward passes written out.

What makes a compiled graph slow on a CPU, and what is done about it here:

- An element-wise operator that broadcasts is about three times as slow as one on equal shapes, and keeps 16 bytes of
  index table per element and operator for as long as the graph lives. So whatever is narrow is tiled first; a table
  that all layers tile alike is tiled once, because the compiler merges equal operators.
- ``Transpose`` keeps such a table too (8 bytes per element). Heads are parted and joined by ``Split`` and ``Concat``,
  which copy whole rows and keep nothing.
- Automatic differentiation of a softmax, a norm or an activation strings together many operators over the widest
  tensors. Each kernel here is a cell with a ``bprop`` that recomputes what is cheap from the inputs.

The kernels are for compiled graphs; run operator by operator they are slower than the plain cells. All are float32.
Kernels have no parameters, so that one object, parsed once, serves every layer: get it from the functions in lower
case. Gradients that nobody asks for (of frozen weights, of masks) are dropped by the compiler.
"""

from __future__ import annotations

import functools

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

HIDDEN = 1e30
"""Taken from the score of a hidden key: what is left is exactly ``-HIDDEN``, as in the plain path."""

BLOCK = 256
"""Query rows per block of attention. Smaller blocks skip more hidden keys, but cost more operators to compile."""

SHARED = 1024
"""Up to this length all layers share one mask, ``B·heads·S²/2`` numbers. Beyond, each block makes its own piece anew,
and memory grows with S, not with S²."""

BEYOND = 1 << 30
"""An index behind every sequence."""

CHUNK_BYTES = 64 * 2**20
"""How much memory the logits of one piece of `linear_cross_entropy` may take."""

tile, reshape, zeros_like = ops.Tile(), ops.Reshape(), ops.ZerosLike()
row_sum, column_sum = ops.ReduceSum(keep_dims=True), ops.ReduceSum()
rsqrt, sigmoid, exp = ops.Rsqrt(), ops.Sigmoid(), ops.Exp()
product, product_rows = ops.MatMul(), ops.MatMul(transpose_b=True)
batch_product = ops.BatchMatMul()
batch_rows, batch_columns = ops.BatchMatMul(transpose_b=True), ops.BatchMatMul(transpose_a=True)
softmax, log_softmax = ops.Softmax(-1), ops.LogSoftmax(-1)
gather, pick, part = ops.Gather(), ops.GatherD(), ops.Slice()
join_last, join_first, join_second, join_third = ops.Concat(-1), ops.Concat(0), ops.Concat(1), ops.Concat(2)
late = ops.Depend()
"""`late(x, dout)` is x, but not before dout is there. Without it the compiler would find that the backward pass does
what the forward pass did already, and keep its results all the time in between, which takes far more memory."""

cast, equal, less, less_equal, maximum = ops.Cast(), ops.Equal(), ops.Less(), ops.LessEqual(), ops.Maximum()
counting = ops.Range()
zero = Tensor(np.zeros((1, 1, 1, 1), np.float32))


# Norms ---------------------------------------------------------------------------------------------------------------


class RMSNormKernel(nn.Cell):
    """``x / sqrt(mean(x²) + eps) · weight`` for x ``(N, H)`` and weight ``(H,)``."""

    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps

    def normalised(self, x):
        width = x.shape[1]
        scale = rsqrt(row_sum(x * x, -1) * (1.0 / width) + self.eps)
        return tile(scale, (1, width))

    def construct(self, x, weight):
        return x * self.normalised(x) * tile(reshape(weight, (1, -1)), (x.shape[0], 1))

    def bprop(self, x, weight, out, dout):
        # n = x·s; dx = s·(g − n·mean(g·n)) with g = dout·weight
        rows, width = x.shape
        x = late(x, dout)
        scale = self.normalised(x)
        n = x * scale
        g = dout * tile(reshape(late(weight, dout), (1, -1)), (rows, 1))
        mean = tile(row_sum(g * n, -1) * (1.0 / width), (1, width))
        return scale * (g - n * mean), column_sum(dout * n, 0)


class LayerNormKernel(nn.Cell):
    """``(x − mean) / sqrt(var + eps) · weight + bias`` for x ``(N, H)``."""

    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps

    def normalised(self, x):
        width = x.shape[1]
        centred = x - tile(row_sum(x, -1) * (1.0 / width), (1, width))
        scale = tile(rsqrt(row_sum(centred * centred, -1) * (1.0 / width) + self.eps), (1, width))
        return centred * scale, scale

    def construct(self, x, weight, bias):
        rows = x.shape[0]
        n, _ = self.normalised(x)
        return n * tile(reshape(weight, (1, -1)), (rows, 1)) + tile(reshape(bias, (1, -1)), (rows, 1))

    def bprop(self, x, weight, bias, out, dout):
        # dx = s·(g − mean(g) − n·mean(g·n)) with g = dout·weight
        rows, width = x.shape
        n, scale = self.normalised(late(x, dout))
        g = dout * tile(reshape(late(weight, dout), (1, -1)), (rows, 1))
        mean = tile(row_sum(g, -1) * (1.0 / width), (1, width))
        along = tile(row_sum(g * n, -1) * (1.0 / width), (1, width))
        return scale * (g - mean - n * along), column_sum(dout * n, 0), column_sum(dout, 0)


# Activations ---------------------------------------------------------------------------------------------------------


class SwiGLUKernel(nn.Cell):
    """``silu(gate)·up``."""

    def construct(self, gate, up):
        return gate * sigmoid(gate) * up

    def bprop(self, gate, up, out, dout):
        # silu' = σ + x·σ·(1 − σ)
        s = sigmoid(late(gate, dout))
        silu = gate * s
        return dout * up * (s + silu - silu * s), dout * silu


class GeluTanhKernel(nn.Cell):
    """``x·sigmoid(u)`` with ``u = 2·√(2/π)·(x + 0.044715·x³)``, which is tanh-GELU."""

    def construct(self, x):
        return x * sigmoid(x * (x * x * 0.07135481282731592 + 1.5957691216057308))

    def bprop(self, x, out, dout):
        x = late(x, dout)
        square = x * x
        s = sigmoid(x * (square * 0.07135481282731592 + 1.5957691216057308))
        slope = square * 0.21406443848194776 + 1.5957691216057308  # du/dx
        return (dout * (s + x * slope * (s - s * s)),)


# Heads and positions -------------------------------------------------------------------------------------------------


def part_heads(x, start, head_dim):
    """``(B·S, heads·d)`` → ``(B, heads, S, d)``; the batch is that of ``start`` ``(B, S)``."""
    batch, length = start.shape
    heads = x.shape[1] // head_dim
    rows = reshape(x, (batch, length, heads * head_dim))
    # no shortcut for one head: a branch taken by queries and not by a single key head does not compile
    rows = join_second(ops.Split(-1, heads)(rows))  # (B, heads·S, d)
    return reshape(rows, (batch, heads, length, head_dim))


def join_heads_of(x):
    """``(B, heads, S, d)`` → ``(B·S, heads·d)``."""
    batch, heads, length, head_dim = x.shape
    rows = reshape(x, (batch, heads * length, head_dim))
    rows = join_last(ops.Split(1, heads)(rows))  # (B, S, heads·d)
    return reshape(rows, (batch * length, heads * head_dim))


class SplitHeadsKernel(nn.Cell):
    """``(B·S, heads·d)`` → ``(B, heads, S, d)``; the batch is that of ``start`` ``(B, S)``."""

    def __init__(self, head_dim: int):
        super().__init__()
        self.head_dim = head_dim

    def construct(self, x, start):
        return part_heads(x, start, self.head_dim)

    def bprop(self, x, start, out, dout):
        return join_heads_of(dout), zeros_like(start)


class JoinHeadsKernel(nn.Cell):
    """``(B, heads, S, d)`` → ``(B·S, heads·d)``."""

    def construct(self, x, start):
        return join_heads_of(x)

    def bprop(self, x, start, out, dout):
        return part_heads(dout, start, x.shape[3]), zeros_like(start)


class RotaryKernel(nn.Cell):
    """Rotates the first ``width`` dimensions of every head; the rest passes through.

    ``y = x·C + (x·P)·S``: P ``(d, d)`` holds ±1 and turns each pair (a, b) into (−b, a), whatever pairs a family has;
    a product with it is exact. C is 1 and S is 0 where nothing is rotated.

    Args:
        half: pairs are (i, i + width/2); otherwise (2i, 2i + 1).
        width: how many leading dimensions are rotated.
        head_dim: the head's whole width.
    """

    def __init__(self, half: bool, width: int, head_dim: int):
        super().__init__()
        first = np.arange(width // 2) if half else np.arange(0, width, 2)
        second = first + (width // 2 if half else 1)
        turn = np.zeros((head_dim, head_dim), np.float32)
        turn[second, first], turn[first, second] = -1.0, 1.0
        self.turn = Tensor(turn)
        rest = head_dim - width
        self.rest = rest
        self.ones, self.zeros = (
            Tensor(np.ones((1, 1, 1, rest or 1), np.float32)),
            Tensor(np.zeros((1, 1, 1, rest or 1), np.float32)),
        )

    def table(self, values, filler, x):
        """``(B, 1, S, width)`` in the shape of x ``(B, heads, S, d)``."""
        if self.rest > 0:
            values = join_last((values, tile(filler, (values.shape[0], 1, values.shape[2], 1))))
        if values.shape[0] < x.shape[0]:
            return tile(values, (x.shape[0], x.shape[1], 1, 1))
        return tile(values, (1, x.shape[1], 1, 1))

    def construct(self, x, cosine, sine):
        width = x.shape[3]
        turned = reshape(product(reshape(x, (-1, width)), self.turn), x.shape)
        return x * self.table(cosine, self.ones, x) + turned * self.table(sine, self.zeros, x)

    def bprop(self, x, cosine, sine, out, dout):
        width = x.shape[3]
        back = product_rows(reshape(dout * self.table(sine, self.zeros, x), (-1, width)), self.turn)
        dx = dout * self.table(cosine, self.ones, x) + reshape(back, x.shape)
        return dx, zeros_like(cosine), zeros_like(sine)


# Attention -----------------------------------------------------------------------------------------------------------


class AttentionKernel(nn.Cell):
    """Attention over intervals in blocks of query rows.

    Keeps nothing for the backward pass but its inputs and its output; probabilities are computed again, and
    ``rowsum(dout·out)`` stands for the reduction over all scores. Grouped queries are further rows of their key head:
    no key is repeated. Keys in front of the tokens (a prefix: more keys than queries) are seen by every row.

    Args:
        causal: no row sees a key behind its own, so that those are never computed.
    """

    def __init__(self, causal: bool):
        super().__init__()
        self.causal = causal

    def rows(self, x, first, count):
        """Rows ``first … first + count`` of ``(B, heads, S, d)``."""
        if count == x.shape[2]:
            return x
        return part(x, (0, 0, first, 0), (x.shape[0], x.shape[1], count, x.shape[3]))

    def grouped(self, x, like):
        """``(B, heads, S, d)`` → ``(B, kv_heads, g·S, d)``: the g query heads of a key head one below the other."""
        return reshape(x, (x.shape[0], like.shape[1], -1, x.shape[3]))

    def bounds(self, columns, length):
        """Per column ``(B, K)``: the last ``start`` that sees it, and what ``end`` must be above.

        That is its own index, but for columns that nobody sees, and those that are seen whatever ``start`` is: marked
        ones, and keys in front of the tokens.
        """
        batch, total = columns.shape
        index = cast(counting(length - total, length, 1), ms.int32)
        index = tile(reshape(index, (1, total)), (batch, 1))
        nothing = zeros_like(columns)
        always = maximum(cast(less(columns, nothing), ms.int32), cast(less(index, nothing), ms.int32))
        return index + always * BEYOND, index + cast(equal(columns, nothing), ms.int32) * BEYOND

    def bias(self, start, end, columns, heads, first, count, seen, length):
        """0 where a row of the block sees a key, −HIDDEN elsewhere: ``(B, heads, count, seen)``."""
        batch = start.shape[0]
        latest, above = self.bounds(columns, length)
        begin = tile(reshape(part(start, (0, first), (batch, count)), (batch, count, 1)), (1, 1, seen))
        stop = tile(reshape(part(end, (0, first), (batch, count)), (batch, count, 1)), (1, 1, seen))
        latest = tile(reshape(part(latest, (0, 0), (batch, seen)), (batch, 1, seen)), (1, count, 1))
        above = tile(reshape(part(above, (0, 0), (batch, seen)), (batch, 1, seen)), (1, count, 1))
        allowed = cast(less_equal(begin, latest), ms.float32) * cast(less(above, stop), ms.float32)
        return tile(reshape((allowed - 1.0) * HIDDEN, (batch, 1, count, seen)), (1, heads, 1, 1))

    def probabilities(self, query, keys, start, end, columns, first, count, length):
        """``(B, kv_heads, g·count, seen)`` of one block, given its queries ``(B, heads, count, d)``."""
        heads, width, seen = query.shape[1], query.shape[3], keys.shape[2]
        scores = batch_rows(self.grouped(query * (width**-0.5), keys), keys)
        if length > SHARED:  # the mask is made anew for each block, and gone after it
            start = late(start, query)
        bias = self.bias(start, end, columns, heads, first, count, seen, length)
        return softmax(scores + reshape(bias, scores.shape))

    def construct(self, query, keys, values, start, end, columns):
        length, total = query.shape[2], keys.shape[2]
        mixed = ()
        for first in range(0, length, BLOCK):
            count = BLOCK if first + BLOCK < length else length - first
            seen = total - length + first + count if self.causal else total
            if first > 0:  # one block after the other, or all their probabilities would be there at once
                query = late(query, mixed[-1])
            block = self.rows(query, first, count)
            k, v = self.rows(keys, 0, seen), self.rows(values, 0, seen)
            p = self.probabilities(block, k, start, end, columns, first, count, length)
            mixed += (reshape(batch_product(p, v), block.shape),)
        return join_third(mixed) if length > BLOCK else mixed[0]

    def bprop(self, query, keys, values, start, end, columns, out, dout):
        length, total, width = query.shape[2], keys.shape[2], query.shape[3]
        scale = width**-0.5
        query, keys, values = late(query, dout), late(keys, dout), late(values, dout)
        along = row_sum(dout * out, -1)  # (B, heads, S, 1)
        d_query = ()
        d_keys, d_values = None, None
        for first in range(0, length, BLOCK):
            count = BLOCK if first + BLOCK < length else length - first
            seen = total - length + first + count if self.causal else total
            if first > 0:
                query, dout = late(query, d_values), late(dout, d_values)
            block = self.rows(query, first, count)
            k, v = self.rows(keys, 0, seen), self.rows(values, 0, seen)
            g = self.grouped(self.rows(dout, first, count), k)
            p = self.probabilities(block, k, start, end, columns, first, count, length)
            shift = tile(self.grouped(self.rows(along, first, count), k), (1, 1, 1, seen))
            d_scores = p * (batch_rows(g, v) - shift)
            d_query += (reshape(batch_product(d_scores, k) * scale, block.shape),)
            d_k = batch_columns(d_scores, self.grouped(block, k)) * scale
            d_v = batch_columns(p, g)
            if seen < total:
                rest = tile(zero, (k.shape[0], k.shape[1], total - seen, width))
                d_k, d_v = join_third((d_k, rest)), join_third((d_v, rest))
            if first == 0:
                d_keys, d_values = d_k, d_v
            else:
                d_keys, d_values = d_keys + d_k, d_values + d_v
        joined = join_third(d_query) if length > BLOCK else d_query[0]
        return joined, d_keys, d_values, zeros_like(start), zeros_like(end), zeros_like(columns)


# Loss ----------------------------------------------------------------------------------------------------------------


class LinearCrossEntropyKernel(nn.Cell):
    """Summed cross-entropy of ``hidden·weightᵀ`` against targets, without ever holding all logits.

    The gradient of the hidden states is computed along with the loss, piece by piece, which costs no more than the
    plain backward pass and leaves ``(N, H)`` to keep instead of ``(N, V)``: ``(p − onehot)·W`` is ``p·W − W[target]``.
    The weight is taken as frozen.

    Args:
        ignored: the target of rows that do not count.
    """

    def __init__(self, ignored: int):
        super().__init__()
        self.ignored = ignored

    def piece(self, hidden, weight, targets):
        rows, width = hidden.shape
        learnt = cast(targets != self.ignored, ms.float32)
        index = maximum(targets, zeros_like(targets))
        log_p = log_softmax(product_rows(hidden, weight))  # (n, V)
        loss = -column_sum(reshape(pick(log_p, 1, reshape(index, (rows, 1))), (rows,)) * learnt, 0)
        gradient = product(exp(log_p), weight) - gather(weight, index, 0)
        return loss, gradient * tile(reshape(learnt, (rows, 1)), (1, width))

    def construct(self, hidden, weight, targets):
        """Hidden ``(N, H)``, weight ``(V, H)``, targets ``(N,)`` → the summed loss, and its gradient ``(N, H)``."""
        rows, width = hidden.shape
        size = CHUNK_BYTES // (4 * weight.shape[0]) + 1
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


# The shared objects --------------------------------------------------------------------------------------------------

rms_norm = functools.cache(RMSNormKernel)
layer_norm = functools.cache(LayerNormKernel)
swiglu = functools.cache(SwiGLUKernel)
gelu_tanh = functools.cache(GeluTanhKernel)
split_heads = functools.cache(SplitHeadsKernel)
join_heads = functools.cache(JoinHeadsKernel)
rotary = functools.cache(RotaryKernel)
attention = functools.cache(AttentionKernel)
linear_cross_entropy = functools.cache(LinearCrossEntropyKernel)
