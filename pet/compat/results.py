"""What a run, or somebody else, left in a directory: a model, an adapter, checkpoints."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from model_zoo.atomic import read_json
from model_zoo.errors import InputError
from pet.files import copy, write_text
from pet.names import bundled_models


def find_weights(directory: str | os.PathLike) -> tuple[str | None, Path | None]:
    """(checkpoint directory or bundled name, adapter directory) that a directory stands for; one of them is None.

    Args:
        directory: an adapter, a Hugging Face checkpoint, a run directory (its ``adapter/`` or ``model/``), or a run's
            checkpoint (its ``adapter/``).

    Raises:
        InputError: none of these.
    """
    text = os.fspath(directory)
    path = Path(text).expanduser()
    if text in bundled_models():
        return text, None
    for adapter in (path, path / "adapter"):
        if (adapter / "adapter_config.json").is_file():
            return None, adapter
    for model in (path, path / "model"):
        if (model / "config.json").is_file():
            return str(model), None
    raise InputError(
        f"{path}: neither an adapter, nor a Hugging Face checkpoint directory, nor a run with one of them"
        + ("" if path.exists() else " (there is no such directory)")
    )


def of_run(given: Any, entry: str) -> Any:
    """A directory as it is; of a run of this library its ``adapter/`` or ``model/``, whichever `entry` is."""
    if not isinstance(given, str):  # refused where it is used
        return given
    path, named = Path(given).expanduser(), "adapter_config.json" if entry == "adapter" else "config.json"
    return str(path / entry) if (path / entry / named).is_file() and not (path / named).is_file() else given


def last_run(output: str) -> Path:
    """The run in an output directory.

    Raises:
        InputError: there is none.
    """
    from pet.compat.modelarts import output_directory

    run = Path(output_directory(output))
    if not (run / "summary.json").is_file():
        raise InputError(f"Trainer: there is no result of this trainer yet, nor a run in {run}; give a directory")
    return run


def written(run: Path) -> tuple[Path | None, Path | None]:
    """(adapter, model) that a run has written: the one, the other where every weight was trained, or neither."""
    adapter, model = (run / entry if (run / entry).is_dir() else None for entry in ("adapter", "model"))
    return adapter, None if adapter else model


def no_result(run: Path) -> InputError:
    """What is said of a run directory that has neither."""
    return InputError(f"{run}: holds neither adapter/ nor model/; the run has not come to an end")


def of_job(recipe) -> tuple[Path | None, Path | None]:
    """(adapter, model) that belong to a job file, at most one of them: the adapter that it names, or what its run has
    written.

    Raises:
        InputError: there are both.
    """
    named, (adapter, model) = recipe.adapter.load, written(Path(recipe.output.dir))
    found = adapter or model
    if named and found and Path(named).resolve() != found.resolve():
        raise InputError(f"{recipe.where('adapter.load')}: {named}, but its run has written {found}; give --adapter")
    return (adapter, model) if found or not named else (Path(named), None)


def base_of(directory: str | os.PathLike) -> str | None:
    """The base that a run or adapter was made on, as far as it says so; None otherwise."""
    from pet.recipe.source import read

    path = Path(directory).expanduser()
    for run in (path, *path.parents[:2]):  # a run, its adapter/, or one of its checkpoints/
        if (run / "recipe.yaml").is_file():
            values = read(run / "recipe.yaml", str(run / "recipe.yaml")).value
            return ((values or {}).get("model") or {}).get("path")
    if (path / "adapter_config.json").is_file():
        return read_json(path / "adapter_config.json").get("base_model_name_or_path")
    return None


def bring_checkpoint(source: str | os.PathLike, output: str | os.PathLike) -> None:
    """Copies a run's last checkpoint, or the given one, to where a run in ``output`` goes on from.

    Raises:
        InputError: there is no whole checkpoint in ``source``, or ``output`` has those of another run.
    """
    from pet.train.checkpoint import STATE, checkpoints

    source, target = Path(source).expanduser().resolve(), Path(output).resolve()
    if source == target:
        return
    single = source.parent.name == "checkpoints"
    found = checkpoints(source.parent) if single else checkpoints(source / "checkpoints") or checkpoints(source)
    if not found or (single and source not in found):
        raise InputError(f"resume: {source} holds no whole checkpoint")
    chosen = source if single else found[-1]
    place = target / "checkpoints" / chosen.name
    if place == chosen != found[-1]:
        raise InputError(f"resume: {chosen} is not the last checkpoint of its run, which goes on from {found[-1].name}")
    if place == chosen:
        return
    digest, mark = str(read_json(chosen / STATE).get("digest")), place.parent / ".from"
    if checkpoints(place.parent):
        if mark.is_file() and mark.read_text() == digest:
            return  # it has been brought before, and may have gone on
        raise InputError(f"resume: {target} has checkpoints of its own, not of {source}; give another output_dir")
    place.parent.mkdir(parents=True, exist_ok=True)
    write_text(mark, digest)
    # every process may do this, also of several machines, whose process numbers may be the same
    stage = Path(tempfile.mkdtemp(prefix=f".{chosen.name}.", dir=place.parent))
    try:
        copy(chosen, stage / chosen.name)
        (stage / chosen.name).rename(place)
    except OSError:
        if not place.exists():  # otherwise another process of the job was quicker
            raise
    finally:
        shutil.rmtree(stage, ignore_errors=True)
