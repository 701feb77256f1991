"""GEMM batching: which products of a program run at once, as one piece of work of all threads (`gemm.c`)."""

from __future__ import annotations

from collections.abc import Sequence

from model_zoo.engine.ir import Instruction, Value, buffers
from model_zoo.engine.ops import OPS

MOST_AT_ONCE = 8
"""As many as gemm.h has room for."""


def factors(product: Instruction) -> list[Value]:
    """What a product multiplies; behind that comes what it adds to."""
    return product.inputs[:2]


def conflict(one: Instruction, other: Instruction) -> bool:
    """Whether an instruction cannot change places with one before it."""
    made, others = set(buffers(one.outputs)), set(buffers(other.outputs))
    return bool(made & others or made.intersection(buffers(other.read)) or others.intersection(buffers(one.read)))


def schedule(instructions: Sequence[Instruction]) -> list[Instruction]:
    """The instructions in an order in which products wait until another product needs what follows from them, so that
    several can run at once."""
    order: list[Instruction] = []
    products: list[Instruction] = []
    behind: list[Instruction] = []  # what needs these products' results

    def release() -> None:
        order.extend((*products, *behind))
        products.clear()
        behind.clear()

    for instruction in instructions:
        if OPS[instruction.op].product:
            made = {buffer for other in products for buffer in buffers(other.outputs)}
            if made.intersection(buffers(factors(instruction))) or any(conflict(instruction, one) for one in behind):
                release()
            products.append(instruction)
        elif any(conflict(instruction, other) for other in (*products, *behind)):
            behind.append(instruction)
        else:
            order.append(instruction)
    release()
    return order


def batches(instructions: Sequence[Instruction]) -> list[list[Instruction]]:
    """The instructions in their order, and together those that run at once: products of which none reads what another
    one writes. Those that add to a result of the same batch run with it."""
    found: list[list[Instruction]] = []
    for instruction in instructions:
        batch = found[-1] if found else []
        if batch and len(batch) < MOST_AT_ONCE and may_join(instruction, batch):
            batch.append(instruction)
        else:
            found.append([instruction])
    return found


def may_join(instruction: Instruction, batch: Sequence[Instruction]) -> bool:
    """Whether an instruction can run with all of these."""
    if any(not OPS[one.op].product or copies(one) for one in (instruction, batch[0])):
        return False
    made, read = buffers(instruction.outputs), set(buffers(factors(instruction)))
    return all(
        (instruction.group, instruction.inputs[0].rows) == (other.group, other.inputs[0].rows)
        and not read.intersection(buffers(other.outputs))
        and not set(made).intersection(buffers(factors(other)))
        and (OPS[instruction.op].product == "adds" or made != buffers(other.outputs))
        for other in batch
    )


def copies(product: Instruction) -> bool:
    """Whether it adds to numbers that lie elsewhere than its result."""
    return len(product.inputs) > 2 and buffers(product.inputs[2:]) != buffers(product.outputs)
