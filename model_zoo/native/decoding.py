"""What single tokens go through over a cache: attention as one operator, and whole layers.

A layer is told as steps: which kernels run one after the other, and on what. Cells tell theirs by a method
``record(steps, …)`` beside ``construct``, with the same values: it calls other cells by `Steps.run` and kernels by
`Steps.call`. A cell whose class has been derived (an adapter on it, a share of a parallel group) does not tell:
`Unrecorded`, and its layer runs operator by operator.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import NoReturn

import numpy as np
from mindspore import ParameterTuple, Tensor, nn

from model_zoo.native.kernels import as_first, operator

KERNELS = (
    "rms_norm",
    "layer_norm",
    "product_of_rows",
    "plain_product",
    "rotary_half",
    "rotary_interleaved",
    "token_attention",
    "swiglu",
    "gelu_tanh",
    "add",
    "add_bias",
    "take_columns",
    "join_columns",
)
"""What a step may run, in the order of the list in steps.c."""

DIMENSIONS = 4
LINE = 16
"""Numbers that a place begins at a multiple of: a line of the cache."""


def token_shape(query, *others):
    return [query[0], query[1] * query[3]]


class TokenAttention(nn.Cell):
    """Attention of one token per row over the keys and values that are kept, and its own.

    It writes the token's key and value into the kept ones, which MindSpore does not see: nothing else in the same graph
    may read these.

    Returns:
        Joined heads ``(B, heads·d)``.
    """

    def __init__(self):
        super().__init__()
        self.attend = operator("token_attention", token_shape)

    def construct(self, query, keys, values, kept_keys, kept_values, end, columns):
        """Query ``(B, heads, 1, d)``; keys and values ``(B, kv_heads, T + 1, d)``, T of them in front of all tokens;
        the kept ones ``(B·kv_heads·L, d)``; end ``(B, 1)``, columns ``(B, T + L)``."""
        return self.attend(query, keys, values, kept_keys, kept_values, end, columns)


class Unrecorded(Exception):
    """A cell that does not tell its steps."""


@dataclasses.dataclass(eq=False)
class Place:
    """Numbers that a kernel reads or writes.

    Attributes:
        shape: of what is there.
        offset: where in the memory of the steps; None for an operand of the operator and for its output.
        constant: a number that is the same in every run, kept in the program.
    """

    shape: tuple[int, ...]
    offset: int | None = None
    constant: np.generic | None = None


class Steps:
    """What a layer does with one token of each row.

    Args:
        cache: of the layer, a `generation.cache.LayerCache`.
        width: of the stream.

    Attributes:
        stream, end, columns: the first operands: ``(B, H)``; as `TokenAttention` takes them.
    """

    def __init__(self, cache, width: int):
        self.batch, self.cache = cache.batch, cache
        self.operands: list[Place] = []
        self.parameters: list = []
        self.places: list[Place] = []
        self.calls: list[tuple[int, list[Place]]] = []
        self.size = 0
        self.stream = self.given((self.batch, width))
        self.end, self.columns = self.given((self.batch, 1)), self.given((self.batch, cache.length))

    def given(self, shape) -> Place:
        """An operand that the operator is called with, before the parameters and in the order of these calls."""
        if self.parameters:
            raise ValueError("operands that are given come before parameters")
        self.operands.append(Place(tuple(shape)))
        return self.operands[-1]

    def parameter(self, parameter) -> Place:
        """A weight."""
        for known, place in zip(self.parameters, self.operands[-len(self.parameters) :], strict=False):
            if known is parameter:
                return place
        self.parameters.append(parameter)
        self.operands.append(Place(tuple(parameter.shape)))
        return self.operands[-1]

    def constant(self, value) -> Place:
        """A float32 or an int32."""
        self.places.append(Place((1,), constant=value))
        return self.places[-1]

    def view(self, place: Place, *shape: int) -> Place:
        """The same numbers in another shape, of which one may be −1 as in a reshape."""
        if place.offset is None:
            raise ValueError("an operand has the shape that it has")
        shape = tuple(np.empty(place.shape, np.int8).reshape(shape).shape)
        self.places.append(Place(shape, place.offset))
        return self.places[-1]

    def place(self, *shape: int) -> Place:
        """Memory for a result."""
        self.places.append(Place(shape, self.size))
        self.size += (math.prod(shape) + LINE - 1) // LINE * LINE
        return self.places[-1]

    def call(self, kernel: str, *places: Place, out: tuple[int, ...]) -> Place:
        """Runs a kernel with one output of this shape, which is returned."""
        result = self.place(*out)
        self.calls.append((KERNELS.index(kernel), [*places, result]))
        return result

    def run(self, cell: nn.Cell, *arguments):
        """What the cell gives for these places.

        Raises:
            Unrecorded: it does not tell.
        """
        kind = type(cell)
        if hasattr(kind, "plain") and not cell.active:  # adapters on it that take no part
            kind = kind.plain
        if "record" not in vars(kind):
            self.refuse(kind)
        return kind.record(cell, self, *arguments)

    def refuse(self, kind: type) -> NoReturn:
        """For cells of this class that cannot tell in the state that they are in."""
        raise Unrecorded(kind.__name__)

    # What several cells do

    def add(self, x: Place, y: Place, factor: float = 1.0) -> Place:
        """``x·factor + y``."""
        return self.call("add", x, y, self.constant(np.float32(factor)), out=x.shape)

    def linear(self, kernel: str, x: Place, weight, bias, width: int) -> Place:
        """A product with a weight, and its bias if there is one."""
        y = self.call(kernel, x, self.parameter(weight), out=(x.shape[0], width))
        return y if bias is None else self.call("add_bias", y, self.parameter(bias), out=y.shape)

    def norm(self, kernel: str, x: Place, *weights, eps: float) -> Place:
        """A norm, whose kernel writes each row's mean and scale besides."""
        rows = x.shape[0]
        places = [x, *map(self.parameter, weights), self.constant(np.float32(eps)), self.place(*x.shape)]
        self.calls.append((KERNELS.index(kernel), [*places, *(self.place(rows, 1) for _ in weights)]))
        return places[-1]

    def part(self, x: Place, first: int, width: int) -> Place:
        """Some columns of ``(N, W)``."""
        return self.call("take_columns", x, self.constant(np.int32(first)), out=(x.shape[0], width))

    def join(self, a: Place, b: Place) -> Place:
        """The columns of ``(N, W)``, and those of ``(N, w)`` behind them."""
        return self.call("join_columns", a, b, out=(a.shape[0], a.shape[1] + b.shape[1]))

    def heads(self, x: Place, head_dim: int) -> Place:
        """``(B, heads·d)`` as ``(B, heads, 1, d)``."""
        return self.view(x, self.batch, -1, 1, head_dim)

    def attention(self, query: Place, keys: Place, values: Place) -> Place:
        """Of the token over the cache, and its own key and value: ``(B, heads, 1, d)`` each → ``(B, heads·d)``."""
        kept = self.parameter(self.cache.keys), self.parameter(self.cache.values)
        out = (self.batch, query.shape[1] * query.shape[3])
        return self.call("token_attention", query, keys, values, *kept, self.end, self.columns, out=out)

    # The operator

    def program(self, result: Place) -> np.ndarray:
        """The words that steps.c reads."""
        order = [*self.operands, result, *(place for place in self.places if place is not result)]
        number = {id(place): index for index, place in enumerate(order)}
        own = order[len(self.operands) + 1 :]
        words, constants = [], []
        behind = 3 + len(own) * (2 + DIMENSIONS) + sum(2 + len(places) for _, places in self.calls)
        for place in own:
            if place.constant is None:
                words.append(place.offset)
            else:
                words.append(-1 - behind - len(constants))
                constants.append(int(np.array(place.constant).view(np.int32)))
            words += [len(place.shape), *place.shape, *[1] * (DIMENSIONS - len(place.shape))]
        for kernel, places in self.calls:
            words += [kernel, len(places), *(number[id(place)] for place in places)]
        return np.array([len(own), len(self.calls), self.size, *words, *constants], np.int32)


