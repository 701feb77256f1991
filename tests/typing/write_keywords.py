"""Writes the type stubs ``keywords.pyi`` of `pet` and `adapters`: ``python tests/typing/write_keywords.py``.

They hold the keyword arguments that editors know, which follow from the recipe's ``train`` section, the settings of the
methods, and the tables of MindFormers' arguments; a test holds the files to them. A name that a signature has of its
own is left out: mypy takes any keyword where a ``TypedDict`` repeats one.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from pydantic import BeforeValidator

ROOT = Path(__file__).parents[2]
HEAD = '''"""Keyword arguments by name, for editors. Written by tests/typing/write_keywords.py."""

from typing import {}TypedDict
'''

SHARED = "OfBothTrainers"


def written(kind: object) -> str:
    """A type as the stub has it: ``Any`` where a value may be given in other forms too, or names a class."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return "Any" if any(isinstance(one, BeforeValidator) for one in inner) else written(inner[0])
    if origin is typing.Literal:
        return f"Literal[{', '.join(f'{chr(34)}{one}{chr(34)}' for one in inner)}]"
    parts = [written(one) for one in inner]
    if origin in (typing.Union, types.UnionType):
        return "Any" if "Any" in parts else " | ".join(parts)
    if origin in (list, dict):
        return "Any" if "Any" in parts else f"{origin.__name__}[{', '.join(parts)}]"
    if kind is type(None):
        return "None"
    return kind.__name__ if kind in (int, float, str, bool) else "Any"


def own_names(*functions: Callable) -> set[str]:
    """The names that signatures have by themselves."""
    return {name for function in functions for name in inspect.signature(function).parameters}


def of_fields(kind: type, but: Iterable[str] = ()) -> dict[str, str]:
    """The fields of a section or of a method's settings, but some."""
    known = typing.get_type_hints(kind, include_extras=True)
    names = [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else kind.model_fields
    return {name: written(known[name]) for name in names if name not in but}


def of_trainers() -> dict[str, Mapping[str, str]]:
    """What `pet.Trainer`, MindFormers' and its ``TrainingArguments`` take."""
    from pet.compat.mindformers.high_level import THEIRS
    from pet.compat.mindformers.request import Request
    from pet.compat.mindformers.training_arguments import TABLE
    from pet.recipe.training import Train
    from pet.train.trainer import Trainer

    own = own_names(Trainer.__init__)
    request = {name: "Any" for name in (*inspect.signature(Request).parameters, *THEIRS) if name != "model"}
    of_both = {name: kind for name, kind in request.items() if name not in own}
    return {
        SHARED: of_both,
        "TrainSettings": of_fields(Train, own) | of_both,
        "RequestSettings": request,
        "TrainingArgumentSettings": {name: "Any" for name in TABLE if name != "output_dir"},
    }


def of_methods() -> dict[str, Mapping[str, str]]:
    """What the functions ``apply_…`` take beside their own arguments."""
    from adapters import apply, settings

    found = {}
    for name, function in inspect.getmembers(apply, inspect.isfunction):
        if name.startswith("apply_"):
            method = function.__annotations__["settings"].removeprefix("Unpack[keywords.").removesuffix("]")
            found[method] = of_fields(getattr(settings, method), own_names(function))
    return found


def classes(found: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """The text of each class; those that have all keywords of `SHARED` inherit them."""
    shared = found.get(SHARED, {})
    for name, of in found.items():
        inherits = name != SHARED and bool(shared) and shared.items() <= of.items()
        own = {key: kind for key, kind in of.items() if not (inherits and key in shared)}
        body = "".join(f"    {key}: {kind}\n" for key, kind in own.items())
        yield f"\nclass {name}({SHARED if inherits else 'TypedDict'}, total=False):\n{body}"


def sources() -> dict[Path, str]:
    """The stubs' places and texts."""
    return {
        ROOT / package / "keywords.pyi": HEAD.format(names) + "".join(classes(found))
        for package, names, found in (("pet", "Any, Literal, ", of_trainers()), ("adapters", "", of_methods()))
    }


if __name__ == "__main__":
    for place, text in sources().items():
        place.write_text(text, "utf-8")
