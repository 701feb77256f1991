"""What a training step sends, measured: the counts of one step outside its graphs, and of its graphs run uncompiled.

A collective within a compiled graph happens out of Python's sight. So before the first step its forward and backward
passes are run once operator by operator, where each call is seen; the result is thrown away. Everything else is counted
in the last step that compiled nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pet.parallel.collectives import Traffic, counting, traffic_table
from pet.train.compiled import Compiled
from pet.train.step import TrainStep

Counts = dict[tuple[str, str], Traffic]
IN_GRAPHS = (("all_reduce", "tensor"), ("all_reduce", "data"), ("all_gather", "base"))
"""What compiled graphs hold."""


class Meter:
    """Counts the messages of a training step.

    Args:
        step: its `accumulate` is wrapped.
        talking_graphs: whether the compiled graphs hold collectives, so that they must be run uncompiled once.
    """

    def __init__(self, step: TrainStep, talking_graphs: bool):
        self.step, self.talking_graphs = step, talking_graphs
        self.inner, step.accumulate = step.accumulate, self.accumulate
        self.in_graphs: Counts | None = None
        self.outside: Counts = {}
        self.counted = 0
        self.stack: contextlib.ExitStack | None = None

    def accumulate(self, batches, step, weight):
        """As `TrainStep.accumulate`."""
        if self.in_graphs is None:
            self.in_graphs = {}
            if self.talking_graphs:
                with counting() as found, uncompiled(self.step):
                    self.inner(batches, step, weight)
                self.in_graphs = {key: counts for key, counts in found.items() if key in IN_GRAPHS}
        return self.inner(batches, step, weight)

    def begin(self) -> None:
        """A step begins."""
        self.stack = contextlib.ExitStack()
        self.present = self.stack.enter_context(counting(graphs=False))
        self.compiled_before = self.step.compile_seconds

    def end(self) -> None:
        """It is done."""
        self.stack.close()
        if self.step.compile_seconds == self.compiled_before or not self.counted:
            self.outside, self.counted = dict(self.present), self.counted + 1

    def traffic(self) -> Counts:
        """Calls and bytes of one step of this process."""
        found = {key: Traffic(counts.calls, counts.bytes) for key, counts in self.outside.items()}
        for key, counts in (self.in_graphs or {}).items():
            entry = found.setdefault(key, Traffic())
            entry.calls, entry.bytes = entry.calls + counts.calls, entry.bytes + counts.bytes
        return found

    def table(self) -> str:
        """The counts as text."""
        if not self.counted:
            return "communication: no step was counted"
        return f"communication of rank 0 in one step:\n{traffic_table(self.traffic())}"


@contextlib.contextmanager
def uncompiled(step: TrainStep) -> Iterator[None]:
    """Within, a step's passes run operator by operator."""
    of_stage = (getattr(step.gradient, name, None) for name in ("forward", "backward"))
    parts = [part for part in (step.gradient, *of_stage, *step.last, step.add) if isinstance(part, Compiled)]
    compiled = [part.compiled for part in parts]
    try:
        for part in parts:
            part.compiled = False
        yield
    finally:
        for part, before in zip(parts, compiled, strict=True):
            part.compiled = before
