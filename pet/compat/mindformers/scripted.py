"""Configurations as scripts use them: read and changed by MindFormers' names, until a model is made of them."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from model_zoo.configs import Config
from model_zoo.errors import InputError, similar
from pet.compat.mindformers.saving import place_of
from pet.compat.mindformers.script_config import read_number
from pet.recipe.translation import Rule, entry_in

log = logging.getLogger("pet")

UNSAID = {"batch_size": 1, "use_past": False, "multiple_of": 256}
"""What MindFormers' configurations have where nobody has said it, as far as scripts read it."""
READ = {"vocab_size": "padded_vocab_size"}
"""Fields that are read by another name, too: of ChatGLM2's, which has no such field itself."""
KEPT = ("checkpoint_name_or_path", "parallel_config", "moe_config", "pet_config")
"""What scripts set that is no setting of the model."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """How scripts speak of a family's configuration.

    Attributes:
        own: the family's configuration.
        rules: all of MindFormers' names.
        translate: from settings by these names to fields; raises InputError for what cannot be had.
        follows: fields with what MindFormers makes them of others, as long as nobody says them.
        sources: names of settings with the field that is made of them.
    """

    own: type[Config]
    rules: Mapping[str, Rule]
    translate: Callable[[Mapping[str, Any]], dict[str, Any]]
    follows: Mapping[str, Callable[[Any], Any]]
    sources: Mapping[str, str]

    @functools.cached_property
    def fields(self) -> frozenset[str]:
        """Of config.json."""
        return frozenset(field.name for field in dataclasses.fields(self.own) if field.name != "extra")

    def rule(self, name: str) -> Rule | None:
        """The rule for a name; None of one that is not known."""
        return self.rules.get(entry_in(self.rules, name))

    @functools.cached_property
    def scripted(self) -> type[Config]:
        """The class of the configurations, which are shown as those of the family."""
        names = {"kind": self, "__qualname__": self.own.__qualname__, "__doc__": self.own.__doc__}
        return type(self.own.__name__, (Scripted, self.own), names)


class Scripted:
    """Over a family's configuration: its fields also by MindFormers' names. Other settings are kept as they are said.

    Attributes:
        stated: {field: the name by which a script has said it}.
        following: fields that are made of others.
    """

    kind: Kind

    def __getattr__(self, name: str) -> Any:
        """What is no attribute: a field by MindFormers' name, or a setting that nobody has said."""
        kind = type(self).kind
        rule = None if name.startswith("_") else kind.rule(READ.get(name, name))
        if isinstance(rule, str):
            return vars(self)[rule] if rule in kind.fields else vars(self).get("extra", {}).get(rule)
        if rule is None and name not in kind.sources and name not in KEPT:
            raise AttributeError(f"{type(self).__name__} has no {name!r}{similar(name, kind.rules)}")
        return UNSAID.get(name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Raises InputError for a value that the field does not take."""
        if "stated" not in vars(self):  # it is being made
            object.__setattr__(self, name, value)
            return
        kind, value = type(self).kind, read_number(value)
        before = {field: make(self) for field, make in kind.follows.items()}
        if name in kind.fields or kind.rule(name) is not None:
            self._take(name, value)
        elif not (name in kind.sources or name in KEPT or name in vars(self)):
            log.warning("%s: %s: nothing reads it%s", type(self).__name__, name, similar(name, kind.rules))
        if name not in kind.fields and not isinstance(kind.rule(name), str):
            object.__setattr__(self, name, value)
        if name in kind.sources and kind.sources[name] not in self.stated:
            self.following.add(kind.sources[name])
        for field in self.following:
            made = kind.follows[field](self)
            if made != before[field] and (getattr(self, field) is not None or name in kind.sources):
                put_field(self, field, made)
                self.stated[field] = name

    def _take(self, name: str, value: Any) -> None:
        kind = type(self).kind
        rule = kind.rule(name) or name
        found = {rule: None} if value is None and isinstance(rule, str) else kind.translate({name: value})
        kind.own.check_types(found)
        for field, its in found.items():
            put_field(self, field, its)
            self.stated[field] = name
            self.following.discard(field)

    def __eq__(self, other: object) -> bool:
        """Also to the family's own configuration."""
        return isinstance(other, type(self).kind.own) and self.to_dict() == other.to_dict()

    __hash__ = None

    def save_pretrained(
        self, save_directory: str | os.PathLike | None = None, save_name: str | None = None, save_json: bool = True
    ) -> None:
        """Writes config.json, and no YAML file whatever `save_json` says; see `Config.save_pretrained`."""
        super().save_pretrained(place_of(save_directory, save_name))

    def plain(self) -> Config:
        """The family's own configuration, apart from this one.

        Raises:
            InputError: sizes that do not go together.
        """
        return type(self).kind.own.from_dict(self.to_dict())


def put_field(config: Config, field: str, value: Any) -> None:
    """Sets a field, or what config.json has besides.

    Raises:
        InputError: a field that another one hides.
    """
    if field in ("rope_theta", "rope_scaling") and vars(config).get("rope_parameters"):
        raise InputError(f"{field}: the configuration has rope_parameters, which count before it; set these")
    (vars(config) if field in vars(config) else config.extra)[field] = value


def of_field(config: Config, field: str) -> Any:
    """What `put_field` sets."""
    return vars(config)[field] if field in vars(config) else config.extra.get(field)


def make_scripted(config: Config, kind: Kind, given: Mapping[str, Any], stated: Mapping[str, str]) -> None:
    """Makes a configuration one that scripts can change.

    Args:
        config: of the kind's own class.
        given: settings by MindFormers' names that the configuration was made of.
        stated: {field: its name} of these.
    """
    config.__class__ = kind.scripted
    said = {name: one for name, one in given.items() if not isinstance(kind.rule(name), str)}
    vars(config).update({name: value for name, value in said.items() if name not in kind.fields})
    free = {field for field in kind.follows if field not in stated or kind.rule(stated[field]) != field}
    following = {field for field in free if getattr(config, field) in (None, kind.follows[field](config))}
    vars(config).update(stated=dict(stated), following=following)
