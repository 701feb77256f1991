"""MindFormers' configuration object: its ``run_mindformer.py`` reads a YAML file by it, changes it and hands it on."""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from model_zoo.errors import InputError
from pet.compat.command_line import settings
from pet.recipe.overrides import plain, put
from pet.recipe.source import old_scalar, plain_scalar, read


class MindFormerConfig(dict):
    """``MindFormerConfig("run.yaml", run_mode="finetune")``: a dictionary whose keys are attributes, too; one that is
    not there is None.

    Args:
        sources: YAML files, of which a later one's top-level keys count.
        values: further keys.

    Raises:
        InputError: no such file, or no YAML with keys in it.
    """

    _file = Path("config.yaml")  # no annotation, no key: where its values were read
    _read: Mapping[str, Any] = {}

    def __init__(self, *sources, **values):
        super().__init__()
        for source in sources:
            found = source if isinstance(source, Mapping) else read_keys(Path(source).expanduser())
            if not isinstance(source, Mapping):
                object.__setattr__(self, "_file", Path(source).expanduser())
                object.__setattr__(self, "_read", {**self._read, **copy.deepcopy(found)})
            self.update(found)
        self.update(values)
        for name, value in self.items():
            self[name] = _with_attributes(value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python asks for these of every object that is copied or shown
            raise AttributeError(name)
        return self.get(name)

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        del self[name]

    def merge_from_dict(self, options: Mapping[str, Any]) -> None:
        """Takes ``{"model.model_config.seq_length": 512}`` over; sections that are not there are made.

        Raises:
            InputError: what is to be a section is a value.
        """
        for key, value in options.items():
            if blocked := put(self, tuple(key.split(".")), _with_attributes(value)):
                raise InputError(f"{key}: {'.'.join(map(str, blocked))} is no section")

    def get_value(self, levels: str | Sequence[str], default: Any = None) -> Any:
        """The value of a dotted key, or of its parts; `default` where there is none."""
        found: Any = self
        for name in levels.split(".") if isinstance(levels, str) else levels:
            found = found.get(name) if isinstance(found, Mapping) else None
        return default if found is None else found

    def set_value(self, levels: str | Sequence[str], value: Any) -> None:
        """Sets it; see `merge_from_dict`."""
        self.merge_from_dict({levels if isinstance(levels, str) else ".".join(levels): value})

    def to_dict(self) -> dict[str, Any]:
        """The same as plain dictionaries."""
        return plain(self)

    def changes(self) -> dict[str, Any]:
        """The top-level keys that have another value than in the file that they were read from."""
        values = self.to_dict()
        return {name: value for name, value in values.items() if name not in self._read or value != self._read[name]}


DictConfig = MindFormerConfig
"""What MindFormers calls a section."""


def read_keys(file: Path, within: tuple[Path, ...] = ()) -> dict[str, Any]:
    """What stands in a MindFormers YAML file, over the files that its ``base_config`` names, which lie beside it. Of
    these a later one's top-level keys count; sections of the file itself change theirs.

    Raises:
        InputError: no such file, no YAML with keys in it, or one that names itself.
    """
    source, within = read(file, str(file), old_scalar), (*within, file.resolve())
    InputError.raise_any(source.problems)
    if not isinstance(source.value, Mapping):
        raise InputError(f"{file}: has no keys; a MindFormers YAML file was expected")
    own = dict(source.value)
    named, found = own.pop("base_config", None) or (), {}
    for name in [named] if isinstance(named, str) else named:
        if (base := (file.parent / name).resolve()) in within:
            raise InputError(f"{file}: base_config: {name} goes in a circle")
        found.update(read_keys(base, within))
    return _over(own, found)


def _over(above: Mapping[str, Any], below: Mapping[str, Any]) -> dict[str, Any]:
    both = {name: _over(value, below[name]) for name, value in above.items() if _sections(value, below.get(name))}
    return {**below, **above, **both}


def _sections(*values: Any) -> bool:
    return all(isinstance(value, Mapping) for value in values)


def _with_attributes(value: Any) -> Any:
    return MindFormerConfig(value) if isinstance(value, Mapping) else value


class ActionDict(argparse.Action):
    """``--options a.b=1 c=2,3`` as a dictionary of dotted keys; a comma makes a list, as in MindFormers."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        found = settings([_listed(word) for word in values])
        setattr(namespace, self.dest, {**(getattr(namespace, self.dest) or {}), **found})


def _listed(word: str) -> str:
    key, equals, value = word.partition("=")
    plain = "," in value and value[0] not in "[{\"'"
    return f"{key}{equals}[{value.strip('()')}]" if plain else word


def read_number(value: Any) -> Any:
    """The number in a text such as ``1e-5``, which PyYAML takes for a word; anything else as it is."""
    found = plain_scalar(value) if isinstance(value, str) else value
    return found if isinstance(found, float) else value


def parse_value(text: str) -> Any:
    """A number, True or False, what JSON says, or else the text itself."""
    value = plain_scalar(text)
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return int(value) if isinstance(value, float) and value.is_integer() else value
