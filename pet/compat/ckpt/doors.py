"""MindFormers' ``.ckpt`` files: to a Hugging Face checkpoint directory, and back."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_zoo.atomic import read_json, staged, write_json
from model_zoo.checkpoint.ckpt_io import write_ckpt
from model_zoo.checkpoint.dtypes import STORAGE, convert, float_name
from model_zoo.checkpoint.mindspore_files import is_mindspores, written
from model_zoo.checkpoint.reading import Checkpoint, assignment, check_tied, read_config
from model_zoo.checkpoint.safetensors_io import write_file
from model_zoo.checkpoint.saving import (
    COMPANIONS,
    MAX_SHARD_SIZE,
    TOKENIZER,
    WEIGHTS,
    copy_companions,
    parse_size,
    write_weights,
)
from model_zoo.counting import parameter_shapes, tied_head
from model_zoo.errors import InputError
from model_zoo.families import config_class
from pet.compat.ckpt.names import Form
from pet.compat.ckpt.view import HuggingFaceView, MindFormersCheckpoint
from pet.compat.mindformers import sizes
from pet.compat.mindformers.model_file import saved_json
from pet.names import bundled_models, find_model, model_config


@dataclasses.dataclass
class Report:
    """What a conversion did; prints as one line.

    Attributes:
        output: the directory or file that was written.
        tensors: how many.
        left_out: names of the source that have no place in it.
    """

    output: Path
    tensors: int
    left_out: tuple[str, ...] = ()
    note: str = ""

    def __str__(self) -> str:
        text = f"{self.output}: {self.tensors} tensors"
        if self.left_out:
            kinds = sorted({name.partition(".")[0] for name in self.left_out})
            text += f"; {len(self.left_out)} left out that are no weights ({', '.join(kinds[:6])})"
        return text + (f"; {self.note}" if self.note else "")


def write_adapter(output: str | os.PathLike, tensors: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Writes an adapter directory in PEFT's format.

    Args:
        tensors: by PEFT's names.
        settings: of adapter_config.json, but for those that every adapter has.
    """
    common = {"task_type": "CAUSAL_LM", "base_model_name_or_path": None, "inference_mode": True}
    with staged(output) as stage:
        write_file(stage / "adapter_model.safetensors", dict(tensors), {"format": "pt"})
        write_json(stage / "adapter_config.json", {**common, **settings})


def is_ckpt(path: str | os.PathLike) -> bool:
    """Whether a path is a ``.ckpt`` file, one of safetensors that MindSpore wrote, or a directory of ranks with such
    files."""
    path = Path(path).expanduser()
    return (path.is_file() and is_mindspores(path)) or any(map(written, path.glob("rank_*")))


def holds_weights(place: str | os.PathLike) -> bool:
    """Whether a place holds weights alone, and no run: a ``.ckpt`` file, a model or an adapter."""
    own = ("config.json", "adapter_config.json")
    return is_ckpt(place) or any((Path(place).expanduser() / name).is_file() for name in own)


def find_ckpt(path: str | os.PathLike) -> Path:
    """The one file of whole tensors that a path stands for: itself, or the last one in ``rank_0`` of a directory.

    Raises:
        InputError: no such file, or several ranks, of which each may hold a part only.
    """
    path = Path(path).expanduser()
    if path.is_file():
        return path
    ranks = sorted(filter(Path.is_dir, path.glob("rank_*"))) if path.is_dir() else []
    files = written(ranks[0]) if len(ranks) == 1 else []
    if len(ranks) > 1:
        raise InputError(
            f"{path}: holds {len(ranks)} ranks, of which each may have a part of the weights; name the strategy by "
            "src_strategy_path_or_dir, put them together by pet transform, or give one rank's file if it is whole"
        )
    if not files:
        raise InputError(f"{path}: there is no .ckpt file")
    return files[-1]


