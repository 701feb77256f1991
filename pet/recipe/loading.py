"""From a YAML file and overrides to a checked :class:`Recipe`, or to one report of everything that is wrong."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from model_zoo.atomic import files_below
from model_zoo.counting import config_of, unread_fields
from model_zoo.errors import InputError, nearest, similar
from model_zoo.rope_config import with_changes
from pet import names
from pet.files import absent, beside, matching
from pet.hub import fetch, hub_name
from pet.recipe import rules, variables
from pet.recipe.callback_names import into_recipe
from pet.recipe.classes import OBJECTIVES, find_callback, find_objective
from pet.recipe.data import DataPath
from pet.recipe.fields import REFERENCES, is_template_file, run_name
from pet.recipe.keys import groups, path_keys, text_keys
from pet.recipe.overrides import apply_overrides, plain, remove, value_at
from pet.recipe.problems import Report, translate
from pet.recipe.schema import Recipe
from pet.recipe.source import KeyPath, Source, read


def load(
    path: str | os.PathLike,
    overrides: Iterable[str] | Mapping[str, Any] | None = None,
    *,
    needs: Iterable[str] = (),
    check_files: bool = True,
) -> Recipe:
    """Read a recipe.

    Args:
        path: a YAML file, or the name of a bundled recipe.
        overrides: ``["train.steps=20", …]`` with YAML values, or ``{"train.steps": 20, …}``. They take the place of
            the file's values; paths among them are relative to the current directory.
        needs: keys that this use cannot do without, such as ``"data.train"``.
        check_files: also report models and data that are not there.

    Returns:
        The recipe, with absolute paths and every default filled in.

    Raises:
        InputError: one report with all problems, each with file and line, key, and what was expected.
    """
    file = names.find_recipe(path)
    source = read(file, _display(file))
    apply_overrides(source, overrides, text_keys())
    return check(source, file.resolve().parent, file.stem, needs=needs, check_files=check_files)


def from_dict(
    values: Mapping[str, Any],
    overrides: Iterable[str] | Mapping[str, Any] | None = None,
    *,
    name: str = "recipe",
    needs: Iterable[str] = (),
    check_files: bool = True,
    said: Mapping[str, str] | None = None,
) -> Recipe:
    """The same for a recipe that is a dict, as built by a program; its paths are relative to the current directory.
    ``said`` is what a user has set keys by, for error messages."""
    source = Source(name, value=plain(values))
    apply_overrides(source, overrides, text_keys())
    own = {tuple(key.split(".")): text for key, text in (said or {}).items()}
    source.overrides.update({path: text for path, text in own.items() if source.overriding(path) is None})
    return check(source, Path.cwd(), name, needs=needs, check_files=check_files)


def _display(path: Path) -> str:
    """The path as short as it can be said from here."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def check(
    source: Source,
    directory: Path,
    stem: str,
    *,
    needs: Iterable[str] = (),
    check_files: bool = True,
) -> Recipe:
    """Validate what was read; see :func:`load`. ``directory`` is what relative paths are relative to."""
    report = Report(source)
    if source.problems and not isinstance(source.value, dict):
        raise InputError.collect(report.lines())
    if source.value is None:
        raise InputError(f"{source.name}: is empty, expected a recipe (model: …)")
    if not isinstance(source.value, dict):
        raise InputError(f"{source.name}: expected sections (model:, adapter:, data:, train: …), found no mapping")
    tree = source.value
    for group in groups():  # with nothing in it, as where it is left out
        if value_at(tree, group) is None:
            remove(tree, group)
    if isinstance(tree.get("adapter"), dict):
        tree["adapter"].setdefault("method", "lora")  # as where the section is left out
    for problem in into_recipe(tree):  # callbacks by their names in MindFormers
        report.add(("callbacks",), problem)
    _expand_paths(tree, path_keys(), directory, report, check_files)
    recipe = _validate(tree, report)
    if recipe is not None:
        _cross_check(recipe, report, needs)
        if check_files:
            _check_files(recipe, report)
    InputError.raise_any(report.lines())
    _fill(recipe, stem)
    recipe._source = source
    return recipe


