"""Graph functions: compiled once per combination of shapes, timed, and able to run uncompiled, which is as fast where
all layers are operators of the engine.

Every argument is a tensor of its own. Tensors inside a tuple would count as constants, and each step would compile
anew.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
import weakref
from collections.abc import Callable, Iterator, Sequence

from mindspore import Tensor
from mindspore.ops.composite.base import _Grad

from model_zoo import progress
from model_zoo.engine import free_left
from model_zoo.errors import first_line
from model_zoo.graph import AddressGuard, Graph, api
from model_zoo.limits import out_of_memory
from model_zoo.turns import turn

log = logging.getLogger("pet")
_numbers = itertools.count()
_orphaned: list[Graph] = []
"""Graphs of which whoever had them compiled is gone."""


class Compiled:
    """A graph function that runs operator by operator, with one warning, where it cannot be compiled.

    The library's own cells always compile; a user's cell may use Python that the graph parser does not know.

    Args:
        compiled: False never compiles.
        around: makes, at the first call, a context for it and those that follow. Where its ``whole`` is set, there is
            nothing in the function that is worth compiling, and it runs as it is.
        parameters: those that it reads. It is compiled anew where somebody gave one of them another tensor.

    Attributes:
        seconds: how long the first calls with new shapes took, compilation and one execution each.
    """

    def __init__(
        self,
        function: Callable,
        compiled: bool = True,
        around: Callable = contextlib.nullcontext,
        parameters: Sequence = (),
    ):
        self.function, self.guard = function, AddressGuard(parameters)
        self.compiled, self.graph = compiled, None
        self.around, self.context, self.number = around, None, next(_numbers)
        self.shapes: set[tuple] = set()
        self.seconds = 0.0

    def __call__(self, *arguments: Tensor):
        if not self.compiled:
            progress.tick((type(self), self.number, *(argument.shape for argument in arguments)))
            return self.function(*arguments)
        if self.graph is not None and self.guard.changed:
            log.info("a weight's tensor was replaced: compiling again")
            self.graph.free()
            self.graph = None
            self.shapes.clear()
        shapes = tuple(argument.shape for argument in arguments)
        if shapes in self.shapes:
            return self.run(shapes, arguments)
        begin = time.perf_counter()
        self.guard.note()  # a view gets its own memory before a graph reads it
        try:
            if self.context is None:
                self.context = self.around()
            result = self.run(shapes, arguments)
            wait(result)
        except (
            RuntimeError,
            TypeError,
            ValueError,
            AttributeError,
            NotImplementedError,
            SyntaxError,
            OSError,
        ) as error:
            if self.shapes or out_of_memory(error):
                raise
            progress.tick((type(self), self.number, shapes))
            result = self.function(*arguments)  # what fails here too is not the compiler's fault
            log.warning("cannot be compiled and runs operator by operator, several times slower: %s", first_line(error))
            self.compiled, self.graph = False, None
            return result
        self.shapes.add(shapes)
        self.guard.note()
        self.seconds += time.perf_counter() - begin
        return result

    def run(self, shapes: tuple, arguments: Sequence[Tensor]):
        """The function within its context, as a graph or, where that gains nothing, as it is."""
        if getattr(self.context, "whole", False):
            progress.tick((type(self), self.number, *shapes))
            with self.context:
                return self.function(*arguments)
        if self.graph is None:
            self.graph = Graph(self.function)
            weakref.finalize(self, _orphaned.append, self.graph).atexit = False
        if shapes in self.shapes:
            return self.graph(*arguments)
        with self.context:
            return self.graph(*arguments)


def slopes(function: Callable, weights, position: int | None = None, value: bool = True) -> Callable:
    """``(*arguments, slope) → value, gradients`` of a function of one result, against that slope of it.

    Where it is not given one MindSpore makes it of ones, of which it keeps 1.3 kB a call until the process ends. Not by
    ``mindspore.value_and_grad``, which takes none before 2.9.

    Args:
        weights: a ``ParameterTuple``, whose gradients are asked for.
        position: of an argument whose gradient is, too; then gradients are ``(its, the weights')``.
        value: False leaves the value out.
    """
    places = None if position is None else (position,)
    kind = _Grad(get_by_list=True, get_by_position=places is not None, get_value=value, sens_param=True)
    return kind(function, weights, places)


@contextlib.contextmanager
def gradients_freed() -> Iterator[None]:
    """Frees at the end what MindSpore keeps of each function that was differentiated operator by operator, and of each
    shape, until the process ends: all weights that it read among it. And before, the graphs of trainings that are gone:
    not when Python finds these, which may be within a compilation."""
    with turn:
        while _orphaned:
            _orphaned.pop().free()
    try:
        yield
    finally:
        with turn:
            api._pynative_executor.clear_res()
            free_left()


def wait(result) -> None:
    """Returns when the tensor (or the last of several) is computed."""
    while isinstance(result, (tuple, list)):
        result = result[-1]
    if isinstance(result, Tensor):
        result.asnumpy()