class TokenLayer(nn.Cell):
    """A layer for single tokens over its cache, as one operator.

    Args:
        layer: the layer; its class has ``record(steps, x, *tables)``, and ``tables``, how many of these there are.
        cache: of the layer.
        width: of the stream.

    Raises:
        Unrecorded: a cell within does not tell its steps.
    """

    def __init__(self, layer: nn.Cell, cache, width: int):
        super().__init__()
        steps = Steps(cache, width)
        tables = [steps.given(()) for _ in range(getattr(layer, "tables", 0))]
        result = steps.run(layer, steps.stream, *tables)
        self.program = Tensor(steps.program(result))
        # past `Cell.__setattr__`: they are the model's, and keep their names
        object.__setattr__(self, "parameters", ParameterTuple(steps.parameters))
        self.steps = operator("steps", as_first)

    def construct(self, x, *rest):
        """The stream ``(B, H)``, tables, start, end and keep, as a layer is called."""
        tables = rest[:-3]
        if len(tables) == 1:  # all in one tuple
            tables = tables[0]
        return self.steps(x, rest[-2], rest[-1], *tables, *self.parameters, self.program)


@contextlib.contextmanager
def token_layers(model, cache) -> Iterator[None]:
    """Within, a model's layers are one operator each, for single tokens over a `generation.cache.Cache`. A layer that
    has something on it stays as it is."""
    layers = model
    for name in model.family.layers.split("."):
        layers = getattr(layers, name)
    kept = {id(core): own for (_, core), own in zip(cache.cores, cache.layers, strict=True)}
    before = dict(layers._cells)
    try:
        for name, layer in before.items():
            own = [kept[id(cell)] for _, cell in layer.cells_and_names() if id(cell) in kept]
            with contextlib.suppress(Unrecorded):
                if len(own) == 1:  # past `Cell.__setattr__`: it is no part of the model
                    layers._cells[name] = TokenLayer(layer, own[0], model.config.dims.hidden)
        yield
    finally:
        layers._cells.update(before)
