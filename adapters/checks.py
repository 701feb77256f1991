"""Checks of single values in a configuration, for what a user gives and for what a file holds; without MindSpore."""

from __future__ import annotations

import math

import numpy as np

from model_zoo.errors import InputError, similar


def one_of(owner: str, name: str, value, choices: tuple[str, ...]) -> None:
    """Raises InputError, naming the nearest, unless value is one of the choices."""
    if value not in choices:
        hint = similar(value, choices) if isinstance(value, str) else ""
        raise InputError(f"{owner}: {name} is {value!r}; supported: {', '.join(choices)}{hint}")


def above_zero(owner: str, name: str, value) -> None:
    """Raises InputError unless value is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise InputError(f"{owner}: {name} is {value!r}; a number above 0 was expected")


def positive_int(owner: str, name: str, value, most: int | None = None) -> None:
    """Raises InputError unless value is a whole number from 1 to `most`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1 or (most and value > most):
        limit = f" and at most {most}" if most else ""
        raise InputError(f"{owner}: {name} is {value!r}; a whole number of at least 1{limit} was expected")


def share(owner: str, name: str, value) -> None:
    """Raises InputError unless value is a number from 0 to below 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise InputError(f"{owner}: {name} is {value!r}; a number from 0 to below 1 was expected")


def token_ids(tokens) -> None:
    """Raises InputError unless this is None, a list of ids, or {embedding name: list of ids}."""
    groups = list(tokens.values()) if isinstance(tokens, dict) else [tokens]
    if isinstance(tokens, dict) and not all(isinstance(name, str) and name for name in tokens):
        raise InputError(f"trainable_tokens: {list(tokens)!r}; names of embeddings were expected")
    for ids in groups:
        if ids is None and tokens is None:
            return
        whole = isinstance(ids, (list, tuple)) and all(type(index) is int and index >= 0 for index in ids)
        if not whole or not ids:
            raise InputError(f"trainable_tokens: {ids!r}; a list of token ids was expected")
        if len(set(ids)) < len(ids):
            twice = sorted({index for index in ids if ids.count(index) > 1})
            raise InputError(f"trainable_tokens: {twice} named twice")
