"""Attention for the table's plain column: blocks of query rows, with the backward pass written out."""

from __future__ import annotations

import functools

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from model_zoo.engine.plain import (
    cast,
    join_heads,
    join_last,
    late,
    maximum,
    part,
    reshape,
    row_sum,
    sigmoid,
    tile,
    zeros_like,
)

HIDDEN = 1e30
"""Taken from the score of a hidden key: what is left is exactly ``-HIDDEN``, as in the plain path."""

BLOCK = 256
"""Query rows per block of attention. Smaller blocks skip more hidden keys, but cost more operators to compile."""

SHARED = 1024
"""Up to this length all layers share one mask, ``B·heads·S²/2`` numbers. Beyond, each block makes its own piece anew,
and memory grows with S, not with S²."""

BEYOND = 1 << 30
"""An index behind every sequence."""

batch_product = ops.BatchMatMul()
batch_rows, batch_columns = ops.BatchMatMul(transpose_b=True), ops.BatchMatMul(transpose_a=True)
softmax, join_third = ops.Softmax(-1), ops.Concat(2)
equal, less, less_equal, counting = ops.Equal(), ops.Less(), ops.LessEqual(), ops.Range()
zero, one = Tensor(np.zeros((1, 1, 1, 1), np.float32)), Tensor(np.ones((1, 1, 1, 1), np.float32))


class AttentionKernel(nn.Cell):
    """Attention over intervals in blocks of query rows.

    Keeps nothing for the backward pass but its inputs and its output; probabilities are computed again, and
    ``rowsum(dout·out)`` stands for the reduction over all scores. It is taken off within the product with the values,
    as one more column of ``dout`` against a column of ones, not by two more passes over all scores.

    Grouped queries are further rows of their key head: no key is repeated. Keys in front of the tokens (a prefix: more
    keys than queries) are seen by every row.

    Args:
        causal: no row sees a key behind its own, so that those are never computed.
        scale, window, cap: as in `model_zoo.layers.AttentionCore`.
    """

    def __init__(self, causal: bool, scale: float, window: int, cap: float):
        super().__init__()
        self.causal, self.scale, self.window, self.cap = causal, scale, window, cap

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
        """``(B, kv_heads, g·count, seen)`` of one block, given its queries ``(B, heads, count, d)``; and the slopes of
        its scores, where they are capped."""
        heads, seen = query.shape[1], keys.shape[2]
        scores = batch_rows(self.grouped(query * self.scale, keys), keys)
        slopes = scores
        if self.cap > 0:
            bent = 2.0 * sigmoid(scores * (2.0 / self.cap)) - 1.0
            scores, slopes = self.cap * bent, 1.0 - bent * bent
        if length > SHARED:  # the mask is made anew for each block, and gone after it
            start = late(start, query)
        bias = self.bias(start, end, columns, heads, first, count, seen, length)
        return softmax(scores + reshape(bias, scores.shape)), slopes

    def begun(self, start, end):
        """Where each row's interval starts, by the window."""
        return maximum(start, end - self.window) if self.window > 0 else start

    def construct(self, query, keys, values, start, end, columns):
        length, total = query.shape[2], keys.shape[2]
        start = self.begun(start, end)
        mixed = ()
        for first in range(0, length, BLOCK):
            count = BLOCK if first + BLOCK < length else length - first
            seen = total - length + first + count if self.causal else total
            if first > 0:  # one block after the other, or all their probabilities would be there at once
                query = late(query, mixed[-1])
            block = self.rows(query, first, count)
            k, v = self.rows(keys, 0, seen), self.rows(values, 0, seen)
            p, _ = self.probabilities(block, k, start, end, columns, first, count, length)
            mixed += (reshape(batch_product(p, v), block.shape),)
        return join_third(mixed) if length > BLOCK else mixed[0]

    def bprop(self, query, keys, values, start, end, columns, out, dout):
        length, total, width = query.shape[2], keys.shape[2], query.shape[3]
        scale, start = self.scale, self.begun(start, end)
        query, keys, values = late(query, dout), late(keys, dout), late(values, dout)
        along = -row_sum(dout * out, -1)  # (B, heads, S, 1)
        extended = join_last((values, tile(one, (values.shape[0], values.shape[1], total, 1))))
        d_query = ()
        d_keys, d_values = None, None
        for first in range(0, length, BLOCK):
            count = BLOCK if first + BLOCK < length else length - first
            seen = total - length + first + count if self.causal else total
            if first > 0:
                query, dout = late(query, d_values), late(dout, d_values)
            block = self.rows(query, first, count)
            k = self.rows(keys, 0, seen)
            g = self.rows(dout, first, count)
            shifted = self.grouped(join_last((g, self.rows(along, first, count))), k)
            g = self.grouped(g, k)
            p, slopes = self.probabilities(block, k, start, end, columns, first, count, length)
            d_scores = p * batch_rows(shifted, self.rows(extended, 0, seen))
            if self.cap > 0:
                d_scores = d_scores * slopes
            d_query += (reshape(batch_product(d_scores, k) * scale, block.shape),)
            d_k = batch_columns(d_scores, self.grouped(block * scale, k))
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


class JoinedAttention(nn.Cell):
    """Attention, and its heads joined: ``(B·S, heads·d)``."""

    def __init__(self, causal: bool, scale: float, window: int, cap: float):
        super().__init__()
        self.attention, self.join = AttentionKernel(causal, scale, window, cap), join_heads()

    def construct(self, query, keys, values, start, end, columns):
        return self.join(self.attention(query, keys, values, start, end, columns), start)


joined = functools.cache(JoinedAttention)


def joined_prefixed(causal, scale, window, cap):
    """The same with a prefix ``(T, 2·key heads·d)`` in front of each row's keys and values."""
    attend = joined(causal, scale, window, cap)

    def attention(query, keys, values, start, end, columns, prefix):
        batch, heads, _, width = keys.shape
        front = prefix.reshape(-1, 2, heads, width).transpose(1, 2, 0, 3)  # (2, key heads, T, d)
        before = [tile(front[which : which + 1], (batch, 1, 1, 1)) for which in range(2)]
        seen = ops.concat((ops.ones((batch, prefix.shape[0]), ms.int32), columns), 1)
        return attend(query, ops.concat((before[0], keys), 2), ops.concat((before[1], values), 2), start, end, seen)

    return attention
