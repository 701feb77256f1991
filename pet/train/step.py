"""The one training step: gradients of every micro-batch, their sum, one check, one update.

    micro-batches ──► gradient (compiled per batch shape) ──► sum ──► over processes ──► norm ──► update (compiled once)
                      loss · scale / count                            distributed             finite?   clip, optimizer

The loss of a micro-batch is divided by what the objective counts in the *whole* step (label tokens, for one), which is
known before the step starts, so that gradients are simply added. Whether they are finite is seen on the host, before
the update: an overflowing or broken step never touches a weight, and the update needs no branch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import ParameterTuple, Tensor, ops

from model_zoo.ascend.attention import document_ends
from model_zoo.engine import available, fuse_layers, sums_of_squares
from model_zoo.layers import AttentionCore
from model_zoo.turns import in_turn
from pet.train.compiled import Compiled, slopes
from pet.train.distributed import DistributedContext
from pet.train.feed import count_useful
from pet.train.objectives.base import MODEL_ARRAYS, Objective, check_head
from pet.train.optimizers.base import Optimizer, scalar
from pet.train.segments import vectors_of
from pet.train.stop import HARD


@dataclasses.dataclass
class StepResult:
    """The result of one optimizer step.

    Attributes:
        loss: summed loss of the whole step, over all processes, by ``count``.
        gradient_norm: before clipping.
        finite: whether all gradients and the loss are.
        applied: whether the update was made: finite, and the loss not above the limit.
        count: what the objective divides the loss by, such as label tokens.
        sums: what the objective's `measure` gives, over all processes, where it is ``reported``; else the loss alone.
        useful_tokens, tokens: tokens that are not padding, and all tokens of the step.
        compile_seconds: time of first calls with a new batch shape; 0 in most steps.
    """

    loss: float
    gradient_norm: float
    finite: bool
    applied: bool
    count: int
    sums: list[float]
    useful_tokens: int
    tokens: int
    compile_seconds: float


def in_whole(model, weights=(), input_trained: bool = False):
    """A context in which the fast model's layers are compiled in one piece each, where C kernels can do that.

    Args:
        weights: whose gradients are asked for.
        input_trained: whether that of what comes into the first layer is, too.
    """
    if not getattr(model, "runs_fast", False) or not available():
        return contextlib.nullcontext()
    return fuse_layers(model, weights, input_trained)


def tensors(batch: dict[str, Any], arrays: Sequence[str], by_documents: bool = False) -> list[Tensor]:
    """The model's arrays and these of a batch as the graph's arguments: int32, or float32.

    Args:
        by_documents: hand in a causal batch as documents (`takes_documents`).
    """
    found = [np.asarray(batch[name]) for name in (*MODEL_ARRAYS, *arrays)]
    kinds = [np.float32 if np.issubdtype(array.dtype, np.floating) else np.int32 for array in found]
    given = [Tensor(np.ascontiguousarray(array, kind)) for array, kind in zip(found, kinds, strict=True)]
    start, end = (MODEL_ARRAYS.index(name) for name in ("start", "end"))
    if by_documents and (ends := document_ends(found[start], found[end])) is not None:
        given[end] = Tensor(ends)
    return given


def takes_documents(model) -> bool:
    """Whether all attention of a model is by the device's operator, and may get a causal batch as documents."""
    cores = [cell for _, cell in model.cells_and_names() if isinstance(cell, AttentionCore)]
    return bool(cores) and all(core.takes_documents for core in cores) and not getattr(model, "active", ())


def summed(objective: Objective, model, compiled: bool = True) -> Callable:
    """``(*arrays) → the summed loss``, or a vector of what is reported, of which it is the first and alone has a
    gradient."""
    forward = objective.forward(model, compiled)

    def loss(*arrays):
        return forward(*arrays).astype(ms.float32).reshape(())

    def loss_first(*arrays):
        sums = forward(*arrays)
        rows = [sums[0]]
        for each in sums[1:]:
            rows.append(ops.stop_gradient(each))
        return ops.stack(rows)

    return loss_first if getattr(objective, "reported", False) else loss


def weighted(weight: float, objective: Objective) -> Tensor:
    """The slope of what `summed` gives for a loss that counts so much."""
    sums = objective.sums if getattr(objective, "reported", False) else None
    return scalar(weight) if sums is None else Tensor([weight] + [0.0] * (sums - 1), ms.float32)


