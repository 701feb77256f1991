"""Gradient (VJP) rules: ``(backward, instruction, gradient of its first output)`` → what its inputs get.

A rule is said in terms of `model_zoo.engine.gradients.Backward`, whichever the program: all layers, or one operation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from model_zoo.engine.ir import Instruction, Value


def rms_norm(to, instruction: Instruction, dy: Value) -> None:
    (x, weight, _, offset), (_, scale) = instruction.inputs, instruction.outputs
    if to.wants(weight):
        to.emit("rms_norm_weight_gradient", x, scale, dy, outputs=[to.of_weight(weight)])
    to.norm(x, "rms_norm_gradient", x, weight, offset, scale, dy)


def layer_norm(to, instruction: Instruction, dy: Value) -> None:
    (x, weight, bias, _), (_, mean, scale) = instruction.inputs, instruction.outputs
    if to.wants(weight):
        to.emit("layer_norm_weight_gradient", x, mean, scale, dy, outputs=[to.of_weight(weight)])
    if to.wants(bias):
        to.emit("column_sum", dy, outputs=[to.of_weight(bias)])
    to.norm(x, "layer_norm_gradient", x, weight, mean, scale, dy)


def matrix_product(to, instruction: Instruction, dy: Value) -> None:
    """Of ``x·Wᵀ`` or ``x·W``, in either precision: each is the other's gradient."""
    (x, weight), low = instruction.inputs, "_bf16" if instruction.op.endswith("_bf16") else ""
    turned = instruction.op.startswith("product_of_rows")
    if to.wants(weight):
        pair = (dy, x) if turned else (x, dy)
        to.emit(f"product_of_columns{low}", *pair, outputs=[to.of_weight(weight)])
    to.product(x, f"{'plain_product' if turned else 'product_of_rows'}{low}", dy, weight)


def add_bias(to, instruction: Instruction, dy: Value) -> None:
    x, bias = instruction.inputs
    if to.wants(bias):
        to.emit("column_sum", dy, outputs=[to.of_weight(bias)])
    to.give(x, dy)


def rows_of(to, instruction: Instruction, dy: Value) -> None:
    table, ids, padding = instruction.inputs
    if to.wants(table):
        to.emit("rows_of_gradient", table, ids, padding, dy, outputs=[to.of_weight(table)])


def low_rank(to, instruction: Instruction, dy: Value) -> None:
    (y, x, a, b, scale), (_, inner) = instruction.inputs, instruction.outputs
    outer = to.fresh(inner)
    if to.wants(a) or to.wants(b):
        to.emit("low_rank_factors", b, scale, x, inner, dy, outputs=[outer, to.of_weight(a), to.of_weight(b)])
    elif to.wants(x):  # factors that are constant may be used twice
        bare = to.fresh(inner)
        to.emit("plain_product", dy, b, outputs=[bare])
        to.emit("scale", bare, scale, outputs=[outer])
    to.product(x, "plain_product", outer, a)
    to.give(y, dy)


def dora(to, instruction: Instruction, dy: Value) -> None:
    magnitude, bias = instruction.inputs[5], instruction.inputs[9:]
    if any(to.wants(value) for value in bias):
        to.refuse("a trained bias beneath DoRA")
    all_at_once(to, instruction, 1, dy, weights=[to.of_weight(magnitude)])


def split_heads(to, instruction: Instruction, dy: Value) -> None:
    x, start = instruction.inputs
    to.give_new(x, "join_heads", dy, start)


def rotary(to, instruction: Instruction, dy: Value) -> None:
    x, *tables = instruction.inputs
    to.give_new(x, f"{instruction.op}_back", dy, *tables)


def all_at_once(to, instruction: Instruction, count: int | None, *given: Value, weights: Sequence[Value] = ()) -> None:
    """A kernel ``…_gradient`` gives the gradients of the first inputs, or of all, and of these weights."""
    outs = [to.fresh(value) for value in instruction.inputs[:count]]
    to.emit(f"{instruction.op}_gradient", *instruction.inputs, *given, outputs=[*outs, *weights])
    for value, out in zip(instruction.inputs, outs, strict=False):
        to.give(value, out)


def elementwise(to, instruction: Instruction, dy: Value) -> None:
    all_at_once(to, instruction, None, dy)


def attention(to, instruction: Instruction, dy: Value) -> None:
    all_at_once(to, instruction, 3, *instruction.outputs, dy)


def attention_prefixed(to, instruction: Instruction, dy: Value) -> None:
    prefix = to.of_weight(instruction.inputs[9])
    all_at_once(to, instruction, 3, *instruction.outputs, dy, weights=[prefix])


def copy_to_group(to, instruction: Instruction, dy: Value) -> None:
    """Each process has a term of the gradient."""
    to.give_new(instruction.inputs[0], "sum_over_group", dy)


def sum_over_group(to, instruction: Instruction, dy: Value) -> None:
    to.give(instruction.inputs[0], dy)


def add(to, instruction: Instruction, dy: Value) -> None:
    x, y, factor = instruction.inputs
    if to.wants(x) and factor.constant != 1.0:
        to.give_new(x, "scale", dy, factor)
    else:
        to.give(x, dy)
    to.give(y, dy)


def scale(to, instruction: Instruction, dy: Value) -> None:
    x, factor = instruction.inputs
    to.give_new(x, "scale", dy, factor)


def scale_columns(to, instruction: Instruction, dy: Value) -> None:
    x, factors = instruction.inputs
    if to.wants(factors):
        to.emit("scale_columns_gradient", x, dy, outputs=[to.of_weight(factors)])
    to.give_new(x, "scale_columns", dy, factors)


def scale_rows(to, instruction: Instruction, dy: Value) -> None:
    x, factors = instruction.inputs
    to.give_new(factors, "scale_rows_gradient", x, dy)
    to.give_new(x, "scale_rows", dy, factors)


def chosen_shares(to, instruction: Instruction, dy: Value) -> None:
    logits, shares = instruction.inputs[0], instruction.outputs[0]
    to.give_new(logits, "chosen_shares_gradient", *instruction.inputs, shares, dy)


def rows_to_experts(to, instruction: Instruction, dy: Value) -> None:
    x, _, rows = instruction.inputs
    to.give_new(x, "rows_from_experts", dy, rows)


def sum_by_share(to, instruction: Instruction, dy: Value) -> None:
    all_at_once(to, instruction, 2, dy)


def dropout(to, instruction: Instruction, dy: Value) -> None:
    x, *numbers = instruction.inputs
    to.give_new(x, "dropout", dy, *numbers)


def take_columns(to, instruction: Instruction, dy: Value) -> None:
    x, first = instruction.inputs
    end = 0
    for other in sorted(to.readers(x), key=lambda other: int(other.inputs[-1].constant or 0)):
        if other.op != "take_columns" or other.inputs[-1].constant != end or other.inputs[0].per_token != x.per_token:
            to.refuse("columns of what is used otherwise, too")
        end += other.outputs[0].width
    if end != x.width:
        to.refuse("columns that nobody takes")  # they would have to be 0
    whole = to.owned(x, dy)
    if whole is None:
        whole = to.fresh(x)
        to.give(x, whole)
    to.emit("put_columns", dy, first, outputs=[to.shaped(whole, x)])


def join_columns(to, instruction: Instruction, dy: Value) -> None:
    first = 0
    for x in instruction.inputs:
        to.give_new(x, "take_columns", dy, to.constant(np.int32(first)))
        first += x.width
