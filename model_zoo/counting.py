"""Shapes and sizes of a model from its config.json alone: nothing is allocated, MindSpore is not imported."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from model_zoo.configs import OTHER_FIELDS, Config, Dims, Shapes
from model_zoo.errors import InputError
from model_zoo.families import config_class
from model_zoo.labels import LABEL_FIELDS
from model_zoo.rope_config import changes_of_text


def config_of(values: Mapping[str, Any]) -> Config:
    """The configuration in a config.json's dictionary.

    Raises:
        InputError: a value that the family does not support, or a size that is missing.
    """
    kind = config_class(values)
    values = kind.flat(values)
    kind.check_types(values)
    missing = [key for key in kind.sized_by if values.get(key) is None]
    if missing:
        raise InputError(f"config.json: {missing[0]} must be a positive integer, it is None")
    return kind.from_dict(dict(values))


def unread_fields(values: Mapping[str, Any], changed: Mapping[str, Any]) -> tuple[list[str], set[str]]:
    """Of the fields that are to replace or join a config.json's those that nothing reads; and what is read."""
    changed = changes_of_text(values, changed)
    kind = config_class({**values, **changed})
    known = {
        *(field.name for field in dataclasses.fields(kind) if field.name != "extra"),
        *OTHER_FIELDS,
        *LABEL_FIELDS,
        *kind.flat(values),
    }
    return [key for key in changed if not known.issuperset(kind.flat({**values, key: 0}))], known


def layout_of(values: Mapping[str, Any]) -> str:
    """Which set of tensor names a configuration stands for (`Family.layout`)."""
    return config_class(values).family.layout


def sizes(values: Mapping[str, Any]) -> Dims:
    """The dimensions in a config.json's dictionary; raises as `config_of`."""
    return config_of(values).dims


def parameter_shapes(values: Mapping[str, Any]) -> Shapes:
    """{tensor name: shape} of the parameters, under their published names. A tied head is not listed twice."""
    return config_of(values).shapes()


def tied_head(values: Mapping[str, Any]) -> tuple[str, str] | None:
    """As `Config.tied_head`."""
    return config_of(values).tied_head()
