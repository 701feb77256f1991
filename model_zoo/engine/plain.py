"""The table's plain column: what stands for kernels in C without a compiler, and what these are tested against.

For the wide tensors of a step these are cells with backward passes written out; without them a step takes two and a
half times the memory and up to a fifth more time. What makes a compiled graph of operators slow on a CPU, and what is
done about it here:

- An element-wise operator that broadcasts is about three times as slow as one on equal shapes, and keeps 16 bytes of
  index table per element and operator for as long as the graph lives. So whatever is narrow is tiled first; a table
  that all layers tile alike is tiled once, because the compiler merges equal operators.
- ``Transpose`` keeps such a table too (8 bytes per element). Heads are parted and joined by ``Split`` and ``Concat``,
  which copy whole rows and keep nothing.
- Automatic differentiation of a softmax, a norm or an activation strings together many operators over the widest
  tensors. Each kernel, here and in `model_zoo.engine.plain_attention`, is a cell with a ``bprop`` that recomputes what
  is cheap from the inputs.

They are for compiled graphs; run operator by operator they are slower than the cells' own operators. All are float32.
They have no parameters, so that one object, parsed once, serves every layer: get it from the functions in lower case.
Gradients that nobody asks for (of frozen weights, of masks) are dropped by the compiler.
"""

from __future__ import annotations

import functools

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from model_zoo.engine.plain_rows import softmax

tile, reshape, zeros_like, ones_like = ops.Tile(), ops.Reshape(), ops.ZerosLike(), ops.OnesLike()
row_sum, column_sum = ops.ReduceSum(keep_dims=True), ops.ReduceSum()
rsqrt, sigmoid = ops.Rsqrt(), ops.Sigmoid()
product, product_rows = ops.MatMul(), ops.MatMul(transpose_b=True)
cast, maximum, part = ops.Cast(), ops.Maximum(), ops.Slice()
stop_gradient = ops.stop_gradient
join_last, join_second = ops.Concat(-1), ops.Concat(1)
late = ops.Depend()
"""`late(x, dout)` is x, but not before dout is there. Without it the compiler would find that the backward pass does
what the forward pass did already, and keep its results all the time in between, which takes far more memory."""

# Norms ---------------------------------------------------------------------------------------------------------------


class RMSNormKernel(nn.Cell):
    """``x / sqrt(mean(x²) + eps) · (weight + offset)`` for x ``(N, H)`` and weight ``(H,)``, and what the
    backward pass needs.

    A row's scale times a column's weight is a product ``(N, 1)·(1, H)``, for which there is a faster kernel than for
    two tiled factors.
    """

    def __init__(self, eps: float, offset: float):
        super().__init__()
        self.eps, self.offset = eps, offset

    def construct(self, x, weight):
        """→ the output, and each row's scale ``(N, 1)``."""
        scale = rsqrt(row_sum(x * x, -1) * (1.0 / x.shape[1]) + self.eps)
        return x * product(scale, reshape(weight + self.offset, (1, -1))), scale

    def bprop(self, x, weight, out, dout):
        # y = x·s·w: with q = dy·s·w, dx = q − x·s²·mean(q·x)
        width = x.shape[1]
        dout = dout[0]
        scale = late(out[1], dout)
        q = dout * product(scale, reshape(weight + self.offset, (1, -1)))
        along = tile(scale * scale * row_sum(q * x, -1) * (1.0 / width), (1, width))
        return q - x * along, column_sum(dout * x * tile(scale, (1, width)), 0)


class LayerNormKernel(nn.Cell):
    """``(x − mean) / sqrt(var + eps) · weight + bias`` for x ``(N, H)``, and what the backward pass needs."""

    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps

    def construct(self, x, weight, bias):
        """→ the output, and each row's mean and scale ``(N, 1)``."""
        rows, width = x.shape
        mean = row_sum(x, -1) * (1.0 / width)
        centred = x - tile(mean, (1, width))
        scale = rsqrt(row_sum(centred * centred, -1) * (1.0 / width) + self.eps)
        shift = tile(reshape(bias, (1, -1)), (rows, 1))
        return centred * product(scale, reshape(weight, (1, -1))) + shift, mean, scale

    def bprop(self, x, weight, bias, out, dout):
        # y = c·s·w + b with c = x − mean: with q = dy·s·w, dx = q − mean(q) − c·s²·mean(q·c)
        width = x.shape[1]
        dout = dout[0]
        scale = late(out[2], dout)
        centred = x - tile(late(out[1], dout), (1, width))
        q = dout * product(scale, reshape(weight, (1, -1)))
        mean = tile(row_sum(q, -1) * (1.0 / width), (1, width))
        along = tile(scale * scale * row_sum(q * centred, -1) * (1.0 / width), (1, width))
        d_weight = column_sum(dout * centred * tile(scale, (1, width)), 0)
        return q - mean - centred * along, d_weight, column_sum(dout, 0)


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


