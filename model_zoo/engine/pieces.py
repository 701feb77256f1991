"""Programs that the processes of a group run together: cut into pieces where something is added up over the group.

Each piece is an operator, and between two of them stands the sum of what all processes' first ones give::

    piece 0 ─► part ─► sum 0 ─► piece 1 ─► part ─► sum 1 ─► piece 2 ─► result
        └────► kept 0 ──────────────┴─────────────────────────┘

So behind a piece there are two blocks for those that follow: the sum, and what else they read of it. A program without
sums is one piece.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Collection, Sequence

from model_zoo.engine.cells import custom, outputs
from model_zoo.engine.ir import RESULT, WORKSPACE, Buffer, Instruction, NotTraceable, Value, buffers
from model_zoo.engine.lowering import alias_in_place, allocate, allocate_workspace, lower
from model_zoo.engine.schedule import schedule


class Pieces:
    """The pieces of a program.

    Args:
        direction: ``forward`` or ``backward``, of which the names of storage tell.
        instructions: the program, in its order.

    Attributes:
        each: the instructions of every piece.
        sums: what is added up behind all but the last: an instruction.
        kept, workspace: numbers per token, of every piece; known after `allocate`.

    Raises:
        NotTraceable: what is added up is used otherwise, too.
    """

    def __init__(self, direction: str, instructions: Sequence[Instruction]):
        self.direction, self.sums = direction, [one for one in instructions if one.op == "sum_over_group"]
        each: list[list[Instruction]] = [[]]
        for one in instructions:
            if one.op == "sum_over_group":
                each.append([])
            else:
                each[-1].append(one)
        for index, one in enumerate(self.sums):
            part, whole = one.inputs[0].buffer, one.outputs[0].buffer
            if part not in written_by(each[index]):
                raise NotTraceable("a sum over the group of what was there before")
            part.storage, whole.storage = self.block("part", index), self.block("sum", index)
        self.each = [schedule(piece) for piece in each]
        self.kept: list[int] = []
        self.workspace: list[int] = []

    def block(self, what: str, index: int) -> str:
        """The name of a storage: ``part``, ``sum`` or ``kept`` of a piece."""
        return f"{self.direction} {what} {index}"

    def blocks(self, count: int) -> list[str]:
        """The blocks that so many pieces leave."""
        return [self.block(what, index) for index in range(count) for what in ("sum", "kept")]

    def block_sizes(self) -> dict[str, int]:
        """Numbers per token of the blocks; known after `allocate`."""
        widths = [*(one.outputs[0].width for one in self.sums), 0]  # behind the last there is the result
        sizes = [size for both in zip(widths, self.kept, strict=True) for size in both]
        return dict(zip(self.blocks(len(sizes) // 2), sizes, strict=True))

    def allocate(self, held: Collection[Buffer] = (), saved: Collection[Buffer] = ()) -> None:
        """Puts every buffer in its place.

        Args:
            held: those that nothing else may lie in.
            saved: those that are read when all is over.
        """
        writers: dict[Buffer, set] = defaultdict(set)
        for index, piece in enumerate(self.each):
            for buffer in written_by(piece):
                writers[buffer].add(index)
        for one in self.sums:
            writers[one.outputs[0].buffer].add(one)
        last = len(self.each) - 1
        for buffer, those in writers.items():
            if len(those) > 1 or (buffer.storage == RESULT and those != {last}):
                raise NotTraceable("what is added to behind a sum over the group")
        for index, piece in enumerate(self.each):
            later = {*saved, *(buffer for other in self.each[index + 1 :] for buffer in read_by(other))}
            if index < len(self.sums) and self.sums[index].inputs[0].buffer in {*held, *later}:
                raise NotTraceable("a sum over the group of what is used otherwise, too")
            alias_in_place(piece, {*held, *later})
            kept = [buffer for buffer in written_by(piece) if buffer in later and buffer.storage == WORKSPACE]
            self.kept.append(allocate(kept, self.block("kept", index)))
            self.workspace.append(allocate_workspace(piece))

    def lower(self, index: int, operands: Sequence[Value | str], results: Sequence[Value | str]) -> Sequence[int]:
        """The words of a piece.

        Args:
            operands: what all pieces are called with.
            results: its first outputs.
        """
        own = [*results, self.block("kept", index), WORKSPACE]
        return lower(self.each[index], [*operands, *self.blocks(index), *own])

    def first(self, index: int) -> str:
        """Where the first output of a piece lies."""
        return self.block("part", index) if index < len(self.sums) else RESULT

    def operator(self, index: int, first: bool = True, weights: Sequence[int] = ()):
        """A piece as an operator: what `lower` says → its part or the result, gradients, what it keeps, workspace.

        Args:
            first: whether there is a result.
            weights: operands whose gradients it gives.
        """
        width = self.sums[index].inputs[0].width if index < len(self.sums) else 0 if first else None
        sizes = max(self.kept[index], 1), max(self.workspace[index], 1)
        return custom("program", shapes(width, tuple(weights), *sizes))


@functools.cache
def shapes(first: int | None, weights: tuple[int, ...], kept: int, workspace: int):
    """The shapes of what a piece gives.

    Args:
        first: columns of its part; 0 for a result, which is like the hidden states; None if there is neither.
    """

    @outputs((first is not None) + len(weights) + 2)
    def shapes(*given):
        tokens = given[0][0]
        firsts = () if first is None else ([tokens, first] if first else given[0],)
        return (*firsts, *(given[index] for index in weights), [tokens, kept], [tokens, workspace])

    return shapes


def written_by(instructions: Sequence[Instruction]) -> dict[Buffer, None]:
    """The buffers that these write."""
    return dict.fromkeys(buffers([value for one in instructions for value in one.outputs]))


def read_by(instructions: Sequence[Instruction]) -> dict[Buffer, None]:
    """The buffers that these read."""
    return dict.fromkeys(buffers([value for one in instructions for value in one.inputs]))


def without_copies(instructions: Sequence[Instruction], others: Sequence[Instruction]) -> list[Instruction]:
    """The instructions without the copies to a group, which are what they copy: only their gradients differ.

    Args:
        others: that read them, too.
    """
    kept = [one for one in instructions if one.op != "copy_to_group"]
    for one in instructions:
        if one.op == "copy_to_group":
            (of,), (copy,) = one.inputs, one.outputs
            for reader in (*instructions, *others):
                reader.inputs = [original(value, of, copy) for value in reader.inputs]
    return kept


def original(value: Value, of: Value, copy: Value) -> Value:
    """A value, or for one that lies in a copy the same of what is copied."""
    if value.buffer is not copy.buffer:
        return value
    if isinstance(of.buffer, Buffer):
        return Value(value.per_token, of.buffer, tracer=value.tracer)
    if value.per_token != of.per_token:
        raise NotTraceable("a view of what came in")
    return of
