"""The order in which a pipeline stage computes, sends and receives (1F1B; Narayanan et al. 2019).

Two stages, four micro-batches (F forward, B backward)::

    stage 0   F0  F1      B0  F2  B1  F3  B2      B3
    stage 1       F0 B0   F1 B1   F2 B2   F3 B3

A stage runs as many forwards ahead as there are stages behind it, then one backward for each forward, so that it holds
no more inputs than that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pet.launching.heartbeat import waiting
from pet.parallel import collectives
from pet.parallel.mesh import Mesh


class Neighbour:
    """The stage before or behind this one, or nobody at an end of the pipeline.

    Both sides run through the same exchanges in the same order: an activation one way, a gradient the other way, or one
    of them. Where both are due, the stage with the even number sends first and the other one receives first. A device
    carries out messages in the order of the calls, and a message that is not yet received holds up all behind it: two
    stages that both sent first would wait for each other for ever.

    Args:
        stage: the neighbour's number.
        width, dtype: of an activation.
    """

    def __init__(self, mesh: Mesh, stage: int, width: int, dtype):
        self.rank = mesh.rank_at(stage=stage) if 0 <= stage < mesh.pipeline else None
        self.sends_first = mesh.stage % 2 == 0
        self.width, self.dtype = width, dtype
        self.under_way: list[tuple[Any, Any]] = []  # what was sent, oldest first

    def exchange(self, x=None, rows: int = 0):
        """Sends a tensor and receives one of ``(rows, width)``; without x, or with 0 rows, only the other.

        What was sent is kept until it is known to have arrived. Who answers an exchange has received all of those
        before it: a stage would otherwise keep every activation that it sends until the step ends.
        """
        if self.rank is None:
            return None
        received = None
        for sends in (self.sends_first, not self.sends_first):
            if sends and x is not None:
                self.under_way.append((collectives.send(x, self.rank), x))
            elif not sends and rows:
                received = collectives.receive((rows, self.width), self.dtype, self.rank)
                self._release(1)
        return received

    def finish(self) -> None:
        """Returns when everything sent has left."""
        with waiting():
            self._release(0)

    def _release(self, but: int) -> None:
        while len(self.under_way) > but:
            self.under_way.pop(0)[0].wait()


def one_forward_one_backward(
    mesh: Mesh, rows: Sequence[int], forward: Callable, backward: Callable, before: Neighbour, behind: Neighbour
) -> None:
    """Runs this stage's part of a step.

    Args:
        rows: of each micro-batch's activations.
        forward: ``(number, activations from the stage before) → activations for the stage behind``.
        backward: ``(number, gradient from the stage behind) → gradient for the stage before``.
        before, behind: the stages next to this one. What there is none of is None.
    """
    ahead, count = mesh.pipeline - 1 - mesh.stage, len(rows)
    x = before.exchange(rows=rows[0])
    for turn in range(count + ahead):
        done = turn - ahead
        y = forward(turn, x) if turn < count else None
        slope = behind.exchange(y, rows[done] if done >= 0 else 0)
        dx = backward(done, slope) if done >= 0 else None
        x = before.exchange(dx, rows[turn + 1] if turn + 1 < count else 0)
    before.finish()
    behind.finish()
