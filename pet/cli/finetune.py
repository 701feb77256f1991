"""``pet finetune`` and ``pet train``: run a recipe."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from model_zoo.errors import InputError
from pet.cli.parser import Parser, add_recipe
from pet.interrupts import SIGNALS
from pet.launching.environment import read_job

EXAMPLES = [
    ("pet finetune glm_lora", "fine-tune the bundled tiny GLM; results in output/glm_lora"),
    ("pet finetune glm_lora train.learning_rate=5e-3 adapter.rank=16 output.dir=output/other", "with settings changed"),
    ("pet finetune glm_lora --resume", "resume from the last complete checkpoint, bit for bit"),
    (
        "pet finetune glm_lora parallel.data=2 output.dir=output/two --profile",
        "the same batches on two processes, with a communication report",
    ),
    (
        "pet finetune glm_lora parallel.tensor=2 output.only_save_strategy=true output.dir=output/sharded",
        "only write the layout's strategy files, for pet transform",
    ),
]
DESCRIPTION = (
    "Fine-tune a model with a recipe: evaluate it, train its adapter, evaluate it again.\n"
    "The run directory gets the adapter, checkpoints, metrics and a summary."
)


def run_recipe(command: str, parser: Parser, arguments: Sequence[str]) -> int:
    """Read the recipe, start processes where its layout has several, and run it."""
    add_recipe(parser)
    parser.add_argument("--resume", action="store_true", help="resume the run in output.dir")
    parser.add_argument("--profile", action="store_true", help="report communication per step and save profiler traces")
    parser.add_argument("--force", action="store_true", help="overwrite an existing run in output.dir")
    options = parser.read(arguments)
    from pet.parallel.together import shared_errors

    with shared_errors():
        recipe = read_recipe(command, options)
    if recipe.output.only_save_strategy:
        from pet.train.run import save_strategies

        save_strategies(recipe)
        return 0
    if recipe.parallel.processes > 1:
        from pet.launching.relaunch import relaunch

        code = relaunch(recipe.parallel.processes, [command, *arguments], Path(recipe.output.dir) / "log")
        if code is not None:
            say_what_is_left(command, code, Path(recipe.output.dir))
            return code
    os.environ.setdefault("GLOG_v", "3")  # MindSpore's C++ side: errors only
    from pet.train import run

    (run.finetune if command == "finetune" else run.train)(recipe)
    return 0


def say_what_is_left(command: str, code: int, directory: Path) -> None:
    """Says from where a job can go on of which no worker could: it was killed, hung, or waited for one that did. What a
    signal to all ends, and a run that cannot begin, says it itself."""
    if code in (0, 2, *(128 + number for number in SIGNALS)):
        return
    from pet.train.checkpoint import checkpoints
    from pet.train.stop import NO_CHECKPOINT

    found = checkpoints(directory / "checkpoints")
    then = f"the last checkpoint is {found[-1]}; go on with --resume" if found else NO_CHECKPOINT
    with contextlib.suppress(OSError):  # a closed terminal
        print(f"pet {command}: {then}", file=sys.stderr, flush=True)


def read_recipe(command: str, options: argparse.Namespace):
    """The recipe that a command line asks for, checked as far as is possible without MindSpore."""
    from pet.compat.yaml_files import load_any, run_mode_of
    from pet.parallel.fits import check_fits
    from pet.run_directory import check

    mode = run_mode_of(options.recipe)
    if mode in ("eval", "predict"):
        other = {"eval": f"pet evaluate {options.recipe} --base", "predict": "pet predict"}[mode]
        raise InputError(f"{options.recipe}: run_mode is {mode}, which is no training; see {other}")
    overrides = [*options.overrides]
    overrides += ["train.resume=true"] if options.resume else []
    overrides += ["train.profile=true"] if options.profile else []
    overrides += ["output.force=true"] if options.force else []
    recipe = load_any(options.recipe, overrides, needs=["data.train"], changes={"run_mode": command})
    if read_job().rank == 0:
        check(recipe)
        check_fits(recipe)
    return recipe


def main(arguments: Sequence[str]) -> int:
    """Tune."""
    return run_recipe("finetune", Parser("pet finetune", DESCRIPTION, EXAMPLES), arguments)
