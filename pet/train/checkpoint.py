"""Resumable checkpoints: a directory each, whole or absent.

    checkpoints/step-000020/
        weights.safetensors     every trainable parameter, by name; ``earlier.…`` what ReLoRA has merged
        optimizer.safetensors   ``<slot>.<parameter name>``; none where the optimizer keeps nothing
        state.json              step, position in the data, loss scale, the best; and the digest of every other file
        *-00001-of-00004.safetensors    of several processes each writes what it has; state.json says where parts of
                                divided tensors belong, so that they open on any layout
        adapter/                the adapter in PEFT's format, for use without this trainer
        model/                  where every weight is trained: the whole model, in place of weights.safetensors

All numbers that the next step depends on are in there. What is random (order of the data, dropout, noise) is a function
of seed and step, so there is no generator to save; and a checkpoint lies between two optimizer steps, where no gradient
is half accumulated. Nothing is pickled.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from model_zoo.arguments import check_argument
from model_zoo.atomic import files_below
from model_zoo.checkpoint.digests import (
    FORMAT,
    NAME,
    STATE,
    Damaged,
    Unclear,
    check_file,
    check_name,
    digest_file,
    files_of,
    read_state,
    sealed,
    step_of,
)
from model_zoo.checkpoint.safetensors_io import SafetensorsFile, write_file
from model_zoo.errors import InputError, warn_once
from pet.files import UNFINISHED, atomic_directory, finite, sweep, write_json
from pet.train.copies import bring
from pet.train.distributed import DistributedContext

log = logging.getLogger("pet")

ALONE = DistributedContext()
WEIGHTS, OPTIMIZER = "weights.safetensors", "optimizer.safetensors"


class Tensors(Mapping[str, np.ndarray]):
    """Tensors by name, each of which is read when it is asked for."""

    def __init__(self, names: Iterable[str], read: Callable[[str], np.ndarray]):
        self.names, self.read = dict.fromkeys(names), read

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.names:
            raise KeyError(name)
        return self.read(name)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


@dataclasses.dataclass
class Checkpoint:
    """What a checkpoint holds. Tensors are read when they are asked for, and put together where they are in parts.

    Attributes:
        weights: trainable parameters by name.
        optimizer: optimizer state by ``<slot>.<parameter name>``.
        state: the trainer's numbers, as it gave them to `save`.
    """

    path: Path
    weights: Mapping[str, np.ndarray]
    optimizer: Mapping[str, np.ndarray]
    state: dict[str, Any]


def path_of(directory: str | os.PathLike, step: int, prefix: str = "") -> Path:
    """The directory of a step's checkpoint: the one that is there, or else one whose name begins with the prefix."""
    there = (path for path in checkpoints(directory) if step_of(path) == step)
    return next(there, Path(directory) / f"{prefix}{'-' if prefix else ''}step-{step:06d}")


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
    distributed: DistributedContext = ALONE,
) -> Path:
    """Writes a checkpoint; after a kill at any moment it is there in full, or not at all.

    Of several processes each writes its own tensors and its parts of divided ones into one directory, which the main
    one makes, and names as a checkpoint when all of them are there. So the directory must be on a file system that all
    share; where it is not, the main process gathers everything and writes it, and a warning says so once.

    Args:
        directory: the run's ``checkpoints``.
        step: optimizer steps done.
        weights, optimizer: this process's part of a `Checkpoint`.
        state: JSON.
        extra: called with the directory, to put more into it. It may return the name of a directory (within) whose
            safetensors files hold weights under the same names; those are not written a second time.
        prefix: of the directory's name.
        distributed: all of whose processes call this; the main one's ``extra`` and ``state`` count.

    Returns:
        The checkpoint's directory.
    """
    path = path_of(directory, step, prefix)
    with atomic_directory(path) if distributed.is_main else contextlib.nullcontext() as stage:
        holders, beside = [], []
        place = extra(stage) if distributed.is_main and extra is not None else None
        check_argument("what save_extra returns", "str | os.PathLike | None", place)
        if place is not None:
            holders = [file.relative_to(stage).as_posix() for file in sorted((stage / place).glob("*.safetensors"))]
        if stage is not None:
            beside = [file.relative_to(stage).as_posix() for file in files_below(stage)]
        held = {name for holder in holders for name in SafetensorsFile(stage / holder).tensors}
        stage, held = distributed.objects((stage, held))[0]
        if not shared(stage, distributed):
            weights, optimizer = distributed.gather(weights), distributed.gather(optimizer)
            written = _write(stage, weights, optimizer, held, ALONE) if distributed.is_main else {}
            everybody = [(sorted(weights), written, False)]
        else:
            written, problem = {}, None
            try:
                written = _write(stage, weights, optimizer, held, distributed)
            except Exception as error:
                problem = error
            # nobody leaves, and takes the directory away, while another one writes: that one would seem to have failed
            everybody = distributed.objects((sorted(weights), written, problem is not None))
            if problem is not None:
                raise problem
            if any(failed for *_, failed in everybody):
                distributed.objects(None)  # which the one that failed never reaches: its end ends the job
        if distributed.is_main:
            digests = {name: {"digest": digest_file(stage / name)} for name in beside}
            files = {name: digests.pop(name) for name in holders}
            files |= {name: note for _, notes, _ in everybody for name, note in notes.items()}
            content = {"format": FORMAT if len(everybody) > 1 else FORMAT - 1, "step": step, "state": state}
            content["files"] = {name: note["digest"] for name, note in files.items()}
            content["optimizer"] = {"files": [name for name in files if name.startswith(Path(OPTIMIZER).stem)]}
            content["weights"] = {"files": [name for name in files if name not in content["optimizer"]["files"]]}
            content["weights"]["names"] = sorted({name for names, *_ in everybody for name in names})
            content["beside"] = {name: note["digest"] for name, note in digests.items()}
            content["cuts"] = {name: note["cuts"] for name, note in files.items() if note.get("cuts")}
            content = finite(content)  # as it will be read
            write_json(stage / STATE, sealed(content))
    return path


