"""Recipes: the YAML files that say what a run is. ``load`` reads one, ``Recipe`` is what comes out.

The names are looked up when they are first used, so that importing this package does not import pydantic.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_WHERE = {
    "load": "pet.recipe.loading",
    "Recipe": "pet.recipe.schema",
    "dump": "pet.recipe.show",
    "json_schema": "pet.recipe.show",
}
__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value
