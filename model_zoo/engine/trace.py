"""From cells to a program: layers are called with symbolic values, and the tracer notes what they compute.

A cell made of other cells is traced by its own ``construct``, whose arithmetic on values (sums, a number times a value
in a sum, columns) the tracer follows. A cell that calls MindSpore's operators says in ``trace(tracer, …)``, with the
arguments of ``construct``, which operations of the table these are. What cannot be followed is `NotTraceable`: a cell
that computes something else, one with a ``bprop``, one derived from a class with ``trace``.

Nothing that is traced has a size in tokens. How many there are is seen when the operator runs, so that one program
serves all batches.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from model_zoo.engine.ir import OPERAND, Buffer, Instruction, NotTraceable, Packed, Scaled, Value
from model_zoo.engine.ops import OPS, STORED
from model_zoo.engine.packing import packed_layout

AROUND_TABLES = 5
"""What a layer's ``construct`` takes beside cosines and sines: itself, the stream, start, end and key mask."""

PLAIN = (ms.float32, ms.int32)
"""Types of weights, and of keys."""

_patching = threading.RLock()


@contextlib.contextmanager
def traced_calls() -> Iterator[None]:
    """Within, a cell that is called with a symbolic value is traced."""
    with _patching:
        original = nn.Cell.__call__

        def call(cell, *arguments, **settings):
            for argument in arguments:
                if isinstance(argument, (Value, Scaled)):
                    value = argument if isinstance(argument, Value) else argument.value
                    return value.tracer.call(cell, *arguments, **settings)
            return original(cell, *arguments, **settings)

        nn.Cell.__call__ = call
        try:
            yield
        finally:
            nn.Cell.__call__ = original


