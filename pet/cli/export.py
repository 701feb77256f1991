"""``pet export``: the result of a run, or of one of its checkpoints, exported for sharing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from model_zoo.atomic import read_json
from model_zoo.checkpoint.safetensors_io import SafetensorsFile
from model_zoo.errors import InputError
from pet.cli.parser import Parser
from pet.train.checkpoint import checkpoints, path_of

EXAMPLES = [
    ("pet export output/glm_lora --output my_adapter", "the adapter at the end, as PEFT opens it"),
    ("pet export output/glm_lora --output best_adapter --best", "the adapter of the best evaluation"),
    ("pet export output/glm_lora --output my_model --merged --dtype bfloat16", "a plain checkpoint with it merged in"),
]


def find_result(run: Path, best: bool, step: int | None) -> Path:
    """The adapter or model directory of a run: at its end, at its best evaluation, or at a step."""
    if best:
        found = read_json(run / "summary.json", "the summary of a finished run").get("best") or {}
        step = found.get("step")
        if step is None:
            raise InputError(f"{run}: nothing was evaluated along the way, so there is no best step")
    holder = run if step is None else path_of(run / "checkpoints", step)
    for name in ("adapter", "model"):
        if (holder / name).is_dir():
            return holder / name
    if best and read_json(run / "summary.json").get("steps") == step:
        return find_result(run, False, None)  # the best is the last one
    there = sorted(path.name for path in checkpoints(run / "checkpoints"))
    raise InputError(f"{holder}: holds neither adapter/ nor model/ (checkpoints: {', '.join(there) or 'none'})")


def check_whole(result: Path) -> None:
    """Raises InputError where files of a result are missing or cut off: nobody should be given such."""
    needed = ("adapter_config.json", "adapter_model.safetensors") if result.name == "adapter" else ("config.json",)
    for name in needed:
        if not (result / name).is_file():
            raise InputError(f"{result}: holds no {name}")
    read_json(result / needed[0])
    for path in sorted(result.glob("*.safetensors")):
        with SafetensorsFile(path):  # its header agrees with its size
            pass


def main(arguments: Sequence[str]) -> int:
    """Copy or merge."""
    parser = Parser("pet export", "Export the result of a run for sharing.", EXAMPLES)
    parser.add_argument("run", metavar="RUN", help="a run directory")
    parser.add_argument("--output", required=True, metavar="DIR", help="output directory; must be empty or absent")
    parser.add_argument("--best", action="store_true", help="export the best evaluation's step instead of the last")
    parser.add_argument("--step", type=int, metavar="N", help="export the checkpoint of this step")
    parser.add_argument("--merged", action="store_true", help="export the base with the adapter merged in")
    parser.add_argument("--dtype", help="of a merged model: float32, float16 or bfloat16; default: as stored")
    options = parser.read(arguments)
    run, output = Path(options.run), Path(options.output)
    if options.best and options.step is not None:
        raise InputError("--best and --step: give one of them")
    if options.dtype and not options.merged:
        raise InputError("--dtype: has no effect without --merged")
    if not (run / "recipe.yaml").is_file():
        raise InputError(f"{run}: holds no recipe.yaml, so it is no run directory")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InputError(f"--output {output}: is there already; give another directory")
    from pet.recipe.loading import load

    recipe = load(run / "recipe.yaml", check_files=False)
    result = find_result(run, options.best, options.step)
    if options.merged:
        if result.name != "adapter":
            raise InputError(f"{run}: every weight was trained, so there is no adapter to merge; leave out --merged")
        from pet.export import merge_checkpoint
        from pet.names import find_model

        print(merge_checkpoint(find_model(recipe.model.path), result, output, dtype=options.dtype))
        return 0
    from pet.files import atomic_directory

    check_whole(result)
    with atomic_directory(output) as stage:
        shutil.copytree(result, stage, dirs_exist_ok=True)
        config = stage / "adapter_config.json"
        if config.is_file():
            values = read_json(config)
            # so that whoever gets the adapter knows what it belongs on
            values["base_model_name_or_path"] = values.get("base_model_name_or_path") or recipe.model.path
            config.write_text(json.dumps(values, indent=2))
    print(f"{output}: {result.name} of {recipe.name}, from {result}")
    return 0
