"""A user's own forward: ``forward_step(data, model) → {"loss": …, "logits": …}``, or a loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np

from model_zoo.errors import InputError
from pet.train.objectives.base import MODEL_ARRAYS, Objective


class CustomForward(Objective):
    """An objective whose graph is the user's function, called instead of the model.

    ``data`` holds all arrays of the batch by their names. The user's ``loss`` is taken as a mean over what the
    objective counts; from ``logits`` alone the objective computes the loss. Labels can be ranked only where there are
    logits.

    Args:
        objective: what is computed from logits, and what divides the loss.
        forward_step: the user's function.
    """

    def __init__(self, objective: Objective, forward_step: Callable):
        super().__init__()
        self.objective, self.forward_step = objective, forward_step
        self.documents, self.sums, self.counted = objective.documents, objective.sums, objective.counted
        self.judges = objective.judges
        self.known = (*MODEL_ARRAYS, *objective.arrays)
        self.names: tuple[str, ...] | None = None

    def extend(self, model, data=None, seed: int = 0) -> None:
        self.objective.extend(model, data, seed)

    def begin(self, *arguments) -> None:
        self.objective.begin(*arguments)

    def begun(self, model) -> None:
        self.objective.begun(model)

    def count(self, batch: dict[str, Any]) -> int:
        return self.objective.count(batch)

    def metrics(self, sums, count: int) -> dict[str, float]:
        return self.objective.metrics(sums, count)

    def prepare(self, batch: dict[str, Any], training: bool) -> dict[str, Any]:
        """Adds the count for the graph. The first batch says which arrays there are.

        Raises:
            InputError: a later batch lacks one of them.
        """
        batch = self.objective.prepare(batch, training)
        if self.names is None:
            others = [name for name, value in batch.items() if isinstance(value, np.ndarray) and value.dtype != object]
            self.names = (*self.known, *(name for name in others if name not in self.known))
            self.arrays = (*self.names[len(MODEL_ARRAYS) :], "count")
        missing = [name for name in self.names if name not in batch]
        if missing:
            raise InputError(f"a batch has no {', '.join(missing)}, which the first batch has")
        return {**batch, "count": np.asarray([self.count(batch)], np.float32)}

    def forward(self, model, fast: bool = False) -> Callable:
        self.objective.forward(model)  # it may look at the model
        return self.through_user(model, self.objective.loss, total_alone, ("loss", "logits"))

    def measured(self, model, fast: bool = False) -> Callable:
        self.objective.measured(model)
        self.sums = self.objective.sums
        zeros = self.sums - 1

        def with_zeros(total):
            return (total,) + (total * 0.0,) * zeros

        return self.through_user(model, self.objective.measure, with_zeros, ("logits", "loss"))

    def through_user(self, model, from_logits: Callable, from_total: Callable, prefer: tuple[str, str]) -> Callable:
        """``(*arrays)`` → `from_logits` of the user's logits and the objective's arrays, or `from_total` of the summed
        loss; ``prefer`` is which of the two is taken if the user gives both."""
        forward_step, own = self.forward_step, slice(len(MODEL_ARRAYS), len(self.known))

        def custom(*arrays):
            data = {name: array for name, array in zip(self.names, arrays)}  # noqa: B905, C416 (graph code)
            output = forward_step(data, model)
            count = arrays[-1].sum()
            output = {"loss": output} if isinstance(output, ms.Tensor) else output
            if not isinstance(output, dict) or ("loss" not in output and "logits" not in output):
                raise ValueError("forward_step gave neither a loss nor a dictionary with loss or logits")
            chosen = prefer[0] if prefer[0] in output else prefer[1]
            if not isinstance(output[chosen], ms.Tensor):
                raise ValueError("forward_step gave a loss or logits that are no Tensor")
            if chosen == "logits":
                if output["logits"].size != arrays[0].size * output["logits"].shape[-1]:
                    raise ValueError("forward_step gave logits that are not of all tokens: (B, S, V) was expected")
                return from_logits(output["logits"], *arrays[own])
            if output["loss"].size != 1:
                raise ValueError("forward_step gave a loss of several numbers: their mean was expected")
            return from_total(output["loss"].astype(ms.float32) * count)

        return custom


def total_alone(total):
    return total
