"""How a model runs: as a compiled graph, in evaluation."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import operator
import os
from collections.abc import Callable, Iterator, Sequence

import mindspore as ms
from mindspore import nn
from mindspore._c_expression import JitExecutor_

try:
    from mindspore.graph import api
except ImportError:  # before 2.9
    from mindspore.common import api

from model_zoo import BLIND, progress
from model_zoo.errors import InputError
from model_zoo.turns import changed

# MindSpore has set it to 1 where Python does not see it but the programs that Python starts do: `pet` in a notebook's
# shell line would compute with one thread.
if "OMP_NUM_THREADS" not in os.environ:
    os.unsetenv("OMP_NUM_THREADS")

# It is for processes that go on, and reads names of its module. Python 3.12 may clear these before it frees the last
# cells, each of which would then print a traceback.
atexit.register(setattr, nn.Cell, "__del__", lambda cell: None)

_numbers = itertools.count()


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
        self.function, self.number = function, next(_numbers)

    def __call__(self, *arguments):
        self.tick(arguments)
        return super().__call__(*arguments)

    def uncompiled(self, *arguments):
        """What the function gives, operator by operator."""
        self.tick(arguments)
        return self.function(*arguments)

    def tick(self, arguments) -> None:
        progress.tick((Graph, self.number, *(getattr(argument, "shape", None) for argument in arguments)))

    @ms.jit(jit_level="O0")
    def construct(self, *arguments):
        return self.function(*arguments)

    def free(self) -> None:
        """Frees what was compiled, and the function. MindSpore keeps both, with all weights that they read, until the
        process ends."""
        self.function = None
        names = {name for name in api.ms_compile_cache if f".{id(self)}." in name}
        JitExecutor_.get_instance().del_net_res(None, names)
        api.ms_compile_cache.difference_update(names)


def in_order(parameter: ms.Parameter) -> None:
    """Gives a parameter that is a view (``set_data(other.T)``) memory of its own, where its numbers lie in the order of
    its shape: as they are read by their address, and written through NumPy, which has a copy of a view."""
    if not parameter.is_contiguous():
        parameter.set_data(parameter.contiguous())


def address_of(tensor: ms.Tensor) -> int:
    """Where a tensor's numbers lie, a parameter's `in_order`; 0 until an accelerator has them.

    Raises:
        InputError: MindSpore is `model_zoo.BLIND`.
    """
    if ms.__version__ == BLIND and ms.get_context("device_target") == "CPU":
        raise InputError(f"MindSpore {BLIND} does not say where a CPU's tensors lie: pip install 'mindspore>=2.7.1'")
    if isinstance(tensor, ms.Parameter):
        in_order(tensor)
    return tensor.data_ptr()


def holds(model: nn.Cell, parameters: Sequence) -> bool:
    """Whether these are a model's parameters: others may have been put in their place (``cell.weight = Parameter(…)``)
    since."""
    now = list(model.get_parameters())
    return len(now) == len(parameters) and not any(map(operator.is_not, now, parameters))


class AddressGuard:
    """The addresses of parameters in memory. A compiled graph goes on reading them there: what ``set_data``, and so
    ``mindspore.load_param_into_net``, puts elsewhere it would not see.

    Args:
        parameters: those that a graph reads. An accelerator has an address for them from the first run on.
    """

    def __init__(self, parameters: Sequence = ()):
        self.parameters = list(parameters)
        self.known: list[int] | None = None

    def note(self) -> None:
        """Takes the addresses as they are now for those of the graph."""
        self.known = [address_of(parameter) for parameter in self.parameters]

    @property
    def changed(self) -> bool:
        """Whether one of them has another address than was noted."""
        return self.known is not None and self.known != [address_of(parameter) for parameter in self.parameters]


@contextlib.contextmanager
def evaluating(model: nn.Cell) -> Iterator[None]:
    """Within, no cell of a model is in training: dropout is off. MindSpore takes milliseconds to tell so many cells, as
    long as a small model for a token, so that nothing is done where they know."""
    training = model.training
    if not any(cell.training for _, cell in model.cells_and_names()):
        yield
        return
    with changed(lambda: model.set_train(False), lambda: model.set_train(training)):
        yield