class TrainStep:
    """One optimizer step over a list of micro-batches.

    Args:
        model: its trainable parameters are those of the optimizer's segments.
        clip_norm: gradients are scaled down to this global norm; None leaves them.
        set_key: called before every micro-batch with a number, of which dropout and noise are functions, and with the
            place of this process's rows in the batch.
        seed: that number depends on this, the step and the micro-batch, and on nothing else, so that a resumed run
            draws what the uninterrupted one would have drawn.
        distributed: sums over processes.
        compiled: False runs everything operator by operator.
    """

    def __init__(
        self,
        model,
        optimizer: Optimizer,
        objective: Objective,
        *,
        clip_norm: float | None = None,
        set_key: Callable[..., None] | None = None,
        seed: int = 0,
        distributed: DistributedContext | None = None,
        compiled: bool = True,
    ):
        check_head(objective, model)
        self.optimizer, self.objective = optimizer, objective
        self.clip_norm, self.set_key, self.seed = clip_norm, set_key, seed
        self.distributed = distributed or DistributedContext()
        borders = np.cumsum([0] + [len(segment.parameters) for segment in optimizer.segments]).tolist()
        self.spans = spans = tuple(itertools.pairwise(borders))
        self.weights = weights = ParameterTuple([one for segment in optimizer.segments for one in segment.parameters])
        differentiate = slopes(summed(objective, model, compiled), weights)

        def gradient(*arguments):
            total, gradients = differentiate(*arguments)
            return total, vectors_of(gradients, spans)

        sum_in_graph = self.distributed.sum_in_graph(optimizer.segments)

        def last(earlier):
            def gradient_and_sum(*arguments):
                given = len(arguments) - earlier
                total, gradients = differentiate(*arguments[:given])
                return total, sum_in_graph(gradients, arguments[given:])

            return gradient_and_sum

        def add(*vectors):
            sums = []
            for index in range(len(spans)):
                sums.append(vectors[index] + vectors[len(spans) + index])
            return tuple(sums)

        def squares(*vectors):
            sums = []
            for vector in vectors:
                sums.append((vector * vector).sum())
            return ops.stack(sums)

        self.by_documents = takes_documents(model)
        around = functools.partial(in_whole, model, weights)
        self.gradient = Compiled(gradient, compiled, around, model.get_parameters())
        # of a step's last micro-batch where its graph sums: the only one, or one after others
        self.last = [
            Compiled(last(earlier), compiled, around, model.get_parameters())
            for earlier in ((0, len(spans)) if sum_in_graph is not None else ())
        ]
        # of few operators: where these are kernels of the engine, compiling them takes longer than they ever do
        self.add = Compiled(add, compiled and not available())
        kernels = compiled and available()
        self.squares = Compiled(sums_of_squares() if kernels else squares, compiled and not kernels)

    @in_turn
    def __call__(
        self,
        batches: Sequence[dict[str, Any]],
        step: int,
        learning_rate: float,
        scale: float = 1.0,
        *,
        updates: int | None = None,
        limit: float = math.inf,
    ) -> StepResult:
        """One step.

        Args:
            batches: the micro-batches of this process, NumPy arrays by name (`MODEL_ARRAYS` and the objective's).
            step: optimizer steps done before this one.
            scale: the loss scale; 1 where there is none.
            updates: updates made before, where steps were skipped; the optimizer counts these.
            limit: above this loss, and what a single hard token or text may add to it, no update is made.
        """
        compiled_before = self.compile_seconds
        useful, tokens = sum(map(count_useful, batches)), sum(np.size(batch["input_ids"]) for batch in batches)
        batches = [self.objective.prepare(batch, training=True) for batch in batches]
        count = sum(map(self.objective.count, batches))
        count, useful, tokens = (int(number) for number in self.distributed.sum_numbers([count, useful, tokens]))
        weight = weighted(scale / max(count, 1), self.objective)
        sums, vectors = self.accumulate(batches, step, weight)
        vectors = self.distributed.all_reduce_sum(vectors, self.optimizer.segments)
        sums, square = self.distributed.statistics(sums.tolist(), self.squares_of(vectors), self.optimizer.segments)
        norm = math.sqrt(square) / scale if math.isfinite(square) else math.nan
        loss = sums[0] / max(count, 1)
        finite = math.isfinite(norm) and math.isfinite(loss)
        applied = finite and loss <= limit + HARD / max(count, 1)
        if applied:
            clip = 1.0 if self.clip_norm is None else min(1.0, self.clip_norm / (norm + 1e-6))
            self.optimizer.apply(vectors, clip / scale, learning_rate, (step if updates is None else updates) + 1)
        return StepResult(
            loss=loss,
            gradient_norm=norm,
            finite=finite,
            applied=applied,
            count=count,
            sums=sums,
            useful_tokens=useful,
            tokens=tokens,
            compile_seconds=self.compile_seconds - compiled_before,
        )

    def accumulate(self, batches: Sequence[dict[str, Any]], step: int, weight: Tensor) -> tuple[np.ndarray, Sequence]:
        """The sums of the micro-batches, the loss first, and of their gradients of ``loss · weight`` as vectors."""
        losses, vectors = [], None
        for micro, batch in enumerate(batches):
            if self.set_key is not None:
                # the replicas have neighbouring rows of one batch: together they draw what one process would
                self.set_key(mix(self.seed, step, micro, 0), self.distributed.data_rank)
            arguments = (*tensors(batch, self.objective.arrays, self.by_documents), weight)
            if self.last and micro == len(batches) - 1:
                summed, vectors = self.last[micro > 0](*arguments, *(vectors or ()))
            else:
                summed, fresh = self.gradient(*arguments)
                vectors = fresh if vectors is None else self.add(*vectors, *fresh)
            losses.append(summed)
        return sum_of(losses, self.objective), vectors

    @property
    def compile_seconds(self) -> float:
        """Time spent in first calls so far."""
        graphs = (self.gradient, *self.last, self.add, self.squares)
        return sum(graph.seconds for graph in graphs) + self.optimizer.compile_seconds

    def squares_of(self, vectors: Sequence[Tensor]) -> list[float]:
        """The sum of squares of each vector; infinite or NaN where one of its numbers is."""
        return self.squares(*vectors).asnumpy().astype(np.float64).tolist()


def sum_of(found: Sequence[Tensor], objective: Objective) -> np.ndarray:
    """The micro-batches' losses, or all their sums where the objective is ``reported``, added in double precision; of
    none of them 0. Read when all are launched: a device need not wait for the host between two of them."""
    total = np.zeros(objective.sums if getattr(objective, "reported", False) else 1)
    for each in found:
        total = total + each.asnumpy().astype(np.float64)
    return total


def mix(*numbers: int) -> int:
    """Numbers → one of 31 bits that looks unrelated to its neighbours' (the finaliser of SplitMix64, Steele 2014)."""
    value = 0
    for number in numbers:
        value = (value + int(number) + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        value ^= value >> 31
    return value & 0x7FFFFFFF
