"""MindFormers' learning rates as objects of a script, for MindSpore's optimizers and ``Trainer(optimizers=…)``.

Each is a table of the rates of its steps, counted from 0; behind the last, that one stays. What follows the rate is
given by name: its order differs between releases.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from mindspore import Tensor, ops
from mindspore.nn.learning_rate_schedule import LearningRateSchedule

from model_zoo.arguments import misfit
from model_zoo.errors import InputError, located, similar
from pet.compat.mindformers.script_config import read_number
from pet.train.schedules import Schedule

LONGEST = 100_000
"""Steps of a table whose schedule has no end."""
WARMS = {**dict.fromkeys(("learning_rate", "warmup_steps", "warmup_ratio", "total_steps")), "warmup_lr_init": 0.0}
COOLS = {"decay_steps": None, "decay_ratio": None, "num_cycles": 0.5, "keep_steps": 0, "final_steps": 0}


def _recipes(s: SimpleNamespace, name: str, **fields: float) -> Schedule:
    """A recipe's schedule."""
    last = getattr(s, "lr_end", 0.0) / s.learning_rate
    if last >= 1.0:
        raise InputError(f"lr_end is {s.lr_end}; less than the rate, {s.learning_rate}, was expected")
    return Schedule(name, s.learning_rate, s.total_steps, s.warmup_steps, last, warmup_like="mindformers", **fields)


def _wave(high: float, low: float, share: float) -> float:
    return low + (high - low) * max(0.0, 0.5 * (1.0 + math.cos(math.pi * share)))


def _cosine(s: SimpleNamespace) -> Callable[[int], float]:
    whole = _recipes(s, "cosine")
    if s.num_cycles == COOLS["num_cycles"]:
        return whole
    length = max(1, s.total_steps - s.warmup_steps)

    def rate(step: int) -> float:
        share = 2.0 * s.num_cycles * (step - s.warmup_steps) / length
        return _wave(s.learning_rate, s.lr_end, share) if s.warmup_steps <= step < s.total_steps else whole(step)

    return rate


def _restarts(s: SimpleNamespace, step: int) -> float:
    length = s.t_0
    while step >= length:
        step, length = step - length, length * s.t_mult
    return _wave(s.base_lr, s.eta_min, step / length)


def _cool_down(s: SimpleNamespace) -> Callable[[int], float]:
    kept, rising = s.warmup_steps + s.keep_steps, _recipes(s, "constant")
    low = kept + max(1, s.decay_steps)
    s.total_steps = low + s.final_steps

    def rate(step: int) -> float:
        if step < low:
            share = 2.0 * s.num_cycles * (step - kept) / (low - kept)
            return rising(step) if step < kept else _wave(s.learning_rate, s.lr_end1, share)
        return s.lr_end1 if step < s.total_steps else s.lr_end2 or s.lr_end1

    return rate


KINDS: dict[str, tuple[dict[str, Any], Callable[[SimpleNamespace], Callable[[int], float]]]] = {
    "ConstantWarmUpLR": (WARMS, lambda s: _recipes(s, "constant")),
    "LinearWithWarmUpLR": (WARMS, lambda s: _recipes(s, "linear")),
    "CosineWithWarmUpLR": (WARMS | {"warmup_steps": 0, "lr_end": 0.0, "num_cycles": 0.5}, _cosine),
    "CosineWithRestartsAndWarmUpLR": (
        WARMS | {"lr_end": 0.0, "num_cycles": 1.0},
        lambda s: _recipes(s, "cosine_restarts", cycles=s.num_cycles),
    ),
    "PolynomialWithWarmUpLR": (
        WARMS | {"lr_end": 1e-7, "power": 1.0},
        lambda s: _recipes(s, "polynomial", power=s.power),
    ),
    "WarmUpStableDecayLR": (
        WARMS | {"lr_end": 1e-7, "decay_start_steps": None, "decay_start_ratio": None},
        lambda s: _recipes(s, "wsd", decay=s.total_steps - s.decay_start_steps),
    ),
    "ConstantWithCoolDownLR": (WARMS | COOLS | {"lr_end1": 0.0, "lr_end2": 0.0}, _cool_down),
    "CosineAnnealingLR": (
        {"base_lr": None, "t_max": None, "eta_min": 0.0},
        lambda s: lambda step: _wave(s.base_lr, s.eta_min, step / s.t_max),
    ),
    "CosineAnnealingWarmRestarts": (
        {"base_lr": None, "t_0": None, "t_mult": 1, "eta_min": 0.0},
        lambda s: lambda step: _restarts(s, step),
    ),
}
"""MindFormers' name -> the settings with their defaults, and what makes the rates of them."""


class _Rates(LearningRateSchedule):
    def __init__(self, *placed: float, **given: float | None):
        super().__init__()
        name = type(self).__name__
        known, make = KINDS[name]
        values = {**known, **dict(zip(list(known)[:1], placed, strict=False)), **given}
        values = {one: read_number(value) for one, value in values.items()}
        if "keep_steps" in known and values["decay_steps"] is None:
            values["decay_steps"] = values["total_steps"]
        if name.startswith("Constant") and values["total_steps"] is None:
            values["total_steps"] = (values["warmup_steps"] or 0) + 1
        for part in ("warmup", "decay", "decay_start"):
            if (ratio := values.get(f"{part}_ratio")) is not None and values["total_steps"]:
                values[f"{part}_steps"] = int(values["total_steps"] * ratio)
        problems = ["give what follows the rate by name: its order differs between releases"] * (len(placed) > 1)
        problems += [f"has no {one!r}{similar(one, known)}" for one in values if one not in known]
        wrong = (misfit(one, "float | None" if one.endswith("_ratio") else "float", values[one]) for one in known)
        InputError.raise_any(f"{name}: {problem}" for problem in (*problems, *filter(None, wrong)))
        s = SimpleNamespace(**values)
        with located(name):
            rate = make(s)
        last = s.total_steps if "total_steps" in known else LONGEST
        rates = np.array([rate(step) for step in range(last + 1)])
        if first := getattr(s, "warmup_lr_init", 0.0):  # to which the rise from 0 is added
            rates[: s.warmup_steps] += first * (1.0 - np.arange(s.warmup_steps) / s.warmup_steps)
        self.rates = Tensor(rates.astype(np.float32))

    def construct(self, global_step):
        return self.rates[ops.minimum(global_step, self.rates.shape[0] - 1)]


def _named(name: str) -> type[_Rates]:
    doc = f"``{name}``; its settings are {', '.join(KINDS[name][0])}. Raises InputError for others."
    return type(name, (_Rates,), {"__doc__": doc, "__module__": __name__})


ConstantWarmUpLR, LinearWithWarmUpLR, CosineWithWarmUpLR = map(_named, list(KINDS)[:3])
CosineWithRestartsAndWarmUpLR, PolynomialWithWarmUpLR, WarmUpStableDecayLR = map(_named, list(KINDS)[3:6])
ConstantWithCoolDownLR, CosineAnnealingLR, CosineAnnealingWarmRestarts = map(_named, list(KINDS)[6:])


class LearningRateWiseLayer(LearningRateSchedule):
    """Another schedule's rates times a number."""

    def __init__(self, base_lr: LearningRateSchedule, lr_scale: float):
        super().__init__()
        self.base_lr, self.lr_scale = base_lr, lr_scale

    def construct(self, global_step):
        return self.lr_scale * self.base_lr(global_step)
