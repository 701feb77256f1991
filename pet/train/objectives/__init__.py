"""What a run learns: one file per objective, chosen by ``train.objective`` (`pet.recipe.classes`).

An objective states which arrays of a batch it uses, the loss and the number that divides it, and what is measured
(`pet.train.objectives.base.Objective`). The step, the pipeline, evaluation and the loader ask it; none of them knows
one.
"""

from __future__ import annotations

from pet.recipe.classes import find_objective
from pet.train.objectives.base import Objective
from pet.train.objectives.custom import CustomForward


def make_objective(settings, forward_step=None, objective: Objective | None = None) -> Objective:
    """The objective of a recipe's ``train`` section, with its settings.

    Args:
        settings: a `pet.recipe.training.Train`.
        forward_step: the user's own forward, see `pet.train.objectives.custom.CustomForward`.
        objective: taken in place of the one in the settings.
    """
    found = objective if objective is not None else find_objective(settings.objective).from_settings(settings)
    return found if forward_step is None else CustomForward(found, forward_step)
