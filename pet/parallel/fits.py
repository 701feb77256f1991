"""Whether a model and its adapter can be divided as a recipe asks, by shapes alone: said before any process starts."""

from __future__ import annotations

from model_zoo.errors import InputError

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
        raise InputError(problems[0] if len(problems) == 1 else "; ".join(problems))


def check_stages(layers: int, stages: int) -> None:
    """Raises InputError where there are more stages than layers."""
    if stages > layers:
        raise InputError(
            f"parallel.pipeline: {stages} stages for {layers} layers; expected at most one stage for each layer"
        )


def check_optimizer(name: str, members: int) -> None:
    """Raises InputError for an optimizer that needs the norm of whole tensors, where tensors are divided."""
    if members > 1 and name in WHOLE_TENSOR_OPTIMIZERS:
        raise InputError(
            f"parallel.tensor: train.optimizer {name!r} needs the norms of whole tensors, which are divided here; "
            "possible are adamw, adam, sgd and momentum, or parallel.tensor = 1"
        )


def check_fits(recipe) -> None:
    """Raises InputError for a layout that the recipe's model, adapter or optimizer cannot have.

    What divides a model says so, from shapes alone (`pet.parallel.shares`). An adapter that is loaded is divided when
    its files have been read; the model beneath it is looked at here.
    """
    layout = recipe.parallel
    if layout.tensor * layout.pipeline == 1:
        return
    check_optimizer(recipe.train.optimizer, layout.tensor)
    from pet.names import model_config
    from pet.outline import Outline
    from pet.parallel.shares import shares
    from pet.train.prepare import recipe_method

    outline = Outline({**model_config(recipe.model.path), **recipe.model.config})
    loaded = getattr(recipe.adapter, "load", None)
    adapter = None if loaded else recipe_method(recipe.adapter, recipe.train.seed)
    shares(outline, adapter, layout.tensor, layout.pipeline)
