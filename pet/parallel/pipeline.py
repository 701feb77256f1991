"""Pipeline parallelism: each stage works on another micro-batch at the same time (`pet.parallel.schedule`).

A stage keeps the input of a forward alone; the backward computes the forward again. Only activations ``(B·S, H)`` and
their gradients cross a boundary.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor

from model_zoo.errors import InputError
from pet.parallel import collectives
from pet.parallel.mesh import Mesh
from pet.parallel.schedule import Neighbour, one_forward_one_backward
from pet.train.compiled import Compiled, slopes
from pet.train.objectives.base import MODEL_ARRAYS
from pet.train.segments import vectors_of
from pet.train.step import TrainStep, in_whole, mix, sum_of, summed, tensors

log = logging.getLogger("pet")


def bubble(stages: int, micro_batches: int) -> float:
    """The share of a step in which a stage waits for others, if all stages take equally long."""
    return (stages - 1) / (micro_batches + stages - 1)


def pieces_of(batch: dict[str, Any], count: int, arrays: Sequence[str]) -> list[dict[str, Any]]:
    """A batch as micro-batches of equally many rows. Raises InputError: the rows cannot be divided evenly."""
    rows = len(batch["input_ids"])
    if rows % count:
        raise InputError(f"parallel.micro_batches: {rows} rows cannot be divided over {count} micro-batches")
    size = rows // count
    return [
        {**batch, **{name: np.asarray(batch[name])[first : first + size] for name in (*MODEL_ARRAYS, *arrays)}}
        for first in range(0, rows, size)
    ]


class Pipeline:
    """A stage's part in one step: gradients of all micro-batches in 1F1B order.

    Args:
        step: the training step that this serves; its `accumulate` is replaced.
        model: the stage's cells (`pet.parallel.stages.cut_stage`).
        micro_batches: pieces that each batch is cut into.
        stages: the layers of each stage, for the report.
    """

    def __init__(
        self,
        step: TrainStep,
        model,
        mesh: Mesh,
        micro_batches: int,
        stages: Sequence[range],
    ):
        self.step, self.mesh, self.micro_batches = step, mesh, micro_batches
        self.stages, self.reported = stages, False
        self.before, self.behind = neighbours(mesh, model)
        compiled, parameters = step.gradient.compiled, list(model.get_parameters())
        self.arrays = step.objective.arrays
        self.forward = Compiled(hidden_function(model), compiled, functools.partial(in_whole, model), parameters)
        if mesh.is_last:
            backward = last_gradient(summed(step.objective, model, compiled), step.weights, step.spans)
        else:
            backward = stage_gradient(hidden_function(model), step.weights, step.spans, mesh.is_first)
        around = functools.partial(in_whole, model, step.weights, not mesh.is_first)
        self.backward = Compiled(backward, compiled, around, parameters)

    @property
    def seconds(self) -> float:
        """Time of first calls so far."""
        return self.forward.seconds + self.backward.seconds

    def accumulate(self, batches: Sequence[dict[str, Any]], step: int, weight: Tensor) -> tuple[np.ndarray, Sequence]:
        """As `TrainStep.accumulate`. The sums are the last stage's; the others have 0."""
        pieces = [piece for batch in batches for piece in pieces_of(batch, self.micro_batches, self.arrays)]
        # of the whole batch, and the place of the piece's rows in it: what is drawn is what one process would draw
        first = self.step.distributed.data_rank * self.micro_batches
        keys = [
            (mix(self.step.seed, step, index // self.micro_batches, 0), first + index % self.micro_batches)
            for index in range(len(pieces))
        ]
        self._report(len(pieces))
        sizes = [np.size(piece["start"]) for piece in pieces]
        inputs: dict[int, list[Tensor]] = {}
        losses, vectors = [], None

        def forward(number: int, x: Tensor | None) -> Tensor | None:
            inputs[number] = arguments = tensors(pieces[number], self.arrays, self.step.by_documents)
            if x is not None:
                arguments[0] = x
            if self.mesh.is_last:
                return None
            self._set_key(keys[number])
            return self.forward(*arguments[: len(MODEL_ARRAYS)])

        def backward(number: int, slope: Tensor | None) -> Tensor:
            nonlocal vectors
            self._set_key(keys[number])
            arguments = inputs.pop(number)
            if slope is None:
                summed, dx, *fresh = self.backward(*arguments, weight)
                losses.append(summed)
            else:
                dx, *fresh = self.backward(*arguments[: len(MODEL_ARRAYS)], slope)
            vectors = fresh if vectors is None else self.step.add(*vectors, *fresh)
            return dx

        one_forward_one_backward(self.mesh, sizes, forward, backward, self.before, self.behind)
        return sum_of(losses, self.step.objective), vectors

    def _report(self, pieces: int) -> None:
        """Says once how the layers lie, and how long each stage waits."""
        if self.mesh.rank == 0 and not self.reported:
            layers = ", ".join(f"{part.start}-{part.stop - 1}" for part in self.stages)
            share = 100 * bubble(self.mesh.pipeline, pieces)
            log.info("pipeline: layers %s; %d micro-batches a step, bubble %.0f %%", layers, pieces, share)
        self.reported = True

    def _set_key(self, key: tuple[int, int]) -> None:
        if self.step.set_key is not None:
            self.step.set_key(*key)


class PipelineMeasure:
    """A forward through all stages; every process gets the result.

    Args:
        measure: ``(input_ids or activations, …) → numbers``, the last stage's part.
        sums: how many numbers it gives; None: one for each token.
        model, mesh: as for `Pipeline`.
        group: the stages.
    """

    def __init__(self, measure: Compiled, sums: int | None, model, mesh: Mesh, group: collectives.Group):
        self.measure, self.sums, self.mesh, self.group = measure, sums, mesh, group
        self.before, self.behind = neighbours(mesh, model)
        around = functools.partial(in_whole, model)
        self.forward = Compiled(hidden_function(model), measure.compiled, around, model.get_parameters())

    def __call__(self, input_ids, position_ids, start, end, *own) -> list[Tensor] | Tensor:
        x = self.before.exchange(rows=start.size)
        x = input_ids if x is None else x
        numbers = np.zeros(self.sums or start.size)
        if self.mesh.is_last:
            found = self.measure(x, position_ids, start, end, *own)
            numbers = np.concatenate([np.ravel(value.asnumpy()) for value in (found if self.sums else [found])])
        else:
            self.behind.exchange(self.forward(x, position_ids, start, end))
            self.behind.finish()
        found = collectives.sum_numbers(numbers, self.group)
        return [Tensor(value, ms.float64) for value in found] if self.sums else Tensor(found, ms.float32)


def neighbours(mesh: Mesh, model) -> list[Neighbour]:
    """The stages before and behind this one."""
    return [Neighbour(mesh, mesh.stage + step, model.config.dims.hidden, model.dtype) for step in (-1, 1)]


def hidden_function(model) -> Callable:
    """The stage's forward as a graph function."""

    def forward(x, position_ids, start, end):
        return model.hidden_states(x, position_ids, start, end, None)

    return forward


def stage_gradient(forward: Callable, weights, spans, is_first: bool) -> Callable:
    """``(x, layout …, dy) → (dx, gradient vectors …)`` of a stage that is not the last; the first has zero for dx."""
    differentiate = slopes(forward, weights, None if is_first else 0, value=False)
    nothing = Tensor(0.0, ms.float32)

    def first(*arguments):
        return (nothing, *vectors_of(differentiate(*arguments), spans))

    def middle(*arguments):
        dx, gradients = differentiate(*arguments)
        return (dx, *vectors_of(gradients, spans))

    return first if is_first else middle


def last_gradient(loss: Callable, weights, spans) -> Callable:
    """``(x, layout …, the objective's arrays …, weight) → (sums, dx, gradient vectors …)`` of the last stage.

    Args:
        loss: see `pet.train.step.summed`.
    """
    differentiate = slopes(loss, weights, 0)

    def last(*arguments):
        total, (dx, gradients) = differentiate(*arguments)
        return (total, dx, *vectors_of(gradients, spans))

    return last
