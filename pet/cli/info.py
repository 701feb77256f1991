"""``pet info``: what a model, an adapter or a run directory holds, read without loading it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

from adapters.peft_config import WEIGHTS, weights_file
from model_zoo.atomic import json_value, read_json
from model_zoo.checkpoint.directory import foreign, holds_weights
from model_zoo.checkpoint.safetensors_io import SafetensorsFile
from model_zoo.errors import InputError, located
from model_zoo.quantization import Quantization
from pet import names
from pet.cli.parser import Parser
from pet.files import json_text

EXAMPLES = [
    ("pet info glm_tiny", "a bundled tiny base, and what LoRA on it would take; a checkpoint directory works alike"),
    ("pet info llama_7b --adapter lora --rank 8", "the parameters that LoRA trains, and the memory of a step"),
    ("pet info llama2_70b rank=16 targets=all-linear --batch 4 --length 2048", "a published size, without its weights"),
    ("pet info glm_6b --method none --dtype float16 --recompute", "tuning every weight"),
    ("pet info output/glm_lora/adapter", "an adapter: its method, where it sits, how large it is"),
    ("pet info output/glm_lora --json", "a run: its results, for a program to read"),
]
Facts = dict[str, Any]


def stored_facts(directory: Path) -> Facts:
    """Size and types of the weight files of a checkpoint, from their headers."""
    if not holds_weights(directory):
        return {"stored": "no weights in this directory"}
    from model_zoo.checkpoint.reading import Checkpoint

    with Checkpoint(directory) as checkpoint:
        files = checkpoint.files.values()
        infos = [file.info(name) for file in files for name in file.tensors]
        forms = dict(Counter(str(one.storage) for one in checkpoint.packed.values()))
        return {
            "tensors": len(infos),
            "stored_mb": sum(info.nbytes for info in infos) / 1e6,
            "stored_types": dict(Counter(info.dtype for info in infos)),
            **({"packed": forms} if forms else {}),
        }


def describe_model(name: str, options: Any) -> tuple[Facts, str]:
    """(facts, text) of a model and of what tuning it would take."""
    from pet.info import describe

    adapter = {"method": options.method, **settings_of(options)}
    description = describe(
        name,
        adapter,
        options.batch,
        options.length,
        options.dtype,
        options.optimizer,
        options.recompute,
        quantization_of(options),
    )
    facts, text = {"kind": "model", **description.to_dict()}, str(description)
    if name not in names.preset_names() or Path(name).is_dir():
        stored = stored_facts(names.find_model(name))
        facts.update(stored)
        text += "\n\n" + "\n".join(_lines(stored))
    return facts, text


def work_options(parser: Parser) -> None:
    """The options that say how a model would be tuned."""
    parser.add_argument("settings", metavar="KEY=VALUE", nargs="*", help="settings of the method, such as rank=16")
    parser.add_argument(
        "--method", "--adapter", default="lora", dest="method", help="of tuning (default lora); none: every weight"
    )
    parser.add_argument("--rank", type=int, metavar="N", help="short for the setting rank=N")
    parser.add_argument("--targets", metavar="NAME,NAME", help="short for the setting targets")
    parser.add_argument("--length", type=int, metavar="N", help="tokens in a row (default 512)")
    parser.add_argument("--quantization", metavar="TYPE", help="of the base's projections: int8, nf4, fp4 or int4")
    parser.add_argument("--double", action="store_true", help="with --quantization: scales in 8 bits too")
    parser.add_argument("--optimizer", default="adamw", help="default adamw")
    parser.add_argument("--recompute", action="store_true", help="activation checkpointing: less memory, more time")
    parser.add_argument("--json", action="store_true", help="as JSON")


def quantization_of(options: Any):
    """The `Quantization` of these options; None for none."""
    if options.quantization is None:
        if options.double:
            raise InputError("--double has no effect without --quantization")
        return None
    return Quantization(options.quantization, double=options.double)


def settings_of(options: Any) -> Facts:
    """The method's settings of `work_options`: ``rank=16`` and the like, with YAML values."""
    from pet.recipe.overrides import parse_override

    values: Facts = {}
    for word in options.settings:
        path, value, problems = parse_override(word)
        if problems or len(path) != 1:
            raise InputError(
                problems[0] if problems else f"{word!r}: expected a setting of the method, such as rank=16"
            )
        values[path[0]] = value
    for name, value in (("rank", options.rank), ("targets", options.targets)):
        if value is not None:
            values[name] = value.split(",") if name == "targets" and "," in value else value
    return values


