"""A recipe written out again: with every default, and if wanted with the meaning of each key; and the JSON schema."""

from __future__ import annotations

import functools
import json
import re
import textwrap
from typing import Any

from pydantic import BaseModel

from pet.recipe.keys import path_keys
from pet.recipe.schema import Recipe
from pet.recipe.source import parse
from pet.recipe.variables import as_written

_WIDTH = 110


def _scalar(value: Any) -> str:
    """A value in one line of YAML."""
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            return ".nan" if value != value else ".inf" if value > 0 else "-.inf"
        return repr(value)
    if isinstance(value, str):
        return value if _is_plain(value) else _quoted(value)
    if isinstance(value, list):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flow(str(key))}: {_flow(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


def _flow(value: Any) -> str:
    """A value inside [ ] or { }: texts are quoted unless they are single words."""
    if isinstance(value, str) and not value.replace("_", "").replace("-", "").isalnum():
        return _quoted(value)
    return _scalar(value)


def _quoted(text: str) -> str:
    """In quotes, with escapes for what YAML refuses or takes for the end of a line."""
    text = json.dumps(text, ensure_ascii=False)
    return re.sub("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]", lambda found: f"\\u{ord(found[0]):04x}", text)


def _is_plain(text: str) -> bool:
    """May the text stand without quotes? Asked of the reader itself."""
    if not text.isprintable() or text != text.strip() or any(mark in text for mark in "#\"'{}[],&*!|>%@`"):
        return False
    source = parse(f"key: {text}", "")
    return not source.problems and source.value == {"key": text}


def _lines(section: BaseModel, comments: bool, indent: int) -> list[str]:
    pad = "  " * indent
    lines: list[str] = []
    names = sorted(type(section).model_fields, key=lambda name: name not in type(section).__annotations__)
    if "method" in names:  # it says what the other keys mean, so it comes first
        names.insert(0, names.pop(names.index("method")))
    for name in names:
        field, value = type(section).model_fields[name], getattr(section, name)
        if comments and field.description:
            wrapped = textwrap.wrap(field.description, _WIDTH - len(pad), break_on_hyphens=False)
            if indent == 0 and lines:
                lines.append("")
            lines.extend(f"{pad}# {line}" for line in wrapped)
        if isinstance(value, BaseModel):
            lines.append(f"{pad}{name}:")
            lines.extend(_lines(value, comments, indent + 1))
        elif isinstance(value, list) and any(isinstance(entry, BaseModel) for entry in value):
            lines.append(f"{pad}{name}:")
            for entry in value:
                lines.append(f"{pad}  - {_flow(entry.model_dump() if isinstance(entry, BaseModel) else entry)}")
        else:
            lines.append(f"{pad}{name}: {_scalar(value)}")
    return lines


def dump(recipe: Recipe, comments: bool = False) -> str:
    """The recipe as YAML, every default included. Loading it again gives an equal recipe.

    Environment variables in paths stay variables: the values of some are secret.

    Args:
        comments: put the meaning of each key above it.
    """
    recipe = recipe.model_copy(deep=True)
    _unexpand(recipe)
    return "\n".join(_lines(recipe, comments, 0)) + "\n"


def _unexpand(section: BaseModel) -> None:
    for *around, last in path_keys(type(section)):
        holder = functools.reduce(lambda holder, key: getattr(holder, key, None), around, section)
        value = getattr(holder, last, None)
        if isinstance(value, str):
            setattr(holder, last, as_written(value))
        for index, entry in enumerate(value if isinstance(value, list) else ()):
            if isinstance(entry, BaseModel):
                _unexpand(entry)
            else:
                value[index] = as_written(entry)


def json_schema() -> dict[str, Any]:
    """The JSON schema of a recipe, for editors that complete and check YAML files."""
    schema = Recipe.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "pet recipe"
    callbacks = schema["properties"]["callbacks"]
    callbacks["items"] = {"anyOf": [{"type": "string"}, callbacks["items"]]}
    return schema
