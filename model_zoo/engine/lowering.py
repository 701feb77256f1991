"""From instructions to operators: pieces of a program, buffer allocation, and the words that program.c reads."""

from __future__ import annotations

import ctypes
import functools
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
from mindspore import Parameter, Tensor

from model_zoo.engine.build import library
from model_zoo.engine.call import Function, outputs
from model_zoo.engine.ir import OPERAND, RESULT, WORKSPACE, Buffer, Instruction, NotTraceable, Value, buffers
from model_zoo.engine.ops import OPS
from model_zoo.engine.schedule import batches, factors, schedule
from model_zoo.graph import address_of


def alias_in_place(instructions: Sequence[Instruction], held: set[Buffer]) -> None:
    """Lets results lie in the buffer of an input that nobody reads again.

    Args:
        held: buffers that are read by others than these instructions.
    """
    last = {buffer: index for index, one in enumerate(instructions) for buffer in buffers([*one.read, *one.outputs])}
    for index, instruction in enumerate(instructions):
        op = OPS[instruction.op]
        if set(buffers(instruction.outputs)).intersection(buffers(instruction.inputs)):
            continue  # one of the forward pass that runs again: a second input there would overwrite the first
        for which in op.aliases:
            old, new = instruction.inputs[which].buffer, instruction.outputs[0].buffer
            free = isinstance(old, Buffer) and isinstance(new, Buffer)
            free = free and old.storage is WORKSPACE and old not in held and last[old] == index
            # a product reads its factors for as long as it writes
            free = free and not (op.product and old in buffers(factors(instruction)))
            if free and old is not new and (old.size, old.low) == (new.size, new.low):
                last[new] = max(last[new], index)
                for other in instructions:
                    for value in other.values:
                        if value.buffer is old:
                            value.buffer = new
                break


def round_between_products(instructions: Sequence[Instruction]) -> None:
    """Lets what lies between products of rounded factors lie in bfloat16, where every kernel takes it so.

    Args:
        instructions: all that touch the buffers, those of the backward pass among them.
    """
    if not any("_bf16" in instruction.op for instruction in instructions):
        return
    low: dict[Buffer, bool] = {}
    for instruction in instructions:
        fields = OPS[instruction.op].fields(len(instruction.inputs))
        for value, field in zip(instruction.values, fields, strict=True):
            if isinstance(value.buffer, Buffer):
                low[value.buffer] = low.get(value.buffer, True) and field.low
    for buffer, every in low.items():
        buffer.low = every and buffer.storage is not RESULT


def allocate(those: Sequence[Buffer], storage: str) -> int:
    """Puts these one after the other. Returns their size together."""
    end = 0
    for buffer in those:
        buffer.storage, buffer.offset = storage, end
        end += buffer.room
    return end


def allocate_workspace(instructions: Sequence[Instruction]) -> int:
    """Puts what lies in the workspace where nothing else is at the same time. Returns the size of the whole."""
    spans: dict[Buffer, list[int]] = {}
    for index, batch in enumerate(batches(instructions)):
        for buffer in buffers([value for one in batch for value in (*one.read, *one.outputs)]):
            if buffer.storage is WORKSPACE:
                spans.setdefault(buffer, [index, index])[1] = index
    placed: list[Buffer] = []
    end = 0
    for buffer, (first, last) in sorted(spans.items(), key=lambda item: item[1][0]):
        busy = sorted(
            (other.offset, other.offset + other.room)
            for other in placed
            if spans[other][0] <= last and spans[other][1] >= first
        )
        buffer.offset = 0
        for start, stop in busy:
            if buffer.offset + buffer.room <= start:
                break
            buffer.offset = max(buffer.offset, stop)
        placed.append(buffer)
        end = max(end, buffer.offset + buffer.room)
    return end


NAME_WORDS = 3
"""How many words the name of a type takes, with a zero behind it."""


