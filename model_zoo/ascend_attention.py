"""Ascend's fused attention, for the cell whose plain path is the reference (`model_zoo.layers.AttentionCore`).

``ops.flash_attention_score`` keeps a few numbers per row and head for the backward pass, where the plain path keeps all
probabilities. It takes 16-bit tensors alone. Its compressed masks (causal, band, prefix) and its variable lengths are
for intervals that are known when a graph is compiled; here they are data, so that the mask is whole: a byte for each
query and key, one mask for all heads.

Written by its documentation, which a test holds to a NumPy model of it. It has not been run on a device.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import ops

ALL_MASK = 1
"""The operator's mode for a mask of all queries and keys."""
WIDTHS = range(16, 513, 16)
"""Of a head, that it takes."""


def has_fused_attention(head_dim: int) -> bool:
    """Whether the device has the operator for heads of this width."""
    return ms.get_context("device_target") == "Ascend" and head_dim in WIDTHS


def fused_attention(query, keys, values, allowed, heads: int, scale: float):
    """Scaled dot-product attention.

    Args:
        query: ``(B, heads, S, d)``, float16 or bfloat16.
        keys, values: ``(B, kv_heads, K, d)``, of the same type.
        allowed: ``(B, S, K)``, which keys a query may look at. A query that may look at none gets some mean of all, as
            by the plain path: nobody reads it, but it must be a number.
        heads: of the query.
        scale: of the scores.

    Returns:
        ``(B, heads, S, d)``
    """
    nothing = ops.logical_not(allowed.any(-1, keep_dims=True))
    hidden = ops.logical_not(ops.logical_or(allowed, nothing)).expand_dims(1)  # (B, 1, S, K)
    return ops.flash_attention_score(
        query,
        keys,
        values,
        heads,
        attn_mask=hidden,
        scalar_value=scale,
        input_layout="BNSD",
        sparse_mode=ALL_MASK,
    )
