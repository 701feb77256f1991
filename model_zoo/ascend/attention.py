"""Attention by ``ops.flash_attention_score``, for the cell whose plain path is the reference
(`model_zoo.layers.AttentionCore`).

The operator keeps a few numbers per row and head for the backward pass, where the plain path keeps all probabilities.
It takes 16-bit tensors alone, in two forms:

- *With a mask* for any intervals: a byte for each query and key, one mask for all heads. The operator's mode for
  prefixes takes such a mask as well, so that it would save nothing.
- *By documents* (the layout ``TND``), where every token sees what stands before it in its own document, as in causal
  packed rows: all rows are one, and the only mask is a triangle of 2048 that all calls share. What is more than causal
  is not for this form: its documentation allows no prefix and no band.
"""

from __future__ import annotations

import functools

import numpy as np
from mindspore import Tensor, ops

from model_zoo.ascend import has_operators

ALL_MASK, CAUSAL = 1, 3
"""The operator's modes for a mask of all queries and keys, and for triangles that end with the last key."""
WIDTHS = range(16, 513, 16)
"""Of a head, that it takes."""
TRIANGLE = 2048
"""Rows and columns of the mask that stands for every triangle."""
SLOTS = (64, 256, 1024)
"""How many documents a graph is compiled for; the operator takes 1024 at most."""


def has_fused_attention(head_dim: int) -> bool:
    """Whether the device has the operator for heads of this width."""
    return has_operators() and head_dim in WIDTHS


@functools.cache
def triangle() -> Tensor:
    """What a token does not see: what stands behind it."""
    return Tensor(np.triu(np.ones((TRIANGLE, TRIANGLE), np.bool_), 1))


def document_ends(start: np.ndarray, end: np.ndarray) -> np.ndarray | None:
    """Where the documents of a batch end, counted over all rows.

    No document may be empty, and a graph has a fixed number of them. So there are as many tokens behind the batch as
    there are slots, and the slots that are left over have these, at least one each. Padding, whose tokens see
    themselves alone, is one document: nobody reads what it sees.

    Args:
        start, end: the tokens' intervals ``(B, S)``.

    Returns:
        int64 ``(slots,)``, one of `SLOTS`, increasing up to ``B·S + slots``; None where a token sees another interval
        than what stands before it in its document, or where there are too many documents.
    """
    tokens, own = start.size, np.arange(start.shape[1])
    begins = start == own
    if (end != own + 1).any() or (np.maximum.accumulate(np.where(begins, own, 0), axis=1) != start).any():
        return None
    alone = begins.copy()
    alone[:, :-1] &= begins[:, 1:]
    begins[:, 1:] &= ~(alone[:, 1:] & alone[:, :-1])
    first = np.flatnonzero(begins)
    slots = next((count for count in SLOTS if count > len(first)), None)
    if slots is None:
        return None
    spare = tokens + np.arange(1, slots - len(first) + 1)
    spare[-1] = tokens + slots
    return np.concatenate((first[1:], [tokens], spare)).astype(np.int64)


def masked_attention(query, keys, values, allowed, heads: int, scale: float, dtype):
    """Scaled dot-product attention over any intervals.

    Args:
        query: ``(B, heads, S, d)``.
        keys, values: ``(B, kv_heads, K, d)``.
        allowed: ``(B, S, K)``, which keys a query may look at. A query that may look at none gets some mean of all, as
            by the plain path: nobody reads it, but it must be a number.
        dtype: float16 or bfloat16, to compute in.

    Returns:
        ``(B·S, heads·d)``, of the query's type.
    """
    batch, _, length, width = query.shape
    nothing = ops.logical_not(allowed.any(-1, keep_dims=True))
    hidden = ops.logical_not(ops.logical_or(allowed, nothing)).expand_dims(1)  # (B, 1, S, K)
    mixed = ops.flash_attention_score(
        query.astype(dtype),
        keys.astype(dtype),
        values.astype(dtype),
        heads,
        attn_mask=hidden,
        scalar_value=scale,
        input_layout="BNSD",
        sparse_mode=ALL_MASK,
    )
    return mixed.transpose(0, 2, 1, 3).reshape(batch * length, heads * width).astype(query.dtype)


def attention_by_documents(query, keys, values, ends, mask, heads: int, scale: float, dtype):
    """The same where every token sees what stands before it in its own document.

    Args:
        ends: see `document_ends`.
        mask: `triangle`.
    """
    batch, _, length, width = query.shape
    mixed = ops.flash_attention_score(
        _rows(query, ends.shape[0], dtype),
        _rows(keys, ends.shape[0], dtype),
        _rows(values, ends.shape[0], dtype),
        heads,
        attn_mask=mask,
        actual_seq_qlen=ends,
        actual_seq_kvlen=ends,
        scalar_value=scale,
        next_tokens=0,
        input_layout="TND",
        sparse_mode=CAUSAL,
    )
    return mixed[: batch * length].reshape(batch * length, heads * width).astype(query.dtype)


def _rows(x, spare: int, dtype):
    """``(B, heads, S, d)`` → ``(B·S + spare, heads, d)``."""
    batch, heads, length, width = x.shape
    rows = x.astype(dtype).transpose(0, 2, 1, 3).reshape(batch * length, heads, width)
    return ops.concat((rows, ops.zeros((spare, heads, width), dtype)), 0)
