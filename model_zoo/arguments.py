"""Arguments of public functions, held to what their signatures say of them.

Without it a text for a number, or an array for a name, is compared or iterated somewhere below, and ends in a message
of Python's own, or in none. A signature's annotations are read as text: they name classes that are imported for type
checkers only. What stands for nothing in the tables below is not checked.
"""

from __future__ import annotations

import functools
import inspect
import numbers
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from model_zoo.atomic import check_name
from model_zoo.elsewhere import refuse_others
from model_zoo.errors import InputError, shown

Function = TypeVar("Function", bound=Callable)
SHOWN = (str, bytes, bool, int, float, list, tuple, dict, set, type(None), os.PathLike)
"""Types whose values a message shows; of others it says the type: arrays are long, and objects have addresses."""
TRUTHS = ("bool", "bool_")
"""Python's truth values and NumPy's, by name: a recipe is checked without NumPy."""
PATHS = {"Path", "os.PathLike"}
"""Annotations of paths; a text beside one is a path, too."""


def is_several(value: Any) -> bool:
    """Whether a value is several in a row: no text, no mapping, and no array but one of names or numbers."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        return False
    return len(getattr(value, "shape", (1,))) == 1


def of_class(name: str) -> Callable[[Any], bool]:
    """Whether a value is of a class of this name; importing it would import all that it needs."""
    return lambda value: any(cls.__name__ == name for cls in type(value).__mro__)


def is_number(kind: type) -> Callable[[Any], bool]:
    """Whether a value is a number of a kind, be it Python's or NumPy's, and no truth value."""
    return lambda value: isinstance(value, kind) and type(value).__name__ not in TRUTHS


def is_truth(value: Any) -> bool:
    """Whether a value is true or false, or the number that stands for it."""
    return type(value).__name__ in TRUTHS or (isinstance(value, int) and value in (0, 1))


CLASSES = ("Quantization", "DistributedContext", "ContextConfig", "ParallelContextConfig")
KINDS: dict[str, tuple[Callable[[Any], bool], str, str]] = {
    "None": (lambda value: value is None, "None", "None"),
    "bool": (is_truth, "True or False", "truth values"),
    "int": (is_number(numbers.Integral), "a whole number", "whole numbers"),
    "float": (is_number(numbers.Real), "a number", "numbers"),
    "str": (lambda value: isinstance(value, str), "a text", "texts"),
    **dict.fromkeys(PATHS, (lambda value: isinstance(value, os.PathLike), "a path", "paths")),
    "Config": (of_class("Config"), "a configuration", "configurations"),
    **dict.fromkeys(
        ("nn.Cell", "Model"), (of_class("Cell"), "an opened model (pet.AutoModel.from_pretrained)", "models")
    ),
    **{name: (of_class(name), f"a {name}", f"{name}s") for name in CLASSES},
    "Callable": (callable, "a function", "functions"),
    "Objective": (of_class("Objective"), "an objective", "objectives"),
    **dict.fromkeys(("dict", "Mapping"), (lambda value: isinstance(value, Mapping), "a dictionary", "dictionaries")),
}
"""What an annotation asks for -> whether a value is that, and what it is called, alone and in a list."""
SEVERAL = ("list", "Iterable", "Sequence")


def checked(function: Function) -> Function:
    """The function, which raises InputError for arguments that its signature does not allow, and has others `plain`."""
    signature = inspect.signature(function)
    single = [one for one in signature.parameters.values() if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    kinds = {one.name: (one.annotation, one.default) for one in single if isinstance(one.annotation, str)}

    @functools.wraps(function)
    def checking(*arguments: Any, **settings: Any) -> Any:
        try:
            bound = signature.bind(*arguments, **settings)
        except TypeError:  # which Python itself says better, but for other libraries' names
            refuse_others(function.__qualname__, signature.parameters, settings)
            return function(*arguments, **settings)
        given = bound.arguments
        for name in kinds.keys() & given.keys():
            given[name] = plain(kinds[name][0], given[name])
        known = ((name, *kinds[name], value) for name, value in given.items() if name in kinds)
        InputError.raise_any(
            fault
            for name, annotation, default, value in known
            if value is not default and (fault := misfit(name, annotation, value))
        )
        return function(*bound.args, **bound.kwargs)

    return checking  # type: ignore[return-value]


def asked_as_elsewhere(function: Function) -> Function:
    """The function, which says what is here in the place of another library's arguments (`model_zoo.elsewhere`)."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def asking(*arguments: Any, **settings: Any) -> Any:
        refuse_others(function.__qualname__, known, settings)
        return function(*arguments, **settings)

    return asking  # type: ignore[return-value]


