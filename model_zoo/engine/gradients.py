"""The backward pass of a layer that is told as steps: for each kernel, which kernels compute its gradients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from model_zoo.engine.calls import OPERAND, Call, Memory, Place
from model_zoo.engine.steps import Steps

RULES: dict[str, Callable] = {}
"""For each kernel, ``(gradients, call, gradient of its first output)``, which adds what its inputs get."""


def rule(*kernels: str):
    """Marks what computes the gradients of these kernels."""

    def mark(function):
        RULES.update(dict.fromkeys(kernels, function))
        return function

    return mark


class Gradients:
    """The calls of a backward pass, made from the last forward call to the first.

    Args:
        steps: the forward pass; its ``trained`` are the operands that want a gradient, its ``start`` an operand
            ``(B, S)``.

    Attributes:
        calls: of the backward pass.
        outer: the gradient that it begins with, an operand.
        of_weights: weight → the output that is its gradient.
    """

    def __init__(self, steps: Steps, result: Place):
        self.steps = steps
        self.calls: list[Call] = []
        self.of_weights: dict[Place, Place] = {}
        self.pending: dict[Memory | Place, Place] = {}
        self.wanted = {self.key(place) for place in steps.trained}
        for call in steps.calls:
            if any(self.wants(place) for place in call.inputs):
                self.wanted.update(self.key(place) for place in call.outputs)
        self.outer = Place(result.rows, result.width, OPERAND)
        self.pending[self.key(result)] = self.outer
        for call in reversed(steps.calls):
            if self.wants(call.outputs[0]):
                gradient = self.pending.pop(self.key(call.outputs[0]), None)
                if gradient is None or call.kernel not in RULES:
                    steps.refuse(type(self))
                RULES[call.kernel](self, call, self.shaped(gradient, call.outputs[0]))

    @property
    def of_stream(self) -> Place | None:
        """The gradient of the stream, if there is one."""
        return self.pending.get(self.steps.stream)

    @staticmethod
    def key(place: Place) -> Memory | Place:
        """Places that are views of the same numbers have one gradient."""
        return place.memory if isinstance(place.memory, Memory) else place

    def wants(self, place: Place) -> bool:
        """Whether there is to be a gradient."""
        return self.key(place) in self.wanted

    @staticmethod
    def shaped(gradient: Place, like: Place) -> Place:
        """The gradient in the shape of what it belongs to. An operand has its own."""
        if gradient.memory is OPERAND:
            return gradient
        return Place(like.rows, like.width, gradient.memory, like.by_head)

    # What rules do

    def call(self, kernel: str, *inputs: Place, outputs: list[Place]) -> None:
        self.calls.append(Call(kernel, list(inputs), outputs))

    def fresh(self, like: Place) -> Place:
        """Memory for a gradient."""
        width = like.width
        return Place(like.rows, width, Memory(like.rows * width), like.by_head)

    def of_weight(self, weight: Place) -> Place:
        """The output that is a weight's gradient."""
        if weight in self.of_weights:
            self.steps.refuse(type(self))  # used twice
        self.of_weights[weight] = Place(0, 0, OPERAND)
        return self.of_weights[weight]

    def owned(self, x: Place, *read: Place) -> Place | None:
        """The gradient of x so far, if it may be added to where it lies by a kernel that reads these."""
        found = self.pending.get(self.key(x))
        if found is None or not isinstance(found.memory, Memory):
            return None
        others = [other for of, other in self.pending.items() if of is not self.key(x)]
        return None if any(other.memory is found.memory for other in (*others, *read)) else found

    def give(self, x: Place, gradient: Place) -> None:
        """Adds this to the gradient of x."""
        if not self.wants(x):
            return
        key = self.key(x)
        before = self.pending.get(key)
        if before is not None:
            out, one = self.fresh(x), self.steps.constant(np.float32(1.0))
            self.call("add", self.shaped(before, x), self.shaped(gradient, x), one, outputs=[out])
            gradient = out
        self.pending[key] = gradient

    def product(self, x: Place, kernel: str, *inputs: Place) -> None:
        """Adds what a kernel computes, which can add to what is there: ``kernel_added``."""
        if not self.wants(x):
            return
        into = self.owned(x, *inputs)
        if into is not None:
            self.call(f"{kernel}_added", *inputs, outputs=[self.shaped(into, x)])
            return
        out = self.fresh(x)
        self.call(kernel, *inputs, outputs=[out])
        self.give(x, out)

    def norm(self, x: Place, kernel: str, *inputs: Place) -> None:
        """The same for a kernel whose other form takes what is there as its last input."""
        if not self.wants(x):
            return
        before, out = self.pending.pop(self.key(x), None), self.fresh(x)
        if before is None:
            self.call(kernel, *inputs, outputs=[out])
        else:
            self.call(f"{kernel}_added", *inputs, self.shaped(before, x), outputs=[out])
        self.pending[self.key(x)] = out


