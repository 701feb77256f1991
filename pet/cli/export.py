"""``pet export``: the result of a run, one of its checkpoints, or any adapter or model, for sharing and serving."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_zoo.atomic import no_directory, read_json, staged
from model_zoo.checkpoint.digests import check_beside
from model_zoo.checkpoint.safetensors_io import SafetensorsFile
from model_zoo.errors import InputError, nearest
from model_zoo.unwritable import explained
from pet.cli.chat_session import base_of
from pet.cli.output import sole_writer, uploading
from pet.cli.parser import Parser
from pet.files import UNFINISHED
from pet.names import find_model
from pet.serving import ENGINES, check_served, fill
from pet.train.checkpoint import checkpoints, path_of

if TYPE_CHECKING:
    from pet.model_card import Source

EXAMPLES = [
    ("pet export output/glm_lora --output my_adapter", "the adapter at the end, as PEFT opens it"),
    ("pet export output/glm_lora --output best_adapter --best", "the adapter of the best evaluation"),
    ("pet export output/glm_lora --output my_model --merged --dtype bfloat16", "a plain checkpoint with it merged in"),
    ("pet export llama_tiny --format gguf --dtype q8_0 --output base.gguf", "a base for it, in 8 bits"),
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
    adapter = result.name == "adapter" or (result / "adapter_config.json").is_file()
    needed = ("adapter_config.json", "adapter_model.safetensors") if adapter else ("config.json",)
    for name in needed:
        if not (result / name).is_file():
            raise InputError(f"{result}: holds no {name}")
    read_json(result / needed[0])
    for path in sorted(result.glob("*.safetensors")):
        with SafetensorsFile(path):  # its header agrees with its size
            pass


def find_source(options: argparse.Namespace) -> Source:
    """The source that a command line names. Raises InputError: nothing that can be exported lies there."""
    from pet.model_card import Source

    given = Path(options.source)
    if (given / "recipe.yaml").is_file():
        from pet.recipe.loading import load

        recipe = load(given / "recipe.yaml", check_files=False)
        result = find_result(given, options.best, options.step)
        return Source(result, options.base or recipe.model.path, recipe.name, given, recipe)
    if options.best or options.step is not None:
        raise InputError(f"{given}: holds no recipe.yaml, so it is no run directory, and has no steps to choose from")
    if (given / "adapter_config.json").is_file():
        return Source(given, options.base or base_of(given, "--base"), given.resolve().name)
    if options.format in PLAIN:
        what = "holds neither recipe.yaml nor adapter_config.json" if given.is_dir() else no_directory(given)
        raise InputError(f"{given}: {what}; a run or adapter directory was expected")
    return Source(find_model(options.source), None, given.name)


def export_adapter(source: Source, options: argparse.Namespace, output: Path) -> str:
    """The directory as it is, with the base's name in it, and what goes with it."""
    if engine := ENGINES.get(options.format):
        source.needs_adapter(f"serve by {engine.name}; leave out --format")
    from pet.model_card import share

    check_whole(source.result)
    filled = ""
    if engine:
        check_served(source.result, find_model(source.base), engine)
    with staged(output) as stage:
        share(stage, source)
        if engine and engine.everywhere and (count := fill(source.result, find_model(source.base), stage)):
            filled = f"; {count} projections without LoRA have one of zeros, which {engine.name} needs"
    return f"{output}: {source.result.name} of {source.name}, from {source.result}{filled}"


def export_merged(source: Source, options: argparse.Namespace, output: Path) -> str:
    """The base with the adapter merged in, as a checkpoint."""
    from pet.export import merge_checkpoint

    source.needs_adapter("merge; leave out --merged")
    with staged(output) as stage:
        report = merge_checkpoint(
            find_model(source.base), source.result, stage, dtype=options.dtype, dequantize=options.dequantize
        )
        source.accompany(stage)
    report.directory = output
    return str(report)


