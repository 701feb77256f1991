"""Packages whose names are looked up on first use, so that importing the package imports none of its modules."""

from __future__ import annotations

import contextlib
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Table = Mapping[str, Sequence[str]]


@contextlib.contextmanager
def _whole() -> Iterator[None]:
    """Holds back a Ctrl-C until the end: MindSpore that was imported in part cannot be imported again, which a notebook
    would not survive."""
    import signal
    import threading

    own = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT)
    pressed: list[int] = []
    if own:
        signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        yield
    finally:
        if own:
            signal.signal(signal.SIGINT, own)
        if pressed:
            signal.raise_signal(signal.SIGINT)


def names_of(
    package: str,
    table: Table | Callable[[], Table],
    check: Callable[[], None] = lambda: None,
    elsewhere: str = "\0",
) -> tuple[Callable, Callable]:
    """``__getattr__`` (for ``__all__`` too) and ``__dir__`` of a package.

    Args:
        package: its ``__name__``.
        table: module → the names that it gives; or a function that makes the table, called for the first name.
        check: called before the first use of a name; raises where the package cannot be used.
        elsewhere: names of modules that begin so are found, but are not in ``__all__``.
    """
    namespace = vars(sys.modules[package])
    where: dict[str, str] = {}

    def known() -> dict[str, str]:
        if not where:
            where.update({name: module for module, names in found().items() for name in names})
        return where

    def found() -> Table:
        return table() if callable(table) else table

    def find(name: str) -> object:
        from importlib import import_module

        if name == "__all__":
            return sorted(name for name, module in known().items() if not module.startswith(elsewhere))
        if name.startswith("__") or name not in known():
            raise AttributeError(f"module {package!r} has no attribute {name!r}{_in_its_place(f'{package}.{name}')}")
        check()
        with _whole():
            namespace[name] = value = getattr(import_module(where[name]), name)
        return value

    return find, lambda: sorted({*namespace, *known()})


def _in_its_place(fullname: str) -> str:
    """``": it is …"`` of another library's name below `pet`, otherwise nothing."""
    from adapters.peft_others import not_here
    from model_zoo.elsewhere import NAMES

    package, _, name = fullname.rpartition(".")
    said = (NAMES.get(name) or not_here(name)) if package == "pet" else ""
    return f": it {said}" if said else ""


class Unknown:
    """A finder of modules that says, where ``from pet import name`` looks for a module last, what is here in the place
    of another library's name: Python's own error would not say more than that there is none."""

    @staticmethod
    def find_spec(fullname: str, path=None, target=None) -> None:
        if fullname.startswith("pet.") and (instead := _in_its_place(fullname)):
            raise ImportError(f"pet has no {fullname.removeprefix('pet.')}{instead}", name="pet")


def stub_table(source: str) -> dict[str, list[str]]:
    """What the imports of the type stub beside a package's ``__init__.py`` say: module → names.

    Args:
        source: the package's ``__file__``.
    """
    import ast

    with open(source + "i", encoding="utf-8") as file:
        imports = [line for line in ast.parse(file.read()).body if isinstance(line, ast.ImportFrom)]
    return {line.module: [alias.name for alias in line.names] for line in imports if line.module}
