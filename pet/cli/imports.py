"""MindSpore in less time: importing it took 1.9 s of a core, and takes 1.1 (by hand, medians of three turns on two
Zen 4 cores, before the tables below were left out).

Of the objects that its modules make none is garbage, but Python's collector looks for some, again and again while they
are made, and once more when the process ends. So it rests while MindSpore is imported, and then lets these objects be.
And SciPy, a quarter of the rest, is imported when it is used: by MindSpore's metrics of images, for one. A fifth of
what is left (3.0 s and 2.5, medians of three turns on a busy Zen 3 core) are tables of an Ascend's own operators, which
nothing reads where there is none.
That is for processes that are ours alone: what a user's script holds at that time may become garbage.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from model_zoo.limits import reserve_buffer
from model_zoo.resources import accelerators_present

PACKAGE = "mindspore"
LATER = ("scipy", "scipy.linalg", "scipy.sparse", "scipy.io", "scipy.ndimage", "scipy.ndimage.morphology")
FUNCTIONS = {"scipy.io": ("loadmat",)}
"""What MindSpore takes of SciPy: modules, parents first, and of one a function."""
ASCEND = "mindspore.ops._op_impl.aicpu"
"""A module for each operator of an Ascend's own processor: what it takes and gives."""


class Later(ModuleType):
    """Stands for a module of `LATER` in what imported it; imports the module when something of it is asked for."""

    def __getattr__(self, name: str):
        stand_ins(False)
        return getattr(import_module(self.__name__), name)

    def later(self, function: str) -> Callable:
        """A function of the module, which is imported when it is called."""
        return lambda *arguments, **settings: self.__getattr__(function)(*arguments, **settings)


def stand_ins(there: bool) -> None:
    """Puts a `Later` for each of `LATER` where imports find it, unless SciPy is there; or takes them away."""
    for name in reversed(LATER):
        if isinstance(sys.modules.get(name), Later):
            del sys.modules[name]
    if not there or LATER[0] in sys.modules:
        return
    for name in LATER:
        module = sys.modules[name] = Later(name)
        module.__path__ = []  # a package
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)
        for function in FUNCTIONS.get(name, ()):
            setattr(module, function, module.later(function))


@contextlib.contextmanager
def without_tables() -> Iterator[None]:
    """MindSpore finds an empty package for `ASCEND` within this, unless there is one; later imports find its own."""
    if accelerators_present():
        yield
        return
    empty = sys.modules[ASCEND] = ModuleType(ASCEND)
    empty.__path__ = []
    try:
        yield
    finally:
        if sys.modules.get(ASCEND) is empty:
            del sys.modules[ASCEND]


class QuickImport(MetaPathFinder):
    """Finds `PACKAGE` where it always is, and imports it so."""

    def find_spec(self, fullname, path, target=None) -> ModuleSpec | None:
        if fullname.startswith(f"{LATER[0]}.") and isinstance(sys.modules.get(LATER[0]), Later):
            stand_ins(False)  # another part of SciPy, and so all of it
            return PathFinder.find_spec(fullname, import_module(fullname.rpartition(".")[0]).__path__)
        spec = PathFinder.find_spec(fullname, path, target) if fullname == PACKAGE else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module) -> None:
            gc.disable()
            stand_ins(True)
            try:
                with without_tables():
                    execute(module)
                reserve_buffer()
            finally:
                stand_ins(False)
                gc.freeze()
                gc.enable()
                # PYTHONWARNINGS=error is about the user's code; MindSpore would fail by it at exit
                warnings.filterwarnings("ignore", category=DeprecationWarning, module=PACKAGE)

        setattr(spec.loader, "exec_module", exec_module)  # noqa: B010 - types know no method that is assigned to
        return spec


def import_quickly() -> None:
    """From now on in this process, unless MindSpore is there already."""
    if PACKAGE not in sys.modules:
        sys.meta_path.insert(0, QuickImport())
