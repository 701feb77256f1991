"""Learning rates as pure functions of the step: nothing to save, nothing to restore.

The steps are counted from 0, and ``factor(step)`` is the share of the peak learning rate that step trains with::

    1 |        ______________           warm-up: ((step + 1) / warmup)^power, so that no step is spent at a rate of 0,
      |      /               \\          unless it is to be as elsewhere; then the body, by name, over the steps left
      |    /                  \\
    0 |__/                     \\__      final_ratio
        warmup      body     total
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable

from model_zoo.arguments import misfit
from model_zoo.errors import InputError, nearest, shown

log = logging.getLogger("pet")


def _cosine(progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def _wsd(progress: float, schedule: Schedule) -> float:
    body = schedule.total - schedule.warmup
    descent = schedule.decay if schedule.like_transformers else min(schedule.decay, body)
    left = round((1.0 - progress) * body)
    if schedule.decay == 0 or left > descent:
        return 1.0
    return DESCENTS[schedule.decay_shape](left / descent if descent > 0 else 0.0)


def _inverse_sqrt(progress: float, schedule: Schedule) -> float:
    scale = schedule.warmup or LONG_WARMUP
    return math.sqrt(scale / (scale + progress * (schedule.total - schedule.warmup)))


LONG_WARMUP = 10_000
"""Steps by which ``inverse_sqrt`` falls where it has no warm-up, as in transformers."""

LOWEST = 1e-3
"""What is left of the rate at a restart, as in axolotl."""

DESCENTS: dict[str, Callable[[float], float]] = {
    "linear": lambda left: left,
    "cosine": lambda left: 0.5 * (1.0 - math.cos(math.pi * left)),
    "1-sqrt": lambda left: 1.0 - math.sqrt(1.0 - left),
}
"""Of ``wsd``, by the share of its descent that is left."""

BODIES: dict[str, Callable[[float, Schedule], float]] = {
    "constant": lambda progress, schedule: 1.0,
    "linear": lambda progress, schedule: 1.0 - progress,
    "cosine": lambda progress, schedule: _cosine(progress),
    "cosine_restarts": lambda progress, schedule: 0.0 if progress >= 1.0 else _cosine(schedule.cycles * progress % 1.0),
    "polynomial": lambda progress, schedule: (1.0 - progress) ** schedule.power,
    "wsd": _wsd,
    "inverse_sqrt": _inverse_sqrt,
}
"""By the share of the way from the end of the warm-up to the end of the run."""

ROUNDED: dict[str | None, Callable[[float], int]] = {None: round, "transformers": math.ceil, "mindformers": int}
ROUNDED["axolotl"] = lambda steps: 2 if int(steps) == 1 else int(steps)
"""How a share of all steps becomes a number of them."""


def steps_of(amount: float, total: int, like: str | None = None, most: int | None = None) -> int:
    """Steps from ``amount``, which is a number of steps from 1 on and a share of ``total`` below 1; ``like`` names one
    of `ROUNDED`, and ``most`` bounds a share."""
    share = amount < 1
    steps = ROUNDED[like](amount * total if share else int(amount))
    return min(steps, most) if share and most is not None else steps


def due(step: int, every: float | None, total: int) -> bool:
    """Whether a step, counted from 1, is one of every so many, or ends one more such share of all."""
    return every is not None and step % steps_of(every, total, "transformers") == 0


SAME = ("final_ratio", "cycles", "power", "decay_shape", "warmup_power", "warmup_from", "warmup_like")
SAME += ("restart_every", "restart_warmup", "restart_decay")
"""Settings of a recipe that a `Schedule` has as they are."""


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The learning rate of every step of a run.

    Attributes:
        name: ``constant``, ``linear``, ``cosine``, ``cosine_restarts``, ``polynomial``, ``wsd`` (warm-up, stable,
            decay; Hu et al. 2024) or ``inverse_sqrt`` (Vaswani et al. 2017; slower the longer the warm-up).
        peak: the learning rate at the end of the warm-up.
        total: optimizer steps of the schedule, which is the run's length unless it is to be another.
        warmup: steps of warm-up; at ``total`` or more, the run is all warm-up.
        warmup_power: exponent of the warm-up; 1 is linear.
        warmup_from: where it begins, as a share of the peak.
        warmup_like: whose warm-up, of `ROUNDED`: all but this library's begin at a rate of 0. transformers' ``wsd``
            rises from where it ends, and begins amid a descent that is longer than what the warm-up leaves.
        final_ratio: where the body ends, as a share of the peak; ``constant`` and ``inverse_sqrt`` have no end.
        cycles: rounds of ``cosine_restarts`` (Loshchilov & Hutter 2017).
        power: exponent of ``polynomial``.
        decay: steps of the last descent of ``wsd``.
        decay_shape: of that descent, of `DESCENTS`.
        restart_every: steps between two restarts of the adapter, behind each of which the rate rises to what it is
            otherwise; None for no restarts.
        restart_warmup: steps in which it rises.
        restart_decay: steps in front of a restart in which it falls.

    Raises:
        InputError: an unknown name.
    """

    name: str
    peak: float
    total: int
    warmup: int = 0
    final_ratio: float = 0.0
    cycles: int = 2
    power: float = 2.0
    decay: int = 0
    decay_shape: str = "linear"
    warmup_power: float = 1.0
    warmup_from: float = 0.0
    warmup_like: str | None = None
    restart_every: int | None = None
    restart_warmup: int = 10
    restart_decay: int = 0

    def __post_init__(self) -> None:
        if self.name not in BODIES:
            raise InputError(f"unknown schedule {self.name!r}{nearest(self.name, BODIES)}")

    @property
    def like_transformers(self) -> bool:
        """Whether the schedules are its own; axolotl has them from there."""
        return self.warmup_like in ("transformers", "axolotl")

    @classmethod
    def from_settings(cls, train, total: int) -> Schedule:
        """From a recipe's ``train`` section and its number of steps; a longer warm-up of our own is shortened."""
        total = train.schedule_steps or total
        warmup = steps_of(train.warmup, total, train.warmup_like, train.warmup_most)
        if warmup > total and not train.warmup_like:
            log.warning("train.warmup: %d steps are more than the run has: shortened to %d", warmup, total)
            warmup = total
        decay = steps_of(train.decay, total)
        if train.warmup_like == "mindformers" and train.decay < 1:  # there it is the start that is rounded
            decay = total - steps_of(1.0 - train.decay, total, train.warmup_like)
        return cls(
            name=train.schedule,
            peak=train.learning_rate,
            total=total,
            warmup=warmup,
            decay=decay,
            **{name: getattr(train, name) for name in SAME},
        )

    def factor(self, step: int) -> float:
        """The share of the peak at ``step``, counted from 0."""
        return self.around_restarts(step) * self.without_restarts(step)

    def around_restarts(self, step: int) -> float:
        """The share of the rate without restarts; it is not 0 but a thousandth where a warm-up begins there."""
        if self.restart_every is None:
            return 1.0
        cycle, place = divmod(step, self.restart_every)
        left, share = self.restart_every - place, 1.0
        if cycle and place < self.restart_warmup:
            share = (place + (not self.warmup_like)) / self.restart_warmup
        elif left < self.restart_decay:
            share = left / self.restart_decay
        return LOWEST + (1.0 - LOWEST) * share

    def without_restarts(self, step: int) -> float:
        """The share of the peak but for restarts."""
        if step < self.warmup:
            share = ((step + (not self.warmup_like)) / self.warmup) ** self.warmup_power
            lowest = self.final_ratio if self.name == "wsd" and self.like_transformers else self.warmup_from
            return lowest + (1.0 - lowest) * share
        body = self.total - self.warmup
        progress = min(1.0, (step - self.warmup) / body) if body > 0 else 1.0
        value = BODIES[self.name](progress, self)
        if self.name == "constant":
            return value
        return self.final_ratio + (1.0 - self.final_ratio) * value

    def __call__(self, step: int) -> float:
        """The learning rate at ``step``, counted from 0."""
        return self.peak * self.factor(step)


def given(rates: Callable[[int], float]) -> Callable[[int], float]:
    """A user's own rates; one that is no number of at least 0, which would ruin the weights, raises InputError."""

    def rate(step: int) -> float:
        value = rates(step)
        if misfit("", "float", value) or not 0 <= value < math.inf:
            raise InputError(f"rates({step}) is {shown(value)}; a number of at least 0 was expected")
        return float(value)

    return rate
