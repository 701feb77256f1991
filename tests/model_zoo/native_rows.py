"""Checks of what goes by rows and by single numbers: norms, activations, the loss, updates, experts."""

from __future__ import annotations

import ctypes
import itertools
import math

import numpy as np
from native_kernels import UNTOUCHED, close, numbers


def updates(kernels):
    pointers = ctypes.POINTER(ctypes.c_float)
    for sizes in ([1], [15, 2, 33], [16385, 3], [70001]):
        size = sum(sizes)
        gradient = numbers(size, seed=1)
        # one array after the other with nothing to be touched between them
        rooms = [kernels.room((n,), UNTOUCHED) for n in sizes]
        vectors = [kernels.room((size,), UNTOUCHED) for _ in range(2)]
        for number, (array, _) in enumerate((*rooms, *vectors)):
            array[...] = numbers(array.size, seed=number)
        vectors[1][0][...] **= 2
        w, m, v = (
            array.astype(np.float64) for array in (np.concatenate([a for a, _ in rooms]), *(a for a, _ in vectors))
        )
        factor, step, root, keep, *betas = np.array([0.25, 0.01, 0.5, 0.999, 0.1, 0.999, 0.001, 1e-8], np.float32)
        kernels.library.adamw_in_place(
            ctypes.c_int64(len(sizes)),
            (pointers * len(sizes))(*[array.ctypes.data_as(pointers) for array, _ in rooms]),
            (ctypes.c_int64 * len(sizes))(*sizes),
            *[array.ctypes.data_as(pointers) for array in (gradient, *(array for array, _ in vectors))],
            (ctypes.c_float * 8)(factor, step, root, keep, *betas),
        )
        g = gradient.astype(np.float64) * factor
        m = m + (g - m) * betas[0]
        v = v * betas[1] + g * g * betas[2]
        w = w * keep - step * (m / (np.sqrt(v) / root + betas[3]))
        mine = [np.concatenate([array for array, _ in rooms]), *(array for array, _ in vectors)]
        for one, right in zip(mine, (w, m, v), strict=True):
            close(one, right)
            kernels.digest.update(one.tobytes())
        for array, whole in (*rooms, *vectors):
            assert not kernels.guarded or (whole == UNTOUCHED).sum() == whole.size - array.size
        several = (gradient, *(array.reshape(1, -1, 1) for array, _ in vectors))
        squared = [(array.astype(np.float64) ** 2).sum() for array in several]
        np.testing.assert_allclose(kernels("sums_of_squares", several, (3,)), squared, rtol=1e-6)
        end_to_end = np.concatenate([array.reshape(-1) for array in several])
        assert np.array_equal(kernels("joined", several, end_to_end.shape), end_to_end)


def norms(kernels):
    for rows, width in [(1, 1), (1, 5), (7, 33), (300, 16), (2, 8193), (513, 100)]:
        x, weight, bias = numbers(rows, width) * 2 + 0.5, numbers(width, seed=1), numbers(width, seed=2)
        dout, eps = numbers(rows, width, seed=3), np.array([1e-5], np.float32)
        for kind, offset in (("rms", 0.0), ("rms", 1.0), ("layer", 0.0)):
            wide, g = x.astype(np.float64), dout.astype(np.float64)
            mean = wide.mean(1, keepdims=True) if kind == "layer" else np.zeros((rows, 1))
            centred = wide - mean
            scale = 1 / np.sqrt((centred**2).mean(1, keepdims=True) + eps.astype(np.float64))
            moved, given = weight.astype(np.float64) + offset, np.array([offset], np.float32)
            q = g * moved * scale
            expected = q - centred * scale**2 * (q * centred).mean(1, keepdims=True)
            column = (rows, 1)
            if kind == "layer":
                out, m, s = kernels("layer_norm", (x, weight, bias, eps), x.shape, column, column)
                close(m, mean)
                expected -= q.mean(1, keepdims=True)
                between = (m, s)
                close(out, centred * scale * weight + bias, 1e-5)
            else:
                out, s = kernels("rms_norm", (x, weight, eps, given), x.shape, column)
                between = (s,)
                close(out, centred * scale * moved, 1e-5)
            np.testing.assert_allclose(s, scale, rtol=1e-5)
            first = (given,) if kind == "rms" else ()
            close(kernels(f"{kind}_norm_gradient", (x, weight, *first, *between, dout), x.shape), expected, 1e-5)
            close(
                kernels(f"{kind}_norm_weight_gradient", (x, *between, dout), (width,)),
                (g * centred * scale).sum(0),
                1e-5,
            )


