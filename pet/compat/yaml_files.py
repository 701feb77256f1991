"""Job files of other systems: told apart by their keys, translated to a recipe, or read as one."""

from __future__ import annotations

import copy
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from model_zoo.errors import InputError
from pet.compat.mindformers.script_config import MindFormerConfig, read_keys
from pet.compat.results import base_of, bring_checkpoint, find_weights
from pet.compat.translation import path_in
from pet.names import find_recipe, preset_names
from pet.recipe.overrides import apart, put
from pet.recipe.schema import Recipe
from pet.recipe.source import old_scalar, read
from pet.recipe.translation import Translation

JobFile = str | os.PathLike | MindFormerConfig


def kind_of(values: Any) -> str:
    """``mindformers``, ``llama_factory``, ``axolotl`` or ``recipe``, by a file's top-level keys."""
    if not isinstance(values, Mapping):
        return "recipe"
    model = values.get("model")
    if "runner_config" in values or "trainer" in values or (isinstance(model, Mapping) and "model_config" in model):
        return "mindformers"
    return next((kind for kind, name in BASES.items() if name in values), "recipe")


BASES = {"llama_factory": "model_name_or_path", "axolotl": "base_model"}
"""What the systems' files call their base, by which they are told."""


def _translate(kind: str, values: dict[str, Any], file: Path, changes: Collection[str] = ()) -> Translation:
    if kind == "mindformers":
        from pet.compat.mindformers.yaml_file import translate

        return translate(values, file, changes)
    from pet.compat import axolotl, llama_factory

    return {"axolotl": axolotl, "llama_factory": llama_factory}[kind].translate(values, file)


def values_of(path: JobFile, changes: Mapping[str, Any] | None = None) -> tuple[str, Path, Any]:
    """What a file is, where it is, and what stands in it.

    Args:
        path: the file; or one of MindFormers' that a script has read and perhaps changed.
        changes: what the command says instead of a MindFormers file, by its dotted keys; for other files of no meaning.

    Raises:
        InputError: no such file; or no YAML, where it is no recipe: a recipe's own loading says more of those.
    """
    if isinstance(path, MindFormerConfig):
        return "mindformers", path._file, _changed(path.to_dict(), changes or {})
    file = find_recipe(path)
    source = read(file, str(path))
    if isinstance(source.value, Mapping) and source.value.get("base_config"):
        return "mindformers", file, _changed(read_keys(file), changes or {})
    kind = kind_of(source.value)
    if kind != "recipe":
        source = read(file, str(path), old_scalar)
    if kind != "recipe" and source.problems:
        raise InputError.collect(source.problems)
    return kind, file, _changed(source.value, changes or {}) if kind == "mindformers" else source.value


