"""What a layer that is told as steps consists of: calls of kernels, and the places that these read and write."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

KERNELS = (
    "rms_norm",
    "rms_norm_gradient",
    "rms_norm_gradient_added",
    "rms_norm_weight_gradient",
    "layer_norm",
    "layer_norm_gradient",
    "layer_norm_gradient_added",
    "layer_norm_weight_gradient",
    "product_of_rows",
    "product_of_rows_added",
    "product_of_rows_onto",
    "plain_product",
    "plain_product_added",
    "product_of_columns",
    "low_rank_inner",
    "low_rank_factors",
    "dora",
    "dora_gradient",
    "split_heads",
    "join_heads",
    "rotary_half",
    "rotary_interleaved",
    "split_rotary_half",
    "split_rotary_half_back",
    "split_rotary_interleaved",
    "split_rotary_interleaved_back",
    "attention",
    "attention_gradient",
    "attention_prefixed",
    "attention_prefixed_gradient",
    "keep_columns",
    "token_attention",
    "swiglu",
    "swiglu_gradient",
    "gelu_tanh",
    "gelu_tanh_gradient",
    "relu",
    "relu_gradient",
    "silu",
    "silu_gradient",
    "hyperbolic_tangent",
    "hyperbolic_tangent_gradient",
    "add",
    "scale",
    "scale_columns",
    "scale_columns_gradient",
    "dropout",
    "add_bias",
    "column_sum",
    "take_columns",
    "put_columns",
    "join_columns",
)
"""What a step may run, in the order of the list in steps.c."""

OPERAND = "operand"  # what the operator was called with, or an output with a shape of its own
RESULT, KEPT, WORK = "result", "kept", "work"
"""Where numbers lie: the first output, what the backward pass needs, and what is forgotten."""


@dataclasses.dataclass(eq=False)
class Memory:
    """Room for so many numbers per token.

    Attributes:
        where: RESULT, KEPT or WORK.
        offset: its first number there, per token.
    """

    width: int
    where: str = WORK
    offset: int = 0


@dataclasses.dataclass(eq=False)
class Place:
    """Numbers that a kernel reads or writes: ``(N·rows, width)``, or, by head, ``(B, rows, S, width)``.

    Attributes:
        memory: where; OPERAND for an operand and what has an output of its own, None for a constant.
        constant: a number that is the same in every run.
    """

    rows: int
    width: int
    memory: Memory | str | None
    by_head: bool = False
    constant: np.generic | None = None


@dataclasses.dataclass(eq=False)
class Call:
    """A kernel, and what it is called on."""

    kernel: str
    inputs: list[Place]
    outputs: list[Place]

    @property
    def places(self) -> list[Place]:
        return [*self.inputs, *self.outputs]


def memories(places: Sequence[Place]) -> list[Memory]:
    """Those of places that have one."""
    return [place.memory for place in places if isinstance(place.memory, Memory)]
