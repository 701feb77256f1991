"""The C kernels as cells: each takes and gives what its namesake in `model_zoo.fused` does.

A graph calls them as one operator where those take a dozen, each a pass over memory. They keep as little for the
backward pass, and see no other shapes.
"""

from __future__ import annotations

import functools

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from model_zoo import fused
from model_zoo.engine.build import library
from model_zoo.fused import column_sum, zeros_like


@functools.cache
def operator(name: str, shapes, kinds=None):
    """The C function of this name as an operator.

    Args:
        shapes: input shapes → output shape, or a tuple of them.
        kinds: input types → output types in the same form; the default is float32.
    """
    if kinds is None:
        kinds = float_like(shapes)
    return ops.Custom(f"{library()}:{name}", out_shape=shapes, out_dtype=kinds, func_type="aot")


def float_like(shapes):
    """float32 for every output of ``shapes``."""

    count = getattr(shapes, "outputs", 1)

    def kinds(*types):
        return types[0] if count == 1 else (types[0],) * count

    return kinds


def outputs(count: int):
    """Marks a shape function as giving this many."""

    def mark(function):
        function.outputs = count
        return function

    return mark


def as_first(*shapes):
    return shapes[0]


def as_second(*shapes):
    return shapes[1]


def last_axis(*shapes):
    return shapes[0][1:]


@outputs(2)
def two_as_first(*shapes):
    return shapes[0], shapes[0]


@outputs(2)
def with_scale(x, *others):
    return x, [x[0], 1]


@outputs(3)
def with_mean_and_scale(x, *others):
    return x, [x[0], 1], [x[0], 1]


@outputs(2)
def with_rows(x, *others):
    return [x[0]], x


@outputs(2)
def with_statistics(query, *others):
    return joined_shape(query), [*query[:3], 2]


@outputs(3)
def as_three(query, keys, values, *others):
    return query, keys, values


def rows_by_rows(left, right):
    return [left[0], right[0]]


def rows_by_columns(left, right):
    return [left[0], right[1]]


def columns_by_columns(left, right):
    return [left[1], right[1]]


class Products(nn.Cell):
    """The three products of matrices that one product and its gradients take."""

    def __init__(self):
        super().__init__()
        self.by_rows = operator("product_of_rows", rows_by_rows)
        self.plain = operator("plain_product", rows_by_columns)
        self.by_columns = operator("product_of_columns", columns_by_columns)


class RowsProduct(Products):
    """``a·bᵀ`` for a ``(M, K)`` and b ``(N, K)``."""

    def construct(self, a, b):
        return self.by_rows(a, b)

    def bprop(self, a, b, out, dout):
        return self.plain(dout, b), self.by_columns(dout, a)


class PlainProduct(Products):
    """``a·b`` for a ``(M, K)`` and b ``(K, N)``."""

    def construct(self, a, b):
        return self.plain(a, b)

    def bprop(self, a, b, out, dout):
        return self.by_rows(dout, b), self.by_columns(a, dout)


rows_product = functools.cache(RowsProduct)
plain_product = functools.cache(PlainProduct)


class OnlyInGraphs(nn.Cell):
    """A cell whose C kernel takes trained matrices that tensor parallelism may have cut."""

    uncompiled = False
    """Set while functions run operator by operator: MindSpore would then take a parameter that was cut for whole, and
    refuse its gradient from a cell with a ``bprop``."""


class Product(OnlyInGraphs):
    """Takes the place of a ``MatMul`` without ``transpose_a``; what is not two float32 matrices goes by that.

    Args:
        primitive: the ``MatMul``.
    """

    stands_for_product = True

    def __init__(self, primitive):
        super().__init__()
        self.primitive = primitive
        self.kernel = rows_product() if primitive.transpose_b else plain_product()

    def construct(self, left, right):
        if left.dtype == ms.float32 and right.dtype == ms.float32 and not self.uncompiled:
            return self.kernel(left, right)
        return self.primitive(left, right)


@outputs(2)
def with_inner(y, x, a, *others):
    return y, [y[0], a[0]]


@outputs(3)
def of_low_rank(a, b, scale, x, *others):
    return x, a, b


class LowRankRows(nn.Cell):
    """``y + s·(x·Aᵀ)·Bᵀ`` and, for the backward pass, ``s·x·Aᵀ``."""

    def __init__(self):
        super().__init__()
        self.forward = operator("low_rank", with_inner)
        self.gradient = operator("low_rank_gradient", of_low_rank)

    def construct(self, y, x, a, b, scale):
        return self.forward(y, x, a, b, scale)

    def bprop(self, y, x, a, b, scale, out, dout):
        dx, da, db = self.gradient(a, b, scale, x, out[1], dout[0])
        return dout[0], dx, da, db, zeros_like(scale)


class LowRank(OnlyInGraphs):
    """See `fused.LowRankKernel`."""

    def __init__(self):
        super().__init__()
        self.rows, self.plain = LowRankRows(), fused.low_rank()

    def construct(self, y, x, a, b, scale):
        if self.uncompiled:
            return self.plain(y, x, a, b, scale)
        return self.rows(y, x, a, b, scale)[0]


