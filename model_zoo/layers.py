"""The cells that every family is built from, in plain operators.

Activations travel flattened as ``(N, H)`` with ``N = B·S``: one matrix product per projection, and no broadcasting of
a bias over a third axis. Attention works on ``(B, heads, S, head_dim)``.

Which key a query may look at is an interval per query row, never an ``(S, S)`` mask: row i sees key j when
``start[b, i] <= j < end[b, i]`` and, where ``keep`` is given, ``keep[b, j]`` is not zero. Where ``keep[b, j]`` is below
zero, ``start`` does not matter: so every packed document sees a prompt. Causal, packed, padded and prefix masks are all
of this form.

Every cell has a plain path, which is the reference, and may have a fast one, a kernel of `model_zoo.engine`, used when
``fast`` is set, in compiled graphs and where all layers are operators of the engine. On a device with an operator for
it that takes the place of both (`model_zoo.ascend`). Where layers run as one operator, a cell that calls MindSpore's
operators says in ``trace`` which operations of the engine's table these are; cells made of others need none.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Constant, initializer

from model_zoo.ascend import on_ascend
from model_zoo.ascend.attention import attention_by_documents, has_fused_attention, masked_attention, triangle
from model_zoo.engine import precision_suffix, softmax, unlearned, uses_kernel
from model_zoo.rotary import Rotary

HALVES = (ms.float16, ms.bfloat16)
MASKED = -1e30
"""The score of a hidden key. Finite, so that a row which sees nothing (padding) gives no NaN."""


def new_parameter(shape, dtype=ms.float32, fill: float = 0.0, name: str = "weight") -> Parameter:
    """A new weight of this shape, constant until it is loaded or initialised.

    The initializer's zeros take no memory on a CPU before they are written to, and `Parameter` would copy a Tensor: so
    a model that is built and then loaded is there only once. In MindSpore's automatic parallel modes, and in a job
    with ``RUN_MODE=predict``, a `Parameter` has no memory until a graph is compiled; programs know it by its address.
    """
    made = Parameter(initializer(Constant(fill) if fill else "zeros", tuple(shape), dtype), name=name)
    return made.init_data() if made.has_init else made


def weights_of(parameter: Parameter) -> int:
    """How many weights a parameter stands for: codes in 8 or 4 bits as many as their matrix has, their factors none."""
    return getattr(parameter, "weights", int(parameter.size))


def name_parameters(cell: nn.Cell) -> None:
    """Gives each parameter its structural name, which `parameters_dict` and checkpoints go by."""
    for name, value in cell.parameters_and_names():
        value.name = name


def bias_sum():
    """The operator that adds a bias to rows. Ascend has one for float16 and float32 alone; on a CPU a plain sum takes
    longer."""
    return ops.Add() if on_ascend() else ops.BiasAdd()


def is_product(value) -> bool:
    """Whether this is a ``MatMul``, or a cell that stands for one."""
    return isinstance(value, ops.MatMul) or hasattr(type(value), "stands_for_product")


def traced_linear(tracer, product: str, cell, x, weight, with_bias: bool):
    """The trace of a cell with a product, this weight and perhaps a bias, which may be left out."""
    if not is_product(cell.product):  # it computes in another type
        tracer.refuse(type(cell))
    y = tracer.emit(product + precision_suffix(cell.product), x, weight)
    return tracer.emit("add_bias", y, cell.bias) if with_bias and cell.bias is not None else y


class Linear(nn.Cell):
    """``y = x·Wᵀ + b``, weight ``(out, in)`` as in the published checkpoints.

    Args:
        dtype: of the parameters, and so of the product. A frozen weight may be stored in another one
            (`model_zoo.storage`).
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, dtype=ms.float32):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = new_parameter((out_features, in_features), dtype)
        self.bias = new_parameter((out_features,), dtype) if bias else None
        self.product = ops.MatMul(transpose_b=True)
        self.add_bias = bias_sum()

    def construct(self, x):
        y = self.product(x, self.weight)  # (N, out)
        if self.bias is not None:
            y = self.add_bias(y, self.bias)
        return y

    def trace(self, tracer, x, with_bias=True):
        return traced_linear(tracer, "product_of_rows", self, x, self.weight, with_bias)


