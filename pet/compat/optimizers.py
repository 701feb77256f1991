"""Optimizers and schedules that a script gives as objects of MindSpore's kind or torch's, as settings of a recipe."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from model_zoo.errors import InputError
from pet.compat.translation import optimizer as optimizer_of, same
from pet.recipe.training_rules import USERS
from pet.recipe.translation import Translation

# a recipe's key → what MindSpore or torch calls it
FIELDS = {
    "train.learning_rate": ("learning_rate", "lr"),
    "train.eps": ("eps",),
    "train.momentum": ("momentum",),
    "train.weight_decay": ("weight_decay",),
}

ADAFACTOR_HERE = (
    "adafactor has no first moment here, and does not scale by the weights; beta1 0 and scale_parameter False"
)
SWITCHES = {
    "is_group_lr": "is not here (groups of learning rates are train.groups of a recipe)",
    **same("is not here", "amsgrad nesterov use_amsgrad use_nesterov maximize"),
    **same(f"{ADAFACTOR_HERE} make it so", "use_first_moment scale_parameter"),
}
"""Of optimizers as objects, where they are on."""


def put_optimizer(t: Translation, optimizer: Any) -> Callable[[int], float] | None:
    """Puts an optimizer's kind and numbers; gives its schedule, where the learning rate is one.

    What it has learnt so far is not taken over: the trainer's own starts anew.
    """
    known = {
        **getattr(optimizer, "__dict__", {}),
        **getattr(optimizer, "_params", {}),
        **getattr(optimizer, "defaults", {}),
    }
    if groups := getattr(optimizer, "param_groups", None):  # of torch's kind, and MindSpore's like it: these count
        rates = {number(one.get("initial_lr", one["lr"])) for one in groups}
        decays = tuple(one["weight_decay"] for one in groups if "weight_decay" in one)
        known.update(is_group_lr=len(rates) > 1, weight_decay=decays)
        if not math.isclose(rate := rates.pop(), number(known["lr"]), rel_tol=1e-6):  # the same in float32 is the same
            known["lr"] = rate
    kind = type(optimizer).__name__
    if kind == "SGD" and number(known.get("momentum", 0)):
        kind = "Momentum"
    optimizer_of(t, "optimizer", kind)
    for switch, why in SWITCHES.items():
        if known.get(switch) is True:
            t.refuse("optimizer", f"{switch}: {why}")
    if isinstance(known.get("weight_decay"), tuple):
        decays = {number(decay) for decay in known["weight_decay"]}
        if len(decays - {0.0}) > 1:
            t.refuse("optimizer", f"has {len(decays - {0.0})} weight decays; one, and none for the rest, was expected")
        if len(decays) > 1:
            t.ignore("groups of weight decay", "matrices decay, vectors do not")
            known["decay_vectors"] = False
        known["weight_decay"] = max(decays, default=0.0)
    if "beta1" in known and "beta2" in known:
        known["betas"] = (known["beta1"], known["beta2"])
    if "betas" in known:
        t.put("train.betas", [number(beta) for beta in known["betas"]])
    schedule = None
    for key, names in FIELDS.items():
        value = next((known[name] for name in names if known.get(name) is not None), None)
        if key == "train.learning_rate" and (known.get("dynamic_lr") or known.get("is_dynamic_lr_or_weight_decay")):
            schedule = rates_of(getattr(optimizer, "learning_rate", value))
        elif value is not None:
            t.put(key, number(value))
    drop_unused(t)
    t.put("train.decay_vectors", known.get("decay_vectors", bool(t.get("train.weight_decay"))))  # theirs decay all
    return schedule


def drop_unused(t: Translation) -> None:
    """Leaves out numbers that the optimizer has elsewhere and not here."""
    chosen = t.get("train.optimizer") or "adamw"
    t.drop(*(f"train.{name}" for name in ("betas", "eps", "momentum") if chosen not in USERS[name][0]))


def number(value: Any) -> float:
    """A Python, NumPy or MindSpore number."""
    return float(np.ravel(value)[0])


def rates_of(given: Any) -> Callable[[int], float]:
    """The learning rate by the step, counted from 0.

    Args:
        given: MindSpore's ``LearningRateSchedule``, any function of the step, a list of rates, or torch's ``LambdaLR``.

    Raises:
        InputError: none of these.
    """
    if hasattr(given, "lr_lambdas"):
        return lambda step: given.base_lrs[0] * given.lr_lambdas[0](step)
    if callable(given):
        import mindspore as ms

        cell = isinstance(given, ms.nn.Cell)
        return lambda step: number(given(ms.Tensor([step], ms.int32) if cell else step))
    if hasattr(given, "__len__"):
        return lambda step: number(given[min(step, len(given) - 1)])
    kind = type(given).__name__
    raise InputError(f"lr_scheduler: {kind} is no function of the step; give one, or MindSpore's LearningRateSchedule")