@rule("rms_norm")
def _(to: Gradients, call: Call, dy: Place) -> None:
    (x, weight, _), (_, scale) = call.inputs, call.outputs
    if to.wants(weight):
        to.call("rms_norm_weight_gradient", x, scale, dy, outputs=[to.of_weight(weight)])
    to.norm(x, "rms_norm_gradient", x, weight, scale, dy)


@rule("layer_norm")
def _(to: Gradients, call: Call, dy: Place) -> None:
    (x, weight, bias, _), (_, mean, scale) = call.inputs, call.outputs
    if to.wants(weight):
        to.call("layer_norm_weight_gradient", x, mean, scale, dy, outputs=[to.of_weight(weight)])
    if to.wants(bias):
        to.call("column_sum", dy, outputs=[to.of_weight(bias)])
    to.norm(x, "layer_norm_gradient", x, weight, mean, scale, dy)


@rule("product_of_rows")
def _(to: Gradients, call: Call, dy: Place) -> None:
    x, weight = call.inputs
    if to.wants(weight):
        to.call("product_of_columns", dy, x, outputs=[to.of_weight(weight)])
    to.product(x, "plain_product", dy, weight)


@rule("plain_product")
def _(to: Gradients, call: Call, dy: Place) -> None:
    x, weight = call.inputs
    if to.wants(weight):
        to.call("product_of_columns", x, dy, outputs=[to.of_weight(weight)])
    to.product(x, "product_of_rows", dy, weight)


@rule("add_bias")
def _(to: Gradients, call: Call, dy: Place) -> None:
    x, bias = call.inputs
    if to.wants(bias):
        to.call("column_sum", dy, outputs=[to.of_weight(bias)])
    to.give(x, dy)


@rule("low_rank")
def _(to: Gradients, call: Call, dy: Place) -> None:
    (y, x, a, b, scale), (_, inner) = call.inputs, call.outputs
    outer = to.fresh(inner)
    to.call("low_rank_factors", b, scale, x, inner, dy, outputs=[outer, to.of_weight(a), to.of_weight(b)])
    to.product(x, "plain_product", outer, a)
    to.give(y, dy)


@rule("dora")
def _(to: Gradients, call: Call, dy: Place) -> None:
    y, *_ = call.inputs
    magnitude, bias = call.inputs[5], call.inputs[8:]
    if any(to.wants(place) for place in bias):
        to.steps.refuse(type(to))
    out = to.fresh(y)
    to.call("dora_gradient", *call.inputs, dy, outputs=[out, to.of_weight(magnitude)])
    to.give(y, out)


@rule("split_heads")
def _(to: Gradients, call: Call, dy: Place) -> None:
    x, start = call.inputs
    out = to.fresh(x)
    to.call("join_heads", dy, start, outputs=[out])
    to.give(x, out)


