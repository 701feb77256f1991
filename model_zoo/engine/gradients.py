"""The backward pass of a traced program: the gradient rules of its operations, from the last to the first."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from model_zoo.engine.ir import OPERAND, Buffer, Instruction, NotTraceable, Value
from model_zoo.engine.ops import OPS


class Backward:
    """The instructions of a backward pass.

    Args:
        instructions: the forward pass.
        trained: operands that get a gradient.
        result: the value whose gradient is given.

    Attributes:
        instructions: of the backward pass.
        outer: the gradient of `result`, an operand.
        of_weights: trained operand → the output that is its gradient.
    """

    def __init__(self, instructions: list[Instruction], trained: list[Value], result: Value):
        self.forward = instructions
        self.instructions: list[Instruction] = []
        self.of_weights: dict[Value, Value] = {}
        self.pending: dict[Buffer | Value, Value] = {}
        self.wanted = {self.key(value) for value in trained}
        for instruction in instructions:
            if any(self.wants(value) for value in instruction.inputs):
                self.wanted.add(self.key(instruction.outputs[0]))  # what it gives besides has none
        self.outer, self.group = Value(result.per_token, OPERAND), None
        self.pending[self.key(result)] = self.outer
        for instruction in reversed(instructions):
            out = instruction.outputs[0]
            if self.wants(out):
                gradient, rule = self.pending.pop(self.key(out), None), OPS[instruction.op].vjp
                if gradient is None or rule is None:
                    self.refuse(f"{instruction.op} in a backward pass")
                self.group = instruction.group
                rule(self, instruction, self.shaped(gradient, out))

    def refuse(self, what: str) -> NoReturn:
        """For programs that have no backward pass here."""
        raise NotTraceable(f"no gradient rule for {what}")

    def gradient_of(self, operand: Value) -> Value | None:
        """The gradient of an operand, if there is one."""
        return self.of_weights.get(operand, self.pending.get(operand))

    @staticmethod
    def key(value: Value) -> Buffer | Value:
        """Views of the same numbers have one gradient. Of experts' weights all are trained, or none."""
        value = value.each[0] if value.each else value
        return value.buffer if isinstance(value.buffer, Buffer) else value

    def wants(self, value: Value) -> bool:
        """Whether a value gets a gradient."""
        return self.key(value) in self.wanted

    @staticmethod
    def shaped(gradient: Value, like: Value) -> Value:
        """The gradient in the shape of what it belongs to. An operand has its own."""
        return gradient if gradient.buffer is OPERAND else Value(like.per_token, gradient.buffer)

    # What rules do

    def emit(self, op: str, *inputs: Value, outputs: list[Value]) -> None:
        self.instructions.append(Instruction(op, list(inputs), outputs, self.group))

    def constant(self, value: np.generic) -> Value:
        return Value((1,), None, value)

    def fresh(self, like: Value) -> Value:
        """Memory for a gradient."""
        return Value(like.per_token, Buffer(0 if like.per_token is None else like.rows * like.width))

    def of_weight(self, weight: Value) -> Value:
        """The output that is a weight's gradient."""
        singles = weight.each or (weight,)
        if any(one in self.of_weights for one in singles) or (self.group is not None and not weight.each):
            self.refuse("a weight that is used twice")
        made = tuple(Value(None, OPERAND) for _ in singles)
        self.of_weights.update(zip(singles, made, strict=True))
        return Value(None, OPERAND, each=made) if weight.each else made[0]

    def readers(self, x: Value) -> list[Instruction]:
        """The instructions of the forward pass that read a value."""
        return [other for other in self.forward if any(self.key(value) is self.key(x) for value in other.inputs)]

    def owned(self, x: Value, *read: Value) -> Value | None:
        """The gradient of x so far, if a kernel that reads these may add to it in place."""
        found = self.pending.get(self.key(x))
        if found is None or not isinstance(found.buffer, Buffer):
            return None
        others = [other for of, other in self.pending.items() if of is not self.key(x)]
        return None if any(other.buffer is found.buffer for other in (*others, *read)) else found

    def give(self, x: Value, gradient: Value) -> None:
        """Adds this to the gradient of x."""
        if not self.wants(x):
            return
        key = self.key(x)
        before = self.pending.get(key)
        if before is not None:
            out, one = self.fresh(x), self.constant(np.float32(1.0))
            self.emit("add", self.shaped(before, x), self.shaped(gradient, x), one, outputs=[out])
            gradient = out
        self.pending[key] = gradient

    def give_new(self, x: Value, op: str, *inputs: Value) -> None:
        """Adds what an operation computes."""
        if self.wants(x):
            out = self.fresh(x)
            self.emit(op, *inputs, outputs=[out])
            self.give(x, out)

    def product(self, x: Value, op: str, *inputs: Value) -> None:
        """The same for an operation that can add to its output: ``op_added``."""
        into = self.owned(x, *inputs)
        if self.wants(x) and into is not None:
            self.emit(f"{op}_added", *inputs, outputs=[self.shaped(into, x)])
        else:
            self.give_new(x, op, *inputs)

    def norm(self, x: Value, op: str, *inputs: Value) -> None:
        """The same for an operation whose form ``op_added`` takes what is there as its last input."""
        if not self.wants(x):
            return
        before, out = self.pending.pop(self.key(x), None), self.fresh(x)
        if before is None:
            self.emit(op, *inputs, outputs=[out])
        else:
            self.emit(f"{op}_added", *inputs, self.shaped(before, x), outputs=[out])
        self.pending[self.key(x)] = out
