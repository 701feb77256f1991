"""Resumable checkpoints: a directory each, whole or absent.

    checkpoints/step-000020/
        weights.safetensors     every trainable parameter, by name
        optimizer.safetensors   ``<slot>.<parameter name>``
        state.json              step, position in the data, loss scale, history; and the digest of every file
        adapter/                the adapter in PEFT's format, for use without this trainer
        model/                  where every weight is trained: the whole model, in place of weights.safetensors

All numbers that the next step depends on are in there. What is random (order of the data, dropout, noise) is a function
of seed and step, so there is no generator to save; and a checkpoint lies between two optimizer steps, where no gradient
is half accumulated. Nothing is pickled.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from model_zoo.atomic import open_file, read_json
from model_zoo.checkpoint.safetensors_io import SafetensorsFile, read_file, write_file
from model_zoo.errors import InputError
from pet.files import UNFINISHED, atomic_directory, sweep, write_json

log = logging.getLogger("pet")

NAME = re.compile(r"(?:[\w.-]+-)?step-(\d{6,})")
WEIGHTS, OPTIMIZER, STATE = "weights.safetensors", "optimizer.safetensors", "state.json"
# 1: all weights in weights.safetensors. 2: state.json says in which files they are.
FORMAT = 2


class Damaged(Exception):
    """A checkpoint that is not what was written."""


@dataclasses.dataclass
class Checkpoint:
    """What a checkpoint holds.

    Attributes:
        path: its directory.
        weights: trainable parameters by name.
        optimizer: optimizer state by ``<slot>.<parameter name>``.
        state: the trainer's numbers, as it gave them to `save`.
    """

    path: Path
    weights: dict[str, np.ndarray]
    optimizer: dict[str, np.ndarray]
    state: dict[str, Any]


def path_of(directory: str | os.PathLike, step: int, prefix: str = "") -> Path:
    """The directory of a step's checkpoint: the one that is there, or else one whose name begins with the prefix."""
    there = (path for path in checkpoints(directory) if step_of(path) == step)
    return next(there, Path(directory) / f"{prefix}{'-' if prefix else ''}step-{step:06d}")


def step_of(path: Path) -> int:
    """The step of a checkpoint directory."""
    return int(NAME.fullmatch(path.name).group(1))


def checkpoints(directory: str | os.PathLike) -> list[Path]:
    """The checkpoints in a directory, oldest first."""
    directory = Path(directory)
    if not directory.is_dir():
        return []
    return sorted((path for path in directory.iterdir() if NAME.fullmatch(path.name)), key=step_of)


def save(
    directory: str | os.PathLike,
    step: int,
    weights: dict[str, np.ndarray],
    optimizer: dict[str, np.ndarray],
    state: dict[str, Any],
    extra: Callable[[Path], str | None] | None = None,
    prefix: str = "",
) -> Path:
    """Writes a checkpoint; after a kill at any moment it is there in full, or not at all.

    Args:
        directory: the run's ``checkpoints``.
        step: optimizer steps done.
        weights, optimizer, state: see `Checkpoint`; the state must be JSON.
        extra: called with the directory, to put more into it. It may return the name of a directory (within) whose
            safetensors files hold weights under the same names; those are not written a second time.
        prefix: of the directory's name.

    Returns:
        The checkpoint's directory.
    """
    path = path_of(directory, step, prefix)
    with atomic_directory(path) as stage:
        place = extra(stage) if extra is not None else None
        holders = sorted((stage / place).glob("*.safetensors")) if place is not None else []
        held = {name for holder in holders for name in _names_in(holder)}
        rest = {name: value for name, value in weights.items() if name not in held}
        if rest or not holders:
            write_file(stage / WEIGHTS, rest)
            holders.append(stage / WEIGHTS)
        write_file(stage / OPTIMIZER, optimizer)
        holding = [holder.relative_to(stage).as_posix() for holder in holders]
        files = {name: _digest(stage / name) for name in (*holding, OPTIMIZER)}
        content = {"format": FORMAT, "step": step, "state": state, "files": files}
        content["weights"] = {"files": holding, "names": sorted(weights)}
        write_json(stage / STATE, {"digest": _digest_of(content), **content})
    return path


def load(path: str | os.PathLike) -> Checkpoint:
    """Reads a checkpoint and checks that it is what was written.

    Raises:
        Damaged: a file is missing, cut off or changed; the message says which.
    """
    path = Path(path)
    try:
        content = read_json(path / STATE)
        digest = content.pop("digest")
    except (InputError, KeyError) as error:
        raise Damaged(f"{STATE} cannot be read ({error})") from error
    if digest != _digest_of(content):
        raise Damaged(f"{STATE} has changed since it was written")
    if content["format"] > FORMAT:
        raise InputError(f"{path}: written by a newer version (format {content['format']}, this one knows {FORMAT})")
    for name, expected in content["files"].items():
        try:
            found = _digest(path / name)
        except (OSError, InputError) as error:
            raise Damaged(f"{name} cannot be read ({type(error).__name__})") from error
        if found != expected:
            raise Damaged(f"{name} has changed since it was written")
    where = content.get("weights") or {"files": [WEIGHTS], "names": None}
    weights = {name: value for file in where["files"] for name, value in read_file(path / file).items()}
    if where["names"] is not None:  # a model's files may hold more: what is tied, and what was not trained
        weights = {name: weights[name] for name in where["names"]}
    return Checkpoint(path, weights, read_file(path / OPTIMIZER), content["state"])


def _names_in(path: Path) -> list[str]:
    with SafetensorsFile(path) as file:
        return list(file.tensors)


def load_last(directory: str | os.PathLike) -> Checkpoint | None:
    """The newest checkpoint that is whole. A damaged one is passed over with a warning.

    Returns:
        None where there is no checkpoint at all.

    Raises:
        InputError: there are checkpoints, and none of them is whole.
    """
    found = checkpoints(directory)
    problems = []
    for path in reversed(found):
        try:
            return load(path)
        except Damaged as error:
            problems.append(f"checkpoint {path}: damaged: {error}")
            log.warning("checkpoint %s is damaged: %s; going back to the one before", path, error)
    if problems:
        raise InputError.collect([*problems, f"{directory}: no whole checkpoint is left to resume from"])
    return None


def prune(directory: str | os.PathLike, keep_last: int, keep: set[int] = frozenset()) -> None:
    """Deletes all but the newest checkpoints, and those of the steps in ``keep``.

    Each is renamed first: one that is half deleted must not look like a damaged checkpoint.
    """
    directory = Path(directory)
    for path in checkpoints(directory)[:-keep_last]:
        if step_of(path) not in keep:
            _remove(path)
    sweep(directory)


def discard_after(directory: str | os.PathLike, step: int) -> None:
    """Deletes the checkpoints of steps after ``step``, which a run resumed there will write again."""
    for path in checkpoints(directory):
        if step_of(path) > step:
            _remove(path)
    sweep(directory)


def _remove(path: Path) -> None:
    aside = path.with_name(f".{path.name}{UNFINISHED}deleted")
    shutil.rmtree(aside, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        os.rename(path, aside)
        shutil.rmtree(aside, ignore_errors=True)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open_file(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _digest_of(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode("utf-8")).hexdigest()