def plain(annotation: str, value: Any) -> Any:
    """An argument as a function can use it: of an enumeration's member its text, which it equals although it is written
    as ``Kind.LORA``; and of an iterator the list, since looking at its values uses them up."""
    if isinstance(value, str) and type(value) is not str:
        return str.__str__(value)
    several = hasattr(value, "__next__") and any(whole in SEVERAL for whole, _ in alternatives(annotation))
    return list(value) if several else value


def check_argument(name: str, annotation: str, value: Any) -> None:
    """Raises InputError for what `misfit` finds."""
    if (wrong := misfit(name, annotation, value)) is not None:
        raise InputError(wrong)


def misfit(name: str, annotation: str, value: Any) -> str | None:
    """What is wrong with a value by an annotation: ``rank is 'x'; a whole number was expected``."""
    choices = alternatives(annotation)
    if any(whole not in KINDS and whole not in SEVERAL for whole, _ in choices):
        return None
    if isinstance(value, str) and PATHS.intersection(whole for whole, _ in choices):
        if not value:
            return f"{name} is an empty text; a path was expected"  # it would be the current directory
        try:
            check_name(value)
        except InputError as error:
            return f"{name} is {error}"
    if any(is_choice(whole, inner, value) for whole, inner in choices):
        return None
    words = [called(whole, inner) for whole, inner in choices if whole != "None"]
    found = shown(value) if isinstance(value, SHOWN) else f"of the type {type(value).__name__}"
    return f"{name} is {found}; {' or '.join(dict.fromkeys(words))} was expected"


def is_choice(whole: str, inner: str, value: Any) -> bool:
    """Whether a value is what one alternative of an annotation says."""
    if whole in KINDS:
        return KINDS[whole][0](value)
    elements = list(value) if is_several(value) and not hasattr(value, "__next__") else []
    return is_several(value) and all(misfit("", inner, element) is None for element in elements)


def called(whole: str, inner: str) -> str:
    """What an alternative is called in a message."""
    if whole in KINDS:
        return KINDS[whole][1]
    names = [KINDS[kind][2] for kind, _ in alternatives(inner) if kind in KINDS]
    return f"a list of {' or '.join(names)}" if names else "a list"


@functools.cache
def alternatives(annotation: str) -> list[tuple[str, str]]:
    """Those of an annotation, each as `parted` has it."""
    return [parted(choice) for choice in top_level(annotation)]


def parted(choice: str) -> tuple[str, str]:
    """``("list", "str")`` of ``list[str]``."""
    whole, _, inner = choice.partition("[")
    return whole, inner.removesuffix("]")


def top_level(annotation: str) -> list[str]:
    """The alternatives of an annotation: ``list[int | str] | None`` has two."""
    return between_bars(annotation.replace(" ", ""), "[", "]")


def between_bars(tokens: Iterable[str], opening: str, closing: str) -> list[str]:
    """What stands between the bars of a text, but for those within brackets."""
    found, depth = [""], 0
    for token in tokens:
        depth += (token == opening) - (token == closing)
        if token == "|" and depth == 0:
            found.append("")
        else:
            found[-1] += token
    return found
