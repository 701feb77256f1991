"""What may stand in a field of a configuration file, by the field's type."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

from model_zoo.errors import InputError, shown

LARGEST = 1 << 24
"""Beyond every size that a model has: a larger number in a file is a mistake, and nothing is counted or made of it."""

TokenId = NewType("TokenId", int)
"""The row of a token; -1 stands for none."""

Count = NewType("Count", int)
"""How many, where there may be none."""

Share = NewType("Share", float)
"""A number that 0 is a value of."""

MAY_BE_0 = dict.fromkeys(("rms_norm_eps", "layer_norm_epsilon", "layernorm_epsilon"), Share)
"""Fields of families that may be 0."""

RULES: dict[Any, tuple[Callable[[Any], bool], str]] = {
    int: (lambda value: type(value) is int and 0 < value <= LARGEST, f"a whole number from 1 to {LARGEST}"),
    TokenId: (lambda value: type(value) is int and -1 <= value <= LARGEST, "a token's id"),
    Count: (lambda value: type(value) is int and 0 <= value <= LARGEST, f"a whole number from 0 to {LARGEST}"),
    float: (lambda value: type(value) in (int, float) and 0 < value < 1e38, "a number above 0"),
    Share: (lambda value: type(value) in (int, float) and 0 <= value < 1e38, "a number of 0 or more"),
    bool: (lambda value: type(value) is bool, "true or false"),
    str: (lambda value: type(value) is str, "a text"),
    dict: (lambda value: type(value) is dict, "an object"),
    list: (lambda value: type(value) is list, "a list"),
    list[TokenId]: (lambda value: type(value) is list and all(map(RULES[TokenId][0], value)), "a list of ids"),
}


@functools.cache
def field_kinds(configuration: Any) -> Mapping[str, Any]:
    """The types of the fields of a configuration, a dataclass, for `check_types`. Python takes as long to work them out
    as all else to check a file."""
    hints = get_type_hints(configuration)
    return {field.name: hints[field.name] for field in dataclasses.fields(configuration) if field.name != "extra"}


def check_types(where: str, values: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    """Raises one InputError for all values that are not of their field's type.

    Args:
        where: the file, to begin each problem with.
        values: what is to be checked; null stands for a field that is left out, and other fields are let pass.
        kinds: a type of `RULES` for each field, or several joined by ``|``.
    """
    problems = []
    for key, kind in kinds.items():
        joined = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
        choices = [RULES[one] for one in joined if one in RULES]  # None is none of them
        value = values.get(key)
        if value is not None and not any(fits(value) for fits, _ in choices):
            expected = " or ".join(meaning for _, meaning in choices)
            problems.append(f"{where}: {key} is {shown(value)}; {expected} was expected")
    InputError.raise_any(problems)