def _validate(tree: dict[str, Any], report: Report) -> Recipe | None:
    """The recipe; where keys are wrong, the recipe without them, so that the other checks can still be made."""
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        translate(error, tree, report)
    for path in sorted(report.bad, key=len, reverse=True):
        # of an entry of a list the whole list goes, so that the other entries keep their index
        remove(tree, tuple(itertools.takewhile(lambda part: isinstance(part, str), path)))
    try:
        return Recipe.model_validate(tree)
    except ValidationError:
        return None  # something required is missing; what depends on it cannot be checked


def _cross_check(recipe: Recipe, report: Report, needs: Iterable[str]) -> None:
    for name in needs:
        path = _key(name)
        if not attrgetter(name)(recipe) and not report.concerns([path]):
            report.add(path, "is missing, and this command needs it")
    _report(report, itertools.chain.from_iterable(rule(recipe) for rule in rules.RULES))


def _key(text: str) -> KeyPath:
    return tuple(int(part) if part.isdigit() else part for part in text.split("."))


def _report(report: Report, findings: Iterable[rules.Finding]) -> None:
    """Adds what rules find, but for what is about a key that was refused before: they would talk about its default."""
    new = [(at, why) for at, others, why in findings if not report.concerns(map(_key, [at, *others.split()]))]
    for at, why in new:
        report.add(_key(at), why)


def _expand_paths(
    tree: dict[str, Any], keys: Mapping[KeyPath, str], directory: Path, report: Report, check: bool, at: KeyPath = ()
) -> None:
    """Replace environment variables and make paths absolute, in place: in the recipe, or in an entry of a list, which
    stands ``at`` a key. ``check``: a variable must be set."""
    for path, kind in keys.items():
        value, where = value_at(tree, path), (*at, *path)
        if not value or (kind == "template" and not (isinstance(value, str) and is_template_file(value))):
            continue
        from_command_line = report.source.overriding(where) is not None
        base = Path.cwd() if kind == "here" or from_command_line else directory
        holder = value_at(tree, path[:-1])
        if isinstance(value, str):
            holder[path[-1]] = _expand(value, base, kind, where, report, check)
        elif isinstance(value, (list, dict)):
            holder[path[-1]] = entries = plain(value if isinstance(value, list) else [value])
            for index, entry in enumerate(entries):
                if isinstance(entry, str):
                    entries[index] = _expand(entry, base, kind, (*where, index), report, check)
                elif isinstance(entry, dict):
                    _expand_paths(entry, path_keys(DataPath), directory, report, check, (*where, index))


def _expand(text: str, base: Path, kind: str, path: KeyPath, report: Report, check: bool) -> str:
    def missing(name: str) -> None:
        if check:
            report.add(path, f"the environment variable {name!r} is not set{similar(name, os.environ)}")

    expanded = variables.expand(text, missing)
    known = {"model": lambda: {*names.bundled_models(), *names.preset_names()}, "reference": lambda: REFERENCES}
    whole = (kind in known and expanded in known[kind]()) or (kind == "model" and hub_name(expanded, base))
    found = expanded if whole else _absolute(expanded, base, path, report)
    if expanded != text:
        variables.note(found, text, expanded, base)
    return found


def _absolute(expanded: str, base: Path, path: KeyPath, report: Report) -> str:
    try:
        parts = os.fsencode(expanded).split(b"/")
    except UnicodeEncodeError:  # half of a surrogate pair; anything but English where names are ASCII
        parts = [b"\0"]
    if b"\0" in b"".join(parts) or len(expanded) > 4000 or max(map(len, parts)) > 255:
        lacks = sys.getfilesystemencoding().replace("ascii", "ascii (without PYTHONUTF8=1)")
        report.add(path, f"no file can have this name (too long, or with a NUL character or one that {lacks} lacks)")
        return "invalid"
    try:
        return os.path.normpath(base / Path(expanded).expanduser())
    except RuntimeError:  # ~name of a user who does not exist
        report.add(path, f"{expanded!r}: no such home directory")
        return expanded


