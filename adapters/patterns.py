"""Names, and regular expressions for names that a file may bring; without MindSpore.

An adapter file's expressions are matched in time linear in the name, by the automaton of Rust's ``regex`` (it comes
with pydantic): Python's engine backtracks, so that ``(a|a)*b`` takes for ever on a name of forty letters. The automaton
has neither look-around nor back-references. A user's own expression with those goes to Python's engine.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from functools import lru_cache

from pydantic_core import SchemaError, SchemaValidator, core_schema

from model_zoo.errors import InputError

LONGEST = 10_000  # characters of an expression; the size of its automaton has a limit of its own
GROUPS = ("all-linear", "attention", "mlp")
"""Targets that mean cells of the model at hand."""


def as_list(value) -> list:
    """A single entry as a list of one; None as an empty list."""
    if value is None:
        return []
    return [value] if isinstance(value, (str, int)) else list(value)


def is_glob(pattern: str) -> bool:
    """Whether a target is a glob rather than a name."""
    return any(sign in pattern for sign in "*?[")


def named(path: str, name: str) -> bool:
    """Whether a name is a cell's whole path or its last parts."""
    return path == name or path.endswith("." + name)


def names_like(pattern: str, names: Iterable[str]) -> list[str]:
    """The names of tensors that a glob, or a regular expression behind ``re:``, matches."""
    if pattern.startswith("re:"):
        return [name for name in names if full_match(pattern[3:], name)]
    return [name for name in names if fnmatchcase(name, pattern)]


def within(path: str, name: str) -> bool:
    """Whether a name is that of a cell or of one that it lies in."""
    return f".{name}." in f".{path}."


def layer_numbers(layers, existing: set[int]) -> set[int] | None:
    """Indices and ranges (``"0-5"``, ``"20-"``) as a set; None for all.

    Raises:
        InputError: an entry of another form, or one with no layer in it.
    """
    if layers is None:
        return None
    chosen, problems = set(), []
    for entry in as_list(layers):
        match = re.fullmatch(r"(\d+)(?:(-)(\d*))?", str(entry).strip())
        if match is None or isinstance(entry, bool):
            problems.append(f"layers: {entry!r}; an index (3) or a range ('0-5', '20-') was expected")
            continue
        first = int(match[1])
        last = first if match[2] is None else int(match[3]) if match[3] else max(existing, default=first)
        found = {number for number in existing if first <= number <= last}
        outside = match[2] is not None and match[3] and int(match[3]) not in existing
        if not found or outside:
            there = f"0-{max(existing)}" if existing else "none"
            problems.append(f"layers: {entry!r} names a layer that does not exist (there is: {there})")
        chosen |= found
    InputError.raise_any(problems)
    return chosen


@lru_cache(maxsize=4096)
def in_linear_time(expression: str) -> Callable[[str], bool] | None:
    """Tells in linear time whether a whole text matches; None for an expression that needs backtracking or is too long.

    Raises:
        re.error: no regular expression of Python's.
    """
    if len(expression) > LONGEST:
        return None
    try:
        re.compile(expression)
    except (RecursionError, OverflowError):
        raise re.error("nested too deeply") from None
    try:
        return SchemaValidator(core_schema.str_schema(pattern=rf"\A(?:{expression})\z")).isinstance_python
    except SchemaError:
        return None


def full_match(expression: str, text: str) -> bool:
    """Whether a whole text matches.

    Raises:
        re.error: no regular expression.
    """
    matches = in_linear_time(expression)
    return matches(text) if matches else re.fullmatch(expression, text) is not None


def pattern_matches(key: str, path: str) -> bool:
    """Whether a key of a pattern, a regular expression for a path or its last parts (PEFT's convention), matches."""
    return full_match(rf"(?:.*\.)?(?:{key})", path)


def pattern_key(patterns: dict | None, path: str) -> str | None:
    """The first key that matches (`pattern_matches`)."""
    return next((key for key in patterns or () if pattern_matches(key, path)), None)


def found_by_any(key: str, path: str) -> bool:
    """Whether a key that matches does so in PEFT before 0.15, too: behind a dot, with none of ``a|b`` but the first
    there, or as the path itself."""
    return key == path or full_match(rf".*\.{key}", path)


def pattern_value(patterns: dict | None, path: str, default):
    """The value of the first key that matches."""
    key = pattern_key(patterns, path)
    return default if patterns is None or key is None else patterns[key]


def keys_for(paths: Iterable[str]) -> dict[str, str]:
    """A key of a pattern for each of these cells, which matches no other of them.

    PEFT before 0.15 looks for a key behind a dot alone, so that the path's first part is left out where that suffices.
    """
    paths = list(paths)
    ends = Counter(path[at:] for path in paths for at in range(len(path)) if at == 0 or path[at - 1] == ".")
    shorts = ((path, path.partition(".")[2]) for path in paths)
    return {path: re.escape(short) if ends[short] == 1 else f"^{re.escape(path)}" for path, short in shorts}


def in_any_order(patterns: dict | None, paths: Iterable[str]) -> dict:
    """The same values for these paths, whatever order the keys are read in: PEFT sorts them when it saves.

    Where keys of different values match one path, the first one counts here and in PEFT; each path gets a key of its
    own then, which matches nothing else.
    """
    patterns, paths = patterns or {}, list(paths)
    found = {path: [value for key, value in patterns.items() if pattern_matches(key, path)] for path in paths}
    if all(len(set(values)) < 2 for values in found.values()):
        return dict(patterns)
    keys = keys_for(paths)
    return {keys[path]: values[0] for path, values in found.items() if values}


def check_expression(key: str, text, bounded: bool = True) -> None:
    """Raises InputError for no regular expression, or, where `bounded`, for one that needs more than linear time."""
    shown = repr(text if len(str(text)) < 80 else f"{str(text)[:77]}...")
    try:
        matches = in_linear_time(text) if isinstance(text, str) else None
    except re.error as error:
        raise InputError(f"{key}: {shown} is no valid regular expression: {error}") from None
    if matches is None and bounded:
        raise InputError(
            f"{key}: {shown} cannot be matched in bounded time (look-around, back-references, or too large); "
            "name the cells instead"
        )
