"""The directory that a run writes to: whose it is, whether it may be used, and what in it may be deleted.

``check`` looks before anything is written; ``open_for`` makes the directory and puts the resolved recipe in it.
Nothing here imports MindSpore.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from model_zoo.errors import InputError
from pet.files import UNFINISHED, absent, fcntl, lock, sweep, write_text
from pet.recipe.schema import Recipe
from pet.recipe.show import dump

log = logging.getLogger("pet")

RECIPE = "recipe.yaml"
# What a run writes. --force deletes these and nothing else: a directory may hold a user's own files beside them.
ENTRIES = ("recipe.yaml", "adapter", "model", "merged", "checkpoints", "metrics.jsonl", "metrics.csv", "loss.png")
ENTRIES += ("summary.json", "samples.jsonl", "tensorboard", "profile", "wandb", "swanlog", "mlruns")
# Sections and keys that a resumed run may change without becoming another run. What is said of train is in checkpoints
# (pet.train.state.fixed).
_FREE = {"name", "description", "train", "output", "callbacks", "generation", "parallel"}
_FREE_KEYS = {("data", "workers"), ("data", "cache_dir")}


_claimed: dict[Path, int] = {}


def held_by_a_run(directory: str | os.PathLike) -> list[str]:
    """Names of what an earlier run left in ``directory``."""
    directory = Path(directory)
    return [name for name in ENTRIES if (directory / name).exists()] if directory.is_dir() else []


def check(recipe: Recipe) -> None:
    """Refuse a directory that holds another run, unless it is to be gone on with or deleted.

    Raises:
        InputError: another run lies there and neither ``train.resume`` nor ``output.force`` is set; another job is
            running there; the path is a file, or a file of the run a directory; or it cannot be written to.
    """
    directory = Path(recipe.output.dir)
    where = recipe.where("output.dir")
    for path in (directory, *directory.parents):
        if path.is_symlink() and not path.exists():
            raise InputError(f"{where}: {path} is {absent(path)}")
        if path.exists():
            if not path.is_dir():
                raise InputError(f"{where}: {path} is a file, expected a directory for the run")
            if not os.access(path, os.W_OK | os.X_OK):
                raise InputError(f"{where}: {path} cannot be written to")
            break
    if claim(directory):  # only to see whether it is free
        release(directory)
    found = held_by_a_run(directory)
    if found and not recipe.output.force and not recipe.train.resume:
        raise InputError(
            f"{where}: {directory} holds another run ({', '.join(found)}); go on with it by --resume, delete it by "
            "--force, or give another output.dir"
        )
    for name in found if recipe.train.resume else ():
        if "." in name and not (directory / name).is_file():
            raise InputError(f"{where}: {directory / name} is a directory, and a file of the run has this name")


def claim(directory: str | os.PathLike, setting: str = "output.dir") -> bool:
    """Locks a run directory for this process until `release`, or until the process is gone; see `pet.files.lock`.

    Args:
        setting: by which the user has named it.

    Returns:
        Whether it was locked by this call: False where this process has it already, or there is no such directory yet.

    Raises:
        InputError: a living process has it.
    """
    path = Path(directory).resolve()
    if fcntl is None or path in _claimed or not path.is_dir():
        return False
    try:
        _claimed[path] = lock(path)
    except BlockingIOError:
        raise InputError(
            f"{setting}: another job is running in {directory}; wait until it has ended, or give another {setting}"
        ) from None
    return True


def release(directory: str | os.PathLike) -> None:
    """Undoes `claim`."""
    handle = _claimed.pop(Path(directory).resolve(), None)
    if handle is not None:
        os.close(handle)


def changes(recipe: Recipe, directory: str | os.PathLike) -> Iterator[tuple[str, Any, Any]]:
    """(key, before, now) of the settings in which ``recipe`` differs from the run that lies in ``directory``."""
    from pet.recipe.loading import load

    path = Path(directory, RECIPE)
    if not path.is_file():
        return
    # the old layout may not fit the processes of this run, and need not
    layout = {f"parallel.{key}": value for key, value in recipe.parallel.model_dump().items()}
    before, now = load(path, layout, check_files=False).model_dump(), recipe.model_dump()
    for section in now:
        if section in _FREE:
            continue
        old, new = before[section], now[section]
        for key in sorted({*old, *new}) if isinstance(new, dict) and isinstance(old, dict) else []:
            if old.get(key) != new.get(key) and (section, key) not in _FREE_KEYS:
                yield f"{section}.{key}", old.get(key), new.get(key)


def clear(directory: Path, where: str) -> None:
    """Deletes what a run has left, all of it or nothing: everything is renamed first. What has its new name and cannot
    be deleted stays under that, with a warning.

    Raises:
        InputError: something cannot be taken away; all is as it was.
    """
    mark, aside = f"{UNFINISHED}{secrets.token_hex(4)}", {}
    try:
        for path in (directory / name for name in held_by_a_run(directory)):
            os.rename(path, directory / f".{path.name}{mark}")
            aside[path] = directory / f".{path.name}{mark}"
    except OSError as error:
        for moved, place in aside.items():
            os.rename(place, moved)
        raise InputError(f"{where}: {path} cannot be deleted ({error.strerror}); nothing was") from None
    for place in aside.values():
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place, ignore_errors=True)
        else:
            place.unlink()
        if place.exists():
            log.warning("%s: not all of it can be deleted; delete it yourself", place)


def open_for(recipe: Recipe) -> Path:
    """The run directory, made, locked and emptied as asked, with ``recipe.yaml`` in it. Call this in one process only.

    Raises:
        InputError: as for :func:`check`.
    """
    check(recipe)
    directory = Path(recipe.output.dir)
    directory.mkdir(parents=True, exist_ok=True)
    if claim(directory):
        check(recipe)  # somebody may have begun here since
    if recipe.output.force:
        clear(directory, recipe.where("output.dir"))
    sweep(directory)
    # how this start was asked for is no property of the run: its recipe must not delete it when it is run again
    lasting = recipe.model_copy(deep=True)
    lasting.output.force = lasting.train.resume = lasting.train.accept_changes = False
    write_text(directory / RECIPE, dump(lasting))
    return directory
