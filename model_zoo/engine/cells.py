"""One operation of the table as a cell, for what is no part of a whole layer."""

from __future__ import annotations

import functools
import logging

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.common import _Function

from model_zoo.engine.build import SWITCH, NoCompiler, library
from model_zoo.engine.call import Function, as_it_is, outputs
from model_zoo.engine.gradients import Backward
from model_zoo.engine.ir import OPERAND, Buffer, Instruction, Value
from model_zoo.engine.ops import OPS, STORED, Op

log = logging.getLogger("pet")


@functools.cache
def available() -> bool:
    """Whether there are C kernels here. That there are none is said once, unless they were switched off."""
    if ms.get_context("device_target") != "CPU":
        return False
    try:
        library()
    except NoCompiler as error:
        if str(error) != f"{SWITCH}=0":
            log.warning("no native kernels, so it runs slower: %s", error)
        return False
    return True


def operator(op: Op, **sizes):
    """An operation of the table as an operator; `sizes` are those that its inputs do not tell."""

    def shapes(*given):
        found = tuple(map(list, op.shapes(given, **sizes)))
        return found if count > 1 else found[0]

    count = len(op.outputs)
    return Function(op.name, outputs(count)(shapes) if count > 1 else shapes)


class Differentiable(nn.Cell):
    """An operation, and a backward pass of the operations that its gradient rule names. Each is an operator of its own,
    so that the compiler drops gradients that nobody asks for.

    Args:
        numbers: the constants of its signature, and sizes that its inputs do not tell, by name.
        asked: for each tensor among the inputs whether it gets a gradient; None: all that can.
    """

    def __init__(self, op: Op, numbers: dict, asked: tuple[bool, ...] | None = None):
        super().__init__()
        self.made_of, self.others = (op, numbers), {}
        fields = [field for field in op.inputs if not field.optional]
        values = [Value(None, None if field.constant else OPERAND) for field in fields]
        constants = {}
        for value, field in zip(values, fields, strict=True):
            if field.constant:
                value.constant = field.dtype(numbers[field.constant])
                constants[value] = Tensor(np.array([value.constant]))
        made = [Value(None, Buffer(0)) for _ in op.outputs]
        tensors = [value for value in values if value.buffer is OPERAND]
        trained = []
        if op.vjp is not None:
            trained = [value for value, field in zip(values, fields, strict=True) if field.floats]
        if asked is not None:
            trained = [value for value, one in zip(tensors, asked, strict=True) if one and value in trained]
        backward = Backward([Instruction(op.name, values, made)], trained, made[0])
        # what there is while the backward pass runs: tensors, constants, outputs, the gradient, and what it computes
        known = [*tensors, *constants, *made, backward.outer]
        self.constants, self.several = tuple(constants.values()), len(made) > 1
        self.places = tuple(known.index(value) for value in values)
        self.forward, self.backward, self.reads = operator(op, **numbers), (), ()
        for instruction in backward.instructions:
            self.backward += (operator(OPS[instruction.op], **numbers),)
            self.reads += (tuple(known.index(value) for value in instruction.inputs),)
            known += instruction.outputs
        self.found = tuple(
            known.index(gradient) if (gradient := backward.gradient_of(value)) is not None else -1 for value in tensors
        )

    def asked_for(self, asked: tuple[bool, ...]) -> Differentiable:
        """The same with these gradients alone."""
        if asked not in self.others:
            self.others[asked] = Differentiable(*self.made_of, asked)
        return self.others[asked]

    def pick(self, known, places):
        given = ()
        for place in places:
            given = given + (known[place],)
        return given

    def construct(self, inputs):
        """A tuple of the tensors → a tuple of the outputs."""
        made = self.forward(*self.pick(inputs + self.constants, self.places))
        return made if self.several else (made,)

    def back(self, known):
        """What there is when the backward pass begins → the same and what it computes."""
        for index, backward in enumerate(self.backward):
            made = backward(*self.pick(known, self.reads[index]))
            known = known + (made if isinstance(made, tuple) else (made,))
        return known

    def bprop(self, inputs, out, dout):
        known = self.back(inputs + self.constants + out + (dout[0],))
        gradients = ()
        for index, place in enumerate(self.found):
            gradients = gradients + (ops.zeros_like(inputs[index]) if place < 0 else known[place],)
        return (gradients,)