def activations(kernels):
    for shape in [(1, 1), (3, 11), (1, 16), (131, 127)]:
        gate, up, dout = numbers(*shape) * 4, numbers(*shape, seed=1), numbers(*shape, seed=2)
        g, u, d = (array.astype(np.float64) for array in (gate, up, dout))
        s = 1 / (1 + np.exp(-g))
        close(kernels("swiglu", (gate, up), shape), g * s * u)
        d_gate, d_up = kernels("swiglu_gradient", (gate, up, dout), shape, shape)
        close(d_gate, d * u * (s + g * s * (1 - s)))
        close(d_up, d * g * s)
        root = np.sqrt(2 / np.pi)
        inner = root * (g + 0.044715 * g**3)
        close(kernels("gelu_tanh", (gate,), shape), 0.5 * g * (1 + np.tanh(inner)))
        slope = 0.5 * (1 + np.tanh(inner)) + 0.5 * g * (1 - np.tanh(inner) ** 2) * root * (1 + 3 * 0.044715 * g**2)
        close(kernels("gelu_tanh_gradient", (gate, dout), shape), d * slope)
        bent = 0.5 * g * (1 + np.tanh(inner))
        close(kernels("geglu", (gate, up), shape), bent * u)
        d_gate, d_up = kernels("geglu_gradient", (gate, up, dout), shape, shape)
        close(d_gate, d * u * slope)
        close(d_up, d * bent)
        share = np.vectorize(lambda value: 0.5 * math.erfc(-value / math.sqrt(2)))(g)
        close(kernels("gelu", (gate,), shape), g * share)
        bell = np.exp(-(g**2) / 2) / np.sqrt(2 * np.pi)
        close(kernels("gelu_gradient", (gate, dout), shape), d * (share + g * bell))
        assert np.array_equal(kernels("relu", (gate,), shape), np.maximum(gate, 0))
        assert np.array_equal(kernels("relu_gradient", (gate, dout), shape), np.where(gate > 0, dout, 0))
        close(kernels("silu", (gate,), shape), g * s)
        close(kernels("silu_gradient", (gate, dout), shape), d * (s + g * s * (1 - s)))
        close(kernels("hyperbolic_tangent", (gate,), shape), np.tanh(g))
        close(kernels("hyperbolic_tangent_gradient", (gate, dout), shape), d * (1 - np.tanh(g) ** 2))
    far = np.array([[-1e30, -1000, -100, -88, 0, 88, 100, 1000]], np.float32)
    close(kernels("swiglu", (far, np.ones_like(far)), far.shape), np.maximum(far, 0))
    for name in ("gelu_tanh", "gelu"):
        close(kernels(name, (far,), far.shape), np.maximum(far, 0))


