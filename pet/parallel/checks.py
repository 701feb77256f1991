"""What can be divided evenly, and what cannot: asked before processes start and again by each, so without MindSpore."""

from __future__ import annotations

from typing import get_args

from model_zoo.errors import InputError
from pet.recipe.training import Train

WHOLE_TENSOR_OPTIMIZERS = ("lamb", "adafactor")
"""They need the norms of whole tensors, which no member of a tensor-parallel group has."""


def check_divisible(dims, members: int) -> None:
    """Raises InputError unless heads, key heads and feed-forward width can be shared evenly.

    Args:
        dims: has ``heads``, ``kv_heads`` and ``ffn``.
        members: of the tensor-parallel group.
    """
    problems = [
        f"parallel.tensor: {value} {what} cannot be divided evenly over {members} workers; "
        f"possible are {', '.join(str(n) for n in range(1, value + 1) if value % n == 0 and dims.heads % n == 0)}"
        for what, value in (
            ("attention heads", dims.heads),
            ("key/value heads", dims.kv_heads),
            ("feed-forward columns", dims.ffn),
        )
        if value % members
    ]
    if problems:
        raise InputError("; ".join(problems))


def check_stages(layers: int, stages: int) -> None:
    """Raises InputError where there are more stages than layers."""
    if stages > layers:
        raise InputError(
            f"parallel.pipeline: {stages} stages for {layers} layers; expected at most one stage for each layer"
        )


def check_optimizer(name: str, members: int) -> None:
    """Raises InputError for an optimizer that needs the norm of whole tensors, where tensors are divided."""
    if members > 1 and name in WHOLE_TENSOR_OPTIMIZERS:
        possible = [
            one for one in get_args(Train.model_fields["optimizer"].annotation) if one not in WHOLE_TENSOR_OPTIMIZERS
        ]
        raise InputError(
            f"parallel.tensor: train.optimizer {name!r} needs the norms of whole tensors, which are divided here; "
            f"possible are {', '.join(possible)}, or parallel.tensor = 1"
        )