class Conv1D(nn.Cell):
    """GPT-2's projection: a `Linear` whose weight is stored ``(in, out)``."""

    def __init__(self, in_features: int, out_features: int, dtype=ms.float32):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = new_parameter((in_features, out_features), dtype)
        self.bias = new_parameter((out_features,), dtype)
        self.product = ops.MatMul()
        self.add_bias = bias_sum()

    def construct(self, x):
        return self.add_bias(self.product(x, self.weight), self.bias)  # (N, out)

    def trace(self, tracer, x, with_bias=True):
        return traced_linear(tracer, "plain_product", self, x, self.weight, with_bias)


class Embedding(nn.Cell):
    """A row of ``weight`` ``(vocabulary, width)`` per id.

    Args:
        vocabulary, width, dtype: of the weight.
        output_scale: what rows are multiplied by, rounded to their type. A tied head is not.
        padding_row: the id whose row no lookup trains, or -1 (`model_zoo.configs.Config.padding_row`).

    Attributes:
        rows: what gives float32 rows of a weight that is stored in fewer bits (`model_zoo.storage`); None for others.
    """

    def __init__(self, vocabulary: int, width: int, dtype=ms.float32, output_scale: float = 1.0, padding_row: int = -1):
        super().__init__()
        self.weight, self.output_scale = new_parameter((vocabulary, width), dtype), output_scale
        self.padding_row = padding_row
        self.gather = ops.Gather()
        self.rows = None
        uses_kernel(self, "rows_of", padding=padding_row)

    def construct(self, ids):
        if self.rows is not None and self.weight.dtype != ms.float32:  # a copy that is trained is float32
            found = self.rows(self.weight, ids)
        elif self.fast and self.weight.dtype == ms.float32:
            found = self.kernel(self.weight, ids)
        else:
            found = unlearned(self.gather(self.weight, ids, 0), ids, self.padding_row)
        return found if self.output_scale == 1.0 else found * self.output_scale  # ids.shape + (width,)

    def trace(self, tracer, ids):
        found = tracer.emit("rows_of", self.weight, ids, padding=self.padding_row)
        return found if self.output_scale == 1.0 else tracer.emit("scale", found, factor=self.output_scale)


class Parts(nn.Cell):
    """Columns in so many equal parts."""

    def __init__(self, count: int):
        super().__init__()
        self.count, self.split = count, ops.Split(-1, count)

    def construct(self, x):
        return self.split(x)

    def trace(self, tracer, x):
        width = x.width // self.count
        return tuple(tracer.columns(x, index * width, width) for index in range(self.count))


_range, _cast = ops.Range(), ops.Cast()
SHORT_RANGE = 1 << 16
"""Numbers that may stand in a compiled graph as a constant, which it holds for as long as it lives."""


@ops.constexpr
def _constant_range(count):
    return Tensor(np.arange(count, dtype=np.int32))


def int_range(count: int):
    """``0 … count − 1`` ``(count,)`` int32; a short one is a constant. A cast takes MindSpore 0.4 ms outside of graphs,
    and its own ``arange`` half a second of compiling in one."""
    return _constant_range(count) if count <= SHORT_RANGE else _cast(_range(0, count, 1), ms.int32)


def visible(start, end, keep, keys: int):
    """The interval rows as a boolean mask ``(B, S, keys)``."""
    index = int_range(keys).reshape(1, 1, keys)
    begun, allowed = index >= start.expand_dims(-1), index < end.expand_dims(-1)
    if keep is not None:
        keep = keep.expand_dims(1)
        begun = ops.logical_or(begun, keep < 0)
        allowed = ops.logical_and(allowed, keep != 0)
    return ops.logical_and(begun, allowed)


def soft_cap(x, cap: float):
    """``cap·tanh(x/cap)``, by the sigmoid: MindSpore's own tanh is off by up to 1e-4 on a CPU."""
    return cap * (2.0 * ops.sigmoid(x * (2.0 / cap)) - 1.0)


