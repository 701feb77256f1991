"""What all optimizers have in common: state, how an update runs, saving.

Whatever changes from step to step (learning rate, bias corrections) is computed on the host in double precision, as
torch does, and enters the graph as a scalar. State is kept in float32 vectors and saved as one tensor per parameter,
``<slot>.<parameter name>``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, ops

from model_zoo.checkpoint.parameters import read_parameter, write_parameter
from model_zoo.errors import InputError, nearest
from pet.train.compiled import Compiled
from pet.train.segments import Segment, assign, flatten


def scalar(value: float) -> Tensor:
    """A float32 scalar for a graph."""
    return Tensor(value, ms.float32)


def zeros(size: int, name: str) -> Parameter:
    """A state vector that no optimizer takes for a trainable parameter."""
    return Parameter(Tensor(np.zeros(size, np.float32)), name=name, requires_grad=False)


class GraphUpdate:
    """One segment's update as a graph.

    Args:
        function: ``(gradient, factor, *scalars)``, which moves the weights.
        compiled: False runs it operator by operator.
    """

    def __init__(self, function: Callable, compiled: bool, parameters: Sequence[Parameter]):
        self.graph = Compiled(function, compiled, parameters=parameters)

    def __call__(self, gradient: Tensor, factor: float, numbers: Sequence[float]) -> None:
        self.graph(gradient, scalar(factor), *[scalar(number) for number in numbers])

    @property
    def seconds(self) -> float:
        """Time of the first call."""
        return self.graph.seconds


class InPlace:
    """One segment's update by a function that moves tensors where they lie, in this process's memory.

    Args:
        function: ``(weights, gradient, state's vectors …, numbers)`` of tensors.
    """

    seconds = 0.0

    def __init__(self, function: Callable, segment: Segment, state: dict[str, Parameter]):
        self.function, self.segment = function, segment
        self.slots = [vector for slot, vector in state.items() if slot != "master"]
        self.master = state.get("master")

    def __call__(self, gradient: Tensor, factor: float, numbers: Sequence[float]) -> None:
        moved = self.segment.parameters if self.master is None else (self.master,)
        self.function(moved, gradient, *self.slots, (factor, *numbers))
        if self.master is not None:
            parts = self.segment.split(self.master.asnumpy()).values()
            for parameter, part in zip(self.segment.parameters, parts, strict=True):
                write_parameter(parameter, part)


class Optimizer:
    """What all optimizers have in common: state, compilation, saving.

    Sub-classes name their ``slots``, and give `scalars` and `rule`.

    Args:
        compiled: False runs the formula operator by operator, for debugging.
    """

    slots: tuple[str, ...] = ()

    def __init__(self, segments: Sequence[Segment], compiled: bool = True):
        self.segments, self.compiled = list(segments), compiled
        self.state: list[dict[str, Parameter]] = []
        self._updates: list[GraphUpdate | InPlace] = []
        for index, segment in enumerate(self.segments):
            state = self.make_state(index, segment)
            self.state.append(state)
            if compiled and self.moves_in_place():
                self._updates.append(InPlace(self.in_place(), segment, state))
            else:
                update = self._make_update(segment, state)
                self._updates.append(GraphUpdate(update, compiled, [*segment.parameters, *state.values()]))

    def make_state(self, index: int, segment: Segment) -> dict[str, Parameter]:
        """The state vectors of a segment, all zero; and its float32 weights where the parameters are narrower."""
        state = {slot: zeros(segment.size, f"{slot}.{index}") for slot in self.slots}
        if any(parameter.dtype != ms.float32 for parameter in segment.parameters):
            state["master"] = zeros(segment.size, f"master.{index}")
            weights = {p.name: p.astype(ms.float32).asnumpy() for p in segment.parameters}
            write_parameter(state["master"], segment.join(weights))
        return state

    def _make_update(self, segment: Segment, state: dict[str, Parameter]) -> Callable:
        rule = self.rule(segment, state)
        parameters, sizes = ParameterTuple(segment.parameters), segment.sizes
        master = state.get("master")
        if master is None:

            def update(gradient, factor, *scalars):
                weights = flatten(parameters)
                return assign(parameters, rule(weights, ops.reshape(gradient, (-1,)) * factor, scalars), sizes)
        else:

            def update(gradient, factor, *scalars):
                weights = rule(master, ops.reshape(gradient, (-1,)) * factor, scalars)
                return ops.assign(master, weights), assign(parameters, weights, sizes)

        return update

    @classmethod
    def moves_in_place(cls) -> bool:
        """Whether there is a C kernel for this optimizer, so that a segment needs no graph of its own."""
        return False

    def in_place(self) -> Callable:
        """That kernel as `InPlace` calls it; it does what `rule` says."""
        raise TypeError("an optimizer that moves in place gives its kernel")

    def rule(self, segment: Segment, state: dict[str, Parameter]) -> Callable:
        """A graph function ``(weights, gradient, scalars) → new weights`` of vectors, which also moves the state."""
        raise TypeError("an optimizer gives its rule")

    def scalars(self, learning_rate: float, weight_decay: float, step: int) -> tuple[float, ...]:
        """The numbers that the rule needs at ``step``, which counts from 1."""
        raise TypeError("an optimizer gives its scalars")

    def apply(self, gradients: Sequence[Tensor], factor: float, learning_rate: float, step: int) -> None:
        """One update.

        Args:
            gradients: one per segment (`pet.train.segments.vectors_of`).
            factor: what they are multiplied by first: clipping, and one over the loss scale.
            learning_rate: of this step; a segment's own ratio comes on top.
            step: updates so far, this one included.
        """
        for segment, update, gradient in zip(self.segments, self._updates, gradients, strict=True):
            numbers = self.scalars(learning_rate * segment.learning_rate_ratio, segment.weight_decay, step)
            update(gradient, factor, numbers)

    @property
    def compile_seconds(self) -> float:
        """Time spent in first calls so far."""
        return sum(update.seconds for update in self._updates)

    def state_arrays(self) -> dict[str, np.ndarray]:
        """The state as one array per slot and parameter, ``<slot>.<parameter name>``."""
        arrays = {}
        for segment, state in zip(self.segments, self.state, strict=True):
            for slot, vector in state.items():
                arrays.update(self.slot_arrays(segment, slot, vector))
        return arrays

    def slot_arrays(self, segment: Segment, slot: str, vector: Parameter) -> dict[str, np.ndarray]:
        """A slot's tensors, as they are in a file."""
        return {f"{slot}.{name}": part for name, part in segment.split(read_parameter(vector)).items()}

    def load_state(self, arrays: dict[str, np.ndarray]) -> None:
        """Goes on from :meth:`state_arrays`.

        Raises:
            InputError: tensors are missing or of another shape: the state belongs to another optimizer or model.
        """
        problems = []
        expected = {name: array.shape for name, array in self.state_arrays().items()}
        for name, shape in expected.items():
            if name not in arrays:
                problems.append(f"optimizer state has no {name!r}{nearest(name, arrays)}")
            elif tuple(arrays[name].shape) != tuple(shape):
                problems.append(f"optimizer state {name!r} has shape {arrays[name].shape}, expected {shape}")
        InputError.raise_any(problems)
        for segment, state in zip(self.segments, self.state, strict=True):
            for slot, vector in state.items():
                self.load_slot(segment, slot, vector, arrays)

    def load_slot(self, segment: Segment, slot: str, vector: Parameter, arrays: dict[str, np.ndarray]) -> None:
        """Puts a slot's tensors back into its vector."""
        joined = segment.join({name: arrays[f"{slot}.{name}"] for name in segment.names})
        write_parameter(vector, joined.astype(np.float32))
