"""Buffer allocation, and the words that program.c reads."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from mindspore import Parameter, Tensor

from model_zoo.engine.build import library
from model_zoo.engine.ir import OPERAND, RESULT, WORKSPACE, Buffer, Instruction, Value, buffers
from model_zoo.engine.ops import OPS
from model_zoo.engine.schedule import batches, factors


def alias_in_place(instructions: Sequence[Instruction], held: set[Buffer]) -> None:
    """Lets results lie in the buffer of an input that nobody reads again.

    Args:
        held: buffers that are read by others than these instructions.
    """
    last = {buffer: index for index, one in enumerate(instructions) for buffer in buffers(one.values)}
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
        for buffer in buffers([value for instruction in batch for value in instruction.values]):
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
    return [*words_of(0 if own else weight.data_ptr()), *words, len(weight.shape), *weight.shape, *numbers]


def lower(instructions: Sequence[Instruction], operands: Sequence[Value | str]) -> np.ndarray:
    """The words that program.c reads.

    Args:
        operands: of the operator and its outputs, in this order: values, and the names of storages.
    """
    where = {one: index for index, one in enumerate(operands) if isinstance(one, str)}
    number = {id(one): index for index, one in enumerate(operands) if isinstance(one, Value)}
    own, constants = [], []
    for instruction in instructions:
        for value in instruction.values:
            parts = value.packed.parts if value.packed else ()
            for one in (*parts, value):
                if one is not None and id(one) not in number:
                    number[id(one)] = len(operands) + len(own)
                    own.append(one)
    words = []
    behind = 3 + 5 * len(own) + sum(4 + len(instruction.values) for instruction in instructions)
    for value in own:
        if value.constant is not None:
            words += [-1, behind + len(constants), 0, 0, 1]
            constants.append(int(np.array(value.constant).view(np.int32)))
        elif value.packed is not None:
            words += [-2, behind + len(constants), 0, *value.per_token]
            parts = [-1 if part is None else number[id(part)] for part in value.packed.parts]
            constants += [value.packed.storage, value.packed.block, *parts]
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
            values = instruction.values
            words += [*address(path, instruction.op), int(instruction is not batch[-1]), len(values)]
            words += [number[id(value)] for value in values]
    return np.array([len(operands), len(own), len(instructions), *words, *constants], np.int32)
