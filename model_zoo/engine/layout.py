"""Where the steps of a layer keep their numbers, and the words in which steps.c is told all of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from model_zoo.engine.calls import KEPT, KERNELS, OPERAND, WORK, Call, Memory, Place, memories
from model_zoo.engine.together import PRODUCTS, factors, groups

IN_PLACE = {
    "add": (1, 0),
    "scale": (0,),
    "scale_columns": (0,),
    "dropout": (0,),
    "add_bias": (0,),
    "product_of_rows_onto": (2,),
    "rms_norm_gradient_added": (4,),
    "layer_norm_gradient_added": (5,),
    "gelu_tanh_gradient": (1,),
    "relu_gradient": (1,),
    "silu_gradient": (1,),
    "hyperbolic_tangent_gradient": (1,),
    "swiglu_gradient": (2,),
}
"""Kernels whose first output may lie where an input did: which ones, the best first."""

TOGETHER = 1 << 16
"""Added to a kernel's number where it runs at once with the next one."""


def put_in_place(calls: Sequence[Call], held: set[Memory]) -> None:
    """Lets results lie where an input did that nobody reads again.

    Args:
        held: memories that are read by others than these calls.
    """
    last = {memory: index for index, call in enumerate(calls) for memory in memories(call.places)}
    for index, call in enumerate(calls):
        if set(memories(call.outputs)).intersection(memories(call.inputs)):
            continue  # calls of the forward pass that are made again: a second input there would overwrite the first
        for which in IN_PLACE.get(call.kernel, ()):
            given, out = call.inputs[which], call.outputs[0]
            free = isinstance(given.memory, Memory) and isinstance(out.memory, Memory)
            free = free and given.memory.where is WORK and given.memory not in held and last[given.memory] == index
            # a product reads its factors for as long as it writes
            free = free and not (call.kernel in PRODUCTS and given.memory in memories(factors(call)))
            if free and given.memory is not out.memory and given.memory.width == out.memory.width:
                new, old = out.memory, given.memory
                last[new] = max(last[new], index)
                for other in calls:
                    for place in other.places:
                        if place.memory is old:
                            place.memory = new
                break


def place_kept(kept: Sequence[Memory]) -> int:
    """Puts these one after the other. Returns how wide they are together."""
    end = 0
    for memory in kept:
        memory.where, memory.offset = KEPT, end
        end += memory.width
    return end


def place_work(calls: Sequence[Call]) -> int:
    """Puts what is forgotten where nothing else is at the same time. Returns how wide the whole is."""
    spans: dict[Memory, list[int]] = {}
    for index, group in enumerate(groups(calls)):
        for memory in memories([place for call in group for place in call.places]):
            if memory.where is WORK:
                spans.setdefault(memory, [index, index])[1] = index
    placed: list[Memory] = []
    end = 0
    for memory, (first, last) in sorted(spans.items(), key=lambda item: item[1][0]):
        busy = sorted(
            (other.offset, other.offset + other.width)
            for other in placed
            if spans[other][0] <= last and spans[other][1] >= first
        )
        memory.offset = 0
        for start, stop in busy:
            if memory.offset + memory.width <= start:
                break
            memory.offset = max(memory.offset, stop)
        placed.append(memory)
        end = max(end, memory.offset + memory.width)
    return end


def program(calls: Sequence[Call], operands: Sequence[Place], where: dict[str, int]) -> np.ndarray:
    """The words that steps.c reads.

    Args:
        operands: of the operator and its outputs, in this order; those in which `where` says that others lie count,
            but need not be a call's.
        where: for each kind of memory, which operand or output it is.
    """
    number = {id(place): index for index, place in enumerate(operands)}
    own, constants = [], []
    for call in calls:
        for place in call.places:
            if id(place) not in number:
                number[id(place)] = len(operands) + len(own)
                own.append(place)
    words = []
    behind = 3 + 5 * len(own) + sum(2 + len(call.places) for call in calls)
    for place in own:
        if place.constant is not None:
            words += [-1, behind + len(constants), 0, 0, 1]
            constants.append(int(np.array(place.constant).view(np.int32)))
        elif place.memory is OPERAND:
            raise ValueError("an operand of another operator")
        else:
            memory = place.memory
            words += [where[memory.where], memory.offset, int(place.by_head), place.rows, place.width]
    for group in groups(calls):
        for call in group:
            kernel = KERNELS.index(call.kernel) + (0 if call is group[-1] else TOGETHER)
            words += [kernel, len(call.places), *(number[id(place)] for place in call.places)]
    return np.array([len(operands), len(own), len(calls), *words, *constants], np.int32)
