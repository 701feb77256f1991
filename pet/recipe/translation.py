"""From another system's settings to a recipe's, with a list of what has no meaning here and of what is unsupported."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from model_zoo.errors import InputError, similar
from pet.installation import on_cpu
from pet.recipe.fields import run_name

log = logging.getLogger("pet")


@dataclasses.dataclass(frozen=True)
class Ignored:
    """A setting without influence on the results here; ``why`` says so to the user."""

    why: str


@dataclasses.dataclass(frozen=True)
class Refused:
    """An unsupported setting that would affect results, unless its value is off or among the harmless ones."""

    why: str
    harmless: tuple = (0,)


NOT_GIVEN = (None, "None", "")
UNUSED = "not known here, but empty or off"


def is_off(value: Any) -> bool:
    """Whether a value says that its setting is not used: empty, false, or a word for none."""
    if isinstance(value, str):
        return value.strip().lower() in ("", "none", "null", "no", "off", "false")
    return value is None or value is False or (isinstance(value, (list, tuple, Mapping)) and not value)


Rule = str | Ignored | Refused | Callable[["Translation", str, Any], None]
"""A recipe's key that takes the value as it is, or what to do with it."""


class Given(dict):
    """Settings of a recipe by dotted key, and in ``said`` what a user has set each by, for error messages."""

    said: dict[str, str]


class Translation:
    """Settings of a recipe by dotted key, as they are collected.

    Args:
        system: whose settings are translated; begins the messages.

    Attributes:
        settings: ``{"train.learning_rate": 1e-3, …}``.
        ignored: ``{name: why}`` of what has no meaning here.
        problems: what is wrong, all of it.
        missing: (key, problem) of what only a value for that key on the command line can replace.
        values: the file's settings.
        sources: how the rows of its data sets are read, unless one says otherwise; nothing before there are any.
    """

    def __init__(self, system: str):
        self.system = system
        self.settings = Given()
        self.settings.said = {}
        self.ignored: dict[str, str] = {}
        self.problems: list[str] = []
        self.missing: list[tuple[str, str]] = []
        self.values: Mapping[str, Any] = {}
        self.sources: list[Any] = []

    @classmethod
    def of_file(cls, file: Path, values: Mapping[str, Any] | None = None) -> Translation:
        """Of a job file with these settings, whose name is the recipe's."""
        translation = cls(file.name)
        translation.values = values or {}
        translation.name("name", file.stem)
        return translation

    def name(self, key: str, text: Any) -> None:
        """Sets a key to a text, with what a recipe's name may not have replaced."""
        self.put(key, run_name(str(text)))

    def put(self, key: str, value: Any) -> None:
        """Sets a key of the recipe; None leaves it as it is."""
        if value is not None:
            self.settings[key] = os.fspath(value) if isinstance(value, os.PathLike) else value

    def get(self, key: str, default: Any = None) -> Any:
        """What was set for a key."""
        return self.settings.get(key, default)

    def drop(self, *keys: str) -> None:
        """Leaves keys of the recipe as they are, whatever was set."""
        for key in keys:
            self.settings.pop(key, None)

    def add_callback(self, entry: dict[str, Any]) -> None:
        """Adds an entry to the recipe's ``callbacks``."""
        self.put("callbacks", [*self.get("callbacks", []), entry])

    def ignore(self, name: str, why: str) -> None:
        """Notes a setting that has no meaning here."""
        self.ignored[name] = why

    def refuse(self, name: str, why: str) -> None:
        """Notes a setting that cannot be served."""
        self.problems.append(f"{self.system}: {name}: {why}")

    def lack(self, key: str, name: str, why: str) -> None:
        """Notes what only a value for a key of the recipe can replace: a problem unless the command line has one."""
        self.missing.append((key, f"{self.system}: {name}: {why}; give {key}=PATH"))

    def apply(self, given: Mapping[str, Any], table: Mapping[str, Rule], prefix: str = "") -> None:
        """Translates settings by a table, whose names may have ``*`` in them, in the table's order: a rule may look at
        what those before it have put. Settings that are None (also as a word, or an empty string) count as not given.
        Unknown ones are problems, but for those whose values say that they are not used.
        """
        place = {name: number for number, name in enumerate(table)}
        entries = {name: entry_in(table, name) for name in given}
        for name in sorted(given, key=lambda name: place.get(entries[name], len(place))):
            shown, value, rule = prefix + str(name), given[name], table.get(entries[name])
            if rule is None:
                if is_off(value):
                    self.ignore(shown, UNUSED)
                else:
                    self.refuse(shown, f"is not known{similar(str(name), table)}")
                continue
            if value in NOT_GIVEN:
                continue
            before = dict(self.settings)
            if isinstance(rule, str):
                self.put(rule, value)
            elif isinstance(rule, Ignored):
                self.ignore(shown, rule.why)
            elif isinstance(rule, Refused):
                same = any(value is each or (type(value) is type(each) and value == each) for each in rule.harmless)
                if not same and not is_off(value):
                    self.refuse(shown, f"{value!r}: {rule.why}")
            else:
                with self.reading(shown, value):
                    rule(self, shown, value)
            put = [key for key, found in self.settings.items() if key not in before or before[key] is not found]
            self.settings.said.update(dict.fromkeys(put, f"{self.system}: {shown}={repr(value)[:80]}"))

    def take(self, other: Translation, prefix: str = "") -> None:
        """Adds what another translation has found: its settings over those that are there, its notes and problems."""
        self.settings.update(other.settings)
        self.ignored.update({prefix + name: why for name, why in other.ignored.items()})
        self.problems += other.problems

    @contextlib.contextmanager
    def reading(self, name: str, value: Any) -> Iterator[None]:
        """Within, a setting's value is read; one that is nothing of the kind is a problem."""
        try:
            yield
        except InputError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            self.refuse(name, f"{repr(value)[:80]} is not a value that it takes ({error})")

    def finish(self, given: Collection[str] = ()) -> None:
        """Says once what is ignored, and what falls back.

        Args:
            given: keys that the command line has values for.

        Raises:
            InputError: all problems together.
        """
        InputError.raise_any([*self.problems, *(problem for key, problem in self.missing if key not in given)])
        self.fall_back()
        if self.ignored:
            log.warning("%s: ignored: %s", self.system, "; ".join(self.ignored_lines()))

    def fall_back(self) -> None:
        """A job file may have been written for another device."""
        if self.get("train.precision") == "bf16" and on_cpu():
            log.warning("%s: train.precision is auto: bf16 where this processor is fast at it, else fp32", self.system)
            self.put("train.precision", "auto")

    def ignored_lines(self) -> list[str]:
        """``name, name: why`` of what is ignored, a line for each reason."""
        names: dict[str, list[str]] = {}
        for name, why in self.ignored.items():
            names.setdefault(why, []).append(name)
        return [f"{', '.join(group)}: {why}" for why, group in names.items()]


def entry_in(table: Mapping[str, Rule], name: Any) -> str | None:
    """The name in a table, perhaps with a ``*``, that stands for a setting's."""
    return name if name in table else next((each for each in table if fnmatch(str(name), each)), None)
