"""Checks of attention, of whole rows and of a token at a time."""

from __future__ import annotations

import itertools

import numpy as np
from native_kernels import bf16, close, joined, numbers, within


def heads(kernels):
    for batch, length, count, width in [(1, 1, 1, 2), (2, 5, 3, 6), (3, 70, 2, 64), (1, 130, 5, 10)]:
        x, start = numbers(batch * length, count * width), np.zeros((batch, length), np.int32)
        parted = x.reshape(batch, length, count, width).transpose(0, 2, 1, 3)
        split = kernels("split_heads", (x, start), parted.shape)
        np.testing.assert_array_equal(split, parted)
        np.testing.assert_array_equal(kernels("join_heads", (split, start), x.shape), x)
        for rotated in {width, max(2, width // 4 * 2)}:
            for tables in {1, batch}:
                for form in ("half", "interleaved"):
                    rotary(kernels, parted, rotated, tables, form)


def rotary(kernels, x, rotated, tables, form):
    angles = numbers(tables, 1, x.shape[2], rotated // 2).astype(np.float64)
    lanes = np.concatenate([angles, angles], -1) if form == "half" else np.repeat(angles, 2, -1)
    pairs = x[..., :rotated].astype(np.float64)
    if form == "half":
        a, b = pairs[..., : rotated // 2], pairs[..., rotated // 2 :]
    else:
        a, b = pairs[..., 0::2], pairs[..., 1::2]
    for name, sign in ((f"rotary_{form}", 1), (f"rotary_{form}_back", -1)):
        first = a * np.cos(angles) - sign * b * np.sin(angles)
        second = b * np.cos(angles) + sign * a * np.sin(angles)
        if form == "half":
            turned = np.concatenate([first, second], -1)
        else:
            turned = np.stack([first, second], -1).reshape(pairs.shape)
        table = np.cos(lanes).astype(np.float32), np.sin(lanes).astype(np.float32)
        expected = np.concatenate([turned, x[..., rotated:]], -1)
        close(kernels(name, (x, *table), x.shape), expected)
        # the same in one with splitting the heads
        joined = x.transpose(0, 2, 1, 3).reshape(x.shape[0] * x.shape[2], -1)
        start = np.zeros((x.shape[0], x.shape[2]), np.int32)
        if sign == 1:
            close(kernels(f"split_{name}", (joined, *table, start), x.shape), expected)
        else:
            back = expected.transpose(0, 2, 1, 3).reshape(joined.shape)
            close(kernels(f"split_{name}", (x, *table, start), joined.shape), back)


def rotary_tables(kernels):
    positions = np.array([[0, 1, 511], [70000, 3, 2]], np.int32)
    for width in (1, 2, 9, 64):
        lanes, scale = np.abs(numbers(width)), np.array([1.5], np.float32)
        angles = positions.astype(np.float32)[:, None, :, None] * lanes
        found = kernels("rotary_table", (positions, lanes, scale), angles.shape, angles.shape)
        for mine, function in zip(found, (np.cos, np.sin), strict=True):
            assert np.array_equal(mine, function(angles.astype(np.float64)).astype(np.float32) * scale), width


def causal(batch, length, generator):
    rows = np.arange(length, dtype=np.int32)[None].repeat(batch, 0)
    return np.zeros_like(rows), rows + 1


def packed(batch, length, generator):
    _, end = causal(batch, length, generator)
    return (end - 1) // 29 * 29, end


def anything(batch, length, generator):
    """Intervals of all kinds, also empty and beyond the ends."""
    return tuple(generator.integers(-5, length + 6, (2, batch, length)).astype(np.int32))


ATTENTION = [  # batch, heads, key heads, length, extra columns, head_dim, layout, columns' values
    (1, 1, 1, 1, 0, 4, causal, (1,)),
    (2, 4, 2, 7, 0, 5, causal, (1,)),
    (1, 3, 3, 49, 0, 64, causal, (1,)),
    (2, 4, 1, 100, 0, 16, packed, (1,)),
    (1, 2, 1, 97, 3, 80, packed, (0, 1, 1, 1)),
    (1, 2, 2, 130, 0, 128, causal, (1,)),
    (2, 6, 2, 60, 5, 8, causal, (0, 1, 1, -1)),
    (3, 2, 2, 51, 0, 20, anything, (1,)),
    (2, 4, 2, 75, 9, 33, anything, (-1, 0, 0, 1)),
    (1, 2, 1, 20, 2, 8, causal, (0,)),
]


def scores(width, window=0, cap=0.0):
    """The constants of attention: scale, window and cap."""
    return np.array([width**-0.5], np.float32), np.array([window], np.int32), np.array([cap], np.float32)


def attention_cases():
    """Inputs of the kernel, and which key ``(B, 1, S, K)`` each row sees."""
    for case, (window, cap) in itertools.product(ATTENTION, ((0, 0.0), (11, 1.5))):
        batch, count, key_heads, length, extra, width, layout, values = case
        generator = np.random.default_rng(3)
        total = length + extra
        start, end = layout(batch, length, generator)
        columns = generator.choice(values, (batch, total)).astype(np.int32)
        query = numbers(batch, count, length, width) * 2
        keys, vals = (numbers(batch, key_heads, total, width, seed=seed) for seed in (1, 2))
        index, value = np.arange(total) - extra, columns[:, None, :]
        begun = np.maximum(start, end - window) if window else start
        allowed = (index < end[..., None]) & ((index >= begun[..., None]) | (value < 0))
        inputs = (query, keys, vals, start, end, columns, *scores(width, window, cap))
        yield inputs, ((value != 0) & (allowed | (index < 0)))[:, None]


def attention(kernels, low=False):
    """In float64; the kernel that rounds factors to bfloat16 against the same of rounded factors, to what rounding the
    scores, which it computes itself, may change."""
    name, rounded = ("attention_bf16", bf16) if low else ("attention", lambda x: x)
    unit = 2.0**-8 if low else 0.0  # half of a bfloat16's last place
    for inputs, allowed in attention_cases():
        (query, keys, vals), cap = inputs[:3], inputs[-1][0]
        batch, count, length, width = query.shape
        groups = count // keys.shape[1]
        out, stats = kernels(name, inputs, (batch * length, count * width), (batch, count, length, 2))
        q, k, v = (rounded(x).astype(np.float64) for x in (query, keys.repeat(groups, 1), vals.repeat(groups, 1)))
        raw = q @ k.swapaxes(2, 3) * width**-0.5
        bent = np.tanh(raw / cap) if cap else 0.0
        seen = np.where(allowed, cap * bent if cap else raw, -1e30)
        p = np.exp(seen - seen.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        within(out, joined(p @ v), 5e-6, unit * joined(p @ np.abs(v)))
        dout = numbers(*out.shape, seed=5)
        wide = dout.reshape(batch, length, count, width).transpose(0, 2, 1, 3).astype(np.float64)
        d = rounded(dout).reshape(batch, length, count, width).transpose(0, 2, 1, 3).astype(np.float64)
        own = out.reshape(batch, length, count, width).transpose(0, 2, 1, 3)
        d_p = d @ v.swapaxes(2, 3)
        d_scores = p * (d_p - (own * wide if low else p * d_p).sum(-1, keepdims=True))
        d_scores = np.where(allowed, d_scores, 0.0) * (1.0 - np.square(bent)) * width**-0.5
        grouped = (*keys.shape[:2], groups, *keys.shape[2:])

        def summed(x, grouped=grouped):
            return x.reshape(grouped).sum(2)

        mine = kernels(f"{name}_gradient", (*inputs, out, stats, dout), query.shape, keys.shape, vals.shape)
        for left, right, gradient, over in (
            (d_scores, k, mine[0], lambda x: x),
            (d_scores.swapaxes(2, 3), q, mine[1], summed),
            (p.swapaxes(2, 3), d, mine[2], summed),
        ):
            within(gradient, over(left @ right), 1e-5, unit * over(np.abs(left) @ np.abs(right)))


def attention_bf16(kernels):
    if kernels.library.pet_bf16():
        attention(kernels, True)


def prefixed(kernels):
    """What `attention` gives where the trained keys and values stand in front of every row's own."""
    for batch, count, key_heads, length, front, width in [
        (1, 1, 1, 1, 1, 3),
        (3, 4, 2, 50, 7, 16),
        (2, 2, 2, 130, 20, 64),
    ]:
        start, end = np.zeros((batch, length), np.int32), np.tile(np.arange(1, length + 1, dtype=np.int32), (batch, 1))
        columns = np.random.default_rng(0).choice([0, 1, 1], (batch, length)).astype(np.int32)
        prefix = numbers(front, 2, key_heads, width, seed=4)
        query = numbers(batch, count, length, width) * 2
        own = [numbers(batch, key_heads, length, width, seed=seed) for seed in (1, 2)]
        wide = [
            np.concatenate([np.tile(prefix[:, which].swapaxes(0, 1), (batch, 1, 1, 1)), own[which]], 2)
            for which in (0, 1)
        ]
        joined, dout = (batch * length, count * width), numbers(batch * length, count * width, seed=5)
        seen = np.concatenate([np.ones((batch, front), np.int32), columns], 1)
        inputs = (query, *wide, start, end, seen, *scores(width, 20, 1.5))
        out, stats = kernels("attention", inputs, joined, (batch, count, length, 2))
        dq, dk, dv = kernels(
            "attention_gradient", (*inputs, out, stats, dout), query.shape, wide[0].shape, wide[1].shape
        )
        given = (query, *own, start, end, columns, *inputs[-3:], prefix.reshape(front, -1))
        mine = kernels("attention_prefixed", given, joined, (batch, count, length, 2))
        assert all(np.array_equal(one, other) for one, other in zip(mine, (out, stats), strict=True))
        shapes = (query.shape, own[0].shape, own[1].shape, (front, 2 * key_heads * width))
        *found, d_prefix = kernels("attention_prefixed_gradient", (*given, out, stats, dout), *shapes)
        right = (dq, dk[:, :, front:], dv[:, :, front:])
        assert all(np.array_equal(one, other) for one, other in zip(found, right, strict=True))
        of_prefix = np.stack(
            [dk[:, :, :front].sum(0, np.float64), dv[:, :, :front].sum(0, np.float64)]
        )  # (2, heads, T, d)
        close(d_prefix, of_prefix.transpose(2, 0, 1, 3).reshape(front, -1))


def one_token(kernels):
    """Attention of one token over kept keys and values, into which it puts its own: those of all columns, or of some in
    front and as many as the window is wide."""
    for batch, count, key_heads, width, front, room, window, cap, pinned, held in [
        (1, 1, 1, 5, 0, 1, 0, 0.0, 0, 1),
        (2, 4, 2, 64, 0, 40, 0, 0.0, 0, 40),
        (2, 4, 2, 64, 0, 40, 7, 0.0, 0, 40),
        (2, 4, 2, 64, 0, 40, 7, 0.0, 0, 7),
        (2, 4, 2, 64, 0, 40, 1, 0.0, 3, 4),
        (40, 2, 2, 16, 0, 40, 9, 0.0, 0, 9),
        (3, 6, 1, 80, 7, 33, 0, 1.5, 0, 33),
        (3, 6, 1, 80, 7, 33, 8, 1.5, 2, 33),
        (33, 6, 3, 80, 7, 33, 8, 1.5, 2, 10),
    ]:
        query = numbers(batch, count, 1, width) * 2
        keys, values = (numbers(batch, key_heads, front + 1, width, seed=seed) for seed in (1, 2))
        past = [numbers(batch, key_heads, room, width, seed=seed) for seed in (3, 4)]  # of every column
        end = np.full((batch, 1), room, np.int32) - np.arange(batch, dtype=np.int32)[:, None] % room
        columns = np.random.default_rng(0).integers(0, 2, (batch, front + room)).astype(np.int32)
        columns[np.arange(batch), front + end[:, 0] - 1] = 1
        kept = [np.full((batch, key_heads, held, width), np.nan, np.float32) for _ in past]
        expected = np.zeros((batch, count, width))
        for row in range(batch):
            last = end[row, 0] - 1
            for array, whole, new in zip(kept, past, (keys, values), strict=True):
                whole[row, :, last] = new[row, :, front]
                for column in range(last + 1):  # as the kernel does with the last one: inputs stay what they were
                    turn = column if column < pinned else pinned + (column - pinned) % (held - pinned)
                    array[row, :, turn] = whole[row, :, column]
            seen, index = columns[row, : front + last + 1] != 0, np.arange(front + last + 1) - front
            if window:
                seen &= (index < pinned) | (index > last - window)
            for head in range(count):
                pair = head // (count // key_heads)
                k, v = (
                    np.concatenate([new[row, pair, :front], array[row, pair, : last + 1]])[seen].astype(np.float64)
                    for array, new in zip(past, (keys, values), strict=True)
                )
                own = k @ query[row, head, 0].astype(np.float64) * width**-0.5
                own = cap * np.tanh(own / cap) if cap else own
                p = np.exp(own - own.max())
                expected[row, head] = p @ v / p.sum()
        flat = [array.reshape(-1, width) for array in kept]
        given = (query, keys, values, *flat, end, columns, *scores(width, window, cap), np.array([pinned], np.int32))
        mine = kernels("token_attention", given, (batch, count * width))
        close(mine, expected.reshape(batch, -1), 5e-6)
        if not front:
            continue
        for array in (keys, values):  # in front of all rows the same, and seen by all
            array[:, :, :front] = array[:1, :, :front]
        columns[:, :front] = 1
        joined = np.stack([keys[0, :, :front], values[0, :, :front]]).transpose(2, 0, 1, 3)  # (T, 2, key heads, d)
        prefix, new = joined.reshape(front, -1), [array[:, :, front:].copy() for array in (keys, values)]
        alike = (query, *new, *given[3:6], columns[:, front:].copy(), *given[7:], prefix)
        mine = kernels("token_attention_prefixed", alike, (batch, count * width))
        assert np.array_equal(mine, kernels("token_attention", given, (batch, count * width)))