class Tracer(abc.ABC):
    """Notes what layers compute. The first operand is the hidden states ``(N, H)``, the second the program; the third,
    `operand` of a sub-class, is ``(B, S)`` with N = B·S.

    Args:
        width: H.
        layer: the first one, whose ``construct`` says how many tables of cosines and sines it takes.

    Attributes:
        hidden: the first operand.
        start, end, key_mask: operands, or None.
        instructions: the operations so far.
        parameters: the weights that they use, which are the last operands, in the order of these.
        group_sum: the cell that adds something up over a group of processes, if any of them does.
        rows: within an expert each row's token, and what says how many tokens there are; () elsewhere.
        trained: the operands that get a gradient.
        decoding: whether all are single tokens behind a prompt.
    """

    decoding = False

    def __init__(self, width: int, layer: nn.Cell):
        self.operands: list[Value] = []
        self.parameters: list[Parameter] = []
        self.instructions: list[Instruction] = []
        self.hidden = self.operand((1, width))
        self.operand()
        self.start = self.end = self.key_mask = None
        self.group_sum: nn.Cell | None = None
        self.rows: tuple[Value, ...] = ()
        self.trained: list[Value] = []
        self.inputs()
        count = len(inspect.signature(type(layer).construct).parameters) - AROUND_TABLES
        self.tables = [self.operand() for _ in range(count)]

    @abc.abstractmethod
    def inputs(self) -> None:
        """Makes the operands that say who sees whom."""

    # Operands and instructions

    def operand(self, shape=None) -> Value:
        """What the operator is called with, before the parameters and in the order of these calls."""
        if self.parameters:
            raise ValueError("other operands come before parameters")
        self.operands.append(Value(shape, OPERAND, tracer=self))
        return self.operands[-1]

    def parameter(self, parameter: Parameter, types: tuple = PLAIN) -> Value:
        """A weight, which is of one of these types. Raises NotTraceable: it is not."""
        if parameter.dtype not in types:
            raise NotTraceable(f"{parameter.name} is {parameter.dtype}")
        for known, value in zip(self.parameters, self.operands[-len(self.parameters) :], strict=False):
            if known is parameter:
                return value
        return self.take(parameter)

    def take(self, parameter: Parameter) -> Value:
        """A weight that is new to the program: the next operand."""
        self.parameters.append(parameter)
        self.operands.append(Value(tuple(parameter.shape), OPERAND, tracer=self))
        return self.operands[-1]

    def packed(self, kind: str, block: int, shape: tuple[int, int], parts: Mapping[str, Parameter]) -> Value:
        """A frozen weight in 8 or 4 bits.

        Args:
            kind: ``int8``, or any whose codes are looked up in a map.
            block: numbers that share a factor.
            shape: ``(out, in)``.
            parts: by their names in `model_zoo.quantization.storage.Storage.parts`.
        """
        types = ms.uint8, ms.int8, ms.float32
        storage, names = packed_layout(kind, parts)
        operands = tuple(self.parameter(parts[name], types) if name in parts else None for name in names)
        return Value(shape, OPERAND, packed=Packed(storage, block, operands), tracer=self)

    def emit(self, name: str, *inputs: Value | Parameter, **numbers) -> Value:
        """The first output of `emit_all`."""
        return self.emit_all(name, *inputs, **numbers)[0]

    def emit_all(self, name: str, *inputs: Value | Parameter, outputs=None, **numbers) -> list[Value]:
        """Applies an operation of the table. Returns its outputs.

        Args:
            numbers: the constants of its signature, and sizes that its inputs do not tell.
            outputs: where it writes, if not into buffers of their own.
        """
        op, given = OPS[name], list(inputs)
        values: list[Value] = []
        for field in op.inputs:
            if field.constant:
                values.append(Value((1,), None, field.dtype(numbers[field.constant])))
            elif given:
                one = given.pop(0)
                if isinstance(one, Parameter):
                    one = self.parameter(one, (*PLAIN, *STORED) if field.stored else PLAIN)
                values.append(one)
        if outputs is None:
            shapes = op.shapes([value.per_token for value in values], **{"B": 1, "S": 1, **numbers})
            outputs = [self.place(shape) for shape in shapes]
        self.instructions.append(Instruction(name, values, outputs))
        return outputs

    def place(self, shape: tuple[int, ...]) -> Value:
        """A result in a buffer of its own."""
        return Value(shape, Buffer(int(np.prod(shape))), tracer=self)

    # Cells

    def run(self, layer: nn.Cell, hidden: Value) -> Value:
        """What a layer gives.

        Raises:
            NotTraceable: a cell within cannot be followed.
        """
        with traced_calls():
            return self.call(layer, hidden, *self.tables, self.start, self.end, self.key_mask)

    def call(self, cell: nn.Cell, *arguments, **settings):
        """What a cell gives for these values."""
        kind = type(cell)
        if "plain" in vars(kind) and not cell.active:  # adapters on it that take no part
            kind = kind.plain
        return self.follow(kind, cell, *arguments, **settings)

    def follow(self, kind: type, cell: nn.Cell, *arguments, method: str = "construct", **settings):
        """What a method of a cell gives as one of this class: its own, or that beneath adapters. ``trace`` stands for
        ``construct``, ``trace_before`` for ``before``."""
        trace = "trace" if method == "construct" else f"trace_{method}"
        if trace in vars(kind):
            return getattr(kind, trace)(cell, self, *arguments, **settings)
        if hasattr(kind, trace) or hasattr(kind, "bprop"):  # its gradient is not that of what it computes
            self.refuse(kind)
        try:
            return getattr(kind, method)(cell, *arguments, **settings)
        except NotTraceable:
            raise
        except Exception as error:
            raise NotTraceable(f"{kind.__name__} computes what the tracer does not know: {error}") from error

    def refuse(self, kind: type) -> NoReturn:
        """For cells of this class that cannot be followed in the state that they are in."""
        raise NotTraceable(f"{kind.__name__} is not traceable")

    # What many cells compute

    def add(self, x: Value, y: Value, factor: float = 1.0) -> Value:
        """``x·factor + y``."""
        return self.emit("add", x, y, factor=factor)

    def view(self, x: Value, rows: int) -> Value:
        """The same numbers, in so many rows per token."""
        shape = rows, x.rows * x.width // rows
        return x if shape == x.per_token else dataclasses.replace(x, per_token=shape)

    def columns(self, x: Value, first: int, width: int) -> Value:
        """Some columns."""
        return self.emit("take_columns", x, first=first, w=width)

    def computed(self, cell: nn.Cell, give: Callable[[], Tensor]) -> Parameter:
        """What a cell's function of weights alone gives, as a weight: its rows are not those of the program."""
        self.refuse(type(cell))

    # Mixtures of experts

    @contextlib.contextmanager
    def apart(self, token_of: Value) -> Iterator[list[Instruction]]:
        """Within, the operations of an expert are noted in what this gives. Its rows are these tokens'."""
        before, self.instructions, self.rows = self.instructions, [], (token_of, self.hidden)
        try:
            yield self.instructions
        finally:
            self.instructions, self.rows = before, ()

    # What the processes of a group do together

    def copy_to_group(self, x: Value, group_sum: nn.Cell) -> Value:
        """What this process computes with alone: its gradient is a term of a sum over the group."""
        self.use_group(group_sum)
        return self.emit("copy_to_group", x)

    def sum_over_group(self, x: Value, group_sum: nn.Cell) -> Value:
        """The sum over the group, whose gradient is each term's."""
        self.use_group(group_sum)
        return self.emit("sum_over_group", x)

    def use_group(self, group_sum: nn.Cell) -> None:
        """Makes sure that there is one group alone: of cells whose ``group`` is equal one stands for all."""
        if self.group_sum is not None and self.group_sum.group != group_sum.group:
            self.refuse(type(group_sum))
        self.group_sum = group_sum

    # What one token per row does otherwise than many

    def once(self, name: str, *inputs: Value | Parameter, **numbers) -> Value | None:
        """The result of an operation on weights, where it is computed once for many tokens; None where it is not."""
        return None

    @abc.abstractmethod
    def low_rank(self, y: Value, x: Value, a: Parameter, b: Parameter, scale: float) -> Value:
        """``y + scale·(x·Aᵀ)·Bᵀ``."""

    @abc.abstractmethod
    def heads(self, x: Value, head_dim: int) -> Value:
        """``(N, heads·d)`` as ``(B, heads, S, d)``."""

    @abc.abstractmethod
    def rotated_heads(self, form: str, x: Value, head_dim: int, cosine: Value, sine: Value) -> Value:
        """`heads`, rotated by position. ``form``: ``half`` or ``interleaved``."""

    @abc.abstractmethod
    def attention(self, query: Value, keys: Value, values: Value, numbers: Mapping, low: str = "") -> Value:
        """Heads as `heads` gives them → ``(N, heads·d)``. ``numbers``: scale, window and cap; ``low``: "_bf16" for
        products of rounded factors."""

    def prefixed_attention(
        self, query: Value, keys: Value, values: Value, numbers: Mapping, prefix: Parameter
    ) -> Value:
        """`attention` with keys and values ``(T, 2·key heads·d)`` in front of each row's own, which all rows see."""
        self.refuse(type(self))


