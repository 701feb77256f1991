"""Which products of a program run at once, as one piece of work of all threads (`products` in gemm.c)."""

from __future__ import annotations

from collections.abc import Sequence

from model_zoo.engine.calls import Call, Place, memories

PRODUCTS = {
    "product_of_rows": False,
    "product_of_rows_added": True,
    "product_of_rows_onto": True,
    "plain_product": False,
    "plain_product_added": True,
}
"""Kernels that can run at once, and whether they add to what is there."""

MOST_TOGETHER = 8
"""As many as gemm.h has room for."""


def factors(call: Call) -> list[Place]:
    """What a product multiplies; behind that comes what it adds to."""
    return call.inputs[:2]


def conflict(call: Call, other: Call) -> bool:
    """Whether a call cannot change places with one before it."""
    made, others = set(memories(call.outputs)), set(memories(other.outputs))
    return bool(
        made & others or made.intersection(memories(other.inputs)) or others.intersection(memories(call.inputs))
    )


def bring_together(calls: Sequence[Call]) -> list[Call]:
    """The calls in an order in which products wait until another product needs what follows from them, so that several
    can run at once."""
    order: list[Call] = []
    products: list[Call] = []
    behind: list[Call] = []  # what needs these products' results

    def release() -> None:
        order.extend((*products, *behind))
        products.clear()
        behind.clear()

    for call in calls:
        if call.kernel in PRODUCTS:
            made = {memory for other in products for memory in memories(other.outputs)}
            if made.intersection(memories(factors(call))) or any(conflict(call, other) for other in behind):
                release()
            products.append(call)
        elif any(conflict(call, other) for other in (*products, *behind)):
            behind.append(call)
        else:
            order.append(call)
    release()
    return order


def groups(calls: Sequence[Call]) -> list[list[Call]]:
    """The calls in their order, and together those that run at once: products of which none reads what another one
    writes. Those that add to a result of the same group run with it."""
    found: list[list[Call]] = []
    for call in calls:
        group = found[-1] if found else []
        if group and len(group) < MOST_TOGETHER and may_join(call, group):
            group.append(call)
        else:
            found.append([call])
    return found


def may_join(call: Call, group: Sequence[Call]) -> bool:
    """Whether a call can run with all of these."""
    if any(one.kernel not in PRODUCTS or copies(one) for one in (call, group[0])):
        return False
    made, read = memories(call.outputs), set(memories(factors(call)))
    return all(
        call.inputs[0].rows == other.inputs[0].rows
        and not read.intersection(memories(other.outputs))
        and not set(made).intersection(memories(factors(other)))
        and (PRODUCTS[call.kernel] or made != memories(other.outputs))
        for other in group
    )


def copies(call: Call) -> bool:
    """Whether it adds to numbers that lie elsewhere than its result."""
    return call.kernel == "product_of_rows_onto" and memories(call.inputs[2:]) != memories(call.outputs)
