"""A function as a compiled graph."""

from __future__ import annotations

from collections.abc import Callable

import mindspore as ms
from mindspore import nn


class Graph(nn.Cell):
    """A function of tensors, compiled once per combination of shapes.

    It is a cell because a bare compiled function warns on the terminal when another one of the same name is compiled.
    Level O0 leaves out the optimisations that a backend with graph fusion wants: on a CPU they cost a quarter of the
    compile time, and the graph is as fast without them.

    Args:
        function: takes tensors and returns tensors; what it closes over (a model) belongs to the graph.
    """

    def __init__(self, function: Callable):
        super().__init__()
        self.function = function

    @ms.jit(jit_level="O0")
    def construct(self, *arguments):
        return self.function(*arguments)
