"""``pet validate``: check recipes without running them. MindSpore is imported only for one that divides its model."""

from __future__ import annotations

import os
from collections.abc import Sequence

from model_zoo.atomic import files_below
from model_zoo.errors import InputError
from pet.cli.parser import Parser, add_recipe

EXAMPLES = [
    ("pet validate glm_lora", "check a bundled recipe"),
    ("pet validate glm_lora train.learning_rate=1e-3", "with a setting changed, as finetune would see it"),
    ("pet validate . --no-files", "every recipe in this directory and below; its models and data need not be there"),
]


def _recipes(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Files (directories opened up) and overrides among the words."""
    files, overrides = [], []
    for word in words:
        if "=" in word and not os.path.exists(word):
            overrides.append(word)
        elif os.path.isdir(word):
            inside = [str(path) for path in files_below(word) if path.match("*.y*ml")]
            if not inside:
                raise InputError(f"{word}: the directory holds no recipes (*.yaml)")
            files.extend(inside)
        else:
            files.append(word)
    if not files:
        raise InputError("no recipe given; expected pet validate RECIPE ... [key.sub=value ...]")
    return files, overrides


def main(arguments: Sequence[str]) -> int:
    """Report every problem of every recipe."""
    parser = Parser("pet validate", "Check recipes: every problem, with file, line and what was expected.", EXAMPLES)
    add_recipe(parser, several=True)
    parser.add_argument("--no-files", action="store_true", help="do not check that models and data exist")
    options = parser.read(arguments)
    files, overrides = _recipes(options.words)
    from pet.compat.yaml_files import load_any
    from pet.parallel.fits import check_fits

    problems: list[str] = []
    for file in files:
        try:
            recipe = load_any(file, overrides, check_files=not options.no_files, bring=False)
            if not options.no_files and not str(recipe.model.path).endswith(".ckpt"):
                check_fits(recipe)
        except InputError as error:
            problems.append(error.whole or str(error))
        else:
            print(f"{file}: ok")
    if problems:
        raise InputError("\n".join(problems))
    return 0
