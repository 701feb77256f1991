"""Packages whose names are looked up on first use, so that importing the package imports none of its modules."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Table = Mapping[str, Sequence[str]]


def names_of(
    package: str, table: Table, more: Callable[[], Table] = dict, check: Callable[[], None] = lambda: None
) -> tuple[Callable, Callable]:
    """``__getattr__`` (for ``__all__`` too) and ``__dir__`` of a package.

    Args:
        package: its ``__name__``.
        table: module → the names that it gives.
        more: called for a name that is not in ``table``; gives a table of further names.
        check: called before the first use of a name; raises where the package cannot be used.
    """
    namespace = vars(sys.modules[package])
    where: dict[str, str] = {}

    def known() -> dict[str, str]:
        where.update({name: module for tables in (table, more()) for module, names in tables.items() for name in names})
        return where

    def find(name: str) -> object:
        from importlib import import_module

        if name == "__all__":
            return sorted(known())
        if name.startswith("__") or name not in known():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        check()
        namespace[name] = value = getattr(import_module(where[name]), name)
        return value

    return find, lambda: sorted({*namespace, *known()})