@rule("split_rotary_half", "split_rotary_interleaved")
def _(to: Gradients, call: Call, dy: Place) -> None:
    x, *tables = call.inputs
    out = to.fresh(x)
    to.call(f"{call.kernel}_back", dy, *tables, outputs=[out])
    to.give(x, out)


@rule("attention")
def _(to: Gradients, call: Call, dy: Place) -> None:
    outs = [to.fresh(place) for place in call.inputs[:3]]
    to.call("attention_gradient", *call.inputs, *call.outputs, dy, outputs=outs)
    for place, out in zip(call.inputs, outs, strict=False):
        to.give(place, out)


@rule("attention_prefixed")
def _(to: Gradients, call: Call, dy: Place) -> None:
    outs, prefix = [to.fresh(place) for place in call.inputs[:3]], to.of_weight(call.inputs[6])
    to.call("attention_prefixed_gradient", *call.inputs, *call.outputs, dy, outputs=[*outs, prefix])
    for place, out in zip(call.inputs, outs, strict=False):
        to.give(place, out)


@rule("swiglu")
def _(to: Gradients, call: Call, dy: Place) -> None:
    outs = [to.fresh(place) for place in call.inputs]
    to.call("swiglu_gradient", *call.inputs, dy, outputs=outs)
    for place, out in zip(call.inputs, outs, strict=True):
        to.give(place, out)


@rule("gelu_tanh", "relu", "silu", "hyperbolic_tangent")
def _(to: Gradients, call: Call, dy: Place) -> None:
    (x,), out = call.inputs, to.fresh(call.inputs[0])
    to.call(f"{call.kernel}_gradient", x, dy, outputs=[out])
    to.give(x, out)


@rule("add")
def _(to: Gradients, call: Call, dy: Place) -> None:
    x, y, factor = call.inputs
    if to.wants(x) and factor.constant != 1.0:
        out = to.fresh(x)
        to.call("scale", dy, factor, outputs=[out])
        to.give(x, out)
    else:
        to.give(x, dy)
    to.give(y, dy)


@rule("scale_columns")
def _(to: Gradients, call: Call, dy: Place) -> None:
    x, factors = call.inputs
    if to.wants(factors):
        to.call("scale_columns_gradient", x, dy, outputs=[to.of_weight(factors)])
    if to.wants(x):
        out = to.fresh(x)
        to.call("scale_columns", dy, factors, outputs=[out])
        to.give(x, out)


@rule("dropout")
def _(to: Gradients, call: Call, dy: Place) -> None:
    x, *numbers = call.inputs
    if to.wants(x):
        out = to.fresh(x)
        to.call("dropout", dy, *numbers, outputs=[out])
        to.give(x, out)


@rule("take_columns")
def _(to: Gradients, call: Call, dy: Place) -> None:
    x, first = call.inputs
    if not to.wants(x):
        return
    whole = to.owned(x, dy)
    if whole is None:
        takers = [other for other in to.steps.calls if any(to.key(place) is to.key(x) for place in other.inputs)]
        end = 0
        for other in sorted(takers, key=lambda other: int(other.inputs[-1].constant or 0)):
            seen, begin = other.inputs[0], other.inputs[-1].constant
            if other.kernel != "take_columns" or begin != end or (seen.rows, seen.width) != (x.rows, x.width):
                end = -1
                break
            end += other.outputs[0].width
        if end != x.width:
            to.steps.refuse(type(to))  # what nobody takes would have to be 0
        whole = to.fresh(x)
        to.pending[to.key(x)] = whole
    to.call("put_columns", dy, first, outputs=[to.shaped(whole, x)])


@rule("join_columns")
def _(to: Gradients, call: Call, dy: Place) -> None:
    first = 0
    for x in call.inputs:
        if to.wants(x):
            out = to.fresh(x)
            to.call("take_columns", dy, to.steps.constant(np.int32(first)), outputs=[out])
            to.give(x, out)
        first += x.width
