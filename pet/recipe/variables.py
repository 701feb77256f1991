"""Environment variables in a recipe's paths: expanded for use, ``${NAME}`` in everything that is written or shown.

A variable may hold what nobody else should read, and its value is no part of the recipe.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

_VARIABLE = re.compile(r"\$\{([^}]*)\}|\$([A-Za-z_][A-Za-z0-9_]*)")
# Shorter values occur in other words; in a message they are hidden as part of their path only.
_SHORTEST = 4

_paths: dict[str, str] = {}  # as used → as written
_values: dict[str, str] = {}


def expand(text: str, missing: Callable[[str], None]) -> str:
    """``text`` with the variables' values; ``missing`` is called with the name of one that is not set."""
    from pet.recipe.keys import known_keys

    words = {part for key in known_keys() for part in key}  # a directory "data" is no secret, and messages name the key

    def value(match: re.Match) -> str:
        name = match[1] if match[1] is not None else match[2]
        if name not in os.environ:
            missing(name)
            return match[0]
        if len(os.environ[name]) >= _SHORTEST and os.environ[name] not in words:
            _values[os.environ[name]] = f"${{{name}}}"
        return os.environ[name]

    return _VARIABLE.sub(value, text)


def note(path: str, written: str, expanded: str, base: str | os.PathLike) -> None:
    """Remembers how a path with variables in it was written; a relative one is written from ``base`` on."""
    absolute = path == expanded or os.path.isabs(os.path.expanduser(expanded))
    _paths[path] = written if absolute else os.path.join(base, written)


def as_written(path: str) -> str:
    """A path of a recipe with its variables unexpanded."""
    return _paths.get(path, path)


def hide(text: str) -> str:
    """A message with variables in place of their values."""
    known = {**_values, **_paths}
    for value in sorted(known, key=len, reverse=True):
        text = text.replace(value, known[value])
    return text