class RMSNorm(nn.Cell):
    """See `fused.RMSNormKernel`."""

    def __init__(self, eps: float):
        super().__init__()
        self.eps = Tensor(np.array([eps], np.float32))
        self.forward = operator("rms_norm", with_scale)
        self.gradient = operator("rms_norm_gradient", as_first)
        self.weight_gradient = operator("rms_norm_weight_gradient", last_axis)

    def construct(self, x, weight):
        return self.forward(x, weight, self.eps)

    def bprop(self, x, weight, out, dout):
        dout, scale = dout[0], out[1]
        return self.gradient(x, weight, scale, dout), self.weight_gradient(x, scale, dout)


class LayerNorm(nn.Cell):
    """See `fused.LayerNormKernel`."""

    def __init__(self, eps: float):
        super().__init__()
        self.eps = Tensor(np.array([eps], np.float32))
        self.forward = operator("layer_norm", with_mean_and_scale)
        self.gradient = operator("layer_norm_gradient", as_first)
        self.weight_gradient = operator("layer_norm_weight_gradient", last_axis)

    def construct(self, x, weight, bias):
        return self.forward(x, weight, bias, self.eps)

    def bprop(self, x, weight, bias, out, dout):
        dout, mean, scale = dout[0], out[1], out[2]
        d_weight = self.weight_gradient(x, mean, scale, dout)
        return self.gradient(x, weight, mean, scale, dout), d_weight, column_sum(dout, 0)


class SwiGLU(nn.Cell):
    """See `fused.SwiGLUKernel`."""

    def __init__(self):
        super().__init__()
        self.forward = operator("swiglu", as_first)
        self.gradient = operator("swiglu_gradient", two_as_first)

    def construct(self, gate, up):
        return self.forward(gate, up)

    def bprop(self, gate, up, out, dout):
        return self.gradient(gate, up, dout)


class GeluTanh(nn.Cell):
    """See `fused.GeluTanhKernel`."""

    def __init__(self):
        super().__init__()
        self.forward = operator("gelu_tanh", as_first)
        self.gradient = operator("gelu_tanh_gradient", as_first)

    def construct(self, x):
        return self.forward(x)

    def bprop(self, x, out, dout):
        return (self.gradient(x, dout),)


@functools.cache
def split_shape(head_dim: int):
    """``(B·S, heads·d)`` and that of ``start`` ``(B, S)`` → ``(B, heads, S, d)``."""

    def shape(x, start):
        return [start[0], x[1] // head_dim, start[1], head_dim]

    return shape


def joined_shape(x, *others):
    return [x[0] * x[2], x[1] * x[3]]


class SplitHeads(nn.Cell):
    """See `fused.SplitHeadsKernel`."""

    def __init__(self, head_dim: int):
        super().__init__()
        self.split = operator("split_heads", split_shape(head_dim))
        self.join = operator("join_heads", joined_shape)

    def construct(self, x, start):
        return self.split(x, start)

    def bprop(self, x, start, out, dout):
        return self.join(dout, start), zeros_like(start)


class Rotary(nn.Cell):
    """See `fused.RotaryKernel`."""

    def __init__(self, half: bool):
        super().__init__()
        form = "half" if half else "interleaved"
        self.forward = operator(f"rotary_{form}", as_first)
        self.back = operator(f"rotary_{form}_back", as_first)

    def construct(self, x, cosine, sine):
        return self.forward(x, cosine, sine)

    def bprop(self, x, cosine, sine, out, dout):
        return self.back(dout, cosine, sine), zeros_like(cosine), zeros_like(sine)


@functools.cache
def split_rotary_shape(head_dim: int):
    """``(B·S, heads·d)``, cosines, sines and ``start`` ``(B, S)`` → ``(B, heads, S, d)``."""

    def shape(x, cosine, sine, start):
        return [start[0], x[1] // head_dim, start[1], head_dim]

    return shape


class SplitRotary(nn.Cell):
    """See `fused.SplitRotaryKernel`."""

    def __init__(self, half: bool, head_dim: int):
        super().__init__()
        form = "half" if half else "interleaved"
        self.forward = operator(f"split_rotary_{form}", split_rotary_shape(head_dim))
        self.back = operator(f"split_rotary_{form}_back", joined_shape)

    def construct(self, x, cosine, sine, start):
        return self.forward(x, cosine, sine, start)

    def bprop(self, x, cosine, sine, start, out, dout):
        dx = self.back(dout, cosine, sine, start)
        return dx, zeros_like(cosine), zeros_like(sine), zeros_like(start)


class AttentionRows(nn.Cell):
    """Attention, joined heads ``(B·S, heads·d)``, and what the backward pass needs of each row."""

    def __init__(self):
        super().__init__()
        self.forward = operator("attention", with_statistics)
        self.gradient = operator("attention_gradient", as_three)

    def construct(self, query, keys, values, start, end, columns):
        return self.forward(query, keys, values, start, end, columns)

    def bprop(self, query, keys, values, start, end, columns, out, dout):
        d_query, d_keys, d_values = self.gradient(query, keys, values, start, end, columns, out[0], out[1], dout[0])
        return d_query, d_keys, d_values, zeros_like(start), zeros_like(end), zeros_like(columns)


class Attention(nn.Cell):
    """`fused_attention.AttentionKernel` and `fused.JoinHeadsKernel` in one.

    Memory grows with the sequence's length, not with its square.
    """

    joins = True

    def __init__(self):
        super().__init__()
        self.rows = AttentionRows()

    def construct(self, query, keys, values, start, end, columns):
        return self.rows(query, keys, values, start, end, columns)[0]
