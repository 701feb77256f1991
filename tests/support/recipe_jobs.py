"""Runs of one recipe with changes, each in a directory of its own."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pet.cli.main import main


def changed(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A job file's values with others at keys that are divided by two underscores."""
    values = copy.deepcopy(dict(values))
    for key, value in changes.items():
        *sections, last = key.split("__")
        inner = values
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    return values


class RecipeJobs:
    """Gives a run's directory; or with ``capsys``, where it fails, what it said.

    Args:
        home: where recipes and runs are written.
        recipe: without ``output``.
    """

    def __init__(self, home: Path, recipe: dict[str, Any]):
        self.home, self.recipe = home, recipe

    def words(self, name: str, *settings: str, command=("finetune",), model=None, data=None, **train) -> list[str]:
        """The command line of a run; ``train``: further settings of that section."""
        recipe = {**self.recipe, "train": {**self.recipe["train"], **train}, "output": {"dir": str(self.home / name)}}
        recipe |= {"model": {"path": str(model)}} if model else {}
        recipe |= {"data": data} if data else {}
        (self.home / f"{name}.yaml").write_text(yaml.safe_dump(recipe))
        return [*command[:1], str(self.home / f"{name}.yaml"), *command[1:], *settings]

    def __call__(self, name: str, *settings: str, capsys=None, **how) -> Any:
        code = main(self.words(name, *settings, **how))
        assert code == 0 or capsys is not None, "it was to succeed"
        return capsys.readouterr().err if code else self.home / name
