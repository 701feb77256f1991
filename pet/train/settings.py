"""From a recipe's ``train`` section, or its fields given in code, to what the loop needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from model_zoo.errors import InputError, nearest


def with_settings(train, settings: dict[str, Any]):
    """A ``train`` section with some fields replaced.

    Raises:
        InputError: an unknown field, a value that it cannot have, or one that belongs to another objective.
    """
    from pet.recipe.classes import OPTIONS
    from pet.recipe.problems import checked, elsewhere
    from pet.recipe.rules import without_effect
    from pet.recipe.training import Train
    from pet.recipe.trl_names import hint

    unknown = [name for name in settings if name not in Train.model_fields]
    if unknown:
        other = "; MindFormers' arguments go with train_dataset, not with batches (train_data)"
        raise InputError.collect(
            f"Trainer has no setting {name!r}"
            + (hint(name) or (elsewhere(name, ("train",)) or nearest(name, Train.model_fields)) + other)
            for name in unknown
        )
    given = train.model_dump(exclude_unset=True) if isinstance(train, Train) else section("train", train)
    found = checked(Train, "train", {**given, **settings})
    InputError.raise_any(f"train.{name}: {message}" for name, _, message in without_effect(found, OPTIONS))
    return found


def eval_settings(eval):
    """An ``eval`` section as it is, or of its fields.

    Raises:
        InputError: it is neither; an unknown field, or a value that it cannot have.
    """
    from pet.recipe.problems import checked
    from pet.recipe.training import Eval

    return eval if isinstance(eval, Eval) else checked(Eval, "eval", section("eval", eval))


def section(name: str, given) -> dict[str, Any]:
    """A section's fields that were given as a mapping, or not at all."""
    if given is None or isinstance(given, Mapping):
        return dict(given or {})
    raise InputError(
        f"Trainer: {name}: expected a recipe's {name} section, or its fields; found {type(given).__name__}"
    )


def total_steps(feed, settings) -> int:
    """Optimizer steps of a run. A part of an epoch is rounded up, as transformers does.

    Raises:
        InputError: data that streams has no known length, and no ``steps`` are given.
    """
    if settings.steps is not None:
        return settings.steps
    epochs = settings.epochs if settings.epochs is not None else 3.0
    whole = math.floor(epochs)
    lengths = [feed.steps_per_epoch(epoch) for epoch in range(max(1, math.ceil(epochs)))]
    if any(length is None for length in lengths):
        raise InputError("train.steps: needed where the data streams, since its length is not known")
    # with transformers' product, whose rounding ceil would show
    return max(1, sum(lengths[:whole]) + math.ceil(epochs * lengths[-1]) - whole * lengths[-1])
