"""Layers as one operator: which kernels run one after the other, and on what.

Cells tell what they do by a method ``record(steps, …)`` beside ``construct``, with the same values: it calls other
cells by `Steps.run` and the methods of `Steps` for what kernels do. A cell whose class has been derived (an adapter on
it, a share of a parallel group) does not tell: `Unrecorded`, and its layer runs operator by operator.

Nothing that is told has a size in tokens. How many there are is seen when the operator runs, so that one program serves
all batches.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import NoReturn

import mindspore as ms
import numpy as np
from mindspore import Parameter, nn, ops

from model_zoo.engine.calls import OPERAND, Call, Memory, Place


class Unrecorded(Exception):
    """A cell that does not tell its steps."""


class Steps(abc.ABC):
    """What a layer does. The first operand is the stream ``(N, H)``, the second the program; the third, `given` by a
    sub-class, is ``(B, S)`` with N = B·S.

    Args:
        width: H.

    Attributes:
        stream: the first operand.
        calls: the kernels so far.
        parameters: the weights that they use, which are the last operands, in the order of these.
    """

    def __init__(self, width: int):
        self.operands: list[Place] = []
        self.parameters: list[Parameter] = []
        self.calls: list[Call] = []
        self.stream = self.given(width)
        self.given()

    # Operands, memory, calls

    def given(self, width: int = 0) -> Place:
        """An operand that the operator is called with, before the parameters and in the order of these calls."""
        if self.parameters:
            raise ValueError("operands that are given come before parameters")
        self.operands.append(Place(1, width, OPERAND))
        return self.operands[-1]

    def parameter(self, parameter: Parameter) -> Place:
        """A weight."""
        for known, place in zip(self.parameters, self.operands[-len(self.parameters) :], strict=False):
            if known is parameter:
                return place
        self.parameters.append(parameter)
        self.operands.append(Place(0, 0, OPERAND))
        return self.operands[-1]

    def constant(self, value: np.generic) -> Place:
        """A float32 or an int32, kept in the program."""
        return Place(0, 1, None, constant=value)

    def view(self, place: Place, rows: int) -> Place:
        """The same numbers, in so many rows per token."""
        return dataclasses.replace(place, rows=rows, width=place.rows * place.width // rows, by_head=False)

    def place(self, rows: int, width: int, by_head: bool = False) -> Place:
        """Memory for a result: so many rows of this width per token, or, by head, ``(B, rows, S, width)``."""
        return Place(rows, width, Memory(rows * width), by_head)

    def call(self, kernel: str, *inputs: Place, outputs: list[Place]) -> Place:
        """Runs a kernel. Returns its first output."""
        self.calls.append(Call(kernel, list(inputs), outputs))
        return outputs[0]

    def like(self, kernel: str, x: Place, *others: Place) -> Place:
        """Runs a kernel whose output has the shape of its first input."""
        return self.call(kernel, x, *others, outputs=[self.place(x.rows, x.width, x.by_head)])

    # Cells

    def run(self, cell: nn.Cell, *arguments, **settings):
        """What the cell gives for these places.

        Raises:
            Unrecorded: it does not tell.
        """
        kind = type(cell)
        if "plain" in vars(kind) and not cell.active:  # adapters on it that take no part
            kind = kind.plain
        if "record" not in vars(kind):
            self.refuse(kind)
        return kind.record(cell, self, *arguments, **settings)

    def run_before(self, module: nn.Cell, x: Place) -> Place:
        """What an adapter makes of its cell's input.

        Raises:
            Unrecorded: it does not tell.
        """
        if "record_before" not in vars(type(module)):
            self.refuse(type(module))
        return module.record_before(self, x)

    def refuse(self, kind: type) -> NoReturn:
        """For cells of this class that cannot tell in the state that they are in."""
        raise Unrecorded(f"{kind.__name__} does not tell its steps")

    # What several cells do

    def add(self, x: Place, y: Place, factor: float = 1.0) -> Place:
        """``x·factor + y``."""
        return self.like("add", x, y, self.constant(np.float32(factor)))

    def linear(self, kernel: str, x: Place, weight, bias, width: int) -> Place:
        """A product with a weight, and its bias if there is one."""
        y = self.call(kernel, x, self.parameter(weight), outputs=[self.place(x.rows, width)])
        return y if bias is None else self.add_bias(y, bias)

    def add_bias(self, x: Place, bias: Parameter) -> Place:
        """A bias to every row."""
        return self.like("add_bias", x, self.parameter(bias))

    def norm(self, kernel: str, x: Place, *weights, eps: float) -> Place:
        """A norm; its kernel writes each row's scale besides, and, where there is a bias, its mean before that."""
        numbers = [self.place(x.rows, 1) for _ in weights]
        weights = [self.parameter(weight) for weight in weights]
        y = self.place(x.rows, x.width)
        return self.call(kernel, x, *weights, self.constant(np.float32(eps)), outputs=[y, *numbers])

    def scale_columns(self, x: Place, factors: Parameter) -> Place:
        """Each column times its own factor."""
        return self.like("scale_columns", x, self.parameter(factors))

    def dropout(self, x: Place, key: Parameter, site: int, threshold: int, factor: float) -> Place:
        """`adapters.dropout.Dropout`, while training."""
        numbers = (self.constant(kind(number)) for kind, number in ((np.int32, site), (np.int32, threshold)))
        return self.like("dropout", x, self.parameter(key), *numbers, self.constant(np.float32(factor)))

    def part(self, x: Place, first: int, width: int) -> Place:
        """Some columns."""
        return self.call("take_columns", x, self.constant(np.int32(first)), outputs=[self.place(x.rows, width)])

    def join(self, a: Place, b: Place) -> Place:
        """The columns of one, and those of the other behind them."""
        return self.call("join_columns", a, b, outputs=[self.place(a.rows, a.width + b.width, a.by_head)])

    # What one token per row does otherwise than many

    @abc.abstractmethod
    def low_rank(self, y: Place, x: Place, a, b, scale: float) -> Place:
        """``y + scale·(x·Aᵀ)·Bᵀ``."""

    @abc.abstractmethod
    def heads(self, x: Place, head_dim: int) -> Place:
        """``(N, heads·d)`` as ``(B, heads, S, d)``."""

    @abc.abstractmethod
    def rotated_heads(self, form: str, x: Place, head_dim: int, cosine: Place, sine: Place) -> Place:
        """`heads`, rotated by position. ``form``: ``half`` or ``interleaved``."""

    @abc.abstractmethod
    def attention(self, query: Place, keys: Place, values: Place) -> Place:
        """Heads as `heads` gives them → ``(N, heads·d)``."""

    def prefixed_attention(self, query: Place, keys: Place, values: Place, prefix: Parameter) -> Place:
        """`attention` with keys and values ``(T, 2·key heads·d)`` in front of each row's own, which all rows see."""
        self.refuse(type(self))


def tables_of(arguments):
    """The tables among what a layer is called with behind the stream, within a graph: tables, start, end and keep."""
    tables = arguments[:-3]
    if len(tables) == 1:  # all in one tuple
        return tables[0]
    return tables


def columns_of(start, keep):
    """Who sees each key ``(B, S)``, within a graph: keep as numbers, or 1."""
    columns = ops.ones_like(start)
    if keep is not None:
        columns = columns * keep.astype(ms.int32)
    return columns


def layer_list(model) -> nn.CellList:
    """The cell that holds a model's layers."""
    cell = model
    for name in model.family.layers.split("."):
        cell = getattr(cell, name)
    return cell


@contextlib.contextmanager
def standing_in(layers: nn.CellList, cells: Sequence[nn.Cell]) -> Iterator[None]:
    """Within, a list of layers holds these cells instead. Past `CellList`: they are no part of the model."""
    before = dict(layers._cells)
    layers._cells.clear()
    layers._cells.update({str(index): cell for index, cell in enumerate(cells)})
    try:
        yield
    finally:
        layers._cells.clear()
        layers._cells.update(before)
