"""Tiny networks of MindSpore's cells, in the shapes that libraries of models have them: no family of this library."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops


def numbers(*shape, seed: int = 0) -> Tensor:
    return Tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


class Attention(nn.Cell):
    """As in vision transformers: one projection to queries, keys and values."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads, self.width = heads, width
        self.qkv = nn.Dense(width, 3 * width)
        self.proj = nn.Dense(width, width, has_bias=False)

    def construct(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, self.heads, width // self.heads).transpose(2, 0, 3, 1, 4)
        weights = ops.softmax(ops.matmul(qkv[0], qkv[1].swapaxes(-1, -2)), -1)
        return self.proj(ops.matmul(weights, qkv[2]).transpose(0, 2, 1, 3).reshape(batch, length, width))


class Block(nn.Cell):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm((width,))
        self.attn = Attention(width, 2)
        self.mlp = nn.SequentialCell(nn.Dense(width, 2 * width, activation="tanh"), nn.Dense(2 * width, width))

    def construct(self, x):
        x = x + self.attn(self.norm(x))
        return x + self.mlp(x)


class Vision(nn.Cell):
    """A vision transformer: patches by a convolution, blocks in a list, a head."""

    targets = ("qkv", "attn.proj", "re:blocks.*mlp.*", "head")

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, stride=4, pad_mode="pad", has_bias=True)
        self.place = Parameter(numbers(1, 4, 8, seed=7), name="place")
        self.blocks = nn.CellList([Block(8), Block(8)])
        self.head = nn.Dense(8, 5)

    def construct(self, x):
        x = self.patches(x).reshape(x.shape[0], 8, 4).transpose(0, 2, 1) + self.place
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))

    @staticmethod
    def example() -> Tensor:
        return numbers(2, 3, 8, 8)


class Convolutional(nn.Cell):
    """Convolutions with batch norms, one of them by channels, and a shared cell that is called twice."""

    targets = ("re:stem.*", "twice", "head")

    def __init__(self):
        super().__init__()
        self.stem = nn.SequentialCell(nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU())
        self.channels = nn.Conv2d(6, 6, 3, group=6)
        self.twice = nn.Conv2d(6, 6, 1, has_bias=True)
        self.parts = nn.CellDict({"pool": nn.AdaptiveAvgPool2d(1), "again": self.twice})
        self.head = nn.Dense(6, 5)

    def construct(self, x):
        x = self.twice(self.channels(self.stem(x)))
        x = self.parts["again"](ops.relu(x))
        return self.head(self.parts["pool"](x).reshape(x.shape[0], 6))

    @staticmethod
    def example() -> Tensor:
        return numbers(2, 3, 8, 8)


class Matrix(nn.Cell):
    """A library's own linear cell: its weight is ``(in, out)``, and its callers may give it more."""

    def __init__(self, into: int, out: int):
        super().__init__()
        self.weight = Parameter(numbers(into, out, seed=3) * 0.3, name="weight")
        self.bias = Parameter(numbers(out, seed=4), name="bias")

    def construct(self, x, groups=None):
        return ops.matmul(x, self.weight) + self.bias


class Table(nn.Cell):
    """A library's own embedding."""

    def __init__(self, vocabulary: int, width: int):
        super().__init__()
        self.embedding_weight = Parameter(numbers(vocabulary, width, seed=5), name="embedding_weight")

    def construct(self, ids):
        return ops.gather(self.embedding_weight, ids, 0)


class Derived(nn.Dense):
    """A Dense whose forward goes by ``super()``."""

    def construct(self, x):
        return super().construct(x)


class Text(nn.Cell):
    """Tokens to logits, by cells of three libraries, with a layer of MindSpore's own."""

    targets = ("words", "mix", "derived", "dense1", "out")

    def __init__(self):
        super().__init__()
        self.words = Table(20, 8)
        self.mix = Matrix(8, 8)
        self.derived = Derived(8, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.out = mint.nn.Linear(8, 20)

    def construct(self, ids):
        x = self.derived(self.mix(self.words(ids), groups=None))
        return self.out(self.layer(x))

    @staticmethod
    def example() -> Tensor:
        return Tensor(np.random.default_rng(0).integers(1, 20, (2, 6)).astype(np.int32))


class Small(nn.Cell):
    """Two layers, for what compiles graphs."""

    targets = ("first", "second")

    def __init__(self):
        super().__init__()
        self.first = nn.Dense(6, 5, activation="tanh")
        self.second = Derived(5, 4, has_bias=False)

    def construct(self, x):
        return self.second(self.first(x))

    @staticmethod
    def example() -> Tensor:
        return numbers(3, 6)


NETWORKS = {"vision": Vision, "convolutional": Convolutional, "text": Text}


class Squared(nn.Cell):
    """A network and its loss, as training steps take them."""

    def __init__(self, network: nn.Cell):
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, x):
        return ops.square(self.network(x).astype(ms.float32) - 1.0).mean()
