"""Names instead of paths: the bundled tiny bases, the bundled recipes, and the published models' presets.

The bundled files are the ``recipes`` directory of a checkout. Installed, they are the package directory
``pet/bundled``. Nothing here imports MindSpore.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

from model_zoo.atomic import check_name, read_json, special_kind
from model_zoo.checkpoint.directory import foreign
from model_zoo.errors import InputError, nearest, shown, similar
from pet.hub import fetch, hub_name

# Directories below the bundled one that hold no recipes.
_NO_RECIPES = {"bases", "data", "corpus"}


@cache
def bundled_directory() -> Path:
    """Where the bundled recipes, data and tiny bases lie: in the installed package, or else in the checkout."""
    package = Path(__file__).resolve().parent
    for candidate in (package / "bundled", package.parent / "recipes"):
        if candidate.is_dir():
            return candidate
    raise InputError(f"the bundled recipes are missing: neither {package / 'bundled'} nor {package.parent / 'recipes'}")


@cache
def bundled_models() -> dict[str, Path]:
    """The bundled tiny bases: name → checkpoint directory."""
    bases = bundled_directory() / "bases"
    if not bases.is_dir():
        return {}
    return {entry.name: entry for entry in sorted(bases.iterdir()) if (entry / "config.json").is_file()}


@cache
def bundled_recipes() -> dict[str, Path]:
    """The bundled recipes: name (the path below ``recipes`` without its suffix) → file."""
    root = bundled_directory()
    found = {}
    for path in sorted(root.rglob("*.yaml")):
        relative = path.relative_to(root)
        if relative.parts[0] not in _NO_RECIPES:
            found[relative.with_suffix("").as_posix()] = path
    return found


def preset_names() -> list[str]:
    """Names of published models whose dimensions are known; their weights are not bundled."""
    from model_zoo.families import PRESETS

    return sorted(PRESETS)


def find_recipe(name: str | os.PathLike) -> Path:
    """The file of a recipe given by path or bundled name.

    Args:
        name: a path; or a bundled name such as ``glm_lora``, also with ``.yaml`` or without its folder where that is
            unambiguous.

    Raises:
        InputError: nothing is found; the message names the nearest.
    """
    text = path_text(name)
    path = Path(text).expanduser()
    check_name(path)
    if path.is_file() or special_kind(path):  # what reads it says why it cannot
        return path
    recipes = bundled_recipes()
    key = text.removesuffix(".yaml")
    if key in recipes:
        return recipes[key]
    same_name = [full for full in recipes if full.rpartition("/")[2] == key]
    if len(same_name) == 1:
        return recipes[same_name[0]]
    if len(same_name) > 1:
        raise InputError(f"recipe {text!r}: several are called so: {', '.join(same_name)}")
    if path.is_dir():
        run = f"; that of the run is {path / 'recipe.yaml'}" if (path / "recipe.yaml").is_file() else ""
        raise InputError(f"recipe {text!r}: is a directory, expected a YAML file or a bundled recipe's name{run}")
    around = [entry.name for entry in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
    if os.sep in text and around:
        raise InputError(f"recipe {text!r}: no such file{nearest(path.name, around)}")
    raise InputError(
        f"recipe {text!r}: no such file, and no bundled recipe has this name"
        + (similar(key, [*recipes, *around]) or "; pet recipes lists them")
    )


def path_text(name) -> str:
    """A name or path as text; InputError when it is neither."""
    if not isinstance(name, str | os.PathLike) or not str(name):
        raise InputError(f"a name or a path was expected, got {shown(name)}")
    return os.fspath(name)


BESIDE = ("config.json", "model.safetensors", "model.safetensors.index.json")
"""Files that stand for the checkpoint directory which they lie in."""


def find_model(name: str | os.PathLike) -> Path:
    """The checkpoint directory of a model given by path or bundled name.

    Args:
        name: a bundled name (``glm_tiny``), the path of a directory or of one of `BESIDE` in it, or a name on a hub
            (:mod:`pet.hub`), which is downloaded where it is not here yet.

    Raises:
        InputError: there is no such directory, or it holds no checkpoint; a preset's name says how to get weights.
    """
    text = path_text(name)
    bundled = bundled_models()
    if text in bundled:
        return bundled[text]
    path = Path(text).expanduser()
    check_name(path)
    if (path / "config.json").is_file():
        return path
    if path.is_dir():
        inner = min(path.glob("snapshots/*/config.json"), default=None)  # of a repository in Hugging Face's cache
        way = f"there is one in {inner.parent}" if inner else foreign(os.listdir(path))
        wanted = "expected a Hugging Face checkpoint directory"
        raise InputError(f"model {text!r}: {path} holds no config.json, {wanted}" + (f"; {way}" if way else ""))
    if path.name in BESIDE and path.is_file() and (path.parent / "config.json").is_file():
        return path.parent
    if path.exists():
        way = foreign([path.name])
        if path.suffix == ".ckpt" and not way:
            way = f"pet convert {text} --output DIR makes one of MindSpore's"
        wanted = "expected a Hugging Face checkpoint directory"
        raise InputError(f"model {text!r}: is a file, {wanted}" + (f"; {way}" if way else ""))
    presets = preset_names()
    if text in presets:
        raise InputError(
            f"model {text!r}: is a known size, but its weights are not bundled: download the checkpoint and give its "
            "directory, or start from random weights (model.from_scratch: true, AutoModel.from_config)"
        )
    if (hub := hub_name(text)) is not None:
        return fetch(hub)[0]
    around = [entry.name for entry in path.parent.iterdir() if entry.is_dir()] if path.parent.is_dir() else []
    if os.sep in text and around:
        raise InputError(f"model {text!r}: no such directory{nearest(path.name, around)}")
    meant = similar(path.name, [*bundled, *presets, *around]) or nearest(path.name, bundled)
    raise InputError(f"model {text!r}: no such directory, and no bundled model has this name{meant}")


def model_config(name: str | os.PathLike) -> dict[str, Any]:
    """The config.json of a model given by bundled name, checkpoint directory, preset name or the file itself.

    Raises:
        InputError: nothing has this name, or the file is no JSON object.
    """
    from model_zoo.families import PRESETS

    text = path_text(name)
    path = Path(text).expanduser()
    check_name(path)
    if path.is_file() and path.suffix == ".json":
        return read_json(path, "a model's configuration")
    if text in PRESETS and not path.is_dir():
        return dict(PRESETS[text])
    hub = None if path.exists() or text in bundled_models() else hub_name(text)
    directory = find_model(name) if hub is None else fetch(hub, only_config=True)[0]
    return read_json(directory / "config.json", "a model's configuration")


def find_tokenizer(name: str | os.PathLike) -> Path:
    """What a tokenizer is read from: a bundled base's directory, or the file or directory given.

    Raises:
        InputError: there is no such path.
    """
    text = path_text(name)
    path = bundled_models().get(text) or Path(text).expanduser()
    check_name(path)
    if not path.exists() and hub_name(text) is not None:
        return find_model(text)
    if not path.exists() and text in preset_names():
        raise InputError(
            f"tokenizer {text!r}: is a known size, but its files are not bundled: download the checkpoint and give its "
            "directory, or take a bundled base's tokenizer"
        )
    if not path.exists():
        candidates = [*bundled_models(), *(entry.name for entry in path.parent.glob("*"))]
        raise InputError(f"tokenizer {text!r}: no such file or directory{nearest(path.name, candidates)}")
    return path


def own_tokenizer(adapter: str | os.PathLike | None) -> Path | None:
    """An adapter's directory, if it holds the tokenizer that the adapter was trained with: its chat template, and its
    tokens. Exports write one there, and so do TRL, unsloth and LLaMA-Factory."""
    return Path(adapter) if adapter is not None and (Path(adapter) / "tokenizer_config.json").is_file() else None