@ms.jit(jit_level="O0")
def _any_graph(x):
    return x + 1


@functools.cache
def rest_workers() -> None:
    """MindSpore's worker threads, among which it shares its own operators out, turn round for up to 0.3 s behind each
    of them, and take the cores from the kernels, until the process has run a graph: its end lets them wait at once."""
    _any_graph(Tensor([0.0]))


class Eagerly:
    """Within, kernels compute in C outside of graphs, too; elsewhere plain operators do, to which tests hold them."""

    depth = 0

    def __enter__(self):
        rest_workers()
        Eagerly.depth += 1
        return self

    def __exit__(self, *_):
        Eagerly.depth -= 1


def apart(result):
    """What a ``_Function`` keeps of its own result, which MindSpore makes hold what is kept: where no gradient is ever
    asked for, as behind a frozen embedding, the two would hold each other for good."""
    return ops.stop_gradient(result)


class Launch(_Function):
    """A `Differentiable` outside of graphs. What nobody asks for is not computed, as the compiler has it in graphs."""

    @staticmethod
    def forward(ctx, cell, *inputs):
        made = cell.construct(inputs)
        ctx.cell, ctx.known = cell, (inputs, (apart(made[0]), *made[1:]))
        return made[0]

    @staticmethod
    def backward(ctx, dout):
        inputs, made = ctx.known
        cell = ctx.cell.asked_for(tuple(ctx.needs_input_grad[1:]))
        known = cell.back(inputs + cell.constants + made + (dout,))
        return None, *(None if place < 0 else known[place] for place in cell.found)


class Kernel(nn.Cell):
    """The first output of an operation in C. Outside of graphs the row's plain operators compute it, but `Eagerly`."""

    def __init__(self, op: Op, numbers: dict):
        super().__init__()
        self.plain = op.plain(**numbers) if op.plain is not None else None
        self.native = Differentiable(op, numbers)

    def __call__(self, *tensors):
        return Launch.apply(self.native, *map(as_it_is, tensors)) if Eagerly.depth else self.plain(*tensors)

    def construct(self, *tensors):
        return self.native(tensors)[0]


@functools.cache
def native(name: str, **numbers):
    """The cell of an operation in C; one for all who ask for the same, so that it is parsed once."""
    return Kernel(OPS[name], numbers)


@functools.cache
def plain(name: str, **numbers):
    """The same by MindSpore's operators."""
    return OPS[name].plain(**numbers)


def precision_suffix(product) -> str:
    """How the names of the operations end that compute in this product's precision."""
    return getattr(product, "low", "") if isinstance(product, nn.Cell) else ""


class Product(nn.Cell):
    """Takes the place of a ``MatMul`` without ``transpose_a``, or of one of rounded factors or for stored weights; what
    is not float32 by a weight of the table goes by that, and so does everything outside of graphs."""

    stands_for_product = True

    def __init__(self, primitive):
        super().__init__()
        self.primitive = primitive
        self.low = precision_suffix(primitive)
        turned = getattr(primitive, "primitive", primitive).transpose_b
        self.kernel = native(("product_of_rows" if turned else "plain_product") + self.low)

    def __call__(self, left, right):
        return self.construct(left, right) if Eagerly.depth else self.primitive(left, right)

    def construct(self, left, right):
        if left.dtype == ms.float32 and right.dtype in (ms.float32, *STORED):
            return self.kernel(left, right)
        return self.primitive(left, right)


class StoredRows(nn.Cell):
    """Rows of a frozen table in float32, stored in that or in 16 bits."""

    def __init__(self):
        super().__init__()
        op, self.padding = OPS["rows_of"], (Tensor(np.array([-1], np.int32)),) if available() else ()
        self.rows = operator(op, padding=-1) if available() else op.plain(-1)

    def construct(self, table, ids):
        """Table ``(V, W)``, ids of any shape → ``ids.shape + (W,)``."""
        ids = ids if ids.dtype == ms.int32 else ids.astype(ms.int32)  # in a graph of the caller's own
        return self.rows(table, ids, *self.padding)

    def bprop(self, table, ids, out, dout):
        return ops.zeros_like(table), ops.zeros_like(ids)


stored_rows = functools.cache(StoredRows)
