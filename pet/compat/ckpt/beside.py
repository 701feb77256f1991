"""A MindFormers ``.ckpt`` file where a directory is wanted: converted once, beside the file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from model_zoo.atomic import locked, read_json, write_json
from model_zoo.checkpoint.mindspore_files import opened, written
from model_zoo.errors import InputError
from pet.compat.ckpt.doors import config_for, find_ckpt, to_directory
from pet.compat.ckpt.lora import to_adapter
from pet.compat.ckpt.names import Form
from pet.compat.ckpt.prefix import to_prefix
from pet.compat.ckpt.view import is_lora, is_prefix, is_weight

MARK = "converted.json"  # in a directory made from a .ckpt file: of which one
READ = {"joined": "by heads"}  # what was made before files were read so is made again


def kinds_in(path: Path) -> tuple[bool, bool, bool]:
    """Whether a ``.ckpt`` file holds (weights of a base, LoRA matrices, a prefix)."""
    with opened(path) as file:
        weights, lora, prefix = (any(map(kind, file.tensors)) for kind in (is_weight, is_lora, is_prefix))
    return weights, lora, prefix


def whole(source: str | os.PathLike, strategy: str | os.PathLike | None = None) -> Path:
    """The one file of whole tensors that a path stands for; of a folder of several ranks it is made beside it.

    Args:
        source: see `find_ckpt`.
        strategy: how the ranks divide the tensors. Default: the folder ``strategy`` in the source or beside it.

    Raises:
        InputError: no such file, several ranks without a strategy, or one that does not fit.
    """
    from pet.parallel.transform import transform

    path = Path(source).expanduser()
    files = [file for place in path.glob("rank_*") for file in written(place)]
    places = [Path(strategy)] if strategy else [path / "strategy", path.parent / "strategy"]
    place = next((one for one in places if one.exists()), None)
    if len({file.parent for file in files}) < 2 or place is None:
        return find_ckpt(path)

    def make(output: Path) -> None:
        shutil.rmtree(output, ignore_errors=True)
        transform(path, output, place)

    newest = max(file.stat().st_mtime_ns for file in files)
    return find_ckpt(_beside(path, "whole", {"strategy": str(place), "newest": newest}, make))


def converted(
    source: str | os.PathLike, config: str | os.PathLike | Mapping[str, Any] | None = None, form: Form | None = None
) -> Path:
    """The Hugging Face directory of a ``.ckpt`` file, made beside it (``x.ckpt`` → ``x.hf``) unless it is there.

    Raises:
        InputError: see `to_directory`; or something else lies in the way.
    """
    path = whole(source)
    facts = {"config": config_for(path, config), "rearranged": bool(form and form.use_rearrange_rope), **READ}
    return _beside(path, "hf", facts, lambda output: to_directory(path, output, config, form))


def bring(
    source: str | os.PathLike,
    config: str | os.PathLike | Mapping[str, Any] | None = None,
    form: Form | None = None,
    alpha: float | Callable[[Mapping[str, Any], Path], float] | None = None,
    strategy: str | os.PathLike | None = None,
) -> tuple[str | None, Path | None]:
    """(checkpoint directory, adapter directory) for a ``.ckpt`` file of weights, of LoRA matrices or a prefix, or of
    both; None for what it has not.

    Args:
        source, config, form: see `to_directory`.
        alpha: of LoRA matrices; or what gives it for the base's config.json and the file.
        strategy: see `whole`.

    Raises:
        InputError: LoRA without an alpha; see `converted`.
    """
    path = whole(source, strategy)
    weights, lora, prefix = kinds_in(path)
    model = str(converted(path, config, form)) if weights or not (lora or prefix) else None
    if prefix:
        values = config_for(path, config)
        return model, _beside(path, "adapter", {"config": values}, lambda output: to_prefix(path, output, config))
    if not lora:
        return model, None
    if alpha is None:
        raise InputError(
            f"{path}: holds LoRA matrices, but not their alpha; convert it by pet convert {path} --alpha N --output DIR"
        )
    values = config_for(path, config)
    alpha = alpha(values, path) if callable(alpha) else alpha
    facts = {"config": values, "alpha": alpha, "rearranged": bool(form and form.use_rearrange_rope), **READ}
    return model, _beside(path, "adapter", facts, lambda output: to_adapter(path, output, alpha, config, form))


def _beside(path: Path, ending: str, facts: dict[str, Any], make: Callable[[Path], Any]) -> Path:
    """A directory beside a file that is made of it once, and again when the file or the facts have changed.

    Several processes may call this at once: one makes it, the others wait.
    """
    output = path.with_name(f"{path.stem}.{ending}")
    state = path.stat()
    mark = {"source": path.name, "size": state.st_size, "modified": state.st_mtime_ns, **facts}
    if _marked(output) == mark:
        return output
    if not os.access(path.parent, os.W_OK):
        raise InputError(
            f"{path}: is read by way of a directory beside it, where nothing may be written; convert it by "
            f"pet convert {path} --output DIR, and give that"
        )
    lock = path.with_name(f".{output.name}.lock")
    with locked(lock):
        try:
            if _marked(output) == mark:
                return output
            if output.exists() and _marked(output) is None:
                raise InputError(f"{output}: is in the way; {path.name} was to be converted to this place")
            make(output)
            write_json(output / MARK, mark)
        finally:
            lock.unlink(missing_ok=True)
    return output


def _marked(output: Path) -> dict[str, Any] | None:
    return read_json(output / MARK) if (output / MARK).is_file() else None
