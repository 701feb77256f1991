"""The program that layers are compiled to: instructions, the values they read and write, the buffers of these."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor

OPERAND = "operand"  # what the operator was called with, or an output with a shape of its own
RESULT, WORKSPACE = "result", "workspace"
"""Where a buffer lies: in the first output, or in the workspace. `model_zoo.engine.lowering.Pieces` has names for what
outlasts a piece of a program."""


class NotTraceable(Exception):
    """A cell that the tracer cannot follow; its layer then runs operator by operator."""


@dataclasses.dataclass(eq=False)
class Buffer:
    """Memory of a result.

    Attributes:
        size: numbers per token.
        storage: RESULT, WORKSPACE, or a name of `Pieces`.
        offset: its first number there, per token.
        low: whether its numbers are rounded to bfloat16.
    """

    size: int
    storage: str = WORKSPACE
    offset: int = 0
    low: bool = False

    @property
    def room(self) -> int:
        """What it takes, as float32 numbers per token."""
        return (self.size + 1) // 2 if self.low else self.size


@dataclasses.dataclass(frozen=True, eq=False)
class Packed:
    """A matrix in 8 or 4 bits, as `csrc/storage.h` reads it.

    Attributes:
        storage: the number of its kind there.
        block: numbers that share a factor.
        parts: operands, None for those that it has not: codes; factors, map; factors in bytes, their factors, map and
            offset; zeros.
    """

    storage: int
    block: int
    parts: tuple[Value | None, ...]


@dataclasses.dataclass(eq=False)
class Value:
    """What instructions read or write.

    Attributes:
        per_token: its shape for one token: ``(rows, width)``, or, by head, ``(1, rows, 1, width)`` for ``(B, rows, S,
            width)``; of a weight its own; None where only the run knows it.
        buffer: where it lies; OPERAND for an operand and what has an output of its own, None for a constant.
        constant: a number that is the same in every run.
        packed: what it is made of, of a packed matrix.
        bound: what the program knows by its address, or holds, and is not called with.
        each: what stands for it in each run of a `Group`: an expert's own weight or number.
        tracer: what follows the layers that compute with it (`model_zoo.engine.trace.Tracer`).
    """

    per_token: tuple[int, ...] | None
    buffer: Buffer | str | None
    constant: np.generic | None = None
    packed: Packed | None = None
    bound: Tensor | None = None
    each: tuple[Value, ...] = ()
    tracer: Any = dataclasses.field(default=None, repr=False)

    @property
    def by_head(self) -> bool:
        return self.per_token is not None and len(self.per_token) == 4

    @property
    def rows(self) -> int:
        return self.per_token[1 if self.by_head else 0]

    @property
    def width(self) -> int:
        return self.per_token[-1]

    # What `construct` may do with a value while it is traced; anything else is an error, and so not traceable

    __iter__ = None

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Without what depends on the number of tokens."""
        return (None, self.rows, None, self.width) if self.by_head else (None, self.width)

    def __add__(self, other):
        if isinstance(other, Value):
            return self.tracer.add(self, other)
        return NotImplemented

    def __mul__(self, factor):
        if isinstance(factor, Value) and factor.width == 1:
            return self.tracer.emit("scale_rows", self, factor)
        return Scaled(self, float(factor)) if isinstance(factor, (int, float)) else NotImplemented

    dtype = ms.float32

    def astype(self, dtype) -> Value:
        """Itself: all is computed in float32."""
        if dtype != ms.float32:
            raise NotTraceable(f"a value as {dtype}")
        return self

    def reshape(self, *shape) -> Value:
        """The same numbers in rows of another width, such as a row for each head: a view."""
        width = shape[-1][-1] if isinstance(shape[-1], tuple) else shape[-1]
        if self.by_head or not isinstance(self.buffer, Buffer) or self.rows * self.width % width:
            raise NotTraceable(f"{self.per_token} reshaped to {shape}")
        return Value((self.rows * self.width // width, width), self.buffer, tracer=self.tracer)

    def __getitem__(self, key):
        """Columns ``[:, first:last]``."""
        rows, columns = key
        if rows != slice(None) or columns.step is not None:
            raise NotTraceable(f"the part {key} of a value")
        first, last, _ = columns.indices(self.width)
        return self.tracer.columns(self, first, last - first)


@dataclasses.dataclass
class Scaled:
    """``value·factor``, to which something is added."""

    value: Value
    factor: float

    def __add__(self, other):
        if isinstance(other, Value):
            return other.tracer.add(self.value, other, self.factor)
        return NotImplemented


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """Experts of one make: what one of them computes, each does with its own weights and the rows that chose it.

    Attributes:
        rows: for each row that chose an expert which one, in the order of these. All that an instruction of the group
            has in buffers are such rows.
        members: the experts, by number.
    """

    rows: Value
    members: tuple[int, ...]


@dataclasses.dataclass(eq=False)
class Instruction:
    """An operation of the table, and what it is applied to; with a group, once for each of its members."""

    op: str
    inputs: list[Value]
    outputs: list[Value]
    group: Group | None = None

    @property
    def values(self) -> list[Value]:
        return [*self.inputs, *self.outputs]

    @property
    def read(self) -> list[Value]:
        """Its inputs, and what says whose rows these are."""
        return [*self.inputs, *([self.group.rows] if self.group else [])]


def buffers(values: Sequence[Value]) -> list[Buffer]:
    """Those of values that have one."""
    return [value.buffer for value in values if isinstance(value.buffer, Buffer)]