class AttentionCore(nn.Cell):
    """Scaled dot-product attention over intervals: the one place where queries meet keys.

    Grouped queries: key head j serves query heads j·g … j·g + g − 1. What puts keys in front of the real ones (a
    prefix) overrides `extend`; what keeps keys from earlier calls sets ``cache``, a cell
    ``(keys, values) → all keys and values so far``.

    Args:
        heads: query heads.
        kv_heads: key and value heads; divides ``heads``.
        head_dim: width of a head.
        causal: whether no token ever sees one behind it, so that the fast path need not look there.
        scale: of the scores; 1/√head_dim where it is None.
        window: a query sees the last so many keys of its own interval, itself among them; 0 for all. What stands in
            front of the tokens (a prefix, a trained prompt) is seen from beyond the window, too.
        cap: scores become ``cap·tanh(score/cap)``; 0 for as they are.

    Attributes:
        narrow: the type of its products where they are narrower than what comes in (`pet.train.precision`), or None.
    """

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        head_dim: int,
        causal: bool = True,
        scale: float | None = None,
        window: int = 0,
        cap: float = 0.0,
    ):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.scale, self.window, self.cap = head_dim**-0.5 if scale is None else scale, window, cap
        self.numbers = {"scale": self.scale, "window": window, "cap": cap}
        self.cache = None
        self.drop = None  # of the weights, while training
        self.causal = causal
        self.narrow = None
        self.fused = has_fused_attention(head_dim) and not cap
        self.triangle = triangle() if self.fused else None
        uses_kernel(self, "attention", causal=causal, **self.numbers)
        self.scores = ops.BatchMatMul(transpose_b=True)
        self.values = ops.BatchMatMul()

    def extend(self, keys, values):
        """Keys that come before the first token: here none.

        Returns:
            keys and values ``(B, kv_heads, T + K, head_dim)``, and which of the T extra ones each row sees, ``(B, T)``,
            or None for all.
        """
        return keys, values, None

    @property
    def takes_documents(self) -> bool:
        """Whether causal batches may come as documents: see `construct`."""
        plain = type(self).extend is AttentionCore.extend and self.drop is None and self.window == 0
        return self.fused and self.causal and plain

    def construct(self, query, keys, values, start, end, keep):
        """Query ``(B, heads, S, d)``, keys and values ``(B, kv_heads, K, d)`` → ``(B·S, heads·d)``.

        ``end`` may be `model_zoo.ascend.attention.document_ends` of a batch, ``(slots,)``, in place of ``(B, S)``.
        """
        if self.cache is not None:
            if self.fast and self.cache.token is not None and not self.cache.prefilling:
                return self.attend_token(query, keys, values, end, keep)
            keys, values = self.cache(keys, values)
            if not self.cache.prefilling:
                end, keep = self.cache.rows(end, keep)
        real = keys.shape[2]
        keys, values, extra_visible = self.extend(keys, values)
        return self.attend(query, keys, values, start, end, keep, keys.shape[2] - real, extra_visible)

    def trace(self, tracer, query, keys, values, start, end, keep):
        if self.drop is not None and self.training:
            tracer.refuse(type(self))
        return tracer.attention(query, keys, values, self.numbers, precision_suffix(self.scores))

    def attend_token(self, query, keys, values, end, keep):
        """One token per row, over the cache: what stands in front of its key stands in front of all."""
        real = keys.shape[2]
        keys, values, extra_visible = self.extend(keys, values)
        columns = self.columns(keep, keep, keys.shape[2] - real, extra_visible)
        return self.cache.attend(query, keys, values, end, columns)

    def attend(self, query, keys, values, start, end, keep, extra, extra_visible):
        batch, _, length, _ = query.shape
        total = keys.shape[2]
        whole = self.cache is None or self.cache.prefilling  # whether these are all keys, and no more
        dropped = self.drop is not None and self.training
        narrow = query.dtype if query.dtype in HALVES else self.narrow
        fused = self.fused and whole and not dropped and narrow is not None
        if len(end.shape) == 1:
            if fused and extra == 0 and self.window == 0 and keep is None:
                return attention_by_documents(query, keys, values, end, self.triangle, self.heads, self.scale, narrow)
            end = ops.broadcast_to(int_range(length) + 1, (batch, length))
        if self.fast and whole and query.dtype == ms.float32 and not dropped and not fused:
            columns = self.columns(start, keep, extra, extra_visible)
            return self.kernel(query, keys, values, start, end, columns)
        if self.window > 0:
            start = ops.maximum(start, end - self.window)
        allowed = visible(start, end, keep, total - extra)  # (B, S, K)
        if extra > 0:
            if extra_visible is None:
                before = ops.ones((batch, length, extra), ms.bool_)
            else:
                before = ops.broadcast_to((extra_visible != 0).expand_dims(1), (batch, length, extra))
            allowed = ops.concat((before, allowed), -1)
        if fused:
            return masked_attention(query, keys, values, allowed, self.heads, self.scale, narrow)
        groups = self.heads // self.kv_heads
        if groups > 1:
            keys, values = self.spread(keys, groups), self.spread(values, groups)
        scores = self.scores(query, keys).astype(ms.float32) * self.scale  # (B, heads, S, K)
        if self.cap > 0:
            scores = soft_cap(scores, self.cap)
        scores = ops.where(allowed.expand_dims(1), scores, MASKED)
        weights = softmax(scores)
        if dropped:
            weights = self.drop(weights)
        mixed = self.values(weights.astype(values.dtype), values)  # (B, heads, S, d)
        return mixed.transpose(0, 2, 1, 3).reshape(batch * length, self.heads * self.head_dim)

    def columns(self, start, keep, extra, extra_visible):
        """Who sees each column, ``(B, extra + S)`` as in ``keep``; the extra ones are 1 or 0."""
        columns = ops.ones_like(start)
        if keep is not None:
            columns = columns * keep.astype(ms.int32)
        if extra > 0:
            before = ops.ones((start.shape[0], extra), ms.int32)
            if extra_visible is not None:
                before = before * (extra_visible != 0).astype(ms.int32)
            columns = ops.concat((before, columns), -1)
        return columns

    def spread(self, x, groups):
        """Each key head once per query head that it serves."""
        batch, heads, length, width = x.shape
        wide = ops.broadcast_to(x.expand_dims(2), (batch, heads, groups, length, width))
        return wide.reshape(batch, heads * groups, length, width)


