"""Optimizers over segments: a formula each, compiled once per segment, or a C function that does what it says."""

from __future__ import annotations

from collections.abc import Sequence

from model_zoo.errors import InputError, nearest
from pet.recipe.rules import USERS
from pet.train.optimizers.adafactor import Adafactor
from pet.train.optimizers.base import Optimizer
from pet.train.optimizers.formulas import SGD, Adam, AdamW, Lamb, Lion, Momentum
from pet.train.segments import Segment

OPTIMIZERS = {
    "adamw": AdamW,
    "adam": Adam,
    "lamb": Lamb,
    "lion": Lion,
    "sgd": SGD,
    "momentum": Momentum,
    "adafactor": Adafactor,
}


def make_optimizer(train, segments: Sequence[Segment], compiled: bool = True) -> Optimizer:
    """The optimizer that a recipe's ``train`` section names.

    Raises:
        InputError: an unknown name.
    """
    if train.optimizer not in OPTIMIZERS:
        raise InputError(f"unknown optimizer {train.optimizer!r}{nearest(train.optimizer, OPTIMIZERS)}")
    chosen = OPTIMIZERS[train.optimizer]
    own = (name for name in ("betas", "eps", "momentum") if train.optimizer in USERS[name][0])
    return chosen(segments, **{name: getattr(train, name) for name in own}, compiled=compiled)
