"""A MindFormers file's section on the model: found, read, and held to the models that are here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_zoo.atomic import read_json
from model_zoo.errors import InputError, check_one_of, similar
from pet.compat.mindformers.presets import CLASSES, TYPES
from pet.compat.mindformers.script_config import read_keys

ARCHITECTURES = ("GPT2", "Llama", "ParallelLlama", "GLM", "ChatGLM")
"""How their models' ``arch.type`` begin: others with the same configurations (Baichuan's) compute something else."""

OTHERS = (
    "; of other families (docs/models.md) the checkpoint's own directory, from Hugging Face, opens: load_checkpoint"
)


def read_file(path: Path) -> dict[str, Any]:
    """The dictionary in a YAML file.

    Raises:
        InputError: no such file, or no YAML with a model section.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; a MindFormers YAML file was expected")
    values = read_keys(path)
    if not isinstance(values.get("model"), Mapping):
        raise InputError(f"{path}: has no section model, so it is no MindFormers file")
    return values


def saved_model(place: Any) -> dict[str, Any] | None:
    """What MindFormers' ``save_pretrained`` has written into a directory, ``NAME.ckpt`` and ``NAME.yaml`` or a
    config.json by its own names, as a job file that names these weights; None of any other place.

    Raises:
        InputError: of a model that is not here.
    """
    place = Path(str(place)).expanduser()
    files = sorted(place.glob("*.ckpt")) if place.is_dir() else []
    if len(files) != 1:
        return None
    beside, values = files[0].with_suffix(".yaml"), saved_json(place / "config.json")
    if beside.is_file() and not (place / "config.json").is_file():
        values = read_file(beside)
    if values is None or "type" not in model_section(values):
        return None
    check_kind(values)
    values["model"]["model_config"]["checkpoint_name_or_path"] = str(files[0])
    return values


def saved_json(path: Path) -> dict[str, Any] | None:
    """A config.json by MindFormers' own names, as a job file; None of Hugging Face's, or where there is none.

    Raises:
        InputError: of a model that is not here.
    """
    given = read_json(path, "a model's configuration") if path.is_file() else {}
    if "mindformers_version" not in given:
        return None
    check_one_of(f"{path}: model_type", given.get("model_type"), tuple(TYPES))
    return {"model": {"model_config": {**given, "type": TYPES[given["model_type"]]}}}


def model_section(values: Mapping[str, Any]) -> dict[str, Any]:
    """``model.model_config``."""
    return dict((values.get("model") or {}).get("model_config") or {})


def check_kind(values: Mapping[str, Any]) -> None:
    """Raises InputError where a file describes a model that is not here."""
    kind, arch = model_section(values).get("type"), ((values.get("model") or {}).get("arch") or {}).get("type")
    if kind is not None and kind not in CLASSES:
        raise InputError(
            f"model_config.type: {kind!r} is not supported; {', '.join(CLASSES)}{similar(kind, CLASSES)}{OTHERS}"
        )
    if kind is not None and arch is not None and not str(arch).startswith(ARCHITECTURES):
        raise InputError(f"model.arch.type: {arch!r} is not supported; models of {', '.join(ARCHITECTURES)}{OTHERS}")
