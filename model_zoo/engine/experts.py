"""Mixtures of experts in a program: each expert computes the rows that chose it, and no others.

A token is a row for each expert that it goes through, and rows lie in the order of their experts, so that there are as
many of them whatever is chosen, and each expert's lie together. Experts of one make are a `Group`, whose instructions
are in the program once: they run for each member, with its weights and its rows. To all else a program does (gradients,
buffers, products at once) they are instructions like others, on rows like others.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import numpy as np
from mindspore import Tensor, nn

from model_zoo.engine.ir import OPERAND, Buffer, Group, Instruction, Value
from model_zoo.engine.ops import COLLECTIVES, OPS


def mixture(tracer, experts: Sequence[nn.Cell], x: Value, shares: Value, rows: Sequence[Value]) -> Value:
    """What experts give for the tokens that chose them, by these shares.

    Args:
        tracer: a `model_zoo.engine.trace.Tracer`.
        x: ``(N, H)``.
        shares: ``(N, experts)``.
        rows: what the operation ``chosen_shares`` says besides.

    Raises:
        NotTraceable: an expert within cannot be followed, or adds something up over a group of processes.
    """
    row_of, expert_of, token_of = rows
    makes: dict[Hashable, list[tuple]] = {}
    for index, expert in enumerate(experts):
        given = tracer.place((row_of.width, x.width))
        with tracer.apart(tracer.view(token_of, row_of.width)) as own:
            result = tracer.call(expert, given)
        if any(OPS[one.op] in COLLECTIVES for one in own):
            tracer.refuse(type(expert))
        trained = {id(value) for value in tracer.trained}
        makes.setdefault(make_of(given, own, result, trained), []).append((index, given, result, own))
    total = None
    for members in makes.values():
        numbers, (given, *_), (result, *_), programs = zip(*members, strict=True)
        some = row_of
        if len(makes) > 1:
            meant = Tensor(np.isin(np.arange(len(experts)), numbers).astype(np.int32))
            some = tracer.emit("rows_of_some", row_of, expert_of, Value(meant.shape, OPERAND, bound=meant))
        tracer.emit("rows_to_experts", x, token_of, some, outputs=[given])
        group = Group(expert_of, numbers)
        tracer.instructions += [joined(same, group) for same in zip(*programs, strict=True)]
        part = tracer.emit("sum_by_share", result, shares, some, expert_of)
        total = part if total is None else total + part
    return total


def make_of(given: Value, instructions: Iterable[Instruction], result: Value, trained: set[int]) -> Hashable:
    """What is equal of experts whose instructions differ in nothing but their weights, and in what they drop.

    Args:
        trained: ids of the operands that get a gradient.
    """
    known: dict[Buffer, int] = {}

    def of(value: Value, op: str = "") -> Hashable:
        if isinstance(value.buffer, Buffer):
            return known.setdefault(value.buffer, len(known)), value.per_token
        if value.packed is not None:
            parts = tuple(part is not None and part.per_token for part in value.packed.parts)
            return value.packed.storage, value.packed.block, parts, value.per_token
        return value.per_token, None if op == "dropout" else value.constant, id(value) in trained

    whole = [(one.op, *(of(value, one.op) for value in one.values)) for one in instructions]
    return of(given), tuple(whole), of(result)


def joined(same: Sequence[Instruction], group: Group) -> Instruction:
    """The instruction that these of its members are."""

    def of(values: Sequence[Value]) -> Value:
        first = values[0]
        alike = all(value is first for value in values) and len(values) > 1  # what is one's alone may be its weight
        alike = alike or (first.constant is not None and all(value.constant == first.constant for value in values))
        if alike or isinstance(first.buffer, Buffer):
            return first
        return Value(first.per_token, OPERAND, each=tuple(values), tracer=first.tracer)

    inputs, outputs = (
        [of(values) for values in zip(*all_of, strict=True)]
        for all_of in ([one.inputs for one in same], [one.outputs for one in same])
    )
    return Instruction(same[0].op, inputs, outputs, group)