def export_gguf(source: Source, options: argparse.Namespace, output: Path) -> str:
    """One file for llama.cpp; an adapter is merged into it."""
    from pet.gguf.model import type_name, write_model

    dtype = type_name(options.dtype or "float16")
    if not source.adapter:
        return write_model(source.result, output, dtype, source.name)
    from pet.export import merge_checkpoint

    with explained(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        place = tempfile.TemporaryDirectory(prefix=f".{output.name}{UNFINISHED}", dir=output.parent)
    with place as merged:
        merge_checkpoint(find_model(source.base), source.result, merged, dequantize=options.dequantize)
        source.accompany(Path(merged))
        return write_model(merged, output, dtype, source.name)


def export_gguf_lora(source: Source, options: argparse.Namespace, output: Path) -> str:
    """The adapter as llama.cpp takes it."""
    from pet.gguf.adapter import write_adapter

    source.needs_adapter("write for llama.cpp; --format gguf writes the model")
    return write_adapter(source.result, find_model(source.base), output)


FORMATS: dict[str, Callable[[Source, argparse.Namespace, Path], Any]] = {
    "adapter": export_adapter,
    "merged": export_merged,
    **dict.fromkeys(ENGINES, export_adapter),
    "gguf": export_gguf,
    "gguf-lora": export_gguf_lora,
}
PLAIN = ("adapter", "merged", *ENGINES)
"""Formats that need a run or an adapter; the others take a model as well."""
MERGED = ("merged", "gguf")


def main(arguments: Sequence[str]) -> int:
    """Copy, merge or convert."""
    parser = Parser("pet export", "Export the result of a run for sharing or serving.", EXAMPLES)
    parser.add_argument(
        "source", metavar="RUN", help="a run directory; or an adapter's; or, for --format gguf, a checkpoint"
    )
    parser.add_argument("--output", metavar="PATH", help="output directory, or GGUF file; must be empty or absent")
    parser.add_argument(
        "--format",
        metavar="NAME",
        help="adapter (default): the result as it is; vllm, mindie: the same, if these can serve it; merged: the base "
        "with the adapter merged in; gguf: that as one file for llama.cpp; gguf-lora: the adapter for llama.cpp",
    )
    parser.add_argument("--best", action="store_true", help="export the best evaluation's step instead of the last")
    parser.add_argument("--step", type=int, metavar="N", help="export the checkpoint of this step")
    parser.add_argument("--merged", action="store_true", help="the same as --format merged")
    parser.add_argument("--base", help="the adapter's base, where the run or the adapter names another one")
    parser.add_argument(
        "--dtype",
        help="of a merged model: float32, float16 or bfloat16 (default: as stored); of a GGUF file also q8_0 (default: "
        "float16)",
    )
    parser.add_shared("--dequantize", "--hub", "--private")
    options = parser.read(arguments)
    if Path(options.source).suffix in (".yaml", ".yml") and Path(options.source).is_file():
        expected = "a run or adapter directory was expected; pet merge FILE does what a job file says"
        raise InputError(f"{options.source}: is a file; {expected}")
    if options.output is None:
        parser.error("give the output: --output PATH")
    if options.merged and options.format not in (None, "merged"):
        raise InputError(f"--merged and --format {options.format}: give one of them")
    options.format = options.format or ("merged" if options.merged else "adapter")
    if options.format not in FORMATS:
        raise InputError(f"--format {options.format!r} is not known{nearest(options.format, FORMATS)}")
    if options.best and options.step is not None:
        raise InputError("--best and --step: give one of them")
    if options.format not in MERGED:
        parser.idle(options, "without --merged or --format gguf", "dtype", "dequantize")
    with sole_writer(options.output):
        output = Path(options.output)
        if output.exists() and (not output.is_dir() or any(output.iterdir()) or options.format.startswith("gguf")):
            raise InputError(f"--output {output}: is there already; give another place")
        source = find_source(options)
        if source.base is None:
            parser.idle(options, "on a model: there is no adapter to merge", "base")
        if not source.adapter:
            parser.idle(options, "where every weight was trained, or on a model", "dequantize")
        check_beside(source.result)
        with uploading(parser, options):
            print(FORMATS[options.format](source, options, output))
    return 0