class SequenceTracer(Tracer):
    """Whole sequences.

    Args:
        weights: ids of the parameters that get a gradient.
        input_trained: whether the hidden states get one.
    """

    def __init__(self, width: int, layer: nn.Cell, weights: frozenset[int] = frozenset(), input_trained: bool = False):
        super().__init__(width, layer)
        self.weights, self.input_trained = weights, input_trained
        self.trained += [self.hidden] if input_trained else []

    def inputs(self) -> None:
        self.start, self.end, self.key_mask = self.operand(), self.operand(), self.operand()

    def parameter(self, parameter: Parameter, types: tuple = PLAIN) -> Value:
        value = super().parameter(parameter, PLAIN if id(parameter) in self.weights else types)
        if id(parameter) in self.weights and value not in self.trained:
            self.trained.append(value)
        return value

    def sort_weights(self, rank: Mapping[Value, int]) -> None:
        """Puts those that get a gradient behind the others, by these numbers. To be called when all is traced."""
        first = len(self.operands) - len(self.parameters)
        pairs = list(zip(self.parameters, self.operands[first:], strict=True))
        pairs.sort(key=lambda pair: rank[pair[1]] if pair[1] in self.trained else -1)
        self.parameters = [parameter for parameter, _ in pairs]
        self.operands[first:] = [value for _, value in pairs]

    def low_rank(self, y, x, a, b, scale):
        return self.emit("low_rank", y, x, a, b, scale=scale)

    def heads(self, x, head_dim):
        return self.emit("split_heads", self.view(x, 1), self.start, d=head_dim)

    def rotated_heads(self, form, x, head_dim, cosine, sine):
        return self.emit(f"split_rotary_{form}", self.view(x, 1), cosine, sine, self.start, d=head_dim)

    def attention(self, query, keys, values, numbers, low=""):
        return self.emit(f"attention{low}", query, keys, values, self.start, self.end, self.key_mask, **numbers)

    def prefixed_attention(self, query, keys, values, numbers, prefix):
        rows = self.start, self.end, self.key_mask
        return self.emit("attention_prefixed", query, keys, values, *rows, prefix, **numbers)
