"""``MindFormerBook``: the names and places that scripts look up, and the job file of a model's name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from model_zoo.errors import InputError
from pet.compat.mindformers.logs import logger
from pet.compat.mindformers.presets import CLASSES, Listed
from pet.compat.mindformers.saving import DIRECTORY
from pet.compat.mindformers.script_config import MindFormerConfig
from pet.names import preset_names

TASKS = ("text_generation", "text_classification")
JOBS = "configs"
"""Where a clone of MindFormers has its job files."""
KINDS = ("run", "pretrain", "finetune", "predict")
"""How their names begin, that of the first release before those of later ones."""


def job_files() -> dict[str, str]:
    """{model: its job file} below the current directory, as in a clone of MindFormers."""
    found = {}
    for kind in reversed(KINDS):
        for path in sorted(Path(JOBS).rglob(f"{kind}_*.yaml")):
            found[path.stem.removeprefix(f"{kind}_")] = str(path.resolve())
    return found


def task_config(task: str, model_name: str) -> MindFormerConfig:
    """A model's job file below the current directory.

    Raises:
        InputError: there is none, or no such task.
    """
    if task not in TASKS:
        raise InputError(f"task {task!r} is not known; supported: {', '.join(TASKS)}")
    path = job_files().get(model_name)
    if path is None:
        raise InputError(f"{JOBS}/: no job file of {model_name!r}; start in a clone of MindFormers, or give its path")
    return MindFormerConfig(path)


def _folder(name: str, default: str) -> Callable[[], str]:
    return lambda: _set.get(name) or os.environ.get(f"CHECKPOINT_{name.upper()}_FOLDER") or default


def _tasks() -> dict[str, dict[str, str]]:
    return {task: job_files() for task in TASKS}


_set: dict[str, str] = {}
_named: dict[str, str] = {}
LOOKED_UP: dict[str, Callable[[], Any]] = {
    "project_path": os.getcwd,
    "default_checkpoint_download_folder": _folder("download", "./checkpoint_download"),
    "default_checkpoint_save_folder": _folder("save", DIRECTORY),
    **dict.fromkeys(("trainer_support_task_list", "pipeline_support_task_list"), _tasks),
    **dict.fromkeys([f"{one}_support_list" for one in ("model", "config", "tokenizer")], Listed.get_support_list),
    "model_name_support_list": lambda: list(preset_names()),
    "model_config_to_name": lambda: {**{name: preset for name, (_, preset) in CLASSES.items()}, **_named},
    **dict.fromkeys(("model_ckpt_url_list", "model_config_url_list"), dict),  # nothing is had by an address
}
"""What ``get_…`` gives, and ``show_…`` logs."""
SETTABLE = re.compile("set_default_checkpoint_(download|save)_folder")


class _Looked(type):
    def __getattr__(cls, name: str) -> Callable:
        way, _, what = name.partition("_")
        if folder := SETTABLE.fullmatch(name):
            return lambda place: _set.update({folder[1]: os.fspath(place)})
        if name == "set_model_config_to_name":
            return lambda model_config, model_name: _named.update({model_config: model_name})
        if what not in LOOKED_UP or way not in ("get", "show"):
            raise AttributeError(f"{cls.__name__} has no {name!r}")
        find = LOOKED_UP[what]
        return find if way == "get" else lambda: logger.info("%s: %s", what, find())


class MindFormerBook(metaclass=_Looked):
    """``MindFormerBook.get_default_checkpoint_save_folder()`` and the others of `LOOKED_UP`; the project's directory is
    the current one."""

    def __getattr__(self, name: str) -> Callable:
        return getattr(type(self), name)
