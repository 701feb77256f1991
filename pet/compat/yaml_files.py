"""Job files of other systems: told apart by their keys, translated to a recipe, or read as one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from model_zoo.errors import InputError
from pet.compat.results import base_of, bring_checkpoint, find_weights
from pet.names import find_recipe
from pet.recipe.source import read
from pet.recipe.translation import Translation


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
        from pet.compat.mindformers.yaml_file import translate

        return translate
    from pet.compat import axolotl, llama_factory

    return {"axolotl": axolotl, "llama_factory": llama_factory}[kind].translate


def translate_file(path: str | os.PathLike, layout: Mapping[str, Any] | None = None) -> tuple[str, Translation | None]:
    """What a file is, and its settings; None for a recipe.

    Args:
        path: the file.
        layout: of processes, in the place of a MindFormers file's ``parallel_config``; empty for one process.

    Raises:
        InputError: no such file, or no YAML.
    """
    kind, file, values = values_of(path)
    if kind == "mindformers" and layout is not None:
        values = {**values, "use_parallel": bool(layout), "parallel_config": dict(layout)}
    return kind, None if kind == "recipe" else _translator(kind)(values, file)


def values_of(path: str | os.PathLike) -> tuple[str, Path, Any]:
    """What a file is, where it is, and what stands in it.

    Raises:
        InputError: no such file; or no YAML, where it is no recipe: a recipe's own loading says more of those.
    """
    file = find_recipe(path)
    source = read(file, str(path))
    kind = kind_of(source.value)
    if kind != "recipe" and source.problems:
        raise InputError.collect(source.problems)
    return kind, file, source.value


def load_any(
    path: str | os.PathLike,
    overrides: Iterable[str] | Mapping[str, Any] | None = None,
    *,
    check_files: bool = True,
    needs: Iterable[str] = (),
    layout: Mapping[str, Any] | None = None,
    bring: bool = True,
):
    """A recipe from a recipe file or from another system's.

    Args:
        path: the file.
        overrides: ``["key.sub=value"]``, or a mapping; they take the place of the file's settings.
        check_files: also report models and data that are not there.
        needs: keys that this use cannot do without.
        layout: see `translate_file`; a recipe's is among its settings.
        bring: convert a ``.ckpt`` file that it names. False only looks; files are then not looked for.

    Raises:
        InputError: everything that is wrong with it.
    """
    from pet.recipe.loading import from_dict, load

    kind, translation = translate_file(path, layout)
    if kind == "recipe":
        return load(path, overrides, check_files=check_files, needs=needs)
    check_files = check_files and (bring or not str(translation.get("model.path")).endswith(".ckpt"))
    given = _given(overrides)
    resumed = bring_model(translation, kind, path) if bring and check_files and "model.path" not in given else None
    translation.finish(given)
    recipe = from_dict(tree_of(translation), overrides, name=Path(path).stem, check_files=check_files, needs=needs)
    if resumed is not None and recipe.train.resume:
        bring_checkpoint(resumed, recipe.output.dir)
    return recipe


def run_mode_of(path: str | os.PathLike) -> str | None:
    """What a MindFormers file is for: train, finetune, eval, predict; None where it does not say, and for others."""
    kind, _, values = values_of(path)
    return values.get("run_mode") if kind == "mindformers" else None


def held_out_of(path: str | os.PathLike) -> Any:
    """The evaluation data that a MindFormers file names, also where its ``do_eval`` is off; None for other files."""
    kind, _, values = values_of(path)
    if kind != "mindformers":
        return None
    loader = (values.get("eval_dataset") or {}).get("data_loader") or {}
    return loader.get("dataset_dir") or loader.get("dataset_files")


def _given(overrides: Iterable[str] | Mapping[str, Any] | None) -> set[str]:
    """The keys that the command line has values for."""
    return {str(one).partition("=")[0] for one in overrides or ()}


def bring_model(translation: Translation, kind: str, path: str | os.PathLike) -> Path | None:
    """Puts what a recipe takes in place of a MindFormers ``.ckpt`` file, and of the result of another run: its model,
    or its adapter and the base of it.

    Returns:
        The run to go on from, where the file says ``resume_training``.

    Raises:
        InputError: a ``.ckpt`` file in another system's job file, or one that cannot be resumed from; no base.
    """
    from pet.compat.ckpt.beside import bring
    from pet.compat.ckpt.doors import is_ckpt

    given, resumed = translation.get("model.path"), None
    if given is None or kind != "mindformers":
        if given is not None and is_ckpt(given):
            raise InputError(f"{path}: {given} is a .ckpt file; convert it by pet convert {given} --output DIR")
        return None
    from pet.compat.mindformers.sizes import alpha_of, form_of, name_of

    _, file, values = values_of(path)
    if is_ckpt(given):
        if translation.get("train.resume") and given == values.get("load_checkpoint"):
            raise InputError(
                f"{path}: resume_training: {given} is taken as weights; a run goes on from checkpoints of this library"
            )
        model, adapter = bring(given, file, form_of(values), alpha_of(values))
    elif (Path(given) / "config.json").is_file() or not Path(given).is_dir():
        return None
    elif translation.get("train.resume"):
        model, adapter, resumed = None, None, Path(given)
    else:
        model, adapter = find_weights(given)
    base = model or name_of(values) or base_of(given)
    if base is None:
        raise InputError(f"{path}: {given} has no weights of a base; name that by checkpoint_name_or_path")
    translation.put("model.path", base)
    if adapter is not None:
        translation.put("adapter.load", str(adapter))
    return resumed


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
    model = Path(str(translation.get("model.path")))
    if model.suffix == ".ckpt":
        place = model.with_suffix(".hf")
        head += f"# first: pet convert {model} --output {place} --config {path}\n"
        tree["model"]["path"] = str(place)
    head += "".join(f"# ignored: {line}\n" for line in translation.ignored_lines())
    return head + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True), translation.ignored_lines()
