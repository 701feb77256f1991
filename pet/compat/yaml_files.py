"""Job files of other systems: told apart by their keys, translated to a recipe, or read as one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from model_zoo.errors import InputError
from pet.compat.translation import Translation
from pet.names import find_recipe
from pet.recipe.source import read


def kind_of(values: Any) -> str:
    """``mindformers``, ``llama_factory``, ``axolotl`` or ``recipe``, by a file's top-level keys."""
    if not isinstance(values, Mapping):
        return "recipe"
    model = values.get("model")
    if "runner_config" in values or "trainer" in values or (isinstance(model, Mapping) and "model_config" in model):
        return "mindformers"
    if "model_name_or_path" in values:
        return "llama_factory"
    if "base_model" in values:
        return "axolotl"
    return "recipe"


def _translator(kind: str) -> Callable[[dict[str, Any], Path], Translation]:
    if kind == "mindformers":
        from pet.compat.mindformers_yaml import translate

        return translate
    from pet.compat import other_yaml

    return other_yaml.llama_factory if kind == "llama_factory" else other_yaml.axolotl


def translate_file(path: str | os.PathLike) -> tuple[str, Translation | None]:
    """What a file is, and its settings; None for a recipe.

    Raises:
        InputError: no such file, or no YAML.
    """
    file = find_recipe(path)
    source = read(file, str(path))
    kind = kind_of(source.value)
    if kind == "recipe":
        return kind, None
    if source.problems:
        raise InputError.collect(source.problems)
    return kind, _translator(kind)(source.value, file)


def load_any(
    path: str | os.PathLike,
    overrides: Iterable[str] | Mapping[str, Any] | None = None,
    *,
    check_files: bool = True,
    needs: Iterable[str] = (),
):
    """A recipe from a recipe file or from another system's.

    Args:
        path: the file.
        overrides: ``["key.sub=value"]``, or a mapping; they take the place of the file's settings.
        check_files: also report models and data that are not there.
        needs: keys that this use cannot do without.

    Raises:
        InputError: everything that is wrong with it.
    """
    from pet.recipe.loading import from_dict, load

    kind, translation = translate_file(path)
    if kind == "recipe":
        return load(path, overrides, check_files=check_files, needs=needs)
    translation.finish()
    return from_dict(tree_of(translation), overrides, name=Path(path).stem, check_files=check_files, needs=needs)


def tree_of(translation: Translation) -> dict[str, Any]:
    """The settings as a recipe's nested dictionary."""
    tree: dict[str, Any] = {}
    for key, value in translation.settings.items():
        *sections, last = key.split(".")
        inner = tree
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    return tree


def convert(path: str | os.PathLike) -> tuple[str, list[str]]:
    """The recipe, as YAML text, that another system's job file comes to; and what was ignored, with the reason.

    Raises:
        InputError: the file is a recipe already, or asks for what cannot be had.
    """
    import yaml

    kind, translation = translate_file(path)
    if translation is None:
        raise InputError(f"{path}: is a recipe already")
    if translation.problems:
        raise InputError.collect(translation.problems)
    from pet.recipe.loading import from_dict

    tree = tree_of(translation)
    from_dict(tree, name=Path(path).stem, check_files=False)  # it must be a recipe
    head = f"# from {Path(path).name} ({kind})\n"
    head += "".join(f"# ignored: {line}\n" for line in translation.ignored_lines())
    return head + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True), translation.ignored_lines()