def config_for(path: Path, given: str | os.PathLike | Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The config.json's dictionary of the model in a ``.ckpt`` file.

    Args:
        given: a dictionary; a checkpoint directory, config.json, preset's or bundled base's name; or a MindFormers YAML
            file. Default: the config.json beside the file, or else the one preset whose tensors are of these shapes.

    Raises:
        InputError: nothing given, and it cannot be found.
    """
    if isinstance(given, Mapping):
        return dict(given)
    if given is not None:
        if Path(given).suffix in (".yaml", ".yml"):
            return sizes.config_of_file(Path(given))
        return model_config(given)
    beside = path.parent / "config.json"
    if beside.is_file():
        theirs = saved_json(beside)
        return read_json(beside, "a model's configuration") if theirs is None else sizes.config_of(theirs)
    fitting = _fitting_presets(path)
    if len(fitting) == 1:
        return model_config(fitting[0])
    what = f"{', '.join(fitting)} have tensors of these shapes" if fitting else "no known size has these shapes"
    raise InputError(
        f"{path}: of which configuration? {what}; give a preset's name, a directory with config.json, or the "
        "MindFormers YAML file of this model"
    )


def _fitting_presets(path: Path) -> list[str]:
    from model_zoo.families import PRESETS

    fitting: list[str] = []
    for name, values in PRESETS.items():
        if any(values is PRESETS[other] for other in fitting):
            continue
        try:
            MindFormersCheckpoint(path, values, fewer=False).close()
        except InputError:
            continue
        fitting.append(name)
    return fitting


def to_directory(
    source: str | os.PathLike,
    output: str | os.PathLike,
    config: str | os.PathLike | Mapping[str, Any] | None = None,
    form: Form | None = None,
    dtype: object = None,
    max_shard_size: int | str = MAX_SHARD_SIZE,
) -> Report:
    """Writes a ``.ckpt`` file's weights as a Hugging Face checkpoint directory, one tensor at a time.

    Args:
        source: the file, or a directory with ``rank_0/*.ckpt``.
        output: the directory. Its files appear together at the end, or not at all. Tokenizer files that lie beside the
            source, or beside the configuration, are copied along.
        config: see `config_for`.
        form: what the names do not tell of the file.
        dtype: floating-point type of the result; None keeps each tensor's own, bit for bit.
        max_shard_size: bytes per weight file, as a number or as ``"5GB"``.

    Raises:
        InputError: names or shapes that do not fit, all of them; see `config_for`.
    """
    path = find_ckpt(source)
    values = config_for(path, config)
    target = float_name(dtype) if dtype is not None else None
    with MindFormersCheckpoint(path, values, form) as view:
        tied = tied_head(values)
        sources, copies = assignment(view, parameter_shapes(values), dict([tied]) if tied else None)
        check_tied(view, sources, copies)
        infos = {name: view.info(name) for name in view._where}
        described = {
            name: (target if target and info.dtype in STORAGE else info.dtype, info.shape)
            for name, info in infos.items()
        }
        if tied is not None and tied[0] in described and values.get("model_type") != "chatglm":
            described.pop(tied[0])  # published files hold a tied head once; ChatGLM-6B's hold it twice
        types = {word for word, _ in described.values()}
        with staged(output, replaces=WEIGHTS) as stage:
            write_weights(stage, described, view.raw, parse_size(max_shard_size))
            write_json(
                stage / "config.json", config_class(values).for_file(values, types.pop() if len(types) == 1 else None)
            )
            _copy_beside(path.parent, stage, output)
            if config is not None and not isinstance(config, Mapping):
                place = bundled_models().get(os.fspath(config)) or Path(config).expanduser()
                if place.exists():
                    _copy_beside(place if place.is_dir() else place.parent, stage, output)
        return Report(Path(output), len(described), tuple(view.left_out))


def _copy_beside(place: Path, stage: Path, output: str | os.PathLike) -> None:
    """What goes with a model, out of its directory; out of one that has no config.json, and so may be anybody's, only a
    tokenizer: not the scripts that lie there."""
    copy_companions(place, stage, output, COMPANIONS if (place / "config.json").is_file() else TOKENIZER)


def to_file(
    source: str | os.PathLike, output: str | os.PathLike, form: Form | None = None, dtype: object = None
) -> Report:
    """Writes a Hugging Face checkpoint directory as a ``.ckpt`` file with MindFormers' names, one tensor at a time.

    Args:
        source: the directory, or a bundled base's name.
        output: the file; it appears whole or not at all.
        form: how MindFormers is to divide the matrices.
        dtype: floating-point type of the result; None keeps each tensor's own.

    Raises:
        InputError: no such checkpoint, or one that MindFormers has no names for.
    """
    directory = find_model(source)
    target = float_name(dtype) if dtype is not None else None
    config = read_config(directory)
    with Checkpoint(directory) as checkpoint:
        view = HuggingFaceView(checkpoint, config, form)
        described = {name: (target or word, shape) for name, (word, shape) in view.tensors.items()}

        def data(name: str):
            return convert(view.raw(name), view.tensors[name][0], described[name][0])

        Path(output).parent.mkdir(parents=True, exist_ok=True)
        write_ckpt(output, described, data)
    return Report(Path(output), len(described))
