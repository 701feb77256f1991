"""A setting: its default, its bounds and its meaning in one field; and what is wrong with a value by these.

Without MindSpore, NumPy and pydantic: a recipe is checked in a fraction of a second.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import struct
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from model_zoo.arguments import misfit
from model_zoo.errors import InputError, shown, similar

BOUNDS = {"ge": " of at least", "gt": " above", "le": " and at most", "lt": " and below"}
KINDS = {int: (numbers.Integral, "a whole number"), float: (numbers.Real, "a number"), bool: (bool, "true or false")}


def setting(default: Any, description: str, **facts: Any) -> Any:
    """A field of settings: of a method, or of how tokens are chosen.

    Args:
        default: its value where nothing is said; None: the method or the model decides.
        description: what it means, for recipes, docstrings and the JSON schema.
        facts: ``ge``, ``gt``, ``le``, ``lt``: bounds, of a mapping those of its values; ``choices``: the values that
            it can have; ``min_length``: of a text; ``check``: value → what is wrong with it, or None;
            ``recipe=False``: a recipe's adapter section does not have it; ``peft``: its key in PEFT's file, where that
            is all the difference; ``off``, ``drawn``, ``beams``: see `model_zoo.generation_settings.Choosing`.
    """
    return dataclasses.field(default=default, metadata={"description": description, **facts})


def expected(kind: type, facts: Mapping[str, Any]) -> str:
    """What a number or a truth value was expected to be."""
    return KINDS[kind][1] + "".join(f"{words} {facts[bound]:g}" for bound, words in BOUNDS.items() if bound in facts)


def single(value: Any) -> Any:
    """A number as float32 has it, in which it takes part; so those in a list or in a mapping."""
    if isinstance(value, list):
        return [single(entry) for entry in value]
    if isinstance(value, dict):
        return {key: single(entry) for key, entry in value.items()}
    if not isinstance(value, float) or math.isnan(value):  # which would not equal itself
        return value
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def fits(kind: type, facts: Mapping[str, Any], value: Any) -> bool:
    """Whether a value is of the kind and within the bounds, and stays so in float32."""
    if not isinstance(value, KINDS[kind][0]) or (kind is not bool and isinstance(value, bool)):
        return False
    if kind is bool or not abs(value) <= sys.float_info.max:  # infinite, or a whole number that no float can be
        return kind is bool
    return all(
        math.isfinite(number)
        and facts.get("gt", -math.inf) < number < facts.get("lt", math.inf)
        and facts.get("ge", -math.inf) <= number <= facts.get("le", math.inf)
        for number in (value, single(float(value)) if kind is float else value)
    )


def faults(name: str, hint: Any, facts: Mapping[str, Any], value: Any) -> Iterator[str]:
    """What is wrong with a value: its kind, its bounds, the choices. Cells and layers are `adapters.matching`'s."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    mapping = next((kind for kind in kinds if typing.get_origin(kind) is dict), None)
    if value is None and type(None) in kinds:
        return
    if "check" in facts:
        if (wrong := facts["check"](value)) is not None:
            yield f"{name}: {wrong}"
    elif mapping is not None:
        if not isinstance(value, dict):
            yield f"{name} is {shown(value)}; {{regular expression: value}} was expected"
            return
        for key, entry in value.items():
            yield from faults(f"{name}[{key!r}]", typing.get_args(mapping)[1], facts, entry)
    elif "choices" in facts:
        if not isinstance(value, str) or value not in facts["choices"]:
            hint = similar(value, facts["choices"]) if isinstance(value, str) else ""
            yield f"{name} is {shown(value)}; supported: {', '.join(facts['choices'])}{hint}"
    elif kinds[0] in KINDS and not fits(kinds[0], facts, value):
        taken = " in float32" if type(value) is float and math.isfinite(value) and single(value) != value else ""
        yield f"{name} is {shown(value)}; {expected(kinds[0], facts)}{taken} was expected"
    elif kinds[0] is str and "min_length" in facts and not (isinstance(value, str) and value):
        yield f"{name} is {shown(value)}; a text that is not empty was expected"
    elif (wrong := misfit(name, str(hint), value)) is not None:
        yield wrong


def require(owner: str, name: str, value: Any, hint: Any, **facts: Any) -> None:
    """Raises InputError unless a single value is of the type and within the bounds (`setting`)."""
    InputError.raise_any(f"{owner}: {problem}" for problem in faults(name, hint, facts, value))
