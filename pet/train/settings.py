"""From a recipe's ``train`` section, or its fields given in code, to what the loop needs."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from typing import Any

from model_zoo.errors import InputError, nearest

log = logging.getLogger("pet")

ELSEWHERE = {"resume": "call train(resume=True)", "profile": "give callbacks=['profiler']"}
"""Settings of a recipe's run that a trainer gets in another way."""
OF_ANSWERS = ("generated_samples", "shown_samples", "generate")


def with_settings(train, settings: dict[str, Any]):
    """A ``train`` section with some fields replaced.

    A setting that takes no effect beside the others, which a recipe may not have, is warned of: programs say more than
    is needed.

    Raises:
        InputError: an unknown field, a value that it cannot have, or one that belongs to another objective.
    """
    from pet.recipe.classes import OPTIONS
    from pet.recipe.data import Data
    from pet.recipe.problems import checked, elsewhere
    from pet.recipe.schema import Recipe
    from pet.recipe.training import Train
    from pet.recipe.training_rules import length, restarts, without_effect
    from pet.recipe.trl_names import hint

    other = "; MindFormers' arguments go with train_dataset, not with batches (train_data)"
    loader = " (pet.data.make_loader(data, batch_size, settings) takes what a recipe's data section has)"
    wrong = []
    for name in (name for name in settings if name not in Train.model_fields):
        near = elsewhere(name, ("train",)) or nearest(name, Train.model_fields)
        of_data = loader if name in ("data", *Data.model_fields) else ""
        wrong.append(f"Trainer has no setting {name!r}{hint(name) or of_data or near + other}")
    InputError.raise_any(wrong)
    given = train.model_dump(exclude_unset=True) if isinstance(train, Train) else section("train", train)
    found = checked(Train, "train", {**given, **settings})
    if not isinstance(train, Train):
        settings = {**given, **settings}
    InputError.raise_any(
        f"train.{name}: takes no effect here; {way}" for name, way in ELSEWHERE.items() if settings.get(name)
    )
    if found.steps is not None and found.epochs is not None:
        log.warning("Trainer: steps: %d count, and not epochs: %s", found.steps, found.epochs)
        found = found.model_copy(update={"epochs": None})
    recipe = Recipe.model_construct(train=found)
    wrong = [f"{at}: {message}" for rule in (length, restarts) for at, _, message in rule(recipe)]
    for name, _, message in without_effect(found):
        if name in OPTIONS:
            wrong.append(f"train.{name}: {message}")
        else:
            log.warning("Trainer: %s %s", name, message)
    InputError.raise_any(wrong)
    return found


def eval_settings(eval, evaluation, data, directory, objective):
    """An ``eval`` section as it is, or of its fields.

    Args:
        evaluation, data, directory: what measures, what it measures on, and where the best checkpoint is kept; or None.
        objective: what is learnt; one of the user's own measures what it likes.

    Raises:
        InputError: it is neither; an unknown field, a value that it cannot have, or a setting that takes no effect.
    """
    from pet.recipe.classes import built_in
    from pet.recipe.evaluation_rules import problems, unmeasured
    from pet.recipe.problems import checked
    from pet.recipe.training import Eval

    found, faults = eval, []
    if not isinstance(eval, Eval):
        found = checked(Eval, "eval", section("eval", eval))
        held_out = evaluation is not None or data is not None
        wrong = [*problems(found, held_out, "give eval_data")]
        if evaluation is None and (learnt := built_in(objective)):
            wrong += unmeasured(found, learnt)
        faults = [f"{name}: {message}" for name, _, message in wrong]
        said = [name for name in OF_ANSWERS if name in found.model_fields_set] + ["metrics"] * bool(found.written)
        faults += [f"eval.{name}: is about answers to questions; batches hold none" for name in said if not evaluation]
        if found.batch_size is not None and data is not None and not isinstance(data, (str, os.PathLike)):
            faults.append("eval.batch_size: takes no effect on batches, which have their rows already")
    if found.load_best_model_at_end and directory is None:
        faults.append("eval.load_best_model_at_end: needs a directory, where the best checkpoint is kept")
    InputError.raise_any(faults)
    return found


def in_rows(train, eval):
    """A ``train`` section whose batches have as many rows as those of evaluations."""
    return train.model_copy(update={"batch_size": eval.batch_size or train.batch_size})


def section(name: str, given) -> dict[str, Any]:
    """A section's fields that were given as a mapping, or not at all."""
    if given is None or isinstance(given, Mapping):
        return dict(given or {})
    raise InputError(
        f"Trainer: {name}: expected a recipe's {name} section, or its fields; found {type(given).__name__}"
    )


def total_steps(feed, settings, every_epochs: float | None = None) -> int:
    """Optimizer steps of a run. A part of an epoch is rounded up, as transformers does.

    Raises:
        InputError: data that streams has no known length, and no ``steps`` are given; or it is measured by epochs.
    """
    if every_epochs is not None and feed.steps_per_epoch(0) is None:
        raise InputError("eval.every_epochs: how long an epoch is shows only at its end here; give every_steps")
    if settings.steps is not None:
        return settings.steps
    epochs = settings.epochs if settings.epochs is not None else 3.0
    whole = math.floor(epochs)
    lengths = [feed.steps_per_epoch(epoch) for epoch in range(max(1, math.ceil(epochs)))]
    if any(length is None for length in lengths):
        raise InputError("train.steps: needed where the data streams, since its length is not known")
    # with transformers' product, whose rounding ceil would show
    return max(1, sum(lengths[:whole]) + math.ceil(epochs * lengths[-1]) - whole * lengths[-1])
