"""A trainer of the toy model."""

from __future__ import annotations

from pet.train.trainer import Trainer


def make(model, data, *arguments, **settings):
    """A trainer that runs operator by operator: the loop is the same, and compiling takes longer than these steps."""
    chosen = {"learning_rate": 0.01, "schedule": "constant", "warmup": 0, "steps": 6, "batch_size": 4}
    return Trainer(model, data, *arguments, **{**chosen, "compiled": False, **settings})
