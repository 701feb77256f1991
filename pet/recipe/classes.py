"""Classes that a recipe names: callbacks and objectives, built in or ``module:Class``; without MindSpore."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from model_zoo import progress
from model_zoo.errors import InputError, nearest

CALLBACKS = {
    "progress": "pet.train.callbacks.progress:Progress",
    "metrics": "pet.train.callbacks.records:MetricsFile",
    "samples": "pet.train.callbacks.records:SamplesFile",
    "csv": "pet.train.callbacks.records:CsvFile",
    "tensorboard": "pet.train.callbacks.trackers:TensorBoard",
    "wandb": "pet.train.callbacks.trackers:WandB",
    "swanlab": "pet.train.callbacks.trackers:SwanLab",
    "mlflow": "pet.train.callbacks.trackers:MLflow",
    "hub": "pet.train.callbacks.hub:Hub",
    "plot": "pet.train.callbacks.plot:LossPlot",
    "profiler": "pet.train.callbacks.profiler:Profiler",
}
MOMENTS = ("start", "step", "evaluation", "save", "end")
"""Methods of a callback."""
PAIRS = {
    "dpo": "pet.train.objectives.pairs:DPO",
    "hinge": "pet.train.objectives.pairs:Hinge",
    "ipo": "pet.train.objectives.pairs:IPO",
    "robust": "pet.train.objectives.pairs:Robust",
    "simpo": "pet.train.objectives.pairs:SimPO",
    "orpo": "pet.train.objectives.pairs:ORPO",
}
"""Objectives over pairs of answers."""
OBJECTIVES = {
    **dict.fromkeys(("causal", "sft"), "pet.train.objectives.causal:CausalLM"),
    "dft": "pet.train.objectives.causal:DFT",
    **PAIRS,
    "kto": "pet.train.objectives.kto:KTO",
    "reward": "pet.train.objectives.reward:Reward",
    "classification": "pet.train.objectives.classification:Classification",
}
COMPARED = {**dict.fromkeys((*PAIRS, "reward"), 2), "kto": 1}
"""Objectives over rows that compare answers, and how many answers a row has."""
JUDGING = ("reward", "classification")
"""Objectives that train a head which judges a whole text."""
OPTIONS = {
    "label_smoothing": ("causal", "sft", "dpo", "robust"),
    "r_drop_alpha": ("causal", "sft"),
    "beta": (*PAIRS, "kto"),
    "sft_weight": tuple(PAIRS),
    "gamma": ("simpo",),
    "reference": ("dpo", "hinge", "ipo", "robust", "kto"),
    "desirable_weight": ("kto",),
    "undesirable_weight": ("kto",),
    "center_rewards_coefficient": ("reward",),
}
"""Settings of the ``train`` section that belong to some objectives; set for others, they are an error."""
PARTS = ("from_settings", "extend", "begin", "begun", "prepare", "count", "loss", "measure", "metrics")
PARTS += ("forward", "measured")
"""Methods of an objective."""


def find_callback(name: str, args: dict[str, Any]) -> type:
    """The class of a callback; see `find_class`.

    Raises:
        InputError: see there; or arguments that its constructor does not take.
    """
    cls = find_class("callbacks", name, CALLBACKS, MOMENTS, "callback", "pet.train.callbacks.Callback")
    try:
        inspect.signature(cls).bind(**args)
    except TypeError as error:
        raise InputError(f"callbacks: {name!r} with {args}: {error}") from error
    return cls


def find_objective(name: str) -> type:
    """The class of an objective; see `find_class`."""
    return find_class("train.objective", name, OBJECTIVES, PARTS, "objective", "pet.train.objectives.base.Objective")


def built_in(objective: Any) -> str | None:
    """The name that recipes have for an objective; None for one of the user's own."""
    path = f"{type(objective).__module__}:{type(objective).__name__}"
    return next((name for name, its in OBJECTIVES.items() if its == path), None)


def rows_of(objective: str) -> dict[str, Any]:
    """How an objective reads rows, as settings of the data; nothing where it leaves that to ``data.format``."""
    if objective in OBJECTIVES:  # their classes are MindSpore's, which looking at data does without
        if objective == "classification":
            return {"conversations": importlib.import_module("pet.data.classified").classified, "documents": 1}
        if objective not in COMPARED:
            return {}
        forms, documents = importlib.import_module("pet.data.preferences"), COMPARED[objective]
        read = forms.ranked if objective == "reward" else forms.pairs if documents == 2 else forms.labelled
        own = {"conversations": read, "documents": documents, "compares": True, "share_question": documents == 2}
        return {**own, "train_on": "last"}
    cls = find_objective(objective)
    return {"conversations": cls.conversations, "documents": cls.documents}


def find_class(key: str, name: str, built_in: Mapping[str, str], methods: Sequence[str], what: str, base: str) -> type:
    """The class of a built-in name, or of ``module:Class`` found on the Python path or in the current directory.

    It is not called: a name of anything else that can be called, such as ``os:system``, goes no further than this.

    Raises:
        InputError: no such name, module or class, or a class without these methods.
    """
    module_name, colon, class_name = built_in.get(name, name).partition(":")
    if not colon:
        raise InputError(f"{key}: {name!r} is neither built in nor module:Class{nearest(name, built_in)}")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    try:
        with progress.pausing():  # the user's own code takes any time
            module = importlib.import_module(module_name)
    except Exception as error:  # the module's own, too
        raise InputError(f"{key}: {name!r}: module {module_name!r} cannot be imported: {error}") from error
    cls = getattr(module, class_name, None)
    if cls is None:
        classes = [each for each, value in vars(module).items() if isinstance(value, type)]
        raise InputError(f"{key}: {module_name!r} has no {class_name!r}{nearest(class_name, classes)}")
    if not isinstance(cls, type) or not all(callable(getattr(cls, method, None)) for method in methods):
        raise InputError(
            f"{key}: {name!r} is no {what}; expected a class with the methods {', '.join(methods)}, such as one "
            f"that inherits from {base}"
        )
    return cls
