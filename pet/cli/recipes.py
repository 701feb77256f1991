"""``pet recipes``: the bundled recipes, listed, shown in full, and copied to start from; and the JSON schema."""

from __future__ import annotations

import filecmp
import json
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from model_zoo.atomic import read_text
from model_zoo.errors import InputError, nearest
from pet import names
from pet.cli.parser import Parser
from pet.cli.wrapping import columns
from pet.files import copy, write_text
from pet.recipe.overrides import value_at
from pet.recipe.source import read

EXAMPLES = [
    ("pet recipes", "the bundled recipes, with what each is for"),
    ("pet recipes show glm_lora", "every setting with its default and meaning"),
    ("pet recipes show glm_lora train.steps=20 --plain", "with a setting changed, without the comments"),
    ("pet recipes copy glm_lora mine.yaml", "a copy to change, with the data it names beside it"),
    ("pet recipes schema > pet.schema.json", "for editors that complete and check YAML"),
]
ACTIONS = {
    "list": (0, 0, ""),
    "show": (1, 1000, " NAME [key.sub=value ...]"),
    "copy": (1, 2, " NAME [DEST]"),
    "schema": (0, 0, ""),
    "convert": (1, 1, " FILE"),
}
"""How many words each takes, at least and at most, and which."""
FLAGS = {"plain": "show", "force": "copy"}
"""The option of an action."""


def _summary(path: Path) -> tuple[str, str, str]:
    """Model, method and description of a recipe, without pydantic: the list must be quick."""
    value = read(path).value
    asked = {("model", "path"): "?", ("adapter", "method"): "lora", ("description",): ""}
    model, method, description = (str(value_at(value, key) or default) for key, default in asked.items())
    # a configuration is named by its directory
    return model.removesuffix("/config.json").rpartition("/")[2], method, description


def _list() -> None:
    found = names.bundled_recipes()
    width, room = max(map(len, found)), columns(elsewhere=100)
    for name, path in found.items():
        model, method, description = _summary(path)
        head = f"{name:<{width}} {model:<11} {method:<8} "
        print(head + textwrap.shorten(description, max(room - len(head), 2), placeholder=" …"))
    print("\npet recipes show NAME, pet recipes copy NAME [DEST], pet finetune NAME")


def _relative_paths(value: Any, section: str, keys: Sequence[str]) -> list[str]:
    """The relative paths that a section of the file has at some keys."""
    entries = [value_at(value, (section, key)) for key in keys]
    texts = [text for entry in entries for text in (entry if isinstance(entry, list) else [entry])]
    return [text for text in texts if isinstance(text, str) and not Path(text).is_absolute() and "$" not in text]


def _moved(source: Path, value: Any) -> tuple[dict[str, str], list[tuple[Path, Path]]]:
    """What the copied recipe must say instead of its relative paths, and the data that goes with it.

    Data below the recipe keeps its place; data beside it (``../data/x``) goes below the copy. A bundled base is named.
    """
    words: dict[str, str] = {}
    data: list[tuple[Path, Path]] = []
    for text in _relative_paths(value, "data", ("train", "eval", "test")):
        path = (source.parent / text).resolve()
        if path.exists():
            inside = Path(*[part for part in Path(text).parts if part not in ("..", ".")])
            words[text] = inside.as_posix()
            data.append((path, inside))
    homes = {str(home.resolve()): name for name, home in names.bundled_models().items()}
    for text in _relative_paths(value, "model", ("path", "tokenizer")):
        path = (source.parent / text).resolve()
        home = path.parent if path.name == "config.json" else path
        if text not in names.bundled_models() and path.exists():
            words[text] = homes.get(str(home), str(path))
    return words, data


def _same(source: Path, copy: Path) -> bool:
    """Whether a file, or all files of a directory, are there already with the same content."""
    files = [path.relative_to(source) for path in source.rglob("*") if path.is_file()] if source.is_dir() else [Path()]
    return all((copy / file).is_file() and filecmp.cmp(source / file, copy / file, shallow=False) for file in files)


def _copy(name: str, destination: str | None, force: bool) -> None:
    """Copy a recipe and the data it names, so that the copy runs where it lies."""
    source = names.find_recipe(name)
    target = Path(destination or source.name)
    if target.is_dir() or (destination or "").endswith("/"):
        target = target / source.name
    text = read_text(source, "a recipe file (.yaml)")
    words, data = _moved(source, read(source).value)
    pairs = [(path, target.parent / inside) for path, inside in data]
    pairs = [(path, to) for path, to in pairs if not _same(path, to)]  # another copied recipe's
    taken = [str(path) for path in (target, *(to for _, to in pairs)) if path.exists()]
    if taken and not force:
        raise InputError(f"{', '.join(taken)}: is there already; give another name, or --force to replace it")
    for old, new in words.items():
        text = re.sub(rf"(?<![\w./-]){re.escape(old)}(?![\w./-])", lambda _, new=new: new, text)
    for path, to in pairs:
        copy(path, to)
    write_text(target, text)
    for path in (target, *(to for _, to in pairs)):
        print(f"wrote {path}")


def main(arguments: Sequence[str]) -> int:
    """List, show, copy, or write the schema."""
    parser = Parser(
        "pet recipes", "List, show or copy the bundled recipes; write the JSON schema of the settings.", EXAMPLES
    )
    parser.add_argument("action", nargs="?", default="list", metavar="list | show | copy | schema | convert")
    parser.add_argument(
        "words",
        nargs="*",
        metavar="RECIPE",
        help="a bundled name or a file; then DEST, or overrides; for convert "
        "a job file of MindFormers, LLaMA-Factory or axolotl",
    )
    parser.add_argument("--plain", action="store_true", help="show: without descriptions")
    parser.add_argument("--force", action="store_true", help="copy: overwrite existing files")
    options = parser.read(arguments)
    if options.action not in ACTIONS:
        raise InputError(f"pet recipes has no action {options.action!r}{nearest(options.action, ACTIONS)}")
    least, most, words = ACTIONS[options.action]
    if not least <= len(options.words) <= most:
        raise InputError(f"expected pet recipes {options.action}{words}")
    parser.idle(options, f"on {options.action}", *(name for name in FLAGS if FLAGS[name] != options.action))
    if options.action == "list":
        _list()
    elif options.action == "copy":
        _copy(options.words[0], options.words[1] if len(options.words) > 1 else None, options.force)
    elif options.action == "convert":
        from pet.compat.yaml_files import convert

        print(convert(options.words[0])[0], end="")
    elif options.action == "schema":
        from pet.recipe.show import json_schema

        print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
    else:
        from pet.recipe.loading import load
        from pet.recipe.show import dump

        recipe = load(options.words[0], options.words[1:], check_files=False)
        print(dump(recipe, comments=not options.plain), end="")
    return 0