@functools.cache
def address(path: Path, op: str) -> list[int]:
    """Where the C function of an operation is, as two words."""
    function = getattr(ctypes.CDLL(str(path)), op)
    return words_of(ctypes.cast(function, ctypes.c_void_p).value)


def words_of(number: int) -> list[int]:
    """An address as two words."""
    return np.array([number], np.uint64).view(np.int32).tolist()


def bound(weight: Tensor) -> list[int]:
    """Where a weight is, the name of its type in `NAME_WORDS` words, and its shape. What is no parameter, which nothing
    keeps in its place, follows itself, and has no address."""
    own, name = not isinstance(weight, Parameter), str(weight.dtype).lower().ljust(4 * NAME_WORDS, "\0")
    words = np.frombuffer(name.encode(), np.int32).tolist()
    numbers = weight.asnumpy().view(np.int32).reshape(-1).tolist() if own else []
    return [*words_of(0 if own else address_of(weight)), *words, len(weight.shape), *weight.shape, *numbers]


def lower(instructions: Sequence[Instruction], operands: Sequence[Value | str]) -> np.ndarray:
    """The words that program.c reads.

    Args:
        operands: of the operator and its outputs, in this order: values, and the names of storages.
    """
    where = {one: index for index, one in enumerate(operands) if isinstance(one, str)}
    number = {id(one): index for index, one in enumerate(operands) if isinstance(one, Value)}
    own, constants, groups = [], [], {}

    def name(value: Value | None) -> None:
        if value is not None and id(value) not in number:
            for one in (*value.each, *(value.packed.parts if value.packed else ())):
                name(one)
            number[id(value)] = len(operands) + len(own)
            own.append(value)

    for instruction in instructions:
        for value in (*instruction.values, instruction.group and instruction.group.rows):
            name(value)
    words = []
    behind = 3 + 5 * len(own) + sum(5 + len(instruction.values) for instruction in instructions)
    for value in own:
        if value.constant is not None:
            words += [-1, behind + len(constants), 0, 0, 1]
            constants.append(int(np.array(value.constant).view(np.int32)))
        elif value.packed is not None:
            words += [-2, behind + len(constants), 0, *value.per_token]
            parts = [-1 if part is None else number[id(part)] for part in value.packed.parts]
            constants += [value.packed.storage, value.packed.block, *parts]
        elif value.each:
            words += [-4, behind + len(constants), 0, 0, 0]
            constants += [number[id(one)] for one in value.each]
        elif value.bound is not None:
            words += [-3, behind + len(constants), 0, 0, 0]
            constants += bound(value.bound)
        elif value.buffer is OPERAND:
            raise ValueError("an operand of another operator")
        else:
            buffer = value.buffer
            words += [where[buffer.storage], buffer.offset, value.by_head + 2 * buffer.low, value.rows, value.width]
    path = library()
    for batch in batches(instructions):
        for instruction in batch:
            values, group = instruction.values, instruction.group
            if group is not None and group not in groups:
                groups[group] = behind + len(constants)
                constants += [number[id(group.rows)], len(group.members), *group.members]
            # an expert's gradient is to be written even where no row chose it
            how = int(instruction is not batch[-1]) + 2 * any(value.each for value in instruction.outputs)
            words += [*address(path, instruction.op), how, groups.get(group, 0), len(values)]
            words += [number[id(value)] for value in values]
    return np.array([len(operands), len(own), len(instructions), *words, *constants], np.int32)


class Pieces:
    """A program as operators: one, or several where the processes of a group add something up::

        piece 0 ─► part ─► sum 0 ─► piece 1 ─► part ─► sum 1 ─► piece 2 ─► result
            └────► kept 0 ──────────────┴─────────────────────────┘

    Behind a piece there are two blocks for those that follow: the sum over the group, and what else they read of it.

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

    def lower(self, index: int, operands: Sequence[Value | str], results: Sequence[Value | str]) -> np.ndarray:
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
        return Function("program", shapes(width, tuple(weights), *sizes))


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
    return dict.fromkeys(buffers([value for one in instructions for value in one.read]))


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
