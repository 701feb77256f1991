"""Modules without files, so that names stand under another project's module paths."""

from __future__ import annotations

import re
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

from pet.lazy import names_of

if TYPE_CHECKING:
    from pet.lazy import Table


class _Modules(MetaPathFinder, Loader):
    """Finds the modules that a package states in a table, ``__modules__``; another one, ``__lacking__``, has what to do
    instead of what is not there, by words of its name."""

    def find_spec(self, fullname: str, path=None, target=None) -> ModuleSpec | None:
        """Also of a name that ``from package import name`` looks for as a module last. What is not there is an error
        that says where a reader finds more."""
        outer, _, inner = fullname.partition(".")
        while inner:
            own = vars(sys.modules[outer]) if outer in sys.modules else {}
            if inner in (table := own.get("__modules__", {})):
                spec = ModuleSpec(fullname, self, is_package=True)
                spec.loader_state = table[inner]
                return spec
            if table:
                package = own["__name__"]
                page = f"docs/coming-from/{package.rpartition('.')[2].replace('_', '')}.md"
                why = next(
                    (f": {one}" for words, one in own.get("__lacking__", {}).items() if re.search(words, inner)), ""
                )
                raise ModuleNotFoundError(
                    f"{package} has no {inner}{why}; {page} says what does not run, and what to do", name=package
                )
            step, _, inner = inner.partition(".")
            outer = f"{outer}.{step}"
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        """Python's own kind of module."""

    def exec_module(self, module) -> None:
        module.__getattr__, module.__dir__ = names_of(module.__name__, module.__spec__.loader_state)
        own = module.__name__.rpartition(".")[2]
        if any(own in names for names in module.__spec__.loader_state.values()):
            find = module.__getattr__

            def of_both(name: str) -> object:
                try:
                    return find(name)
                except AttributeError:
                    if name.startswith("__"):
                        raise
                    return getattr(find(own), name)

            module.__class__, module.__getattr__ = _Called, of_both
            module.__doc__ = f"The module {module.__name__}, which is used as its `{own}`, too."


class _Called(ModuleType):
    """A module with a function or an object of its own name: importing it puts it in that name's place in the package.
    It can be called as the one, and has the attributes of the other."""

    def __call__(self, *arguments, **settings):
        return getattr(self, self.__name__.rpartition(".")[2])(*arguments, **settings)


def modules_of(table: dict[str, Table]) -> dict[str, Table]:
    """``__modules__`` of a package. They are found under any name that the package itself has in `sys.modules`, so that
    ``sys.modules["theirs"] = ours`` serves a script as it is.

    Args:
        table: path below the package, such as ``delta.lora`` → a table as for `names_of`. Packages that have no names
            need not be in it.
    """
    if not any(isinstance(finder, _Modules) for finder in sys.meta_path):
        sys.meta_path.append(_Modules())
    outer = {path[:end] for path in table for end, letter in enumerate(path) if letter == "."}
    return {**{path: {} for path in outer}, **table}