def split_heads(x, batch: int, heads: int):
    """``(B·S, heads·d)`` → ``(B, heads, S, d)``."""
    return x.reshape(batch, x.shape[0] // batch, heads, x.shape[1] // heads).transpose(0, 2, 1, 3)


class SplitHeads(nn.Cell):
    """``(B·S, heads·d)`` → ``(B, heads, S, d)``; the batch is that of ``start`` ``(B, S)``.

    Args:
        head_dim: d; how many heads there are follows from the width.
    """

    def __init__(self, head_dim: int):
        super().__init__()
        self.head_dim = head_dim
        uses_kernel(self, "split_heads", d=head_dim)

    def construct(self, x, start):
        if self.fast and x.dtype == ms.float32:
            return self.kernel(x, start)
        return split_heads(x, start.shape[0], x.shape[1] // self.head_dim)

    def trace(self, tracer, x, start):
        return tracer.heads(x, self.head_dim)


class SplitRotary(nn.Cell):
    """`SplitHeads`, then `Rotary`."""

    def __init__(self, rotary: Rotary, head_dim: int):
        super().__init__()
        self.rotary, self.head_dim = rotary, head_dim
        uses_kernel(self, f"split_rotary_{rotary.form}", w=rotary.width, d=head_dim)
        self.device = rotary.device

    def construct(self, x, cosine, sine, start):
        """``(B·S, heads·d)`` → ``(B, heads, S, d)``, rotated."""
        if self.fast and x.dtype == ms.float32:
            return self.kernel(x, cosine, sine, start)
        if self.device is not None:
            (batch, length), heads = start.shape, x.shape[1] // self.head_dim
            angles = (1, batch * length, 1, self.rotary.width)
            rows = x.reshape(1, batch * length, heads, self.head_dim)
            rows = self.rotary(rows, cosine.reshape(angles), sine.reshape(angles))
            return rows.reshape(batch, length, heads, self.head_dim).transpose(0, 2, 1, 3)
        return self.rotary(split_heads(x, start.shape[0], x.shape[1] // self.head_dim), cosine, sine)

    def trace(self, tracer, x, cosine, sine, start):
        return tracer.rotated_heads(self.rotary.form, x, self.head_dim, cosine, sine)