def _changed(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The values with others at dotted keys."""
    tree = copy.deepcopy(dict(values))
    for key, value in changes.items():
        if blocked := put(tree, tuple(key.split(".")), value):
            raise InputError(f"{key}: {'.'.join(blocked)} is no section, it holds a value")
    return tree


def load_any(
    path: JobFile,
    overrides: Iterable[str] | Mapping[str, Any] | None = None,
    *,
    check_files: bool = True,
    needs: Iterable[str] = (),
    changes: Mapping[str, Any] | None = None,
    bring: bool = True,
    unused: Collection[str] = (),
):
    """A recipe from a recipe file or from another system's.

    Args:
        path: see `values_of`.
        overrides: ``["key.sub=value"]``, or a mapping; they take the place of the file's settings. Those for a file of
            LLaMA-Factory's or axolotl's may have its own names.
        check_files: also report models and data that are not there.
        needs: keys that this use cannot do without.
        changes: see `values_of`.
        bring: convert a ``.ckpt`` file that it names. False only looks; files are then not looked for.
        unused: ``data.train``, ``data.eval``, ``adapter.load``: what another system's file names for these need not be
            here.

    Raises:
        InputError: everything that is wrong with it.
    """
    from pet.recipe.loading import from_dict, load

    given = _given(overrides)
    changes = {**(changes or {}), **({"load_checkpoint": given["model.path"]} if "model.path" in given else {})}
    if isinstance(path, MindFormerConfig):
        changes = {**path.changes(), **changes}
    kind, file, values = values_of(path, changes)
    if kind == "recipe":
        return load(path, overrides, check_files=check_files, needs=needs)
    if kind != "mindformers":
        own, overrides = apart(overrides, Recipe.model_fields, ["adapter"] if kind == "axolotl" else [])
        values = {**values, **own}
        if "model.path" in given:  # in each place where the file names its own base
            base = values[BASES[kind]]
            same = [name for name in ("tokenizer_config", "ref_model") if base and values.get(name) == base]
            values |= dict.fromkeys([BASES[kind], *same], str(given["model.path"]))
        if kind == "axolotl" and "model.tokenizer" in given:
            values["tokenizer_config"] = given["model.tokenizer"]
    translation = _translate(kind, values, file, changes)
    check_files = check_files and (bring or not str(translation.get("model.path")).endswith(".ckpt"))
    named = path_in(values.get("resume_from_checkpoint")) if bring and kind != "mindformers" else None
    bring = bring and check_files and "model.path" not in given
    resumed = (bring_model(translation, kind, values, file) if bring else None) or named
    if kind != "mindformers":
        _fit(translation)
    if "train.warmup" in given:  # which need not be a share
        translation.drop("train.warmup_most")
    if kind == "llama_factory" and "data.train" in needs:
        from pet.compat.llama_factory import check_trained

        check_trained(translation)
    translation.finish([*given, *unused])
    if "adapter.load" in unused:
        translation.drop("adapter.load")
    told, said = _changed({}, translation.settings), translation.settings.said
    recipe = from_dict(told, overrides, name=file.stem, check_files=check_files, needs=needs, said=said)
    if resumed is not None and recipe.train.resume:
        bring_checkpoint(resumed, recipe.output.dir)
    return recipe


def _fit(translation: Translation) -> None:
    """What a job file of LLaMA-Factory's or axolotl's says by its base."""
    from pet.compat.frozen import fit_frozen
    from pet.compat.job_files import fit_length, fit_targets

    for fit in (fit_targets, fit_length, fit_frozen):
        fit(translation, translation.get("model.path"))


def run_mode_of(path: str | os.PathLike) -> str | None:
    """What a MindFormers file is for: train, finetune, eval, predict; None where it does not say, and for others."""
    kind, _, values = values_of(path)
    return values.get("run_mode") if kind == "mindformers" else None


def _given(overrides: Iterable[str] | Mapping[str, Any] | None) -> dict[str, Any]:
    """What the command line has values for."""
    if isinstance(overrides, Mapping):
        return dict(overrides)
    return {key: value for key, _, value in (str(one).partition("=") for one in overrides or ())}


def bring_model(translation: Translation, kind: str, values: Mapping[str, Any], path: Path) -> Path | None:
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
    if not isinstance(given, str):  # another kind of value is refused as the recipe's
        return None
    if kind != "mindformers":
        if is_ckpt(given):
            raise InputError(f"{path}: {given} is a .ckpt file; convert it by pet convert {given} --output DIR")
        return None
    from pet.compat.mindformers.sizes import facts_of, name_of

    step = path_in(values.get("resume_training"))  # the name of a checkpoint
    if is_ckpt(given):
        if translation.get("train.resume") and given == values.get("load_checkpoint"):
            raise InputError(
                f"{path}: resume_training: {given} is taken as weights; a run goes on from checkpoints of this library"
            )
        model, adapter = bring(given, path, **facts_of(values))
    elif (Path(given) / "config.json").is_file() or not Path(given).is_dir():
        return Path(translation.get("output.dir", "output")) / "checkpoints" / step if step else None
    elif translation.get("train.resume"):
        model, adapter, resumed = None, None, Path(given) / "checkpoints" / step if step else Path(given)
    else:
        model, adapter = find_weights(given)
    named = name_of(values)  # perhaps a size alone, which the adapter's own base has, too
    base = model or (base_of(given) if named in preset_names() else None) or named or base_of(given)
    if base is None:
        raise InputError(f"{path}: {given} has no weights of a base; name that by checkpoint_name_or_path")
    translation.put("model.path", base)
    if adapter is not None:
        translation.put("adapter.load", str(adapter))
    return resumed


def convert(path: str | os.PathLike) -> tuple[str, list[str]]:
    """The equivalent recipe of another system's job file, as YAML text; and what was ignored, with the reason.

    Raises:
        InputError: the file is a recipe already, or asks for something unsupported.
    """
    kind, file, values = values_of(path)
    if kind == "recipe":
        raise InputError(f"{path}: is a recipe already")
    translation = _translate(kind, values, file)
    if kind != "mindformers":
        _fit(translation)
    InputError.raise_any(translation.problems)
    translation.fall_back()
    from pet.recipe.loading import from_dict

    tree = _changed({}, translation.settings)
    from_dict(tree, name=Path(path).stem, check_files=False)  # it must be a recipe
    head = f"# from {Path(path).name} ({kind})\n"
    model = Path(str(translation.get("model.path")))
    if model.suffix == ".ckpt":
        place = model.with_suffix(".hf")
        head += f"# first: pet convert {model} --output {place} --config {path}\n"
        tree["model"]["path"] = str(place)
    if kind != "mindformers" and (resumed := path_in(values.get("resume_from_checkpoint"))):
        head += f"# first: copy the run's checkpoint, {resumed}, to checkpoints/ of the output directory\n"
    head += "".join(f"# ignored: {line}\n" for line in translation.ignored_lines())
    return head + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True), translation.ignored_lines()
