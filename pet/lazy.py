"""Packages whose names are looked up on first use, so that importing the package imports none of its modules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def names_of(
    package: str, table: Mapping[str, Sequence[str]], check: Callable[[], None] = lambda: None
) -> tuple[list[str], Callable, Callable]:
    """``__all__``, ``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: its ``__name__``.
        table: module → the names that it gives.
        check: called before the first use of a name; raises where the package cannot be used.
    """
    where = {name: module for module, names in table.items() for name in names}
    namespace = vars(sys.modules[package])

    def find(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        check()
        namespace[name] = value = getattr(import_module(where[name]), name)
        return value

    return sorted(where), find, lambda: sorted({*namespace, *where})
