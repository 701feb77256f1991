"""MindsporeTrainer: the flags of its document with their defaults, its hooks, and the names that its document imports.

Its example tasks are BERT, DeBERTa and ResNet, which are not here.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path

from door_counts import Case, outcome_of
from model_zoo.errors import InputError

WHAT = "documented flags with their defaults, hooks, imports and example tasks"
OUTSIDE = "BERT, DeBERTa and ResNet, their tokenizer, masker and metrics are not here"
DEFAULTS = {"None": None, "True": True, "False": False, "''": ""}


def count(clone: Path, work: Path, seconds: float | None = None) -> list[Case]:
    """Each flag, hook, import and example task is a case."""
    import pet.compat.mindspore_trainer as ours

    sys.modules["MindsporeTrainer"] = ours
    text = (clone / "README.md").read_text("utf-8")
    cases = [
        outcome_of(f"--{name}", lambda name=name, default=default: flag(name, default))
        for name, default in documented(text)
    ]
    hooks = sorted(set(re.findall(r"^    def ((?:get|train|eval|test)_\w+)\(self", text, re.MULTILINE)))
    cases += [outcome_of(f"Task.{name}", lambda name=name: hook(name)) for name in hooks]
    imports = sorted(set(re.findall(r"from (MindsporeTrainer[\w.]*) import ([\w, *]+)", text)))
    cases += [
        outcome_of(f"from {module} import {names}", lambda m=module, n=names: take(m, n)) for module, names in imports
    ]
    tasks = [
        path
        for path in sorted(clone.glob("MindsporeTrainer/apps/tasks/*.py"))
        if "@register_task" in path.read_text("utf-8")
    ]
    return cases + [Case(path.name, "refused", OUTSIDE) for path in tasks]


def documented(text: str) -> list[tuple[str, object]]:
    """The flags with their defaults; a switch is off."""
    found = []
    for name, body in re.findall(r"^\+ --(\w+)(.*?)(?=^\+ --|^#)", text, re.MULTILINE | re.DOTALL):
        default = re.search(r"default=([^\s]+)", body)
        value = DEFAULTS.get(default[1], default[1].strip("'")) if default else None
        found.append((name, value))
    return found


def flag(name: str, default: object) -> None:
    """The flag is taken with its default, and where it chooses something the default here is the same."""
    from pet.compat.command_line import WITHOUT_MEANING, read
    from pet.compat.mindspore_trainer.running import FLAGS, make_parser

    words = [] if default in (None, "", True, False) else [f"--{name}", str(default)]
    known = vars(read(make_parser(), words))
    if name in WITHOUT_MEANING:
        return
    ours = FLAGS[name][1] if name in FLAGS else known[name]
    assert ours is None or ours == default or str(ours) == str(default) or float(ours) == float(default), (
        f"{ours} is ours"
    )


def hook(name: str) -> None:
    """A task's method that needs no argument."""
    from pet.compat.mindspore_trainer import Task

    inspect.signature(getattr(Task, name)).bind(None)


def take(module: str, names: str) -> None:
    """The names are there."""
    try:
        found = importlib.import_module(module)
        [getattr(found, name) for name in names.replace(" ", "").split(",") if name != "*"]
    except (ImportError, AttributeError):
        if re.search("Bert|NGram", names):
            raise InputError(OUTSIDE) from None
        raise
