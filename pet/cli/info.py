"""``pet info``: what a model, an adapter or a run directory holds, read without loading it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

from model_zoo.errors import InputError
from model_zoo.files import read_json
from pet import names
from pet.cli.parser import Parser

EXAMPLES = [
    ("pet info glm_tiny", "a bundled tiny base; a checkpoint directory works alike"),
    ("pet info llama2_70b", "a published size, without its weights"),
    ("pet info output/glm_lora/adapter", "an adapter: its method, where it sits, how large it is"),
    ("pet info output/glm_lora", "a run: what it came to"),
    ("pet info glm_tiny --json", "the same for a program to read"),
]
Facts = dict[str, Any]


def model_facts(config: dict[str, Any], directory: Path | None) -> Facts:
    """Architecture and size of a model, from its config.json and the headers of its weight files."""
    from model_zoo.counting import count_parameters, layout_of, sizes

    size, count = sizes(config), count_parameters(config)
    facts: Facts = {
        "kind": "model",
        "model_type": config.get("model_type"),
        "layout": layout_of(config),
        "parameters": count,
        "layers": size.layers,
        "hidden": size.hidden,
        "heads": size.heads,
        "kv_heads": size.kv_heads,
        "head_dim": size.head_dim,
        "ffn": size.ffn,
        "vocabulary": size.vocab,
        "context": size.context,
        "memory_mb": {"float32": count * 4 / 1e6, "16 bit": count * 2 / 1e6},
    }
    if directory is not None and (any(directory.glob("*.safetensors")) or any(directory.glob("*.index.json"))):
        from model_zoo.checkpoint import open_checkpoint

        with open_checkpoint(directory) as checkpoint:
            infos = [checkpoint.info(name) for name in checkpoint.names]
            facts["tensors"] = len(infos)
            facts["stored_mb"] = sum(info.end - info.start for info in infos) / 1e6
            facts["stored_types"] = dict(Counter(info.dtype for info in infos))
    elif directory is not None:
        facts["weights"] = "none in this directory"
    return facts


def adapter_facts(directory: Path) -> Facts:
    """Method, targets and size of an adapter directory."""
    config = read_json(directory / "adapter_config.json", "an adapter's configuration")
    facts: Facts = {"kind": "adapter", "method": config.get("peft_type"), "base": config.get("base_model_name_or_path")}
    for key in ("r", "lora_alpha", "use_dora", "use_rslora", "bias", "num_virtual_tokens", "target_modules"):
        if config.get(key) not in (None, False, "none"):
            facts[key] = config[key]
    weights = directory / "adapter_model.safetensors"
    if weights.is_file():
        from model_zoo.safetensors_io import SafetensorsFile

        file = SafetensorsFile(weights)
        try:
            infos = [file.info(name) for name in file.tensors]
            facts["tensors"] = len(infos)
            facts["parameters"] = sum(prod(info.shape) for info in infos)
            facts["stored_mb"] = sum(info.end - info.start for info in infos) / 1e6
            facts["base_fingerprint"] = file.metadata.get("base_fingerprint", "not recorded")
        finally:
            file.close()
    else:
        facts["weights"] = "adapter_model.safetensors is missing"
    return facts


def run_facts(directory: Path) -> Facts:
    """The summary of a run directory."""
    return {"kind": "run", **read_json(directory / "summary.json", "the summary of a run")}


def facts_of(name: str) -> Facts:
    """What ``name`` is: a run, an adapter, a model, or a preset."""
    path = Path(name).expanduser()
    if (path / "adapter_config.json").is_file():
        return adapter_facts(path)
    if (path / "summary.json").is_file():
        return run_facts(path)
    if not path.is_dir() and name in names.preset_names():
        from model_zoo.presets import PRESETS

        return model_facts(PRESETS[name], None)
    try:
        directory = names.find_model(name)
    except InputError as error:
        if path.is_dir():
            raise InputError(
                f"{name}: is no model (config.json), adapter (adapter_config.json) or finished run (summary.json)"
            ) from None
        raise error
    return model_facts(read_json(directory / "config.json", "a model's configuration"), directory)


def _lines(facts: Facts, indent: int = 0) -> Iterator[str]:
    pad = "  " * indent
    for key, value in facts.items():
        if isinstance(value, dict) and value:
            yield f"{pad}{key}:"
            yield from _lines(value, indent + 1)
        else:
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            else:
                text = f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"
            yield f"{pad}{key + ':':<{26 - len(pad)}}{text}"


def main(arguments: Sequence[str]) -> int:
    """Print what is known."""
    parser = Parser("pet info", "What a model, adapter or run directory holds, without loading it.", EXAMPLES)
    parser.add_argument("name", metavar="MODEL", help="a directory, a bundled tiny base, or a published size's name")
    parser.add_argument("--json", action="store_true", help="as JSON")
    options = parser.read(arguments)
    facts = facts_of(options.name)
    print(json.dumps(facts, indent=2, ensure_ascii=False) if options.json else "\n".join(_lines(facts)))
    return 0
