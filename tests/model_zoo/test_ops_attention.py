"""Attention's kernels and operators against one another."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor
from operations import check, needs_kernels, numbers

from model_zoo import layers
from model_zoo.engine import cells, plain_attention


def causal(batch, length):
    rows = np.arange(length, dtype=np.int32)[None].repeat(batch, 0)
    return np.zeros_like(rows), rows + 1


def packed(batch, length):
    """Documents of three tokens."""
    _, end = causal(batch, length)
    return (end - 1) // 3 * 3, end


def prefix_mask(batch, length):
    """GLM's: the first four see each other whole."""
    start, end = causal(batch, length)
    return start, np.maximum(end, 4).astype(np.int32)


ATTENTION = [
    # batch, heads, kv_heads, length, extra, layout, padding
    (2, 4, 4, 7, 0, causal, 0),
    (2, 4, 2, 7, 0, packed, 0),
    (1, 6, 1, 9, 0, causal, 0),
    (2, 4, 2, 8, 0, prefix_mask, 0),
    (2, 4, 2, 7, 3, packed, 0),
    (2, 2, 2, 7, 0, causal, 2),
    (2, 4, 1, 9, 2, prefix_mask, 3),
    (1, 2, 2, 1, 0, causal, 0),
]


@pytest.mark.parametrize(
    "index, block, shared",
    [*((index, 256, 1024) for index in range(len(ATTENTION))), (1, 4, 1024), (3, 4, 4), (4, 4, 4)],
)
def test_attention_of_operators(monkeypatch, index, block, shared):
    """Graphs have one block or several, causal or not, each with a mask of its own or not, and keys in front."""
    monkeypatch.setattr(plain_attention, "BLOCK", block)
    monkeypatch.setattr(plain_attention, "SHARED", shared)
    compiled = block == 4 or index in (4, 6, 7)
    check_attention(plain_attention.JoinedAttention, *ATTENTION[index], compiled=compiled)


WINDOWED = {"window": 3, "cap": 1.5, "scale": 0.5}


@pytest.mark.parametrize("case, compiled", [(ATTENTION[1], False), ((1, 2, 1, 12, 3, packed, 2), True)])
def test_windows_and_caps_of_operators(case, compiled, monkeypatch):
    monkeypatch.setattr(plain_attention, "BLOCK", 5)
    check_attention(plain_attention.JoinedAttention, *case, **WINDOWED, compiled=compiled)


@needs_kernels
@pytest.mark.parametrize("case, compiled", [(ATTENTION[1], False), ((1, 2, 1, 53, 3, packed, 2), True)])
def test_windows_and_caps_in_c(case, compiled):
    check_attention(native_attention, *case, **WINDOWED, compiled=compiled)


@needs_kernels
@pytest.mark.parametrize("case", [*ATTENTION[:2], ATTENTION[4], ATTENTION[6], (1, 2, 1, 53, 3, packed, 2)])
def test_attention_in_c(case):
    """A graph of it is one operator each way, whatever the case."""
    check_attention(native_attention, *case, compiled=case is ATTENTION[6])


def native_attention(causal, scale, window, cap):
    return cells.native("attention", causal=causal, scale=scale, window=window, cap=cap)


def check_attention(
    make,
    batch,
    heads,
    kv_heads,
    length,
    extra,
    layout,
    padding,
    scale=8**-0.5,
    window=0,
    cap=0.0,
    compiled=True,
):
    """Attention against the plain core; ``make(causal, scale, window, cap)`` gives the kernel."""
    start, end = (Tensor(array.astype(np.int32)) for array in layout(batch, length))
    keep = np.ones((batch, length), np.int32)
    keep[0, :padding] = 0
    keep[-1, 0] = -1  # seen by every later row, whatever document it is of
    columns = Tensor(np.concatenate([np.ones((batch, extra), np.int32), keep], 1))
    keep_rows, keep = (keep != 0).astype(np.float32).reshape(batch, 1, length, 1), Tensor(keep)
    kernel = make(layout is not prefix_mask, scale, window, cap)
    core = layers.AttentionCore(heads, kv_heads, 8, scale=scale, window=window, cap=cap)

    def fast(query, keys, values):
        return layers.split_heads(kernel(query, keys, values, start, end, columns), batch, heads)

    def plain(query, keys, values):
        return layers.split_heads(core.attend(query, keys, values, start, end, keep, extra, None), batch, heads)

    arrays = [numbers(batch, heads, length, 8)]
    arrays += [numbers(batch, kv_heads, length + extra, 8, seed=seed) for seed in (1, 2)]
    if length == 1:  # one key: no score matters
        mine = ms.jit(fast)(*map(Tensor, arrays)).asnumpy()
        np.testing.assert_allclose(mine, arrays[2], atol=1e-6)
        return
    check(fast, plain, arrays, rows=keep_rows, compiled=compiled)