class GeGLUKernel(nn.Cell):
    """``gelu(gate)·up``, gelu as in `GeluTanhKernel`."""

    def __init__(self):
        super().__init__()
        self.gelu = gelu_tanh()

    def construct(self, gate, up):
        return self.gelu(gate) * up

    def bprop(self, gate, up, out, dout):
        return self.gelu.bprop(gate, out, dout * up)[0], dout * self.gelu(late(gate, dout))


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
        self.rest = head_dim - width
        self.ones = Tensor(np.ones((1, 1, 1, self.rest or 1), np.float32))
        self.zeros = Tensor(np.zeros((1, 1, 1, self.rest or 1), np.float32))

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


class SplitRotaryKernel(nn.Cell):
    """`SplitHeadsKernel` and `RotaryKernel`, one after the other; the arguments are theirs."""

    def __init__(self, half: bool, width: int, head_dim: int):
        super().__init__()
        self.split, self.rotary = split_heads(head_dim), rotary(half, width, head_dim)

    def construct(self, x, cosine, sine, start):
        """``(B·S, heads·d)`` → ``(B, heads, S, d)``, rotated."""
        return self.rotary(self.split(x, start), cosine, sine)


# Low-rank sums -------------------------------------------------------------------------------------------------------


class LowRankKernel(nn.Cell):
    """LoRA's sum, ``y + s·(x·Aᵀ)·Bᵀ``."""

    def __init__(self, scale: float):
        super().__init__()
        self.scale = scale

    def construct(self, y, x, a, b):
        """y ``(N, out)``, x ``(N, in)``, A ``(r, in)``, B ``(out, r)`` → ``(N, out)``."""
        return y + product_rows(product_rows(x, a) * self.scale, b)


# The shared objects, by the numbers of the operation ------------------------------------------------------------------


class First(nn.Cell):
    """The first output of a kernel."""

    def __init__(self, kernel):
        super().__init__()
        self.kernel = kernel

    def construct(self, *inputs):
        return self.kernel(*inputs)[0]


@functools.cache
def rms_norm(eps, offset):
    return First(RMSNormKernel(eps, offset))


@functools.cache
def layer_norm(eps):
    return First(LayerNormKernel(eps))


@functools.cache
def rotary(half, w, d):
    return RotaryKernel(half, w, d)


@functools.cache
def split_rotary(half, w, d):
    return SplitRotaryKernel(half, w, d)


@functools.cache
def split_heads(d):
    return SplitHeadsKernel(d)


relu = ops.ReLU
swiglu = functools.cache(SwiGLUKernel)
gelu_tanh = functools.cache(GeluTanhKernel)
geglu = functools.cache(GeGLUKernel)
join_heads = functools.cache(JoinHeadsKernel)
low_rank = functools.cache(LowRankKernel)

# Operations that only whole layers use -------------------------------------------------------------------------------


def product_of_rows():
    return ops.MatMul(transpose_b=True)


def plain_product():
    return ops.MatMul()


def rotary_table(scale):
    def tables(positions, lanes):
        return ops.cos(ops.expand_dims(positions, 1)[..., None].astype(ms.float32) * lanes) * scale

    return tables


def add_bias():
    return ops.BiasAdd()


def gelu():
    return lambda x: 0.5 * x * (1.0 + ops.erf(x * 0.7071067811865476))


def silu():
    return lambda x: x * ops.sigmoid(x)


def hyperbolic_tangent():
    return lambda x: 2.0 * ops.sigmoid(2.0 * x) - 1.0  # MindSpore's own is off by up to 1e-4 on a CPU


def add(factor):
    return lambda x, y: x * factor + y


def scale(factor):
    return lambda x: x * factor


def scale_columns():
    return lambda x, factors: x * factors


def chosen_shares(chosen, normed):
    top, mark = ops.TopK(), ops.OneHot()
    one, nothing = Tensor(1.0, ms.float32), Tensor(0.0, ms.float32)

    def shares(logits):
        found = softmax(logits)
        _, best = top(found, chosen)  # (N, chosen)
        found = found * mark(best, logits.shape[1], one, nothing).sum(1)
        return found / found.sum(-1, keepdims=True) if normed else found

    return shares


def rows_to_experts():
    return lambda x, tokens, rows: ops.gather(x, tokens.reshape(-1), 0)


def sum_by_share():
    def total(x, shares, rows, experts):
        own = ops.gather(experts.reshape(-1), rows, 0)  # (N, chosen)
        return (ops.gather(x, rows, 0) * ops.gather_elements(shares, 1, own).expand_dims(-1)).sum(1)

    return total


def join_columns():
    return lambda a, b: ops.concat((a, b), -1)


def take_columns(first, w):
    return lambda x: x[..., first : first + w]


def dora(scale, transposed, taken):
    """``y + (m/‖W + s·B·A‖ − 1)·(y − bias)``; the norm is taken as constant (Liu et al. 2024). No first factors."""

    def rescale(y, weight, a, b, norm, magnitude, bias=None):
        weight = weight.T if transposed else weight
        built = ops.stop_gradient(weight + scale * ops.matmul(b, a))
        factor = magnitude * ops.rsqrt((built * built).sum(-1))
        return y + (factor - 1.0) * (y if bias is None else y - bias)

    return rescale
