"""What pydantic found, said in a user's words: where it stands, what was expected, what may have been meant."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from model_zoo.errors import InputError, nearest, shown, similar
from pet.recipe.keys import known_keys, sections_in
from pet.recipe.overrides import plain, value_at
from pet.recipe.schema import Recipe
from pet.recipe.source import KeyPath, Source, dotted
from pet.recipe.trl_names import hint
from pet.recipe.variables import hide

SectionType = TypeVar("SectionType", bound=BaseModel)
_KINDS = {
    dict: "a section",
    list: "a list",
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    type(None): "nothing (null)",
}
_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number of ordinary size",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a text (in quotes where it looks like something else)",
    "string_unicode": "a text or name in UTF-8, this is in another encoding",
    "list_type": "a list",
    "dict_type": "a mapping (key: value)",
    "model_type": "a section (key: value lines, indented)",
    "model_attributes_type": "a section (key: value lines, indented)",
    "finite_number": "a finite number",
}
_MARKS = ("[key]", "bool", "int", "str", "list[int]")
_LIMITS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
UNPRINTED = re.compile(r"\n(?!  [-…] )|[\x00-\x09\x0b-\x1f\x7f\ud800-\udfff]")
"""What a name in a problem may have and a line may not; a list of problems (`InputError.collect`) stays one."""


def show_value(value: Any) -> str:
    """A value as a problem quotes it, with its kind; cut when it is long."""
    if value is None or isinstance(value, (dict, list)):
        return _KINDS[type(value)]
    text = repr(value) if isinstance(value, str) else ("true" if value is True else "false" if value is False else None)
    text = text if text is not None else shown(value)
    if len(text) > 60:
        text = text[:57] + "…" + text[0] * isinstance(value, str)
    return f"{text} ({_KINDS[type(value)]})" if type(value) in _KINDS else text


class Report:
    """Collects problems, each with the place of the key that it is about."""

    def __init__(self, source: Source):
        self.source = source
        self.problems: list[tuple[int, str]] = []
        self.bad: set[KeyPath] = set()
        for problem in source.problems:
            self.problems.append((0, problem))

    def add(self, path: KeyPath, message: str) -> None:
        """Note that the value at ``path`` is wrong."""
        self.bad.add(path)
        order = 1 << 30 if self.source.overriding(path) else (self.source.line(path) or 0)
        text = f"{self.source.where(path)}: {dotted(path)}: {message}"
        self.problems.append((order, UNPRINTED.sub(lambda found: repr(found[0])[1:-1], text)))

    def lines(self) -> list[str]:
        """The problems in the order of the file, those of the command line last, each once."""
        ordered = [text for _, text in sorted(self.problems, key=lambda problem: problem[0])]
        return list(dict.fromkeys(map(hide, ordered)))

    def concerns(self, paths: Iterable[KeyPath]) -> bool:
        """Is one of these, or something around or inside it, already known to be wrong?"""
        return any(path[: len(bad)] == bad or bad[: len(path)] == path for path in paths for bad in self.bad)


def elsewhere(key: str, parent: KeyPath) -> str:
    """Where else a key of this name exists: the usual mistake is the wrong section."""
    places = sorted(dotted(path) for path in known_keys() if path[-1] == key and path[:-1] != parent)
    return f" (there is: {', '.join(places)})" if places else ""


def siblings(parent: KeyPath, tree: Any) -> list[str]:
    """The keys that the section at ``parent`` can have; in ``adapter``, those of its method."""
    classes = [Recipe]
    for part in (part for part in parent if isinstance(part, str)):
        found: list[type] = []
        for section in classes:
            field = section.model_fields.get(part)
            if field is not None:
                found.extend(sections_in(field.annotation, lists=True))
        classes = found
    if parent == ("adapter",) and isinstance(tree, dict) and isinstance(tree.get("adapter"), dict):
        method = tree["adapter"].get("method")
        of_method = [section for section in classes if method in _methods(section)]
        classes = of_method or classes
    return sorted({name for section in classes for name in section.model_fields})


def _methods(section: type) -> tuple[str, ...]:
    return section.model_fields["method"].annotation.__args__


def _unknown(path: KeyPath, tree: Any) -> str:
    key, parent = str(path[-1]), path[:-1]
    names = siblings(parent, tree)
    place = f"the section {dotted(parent)}" if parent else "a recipe"
    if parent == ("adapter",) and isinstance(tree, dict):
        place = f"the method {tree['adapter'].get('method')!r}"
    found = hint(key) or similar(key, names) or elsewhere(key, parent) or nearest(key, names)
    return f"{place} has no such key{found}"


def _message(error: dict[str, Any], path: KeyPath, tree: Any) -> str:
    kind, context, value = error["type"], error.get("ctx") or {}, error.get("input")
    if kind == "extra_forbidden":
        return _unknown(path, tree)
    if kind == "missing":
        return "is missing, and has no default"
    if kind == "literal_error":
        # pydantic lists them as 'a', 'b' or 'c'
        names = [part.strip().strip("'") for part in context["expected"].replace(" or ", ", ").split(",")]
        return f"expected one of {', '.join(names)}; got {show_value(value)}" + similar(value, names)
    if kind in _LIMITS:
        name, words = _LIMITS[kind]
        return f"expected {words} {context[name]:.15g}; got {show_value(value)}"
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}; got {show_value(value)}"
    if kind == "union_tag_invalid":
        sections, tag = sections_in(Recipe.model_fields["adapter"].annotation), context["tag"]
        names = sorted(name for section in sections for name in _methods(section))
        return f"there is no method {tag!r}; expected one of {', '.join(names)}" + similar(tag, names)
    if kind == "value_error":
        return str(context["error"])
    if kind == "string_pattern_mismatch":
        return f"{show_value(value)} has characters that cannot be used here (allowed: {context['pattern']})"
    if kind in ("too_short", "too_long"):
        limit = context.get("min_length", context.get("max_length"))
        words = "at least" if kind == "too_short" else "at most"
        return f"expected {words} {limit} entries; got {context.get('actual_length')}"
    if kind in ("string_too_short", "string_too_long"):
        return f"expected a text that is not {'empty' if kind == 'string_too_short' else 'so long'}"
    return f"{error['msg'].lower()}; got {show_value(value)}"


def _clean_path(location: tuple[str | int, ...], kind: str) -> KeyPath:
    """The key path of a pydantic location: without the names of union branches, and without ``[key]`` marks."""
    path = tuple(part for part in location if part not in _MARKS)
    if len(path) > 1 and path[0] == "adapter":
        path = ("adapter", *path[2:])  # path[1] is the method, by which pydantic chose the class
    if kind == "union_tag_invalid":
        path = (*path, "method")
    return path


def _found(error: ValidationError, tree: Any, at: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """Each problem's key, and what is wrong; what all kinds of a value expect in vain is one problem."""
    messages: dict[KeyPath, list[str]] = {}
    for one in error.errors(include_url=False):
        path = (*at, *_clean_path(one["loc"], one["type"]))
        if one["type"] == "string_unicode" and isinstance(value_at(tree, path), dict):  # of a key in this section
            path = (*path, one["input"])
        messages.setdefault(path, []).append(_message(one, path, tree))
    for path, of_key in messages.items():
        expected, got = zip(*(message.rpartition("; got ")[::2] for message in of_key), strict=True)
        if len(of_key) > 1 and len({*got}) == 1 and all(text.startswith("expected ") for text in expected):
            of_key = [f"{' or '.join([expected[0], *(text[9:] for text in expected[1:])])}; got {got[0]}"]
        yield from ((path, message) for message in of_key)


@contextlib.contextmanager
def said_of(name: str, values: dict[str, Any]) -> Iterator[None]:
    """What pydantic finds in a section of a recipe that is made of these values is an InputError, said as of a file."""
    try:
        yield
    except ValidationError as error:
        found = _found(error, {name: values}, (name,))
        raise InputError.collect(f"{dotted(path)}: {message}" for path, message in found) from None


def checked(section: type[SectionType], name: str, values: dict[str, Any]) -> SectionType:
    """A section of a recipe, made of values given in code.

    Raises:
        InputError: what is wrong with them, as it is said of a recipe's.
    """
    with said_of(name, values):
        return section(**plain(values))


def translate(error: ValidationError, tree: Any, report: Report) -> None:
    """Add what pydantic found to ``report``."""
    for path, message in _found(error, tree):
        report.add(path, message)