def shared(stage: Path, distributed: DistributedContext) -> bool:
    """Whether all processes see the directory that the main one has made."""
    seen = distributed.objects(stage.is_dir())
    if not all(seen) and distributed.is_main:
        warn_once(f"{stage.parent} is not on a file system that all processes share: the main one gathers checkpoints")
    return all(seen)


def _write(stage: Path, weights, optimizer, held: set[str], distributed: DistributedContext) -> dict[str, dict]:
    """Writes this process's files: what it is the first to have. Returns {file: its digest, and where parts belong}."""
    mark, written = f"-{distributed.rank:05d}-of-{distributed.size:05d}" if distributed.size > 1 else "", {}
    rest = {name: value for name, value in weights.items() if name not in held}
    for name, tensors in ((WEIGHTS, rest), (OPTIMIZER, optimizer)):
        mine, cuts = distributed.parts(tensors)
        if mine:
            file = name.replace(".", mark + ".")
            write_file(stage / file, mine)
            written[file] = {"digest": digest_file(stage / file), "cuts": cuts}
    return written


def load(path: str | os.PathLike, distributed: DistributedContext = ALONE) -> Checkpoint:
    """Opens a checkpoint and checks that it is what was written.

    Args:
        path: its directory. The main process's counts: a machine that has not the same there gets a copy of it.
        distributed: all of whose processes call this; each checks some of the files.

    Raises:
        Damaged: a file is missing, cut off or changed; the message says which.
    """
    path, content, problem = Path(path), {}, None
    place = bring(path, STATE, files_of(path), distributed)
    try:
        content = read_state(place)
        check_name(path, content)
        for name in list(content["files"])[distributed.rank :: distributed.size]:
            check_file(place, name, content["files"][name])
    except Damaged as error:
        problem = error
    for found in distributed.objects(problem):
        if found is not None:
            raise found
    where = content.get("weights") or {"files": [WEIGHTS], "names": None}
    states, cuts = content.get("optimizer", {"files": [OPTIMIZER]})["files"], content.get("cuts", {})
    weights = _stored(place, where["files"], cuts)
    if where["names"] is not None:  # a model's files may hold more: what is tied, and what was not trained
        weights = Tensors(where["names"], weights.__getitem__)
    return Checkpoint(path, weights, _stored(place, states, cuts), content["state"])


def no_checkpoint(path: str | os.PathLike) -> str | None:
    """What is said of a place that is no checkpoint, though it may hold some; None where it may be one."""
    if not Path(path).is_dir():
        return f"{path}: no checkpoint is there; its directory was expected, such as checkpoints/step-000100"
    inner = [*checkpoints(path), *checkpoints(Path(path) / "checkpoints")]
    return f"{path}: is no checkpoint; the last one in it is {inner[-1]}" if inner else None


def _stored(path: Path, files: Iterable[str], cuts: dict[str, dict[str, Any]]) -> Tensors:
    """The tensors of some files; those in parts put together."""
    opened = {file: SafetensorsFile(path / file) for file in files}
    places: dict[str, list[str]] = {}
    for file, holding in opened.items():
        for name in holding.tensors:
            places.setdefault(name, []).append(file)

    def read(name: str) -> np.ndarray:
        whole = None
        for file in places[name]:
            narrow = opened[file].info(name).dtype == "bfloat16"
            part = opened[file].read(name, dtype="float32" if narrow else None)
            if (cut := cuts.get(file, {}).get(name)) is None:
                return part
            whole = np.empty(cut["shape"], part.dtype) if whole is None else whole
            along, offset = (slice(None),) * cut["axis"], 0
            for start, stop in cut["ranges"]:
                whole[(*along, slice(start, stop))] = part[(*along, slice(offset, offset + stop - start))]
                offset += stop - start
        return whole

    return Tensors(places, read)


def load_last(directory: str | os.PathLike, distributed: DistributedContext = ALONE) -> Checkpoint | None:
    """The newest checkpoint that is whole. A damaged one is passed over with a warning.

    Returns:
        None where there is no checkpoint at all.

    Raises:
        InputError: there are checkpoints, and none of them is whole; or a process sees a newer one than the main one.
    """
    names = distributed.objects([path.name for path in checkpoints(directory)])
    newest = [step_of(Path(each[-1])) if each else -1 for each in names]
    if max(newest) > newest[0]:
        raise InputError(
            f"{directory}: rank {newest.index(max(newest))} sees a checkpoint of step {max(newest)} there, and rank 0, "
            "which writes them, does not: start the job with that machine as the first one, or delete it there"
        )
    problems = []
    for path in [Path(directory, name) for name in reversed(names[0])]:
        try:
            return load(path, distributed)
        except Unclear as error:
            raise InputError(f"checkpoint {path}: {error}") from error
        except Damaged as error:
            problems.append(f"checkpoint {path}: damaged: {error}")
            log.warning("checkpoint %s is damaged: %s; using the one before it", path, error)
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
