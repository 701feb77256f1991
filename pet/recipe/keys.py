"""The schema as a table of keys: which exist, which hold paths, and which hold plain text."""

from __future__ import annotations

import types
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pet.recipe.fields import PathKind
from pet.recipe.schema import Recipe
from pet.recipe.source import KeyPath


def sections_in(annotation: Any, lists: bool = False) -> Iterator[type[BaseModel]]:
    """The section classes that a field's annotation names, through unions and ``Annotated``, and through lists where
    ``lists`` says so."""
    kind = get_origin(annotation)  # in Python 3.10 `list[str]` is a type as well
    if kind is None and isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif kind in (Annotated, Union, types.UnionType, *([list] if lists else [])):
        for argument in get_args(annotation):
            yield from sections_in(argument, lists)


def _path_kind(annotation: Any, metadata: list[Any]) -> str | None:
    for entry in metadata:
        if isinstance(entry, PathKind):
            return entry.relative_to
    if get_origin(annotation) is Annotated:
        inner, *entries = get_args(annotation)
        return _path_kind(inner, entries)
    if get_origin(annotation) in (Union, types.UnionType):
        return next(filter(None, (_path_kind(argument, []) for argument in get_args(annotation))), None)
    return None


def _is_text(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated:
        return _is_text(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return all(_is_text(argument) or argument is type(None) for argument in get_args(annotation))
    return annotation is str


def walk(section: type[BaseModel] = Recipe, prefix: KeyPath = ()) -> Iterator[tuple[KeyPath, FieldInfo]]:
    """Every key of the schema with its field; keys of all adapter methods in turn."""
    for name, field in section.model_fields.items():
        yield (*prefix, name), field
        for inner in sections_in(field.annotation):
            yield from walk(inner, (*prefix, name))


@cache
def known_keys() -> frozenset[KeyPath]:
    """Every key path that some recipe can have."""
    return frozenset(path for path, _ in walk())


@cache
def path_keys(section: type[BaseModel] = Recipe) -> dict[KeyPath, str]:
    """The keys that hold paths, with what a relative one is relative to (see ``PathKind``)."""
    kinds = {path: _path_kind(field.annotation, field.metadata) for path, field in walk(section)}
    return {path: kind for path, kind in kinds.items() if kind}


@cache
def text_keys() -> frozenset[KeyPath]:
    """The keys whose value is a text. An override for one of these is taken as it stands."""
    return frozenset(path for path, field in walk() if _is_text(field.annotation))


@cache
def groups() -> tuple[KeyPath, ...]:
    """The keys that hold a section, a mapping or a list of their own, and may be left out, outer ones first."""
    return tuple(path for path, field in walk() if field.default_factory is not None)
