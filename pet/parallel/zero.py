"""ZeRO stage 1 (Rajbhandari et al. 2020): each replica keeps and updates the optimizer's state of its share alone.

The gradients are summed on all replicas as ever (MCCL cannot reduce to one of them). Each then updates the segments it
owns, and the new weights are sent around: the memory of the state is divided by the number of replicas, and every
optimizer works, since a parameter is never cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from mindspore import ParameterTuple, Tensor

from pet.parallel.collectives import Group, broadcast
from pet.train.compiled import Compiled
from pet.train.segments import Segment, assign, flatten


def divide(segments: Sequence[Segment], owners: int) -> list[tuple[int, Segment]]:
    """The segments' parameters as smaller segments, each with its owner: the largest parameters first, each to whom has
    the least so far."""
    weights = [
        (parameter.size, index, place)
        for index, segment in enumerate(segments)
        for place, parameter in enumerate(segment.parameters)
    ]
    load, chosen = [0] * owners, {}
    for size, index, place in sorted(weights, key=lambda item: (-item[0], item[1:])):
        owner = load.index(min(load))
        load[owner] += size
        chosen[index, place] = owner
    divided = []
    for index, segment in enumerate(segments):
        for owner in range(owners):
            members = tuple(p for place, p in enumerate(segment.parameters) if chosen[index, place] == owner)
            if members:
                divided.append((owner, Segment(members, segment.learning_rate_ratio, segment.weight_decay)))
    return divided


class ShardedOptimizer:
    """An optimizer whose state is divided over a group.

    Args:
        make: ``segments → optimizer``.
        segments: all that is trained.

    Attributes:
        segments: all, cut at the owners' borders; gradients come in this order.
    """

    def __init__(self, make: Callable, segments: Sequence[Segment], group: Group):
        self.group = group
        divided = divide(segments, group.size)
        self.owners = [owner for owner, _ in divided]
        self.segments = [segment for _, segment in divided]
        self.inner = make([segment for owner, segment in divided if owner == group.place])
        self.shares = [self._share(owner) for owner in range(group.size)]

    def _share(self, owner: int) -> tuple[ParameterTuple, Compiled, Compiled]:
        segments = [segment for each, segment in zip(self.owners, self.segments, strict=True) if each == owner]
        parameters = ParameterTuple([parameter for segment in segments for parameter in segment.parameters])
        sizes = tuple(int(parameter.size) for parameter in parameters)

        def pack():
            return flatten(parameters)

        def unpack(vector):
            return assign(parameters, vector, sizes)

        return parameters, Compiled(pack, False), Compiled(unpack)

    def apply(self, gradients: Sequence[Tensor], factor: float, learning_rate: float, step: int) -> None:
        """One update of the own share, and everybody's new weights; see `pet.train.optimizers.Optimizer.apply`."""
        own = [gradient for owner, gradient in zip(self.owners, gradients, strict=True) if owner == self.group.place]
        self.inner.apply(own, factor, learning_rate, step)
        for owner, (parameters, pack, unpack) in enumerate(self.shares):
            if len(parameters):
                vector = broadcast(pack(), owner, self.group)
                if owner != self.group.place:
                    unpack(vector)

    @property
    def compile_seconds(self) -> float:
        """Time spent in first calls so far."""
        return self.inner.compile_seconds + sum(unpack.seconds for _, _, unpack in self.shares)

    def state_arrays(self) -> dict[str, np.ndarray]:
        """The own share of the state; `ParallelContext.gather` unites them."""
        return self.inner.state_arrays()

    def load_state(self, arrays: dict[str, np.ndarray]) -> None:
        """Takes the own share out of the whole state."""
        self.inner.load_state(arrays)
