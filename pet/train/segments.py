"""Trainable parameters as a few long vectors.

An adapter is hundreds of small tensors. One operator per tensor and per line of the optimizer's formula would cost more
than the formula itself, and compile for many seconds. So the gradients are laid end to end, in *segments* of equal
learning rate and weight decay, and everything after the backward pass (accumulation, reduction over processes, norm,
clipping, update) is a handful of operators on each::

    parameters   lora_A (8, 512)   lora_B (512, 8)   bias (512,)          frozen ones do not appear
    segment 0    [ 4096 numbers  |  4096 numbers ]                        weight decay 0.01
    segment 1                                       [ 512 numbers ]       weight decay 0

A large tensor is a segment by itself where it can be, since copying it would cost more; the gradient of a segment of
one parameter stays in that one's shape.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, ops

from adapters.apply import trainable_parameters
from adapters.registry import registry
from model_zoo.engine import available, joined
from model_zoo.errors import InputError, first_of

# Numbers in a segment, at most, unless one parameter alone has more. What the update needs besides, some six vectors of
# its segment, then stays small beside the weights; LoRA's parameters still are one or two segments.
LONGEST = 1 << 22
# From so many numbers on a parameter is a segment by itself, where that costs no graph: copying them takes longer than
# the calls that a segment costs, and as much memory again.
ALONE = 1 << 18

_concat = ops.Concat(0)
_map = ops.HyperMap()


@dataclasses.dataclass(frozen=True)
class Segment:
    """Parameters that are updated together.

    Attributes:
        parameters: in the order of their numbers in the vector.
        learning_rate_ratio: their learning rate as a multiple of the schedule's.
        weight_decay: theirs.
    """

    parameters: tuple[Parameter, ...]
    learning_rate_ratio: float
    weight_decay: float

    @property
    def names(self) -> list[str]:
        return [parameter.name for parameter in self.parameters]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(int(parameter.size) for parameter in self.parameters)

    @property
    def size(self) -> int:
        return sum(self.sizes)

    def split(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """The vector as one array per parameter, by its name."""
        borders = np.cumsum(self.sizes)[:-1]
        parts = np.split(vector, borders)
        return {p.name: part.reshape(p.shape) for p, part in zip(self.parameters, parts, strict=True)}

    def join(self, arrays: dict[str, np.ndarray]) -> np.ndarray:
        """The inverse of :meth:`split`."""
        return np.concatenate([np.ascontiguousarray(arrays[p.name]).reshape(-1) for p in self.parameters])


def to_train(model) -> list[Parameter]:
    """What an optimizer gets. Raises InputError, with the reason, where that is nothing."""
    found, state = trainable_parameters(model), registry(model)
    if found:
        return found
    why = ""
    if state.merged_names:
        why = f"; {', '.join(state.merged_names)} is merged into the weights (pet.unmerge)"
    elif state.adapters and not state.selected:
        why = f"; no adapter is active (pet.set_adapter; there is: {', '.join(state.adapters)})"
    elif state.adapters:
        why = f"; what {', '.join(state.selected)} has is frozen (pet.set_adapter thaws it)"
    raise InputError(f"nothing to train: no parameter of the model is trainable{why}")


SECOND_FACTORS = {"lora_B", "lora_embedding_B"}
"""What LoRA+ trains at a rate of its own, beside vectors."""


def make_segments(
    parameters: Sequence[Parameter],
    *,
    learning_rate: float = 1.0,
    weight_decay: float = 0.0,
    decay_vectors: bool = False,
    groups: Sequence = (),
    lora_plus_ratio: float | None = None,
    longest: int = LONGEST,
    apart: bool = False,
    everywhere: Sequence[str] = (),
) -> list[Segment]:
    """Sorts parameters into segments.

    Args:
        learning_rate: peak of the schedule, to which a group's own rate is set in relation.
        weight_decay: of parameters that no group says anything else about.
        decay_vectors: decay biases and norms too (one dimension); they are left alone otherwise.
        groups: objects with ``match`` (globs over names), ``learning_rate`` and ``weight_decay`` (or None); the first
            that matches a parameter counts.
        lora_plus_ratio: LoRA+ (Hayou et al. 2024): the rate of every B as a multiple of A's; of vectors (biases, norms,
            DoRA's magnitudes), too, as in PEFT.
        longest: numbers in a segment, at most, unless one parameter alone has more.
        apart: give each parameter of `ALONE` numbers a segment (`pet.train.optimizers.Optimizer.moves_in_place`).
        everywhere: names of what is trained in any process, where these have parts of the model.

    Raises:
        InputError: a glob that matches no trainable parameter; a group, or a ratio, that no parameter is left for.
    """
    own_names = [parameter.name for parameter in parameters]
    names = everywhere or own_names
    left = set(names)
    for group in groups:
        for pattern in group.match:
            if not fnmatch.filter(names, pattern):
                raise InputError(
                    f"train.groups: {pattern!r} matches no trainable parameter; there is for example {names[0]!r}"
                )
        if left.isdisjoint(matched := {name for pattern in group.match for name in fnmatch.filter(names, pattern)}):
            said = ", ".join(map(repr, group.match))
            raise InputError(f"train.groups: {said} has no effect: what it matches is in groups before it")
        left -= matched
    heeds_ratio = lora_plus_ratio is None or set(names) != set(own_names)  # which other processes may
    sorted_in: dict[tuple[float, float, str, str], list[Parameter]] = {}
    for parameter in parameters:
        ratio = getattr(parameter, "learning_rate_ratio", 1.0)  # LoRA+ as the adapter's own setting
        decay = weight_decay if decay_vectors or len(parameter.shape) > 1 else 0.0
        of_b = len(parameter.shape) == 1 or not SECOND_FACTORS.isdisjoint(parameter.name.split("."))
        if lora_plus_ratio is not None and of_b:
            ratio = lora_plus_ratio
        own_rate = False
        for group in groups:
            if any(fnmatch.fnmatchcase(parameter.name, pattern) for pattern in group.match):
                if group.learning_rate is not None:
                    ratio, own_rate = group.learning_rate / learning_rate, True
                if group.weight_decay is not None:
                    decay = group.weight_decay
                break
        heeds_ratio |= of_b and not own_rate
        # what processes share in different ways is summed in different ways
        role = getattr(parameter, "parallel_role", "whole")
        own = parameter.name if apart and parameter.size >= ALONE else ""
        sorted_in.setdefault((ratio, decay, role, own), []).append(parameter)
    if not heeds_ratio:
        raise InputError("train.lora_plus_ratio: has no effect: train.groups has a rate for every B and vector")
    segments = []
    for (ratio, decay, *_), members in sorted_in.items():
        part: list[Parameter] = []
        for parameter in members:
            if part and sum(int(p.size) for p in part) + int(parameter.size) > longest:
                segments.append(Segment(tuple(part), ratio, decay))
                part = []
            part.append(parameter)
        segments.append(Segment(tuple(part), ratio, decay))
    return segments


def _as_float32(tensor):
    return tensor if tensor.dtype == ms.float32 else tensor.astype(ms.float32)


def _as_vector(tensor):
    return ops.reshape(tensor, (-1,)).astype(ms.float32)


def flatten(tensors):
    """Tensors end to end as one float32 vector, within a graph."""
    if available():
        return joined()(*_map(_as_float32, tensors))
    return _concat(_map(_as_vector, tensors))


def vectors_of(gradients, spans):
    """Gradients as one float32 vector per segment, given where each begins and ends among them, within a graph; that of
    a single parameter keeps its shape, since a view of another one would be copied by whoever reads it."""
    vectors = []
    for first, last in spans:
        if last - first == 1:
            vectors.append(_as_float32(gradients[first]))
        else:
            vectors.append(flatten(gradients[first:last]))
    return tuple(vectors)


def unflatten(vector, sizes):
    """The vector in pieces of these sizes, within a graph."""
    if len(sizes) == 1:
        return (vector,)
    return ops.split(vector, sizes)


def _place(parameter, piece):
    return ops.assign(parameter, ops.reshape(piece, parameter.shape).astype(parameter.dtype))


def assign(parameters, vector, sizes):
    """Gives the parameters the numbers of the vector, within a graph; return what it returns, or it is not done."""
    return _map(_place, parameters, unflatten(vector, sizes))


def check_unchanged(model, trained: Sequence[Parameter]) -> None:
    """Refuses to go on with parameters that are not the model's trainable ones any more.

    Args:
        trained: those that the optimizer was made of.

    Raises:
        InputError: adapters were switched, merged, added to the active ones or deleted since, or are disabled.
    """
    registry(model).refuse_within_blocks("train")
    now = {id(parameter): parameter.name for parameter in trainable_parameters(model)}
    before = {id(parameter): parameter.name for parameter in trained}
    changed = [name for key, name in (before | now).items() if (key in before) != (key in now)]
    if changed:
        raise InputError(
            f"{first_of(changed)}: what the model trains has changed since this trainer was made; make a new "
            "pet.Trainer, or set the adapter back (pet.set_adapter)"
        )