def adapter_facts(directory: Path) -> Facts:
    """Method, targets and size of an adapter directory."""
    config = read_json(directory / "adapter_config.json", "an adapter's configuration")
    facts: Facts = {"kind": "adapter", "method": config.get("peft_type"), "base": config.get("base_model_name_or_path")}
    for key in (
        "r",
        "lora_alpha",
        "use_dora",
        "use_rslora",
        "bias",
        "num_virtual_tokens",
        "target_modules",
        "target_parameters",
    ):
        if config.get(key) not in (None, False, "none"):
            facts[key] = config[key]
    weights = weights_file(directory)
    if weights is not None:
        with SafetensorsFile(weights) as file:
            infos = [file.info(name) for name in file.tensors]
            facts["tensors"] = len(infos)
            facts["parameters"] = sum(prod(info.shape) for info in infos)
            facts["stored_mb"] = sum(info.nbytes for info in infos) / 1e6
            facts["base_fingerprint"] = file.metadata.get("base_fingerprint", "not recorded")
            if "init" in file.metadata:
                facts["init"] = file.metadata["init"]
            if "base_quantization" in file.metadata:
                with located(weights):
                    Quantization.read(file.metadata["base_quantization"])
                facts["base_quantization"] = json_value(file.metadata["base_quantization"])
    else:
        facts["weights"] = f"{WEIGHTS} is missing"
    return facts


def look_at(options: Any) -> tuple[Facts, str]:
    """(facts, text) of whatever the name is: a run, an adapter, a model or a preset."""
    path = Path(options.name).expanduser()
    is_adapter, summary = (path / "adapter_config.json").is_file(), path / "summary.json"
    if is_adapter or summary.is_file():
        facts = adapter_facts(path) if is_adapter else {"kind": "run", **read_json(summary, "the summary of a run")}
        return facts, "\n".join(_lines(facts))
    if path.is_dir() and not (path / "config.json").is_file():
        raise InputError(
            f"{options.name}: is no model (config.json), adapter (adapter_config.json) or finished run (summary.json)"
            + (f"; {why}" if (why := foreign(os.listdir(path))) else "")
        )
    return describe_model(options.name, options)


def _listed(values: list) -> str:
    """A list in words; of many paths their last parts, each once."""
    if len(values) > 8 and all("." in str(value) for value in values):
        return f"{', '.join(dict.fromkeys(str(value).rpartition('.')[2] for value in values))} ({len(values)} cells)"
    return ", ".join(map(str, values))


def _lines(facts: Facts, indent: int = 0) -> Iterator[str]:
    pad = "  " * indent
    for key, value in facts.items():
        if isinstance(value, dict) and value:
            yield f"{pad}{key}:"
            yield from _lines(value, indent + 1)
        else:
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                text = _listed(value) if isinstance(value, list) else str(value)
            else:
                text = f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"
            yield f"{pad}{key + ':':<{26 - len(pad)}}{text}"


def main(arguments: Sequence[str]) -> int:
    """Print what is known."""
    parser = Parser("pet info", "Show what a model, adapter or run directory holds, without loading it.", EXAMPLES)
    parser.add_argument("name", metavar="MODEL", help="a directory, a bundled tiny base, or a published size")
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="rows per step (default 1)")
    parser.add_argument("--dtype", help="of the base in memory; default: that of config.json")
    work_options(parser)
    options = parser.read(arguments)
    facts, text = look_at(options)
    if facts["kind"] != "model":
        work = {action.dest for action in parser._actions} - {"name", "json", "debug", "help"}
        parser.idle(options, "on a run or an adapter, which is as it was trained", *work)
    print(json_text(facts, indent=2) if options.json else text)
    return 0
