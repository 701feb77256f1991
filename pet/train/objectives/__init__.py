"""What a run learns: one file per objective, chosen by ``train.objective``.

An objective states which arrays of a batch it uses, the loss and the number that divides it, and what is measured
(`pet.train.objectives.base.Objective`). The step, the pipeline, evaluation and the loader ask it; none of them knows
one. This file imports no MindSpore, so that a recipe can be checked without it.
"""

from __future__ import annotations

from importlib import import_module

from model_zoo.errors import InputError, nearest

OBJECTIVES = {"causal": "pet.train.objectives.causal:CausalLM"}
"""Name in a recipe → where its class is. A class of the user's own is named in the same way."""

OPTIONS = {"causal": ("label_smoothing", "r_drop_alpha")}
"""Settings of the ``train`` section that belong to one objective; set for another, they are an error."""


def resolve(name: str) -> type:
    """The class of an objective: a name in `OBJECTIVES`, or ``module:Class``.

    Raises:
        InputError: no such name, module or class, or the class is no `Objective`.
    """
    from pet.train.objectives.base import Objective

    place = OBJECTIVES.get(name, name)
    module, colon, attribute = place.partition(":")
    if not colon:
        raise InputError(f"train.objective: {name!r} is not known{nearest(name, OBJECTIVES)}; or give module:Class")
    try:
        found = getattr(import_module(module), attribute, None)
    except ImportError as error:
        raise InputError(f"train.objective: {name!r}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Objective)):
        raise InputError(f"train.objective: {name!r} is not a sub-class of pet.train.objectives.base.Objective")
    return found


def rows_of(name: str) -> dict:
    """How an objective reads rows, as settings of the data; nothing where it leaves that to ``data.format``."""
    if name == "causal":  # the class is MindSpore's, which looking at data does without
        return {}
    objective = resolve(name)
    return {"conversations": objective.conversations, "documents": objective.documents}


def make_objective(settings, forward_step=None, objective=None):
    """The objective of a recipe's ``train`` section, with its settings.

    Args:
        settings: a `pet.recipe.training.Train`.
        forward_step: the user's own forward, see `pet.train.objectives.custom.CustomForward`.
        objective: taken in place of the one in the settings.
    """
    found = objective if objective is not None else resolve(settings.objective).from_settings(settings)
    if forward_step is None:
        return found
    from pet.train.objectives.custom import CustomForward

    return CustomForward(found, forward_step)
