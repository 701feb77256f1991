"""``pet evaluate``: evaluate a model on a recipe's held-out data, as the run itself does."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from model_zoo.errors import InputError
from pet.cli.output import check_output_file
from pet.cli.parser import Parser, add_recipe
from pet.files import write_json
from pet.launching.environment import read_job

EXAMPLES = [
    ("pet evaluate output/glm_lora", "a run again: the same data, settings and numbers"),
    ("pet evaluate glm_lora", "what its run has written"),
    ("pet evaluate glm_lora --adapter output/glm_lora/adapter", "an adapter by a recipe"),
    ("pet evaluate glm_lora --model merged", "a checkpoint by a recipe"),
    ("pet evaluate glm_lora --base", "the recipe's base, without any adapter"),
    ("pet evaluate output/glm_lora parallel.data=2", "the same numbers, each process on half of the rows"),
    ("pet evaluate output/glm_lora data.test=my_test.jsonl --output numbers.json", "on other data, as JSON"),
]


def read_recipe(options: argparse.Namespace):
    """The recipe, and the checkpoint and the adapter that a command line asks for; each of these None where there is
    none."""
    run, model, adapter = Path(options.recipe), options.model, options.adapter
    is_run = run.is_dir()
    if is_run and not (run / "recipe.yaml").is_file():
        raise InputError(f"{run}: holds no recipe.yaml, so it is no run directory")
    from pet.compat.yaml_files import load_any

    job = read_job()
    # a model is measured whole, however it was divided for training, unless this call says otherwise
    copies = 1 if any(word.startswith("parallel.") for word in options.overrides) else job.size
    layout = [f"parallel.data={copies}", "parallel.tensor=1", "parallel.pipeline=1", "parallel.micro_batches=1"]
    file, overrides = run / "recipe.yaml" if is_run else options.recipe, [*layout, *options.overrides]
    recipe = load_any(file, overrides, unused=["adapter.load"] if options.adapter else [])
    if recipe.parallel.pipeline > 1:
        raise InputError(
            f"{recipe.where('parallel.pipeline')}: pet evaluate has no pipeline; give parallel.data=N for speed, "
            "parallel.tensor=N where the model is too large for one process, or nothing"
        )
    if not options.base and model is None and adapter is None:
        from pet.compat.results import no_result, of_job, written

        adapter, model = written(run) if is_run else of_job(recipe)
        if adapter is None and model is None:
            asked = "what is to be measured? Give --adapter DIR, --model DIR or --base; or a run directory"
            raise no_result(run) if is_run else InputError(asked)
    if model is not None:
        from pet.names import find_model

        model = find_model(model)
    return recipe, model, adapter


def main(arguments: Sequence[str]) -> int:
    """Measure, and print the table."""
    parser = Parser(
        "pet evaluate",
        "Measure a model on a recipe's held-out data (data.test, else data.eval).\n"
        "One process measures it whole, however it was divided for training; parallel.data=N divides the rows, and "
        "parallel.tensor=N a model that is too large for one.",
        EXAMPLES,
    )
    add_recipe(parser)
    parser.add_argument(
        "--adapter", metavar="DIR", help="an adapter directory; default: the run's own, or that of the job file"
    )
    parser.add_argument(
        "--model", help="a checkpoint instead of the recipe's base; no adapter unless --adapter is given"
    )
    parser.add_argument("--base", action="store_true", help="evaluate the base without an adapter")
    parser.add_shared("--no-strict")
    parser.add_argument("--output", metavar="FILE", help="also write the metrics to this file, as JSON")
    options = parser.read(arguments)
    check_output_file(options.output)
    if options.base and (options.adapter or options.model):
        raise InputError(f"--base and --{'adapter' if options.adapter else 'model'}: give one of them")
    from pet.parallel.together import shared_errors

    with shared_errors():
        recipe, model, adapter = read_recipe(options)
    if adapter is None:
        parser.idle(options, "without an adapter", "no_strict")
    if recipe.parallel.processes > 1:
        from pet.launching.relaunch import relaunch

        logs = Path(recipe.output.dir) / "log" / "evaluate"
        code = relaunch(recipe.parallel.processes, ["evaluate", *arguments], logs)
        if code is not None:
            return code
    os.environ.setdefault("GLOG_v", "3")  # MindSpore's C++ side: errors only
    from pet.train.evaluate_run import evaluate

    numbers = evaluate(recipe, model=model, adapter=adapter, strict=not options.no_strict)
    if options.output and read_job().rank == 0:
        write_json(options.output, numbers)
    return 0