def _check_files(recipe: Recipe, report: Report) -> None:
    if not report.concerns([("model", "path")]):
        _check_model(recipe, report)
    if recipe.model.tokenizer and not report.concerns([("model", "tokenizer")]):
        directory = Path(recipe.model.tokenizer)
        named = recipe.model.tokenizer in names.bundled_models() or hub_name(recipe.model.tokenizer)
        if not named and not directory.is_dir():
            report.add(("model", "tokenizer"), f"{directory}: no such directory{beside(directory)}")
    for name in ("train", "eval", "test"):
        for index, entry in enumerate(getattr(recipe.data, name) or []):
            at = ("data", name, index) if ("data", name, index) in report.source.lines else ("data", name)
            if not report.concerns([("data", name)]):
                _check_data(Path(entry), at, report)
                _check_template(getattr(entry, "template", None), at, report)
    _check_template(recipe.data.template, ("data",), report)
    _check_adapter(getattr(recipe.adapter, "load", None), ("adapter", "load"), report)
    if recipe.train.reference not in REFERENCES:
        _check_adapter(recipe.train.reference, ("train", "reference"), report, REFERENCES)
    for index, entry in enumerate(recipe.callbacks):
        try:
            find_callback(entry.name, entry.args)
        except InputError as error:
            report.add(("callbacks", index), str(error).removeprefix("callbacks: "))
    if recipe.train.objective not in OBJECTIVES:  # those are there, and looking at them would import MindSpore
        try:
            find_objective(recipe.train.objective)
        except InputError as error:
            report.add(("train", "objective"), str(error).removeprefix("train.objective: "))


def _check_model(recipe: Recipe, report: Report) -> None:
    at = ("model", "path")
    try:
        hub = hub_name(recipe.model.path)
        directory = None if recipe.model.from_scratch or hub else names.find_model(recipe.model.path)
        said = names.model_config(directory or recipe.model.path)
        base = config_of(with_changes(said, recipe.model.config))
        unread, known = unread_fields(said, recipe.model.config)
        for key in unread:
            report.add(("model", "config", key), f"no field of this model's config.json{nearest(key, known)}")
        if hub is not None:  # so that the run is of this revision, whatever the hub has later
            pinned = hub.pinned(fetch(hub, only_config=True)[1])
            if recipe.model.tokenizer == recipe.model.path:
                recipe.model.tokenizer = pinned
            recipe.model.path = pinned
    except InputError as error:
        report.add(at, str(error))
        return
    room = recipe.data._room = rules.room(recipe, base)
    if "max_length" not in recipe.data.model_fields_set and not recipe.data.buckets:
        recipe.data.max_length = max(2, min(room, recipe.data.max_length))
    _report(report, rules.context(recipe, base))
    _report(report, rules.cells(recipe, base))


def _check_adapter(text: str | None, at: KeyPath, report: Report, words: Iterable[str] = ()) -> None:
    """``words``: what the key may be beside an adapter's directory."""
    if not text or report.concerns([at]):
        return
    if not (directory := Path(text)).exists():
        report.add(at, f"{directory}: no such directory{similar(directory.name, words) or beside(directory)}")
        return
    from adapters.stored import check_loadable  # needs NumPy, which recipes without an adapter do without

    try:
        check_loadable(directory)
    except InputError as error:
        report.add(at, str(error))


def _check_data(path: Path, at: KeyPath, report: Report) -> None:
    if path.is_dir():
        if not files_below(path):
            report.add(at, f"{path}: the directory holds no files")
    elif not path.exists() and not matching(path):
        report.add(at, f"{path}: {absent(path)}")


def _check_template(template: str | None, at: KeyPath, report: Report) -> None:
    if is_template_file(template) and not (path := Path(template)).is_file():
        report.add((*at, "template"), f"{path}: no such file{beside(path)}")


def _fill(recipe: Recipe, stem: str) -> None:
    """Put a value where the schema says "Default: …" and the recipe itself holds the answer."""
    recipe.name = recipe.name or run_name(stem)
    recipe.output.dir = recipe.output.dir or str(Path.cwd() / "output" / recipe.name)
    if recipe.train.steps is None and recipe.train.epochs is None:
        recipe.train.epochs = 3.0
    if recipe.data.seed is None:
        recipe.data.seed = recipe.train.seed
    if recipe.generation.seed is None:
        recipe.generation.seed = recipe.train.seed
    if recipe.model.tokenizer is None and recipe.model.path not in names.preset_names():
        path = Path(recipe.model.path)
        recipe.model.tokenizer = str(path.parent) if path.name == "config.json" else recipe.model.path
    recipe.eval.batch_size = recipe.eval.batch_size or recipe.train.batch_size
    recipe.eval.best_mode = recipe.eval.direction()
    if recipe.eval.load_best_model_at_end is None:
        recipe.eval.load_best_model_at_end = recipe.eval.patience is not None