def loss(kernels):
    for rows, width, vocabulary, together in [
        (1, 1, 1, 1), (5, 3, 3, 2), (9, 16, 16, 9), (33, 40, 1000, 10), (70, 24, 37, 30), (4, 6, 9, 1), (4, 6, 1, 2),
        (3, 20, 8195, 3)
    ]:  # fmt: skip
        hidden, weight = numbers(rows, width), numbers(vocabulary, width, seed=1)
        targets = np.random.default_rng(0).integers(0, vocabulary, rows).astype(np.int32)
        targets[1::3] = -100
        nothing = np.full_like(targets, -100)
        for counted, cap, smoothing in itertools.product((targets, nothing), (0.0, 1.5), (0.0, 0.3)):
            room = (together, vocabulary + 2 * width + 2)
            wide = hidden.astype(np.float64) @ weight.astype(np.float64).T
            bent = np.tanh(wide / cap) if cap else np.zeros_like(wide)
            wide = cap * bent if cap else wide
            p = np.exp(wide - wide.max(1, keepdims=True))
            total = p.sum(1, keepdims=True)
            p /= total
            index, learnt = np.maximum(counted, 0), counted >= 0
            wanted = (1 - smoothing) * np.eye(vocabulary)[index] + smoothing / vocabulary
            expected = np.log(total[:, 0]) + wide.max(1) - (wanted * wide).sum(1)
            first = (wide.argmax(1) == counted).astype(np.float64)
            p -= wanted
            p *= learnt[:, None] * (1 - bent**2)
            inputs = (hidden, weight, counted, np.array([cap, smoothing, 0], np.float32))
            losses, gradient, _ = kernels("linear_cross_entropy", inputs, (rows,), hidden.shape, room)
            close(losses, expected * learnt)
            close(gradient, p @ weight)
            found = kernels("linear_cross_entropy_trained", inputs, (rows,), hidden.shape, weight.shape, room)
            assert np.array_equal(found[0], losses) and np.array_equal(found[1], gradient)
            close(found[2], p.T @ hidden)
            measured, ranked, _ = kernels("ranked_cross_entropy", inputs, (rows,), (rows,), room)
            assert np.array_equal(measured, losses) and np.array_equal(ranked, first)
            if rows % 2 or together % 2:
                continue
            counted, apart = counted.repeat(2)[:rows], 0.7  # a target for both rows of a pair
            index, learnt = np.maximum(counted, 0), counted >= 0
            p = np.exp(log_p := wide - np.log(total) - wide.max(1, keepdims=True))
            other, log_other = (of.reshape(-1, 2, vocabulary)[:, ::-1].reshape(rows, vocabulary) for of in (p, log_p))
            divergence = (p * (log_p - log_other)).sum(1, keepdims=True)
            both = divergence.reshape(-1, 2).sum(1).repeat(2)
            wanted = (1 - smoothing) * np.eye(vocabulary)[index] + smoothing / vocabulary
            slopes = p + apart * (p * (log_p - log_other - divergence) + p - other) - wanted
            slopes *= learnt[:, None] * (1 - bent**2)
            inputs = (hidden, weight, counted, np.array([cap, smoothing, apart], np.float32))
            found = kernels("linear_cross_entropy_trained", inputs, (rows,), hidden.shape, weight.shape, room)
            close(found[0], (apart / 2 * both - (wanted * log_p).sum(1)) * learnt)
            close(found[1], slopes @ weight)
            close(found[2], slopes.T @ hidden)
    # a small loss is no difference of large sums
    sure = np.ones((2, 1), np.float32), np.array([[64], [54], [3]], np.float32), np.zeros(2, np.int32)
    for apart in (0, 1):
        inputs = (*sure, np.array([0, 0, apart], np.float32))
        losses = kernels("linear_cross_entropy", inputs, (2,), (2, 1), (2, 7))[0]
        assert np.abs(losses / np.log1p(np.exp(-10)) - 1).max() < 1e-3
    # of equal logits the first is ranked first
    same, targets, none = np.ones((4, 2), np.float32), np.array([0, 1, 2, -1], np.int32), np.zeros(3, np.float32)
    _, ranked, _ = kernels("ranked_cross_entropy", (same, same[:3], targets, none), (4,), (4,), (4, 9))
    assert ranked.tolist() == [1, 0, 0, 0]
    # a target that there is not shows
    losses, ranked, _ = kernels("ranked_cross_entropy", (same, same[:3], targets + 1, none), (4,), (4,), (4, 9))
    assert np.isnan(losses).tolist() == [False, False, True, False] and ranked.tolist() == [0, 0, 0, 1]
    losses, _, _ = kernels("linear_cross_entropy", (same, same[:3], targets + 1, none), (4,), (4, 2), (4, 9))
    assert np.isnan(losses).tolist() == [False, False, True, False]


def added(kernels):
    """What adds to what is there: to its output, or to its last input."""
    for rows, columns, depth in [(1, 1, 1), (5, 37, 64), (70, 130, 300), (13, 64, 2100)]:
        a, b, before = numbers(rows, depth), numbers(columns, depth, seed=1), numbers(rows, columns, seed=2)
        expected = before + a.astype(np.float64) @ b.astype(np.float64).T
        close(kernels("product_of_rows_added", (a, b), (rows, columns), holding=before), expected, 1e-5)
        close(kernels("plain_product_added", (a, b.T.copy()), (rows, columns), holding=before), expected, 1e-5)
        close(kernels("product_of_rows_onto", (a, b, before), (rows, columns)), expected, 1e-5)
    for rows, width in [(1, 1), (3, 7), (50, 64), (9, 131)]:
        x, dy, before = (numbers(rows, width, seed=seed) for seed in range(3))
        weight, scale, mean = numbers(width, seed=3), np.abs(numbers(rows, 1, seed=4)) + 0.5, numbers(rows, 1, seed=5)
        offset = np.array([1.0], np.float32)
        for name, numbers_of in (("rms_norm_gradient", (offset, scale)), ("layer_norm_gradient", (mean, scale))):
            given = (x, weight, *numbers_of, dy)
            alone = kernels(name, given, (rows, width)).astype(np.float64)
            close(kernels(f"{name}_added", (*given, before), (rows, width)), before + alone)


def small(kernels):
    """Sums, and columns apart and together."""
    for shape in [(1, 1), (3, 17), (2, 3, 5, 8), (300, 130)]:
        x, y = numbers(*shape), numbers(*shape, seed=1)
        factor = np.array([1.75], np.float32)
        close(kernels("add", (x, y, factor), shape), x.astype(np.float64) * 1.75 + y)
        close(kernels("scale", (x, factor), shape), x.astype(np.float64) * 1.75)
        both = (*shape[:-1], 2 * shape[-1])
        assert np.array_equal(kernels("join_columns", (x, y), both), np.concatenate([x, y], -1))
        first = np.array([shape[-1] // 2], np.int32)
        taken = x[..., first[0] : first[0] + shape[-1] // 2]
        assert np.array_equal(kernels("take_columns", (x, first), taken.shape), taken)
        expected = np.concatenate([y, x], -1)
        expected[..., first[0] : first[0] + shape[-1]] = x
        before = np.concatenate([y, x], -1)
        assert np.array_equal(kernels("put_columns", (x, first), both, holding=before), expected)
        if len(shape) == 2:
            bias = numbers(shape[1], seed=2)
            close(kernels("add_bias", (x, bias), shape), x + bias)
            close(kernels("column_sum", (x,), (shape[1],)), x.astype(np.float64).sum(0))
            close(kernels("scale_columns", (x, bias), shape), x.astype(np.float64) * bias)
            close(kernels("scale_columns_gradient", (x, y), (shape[1],)), (x.astype(np.float64) * y).sum(0))
        else:
            for held, pinned in ((7, 0), (7, 6), (2, 0), (3, 1), (5, 2), (1, 0)):
                room = np.zeros((shape[0] * shape[1] * held, shape[3]), np.float32)
                expected = room.reshape(*shape[:2], held, shape[3]).copy()
                for column in range(shape[2]):
                    turn = column if column < pinned else pinned + (column - pinned) % (held - pinned)
                    expected[:, :, turn] = x[:, :, column]
                mine = kernels("keep_columns", (x, np.array([pinned], np.int32)), room.shape, holding=room)
                assert np.array_equal(mine.reshape(expected.shape), expected)


def experts(kernels):
    for rows, width, chosen in ((1, 1, 1), (7, 4, 2), (33, 5, 5), (260, 128, 8)):
        logits, dy = (3 * numbers(rows, width, seed=seed) for seed in (1, 2))
        x = logits.astype(np.float64)
        every = np.exp(x - x.max(-1, keepdims=True))
        every /= every.sum(-1, keepdims=True)
        mark = np.zeros_like(every)
        np.put_along_axis(mark, np.argsort(-every, -1)[:, :chosen], 1, -1)
        for normed in (0, 1):
            choice = np.array([chosen], np.int32), np.array([normed], np.int32)
            expected = every * mark
            share = expected / expected.sum(-1, keepdims=True) if normed else expected
            mine, *places = kernels("chosen_shares", (logits, *choice), logits.shape, *[(rows, chosen)] * 3)
            row_of, expert_of, token_of = (place.view(np.int32) for place in places)
            tokens, ones = np.nonzero(mark)
            order = np.argsort(ones, kind="stable")  # by experts, and by tokens of one
            assert np.array_equal(expert_of.reshape(-1), ones[order])
            assert np.array_equal(token_of.reshape(-1), tokens[order])
            assert np.array_equal(row_of.reshape(-1), np.argsort(order))
            close(mine, share)
            assert np.array_equal(mine != 0, mark != 0)
            slope = share * dy - (share if normed else every) * (share * dy).sum(-1, keepdims=True)
            close(kernels("chosen_shares_gradient", (logits, *choice, mine, dy), logits.shape), slope)
        hidden, parts, d_total = numbers(rows, 19), numbers(rows * chosen, 19, seed=4), numbers(rows, 19, seed=5)
        gathered = kernels("rows_to_experts", (hidden, token_of, row_of), parts.shape)
        assert np.array_equal(gathered, hidden[token_of.reshape(-1)])
        close(kernels("rows_from_experts", (parts, row_of), hidden.shape), parts[row_of].astype(np.float64).sum(1))
        meant = (np.arange(width) % 3 == 0).astype(np.int32)
        some = kernels("rows_of_some", (row_of, expert_of, meant), row_of.shape).view(np.int32)
        of_meant = meant[expert_of.reshape(-1)][row_of] != 0
        assert np.array_equal(some, np.where(of_meant, row_of, -1))
        for which, there in ((row_of, np.ones_like(of_meant)), (some, of_meant)):
            by = np.take_along_axis(mine, expert_of.reshape(-1)[row_of], 1).astype(np.float64) * there
            summed = parts, mine, which, expert_of
            close(kernels("sum_by_share", summed, hidden.shape), (parts[row_of] * by[..., None]).sum(1))
            outputs = kernels("sum_by_share_gradient", (*summed, d_total), parts.shape, mine.shape, holding=0.0)
            d_parts, d_shares = np.zeros(parts.shape), np.zeros(mine.shape)
            d_parts[row_of] = by[..., None] * d_total[:, None]
            along = (parts[row_of].astype(np.float64) * d_total[:, None]).sum(-1) * there
            np.put_along_axis(d_shares, expert_of.reshape(-1)[row_of], along, 1)
            close(outputs[0], d_parts)
            close(outputs[1], d_shares)
        factors = numbers(rows, 1, seed=3)
        close(kernels("scale_rows", (dy, factors), dy.shape), dy.astype(np.float64) * factors)
        close(kernels("scale_rows_gradient", (logits, dy), factors.shape), (x * dy).sum(-1, keepdims=True))
