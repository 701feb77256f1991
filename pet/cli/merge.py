"""``pet merge``: adapters into a plain checkpoint, from disk to disk."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from model_zoo.errors import InputError
from pet.cli.chat_session import base_of
from pet.cli.output import free_output, uploading
from pet.cli.parser import Parser
from pet.names import find_model

EXAMPLES = [
    ("pet merge output/glm_lora/adapter --output plain", "onto the base that the adapter names"),
    ("pet merge output/glm_lora/adapter --base glm_tiny --output merged", "the tuned model as a checkpoint of its own"),
    ("pet merge output/glm_lora/adapter --base glm_tiny --output safe --safe", "nothing, if a weight would become NaN"),
    (
        "pet merge output/glm_lora/adapter --base glm_tiny --output half --dtype bfloat16",
        "in another type, rounded once",
    ),
    ("pet merge lora_export.yaml", "as a job file of LLaMA-Factory's or axolotl's says, or with other places"),
    (
        "pet merge output/glm_lora/adapter output/two/adapter --weights 0.7,0.3 --base glm_tiny --output both",
        "several adapters, each with a weight",
    ),
]


def _factors(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--weights {text!r}: expected numbers with commas between them, such as 0.7,0.3") from None


def _read_file(options: argparse.Namespace) -> None:
    """Takes what the command line does not say from the job file in front of the adapters."""
    from pet.compat.merging import of_file

    for name, value in of_file(options.adapters.pop(0)).items():
        setattr(options, name, getattr(options, name) or value)


def main(arguments: Sequence[str]) -> int:
    """Merge, and say what was done."""
    parser = Parser(
        "pet merge",
        "Write a plain checkpoint with adapters merged into the weights. One tensor is in memory at a time.",
        EXAMPLES,
    )
    parser.add_argument(
        "adapters", metavar="ADAPTER", nargs="+", help="adapter directories in PEFT's format, or a job file"
    )
    parser.add_argument("--base", help="checkpoint directory or bundled tiny base; default: the one the adapter names")
    parser.add_argument("--output", metavar="DIR", help="output directory; default: the one that a job file names")
    parser.add_argument("--safe", action="store_true", help="refuse a result that holds NaN or Inf")
    parser.add_argument("--dtype", help="float32, float16 or bfloat16; default: as each tensor is stored")
    parser.add_argument("--weights", metavar="W,W", help="a weight for each adapter; default: 1")
    parser.add_shared("--no-strict", "--dequantize", "--max-shard-size", "--hub", "--private")
    parser.set_defaults(max_shard_size=None, template=None)  # which a job file may say
    parser.add_shared("--force")
    options = parser.read(arguments)
    if Path(options.adapters[0]).suffix in (".yaml", ".yml"):
        _read_file(options)
    if not options.output:
        raise InputError("give the output directory: --output DIR")
    with free_output(options) as output:
        factors = _factors(options.weights)
        base = find_model(options.base or base_of(Path(options.adapters[0]), "--base"))
        from pet.export import MAX_SHARD_SIZE, merge_checkpoint

        with uploading(parser, options):
            report = merge_checkpoint(
                base,
                options.adapters,
                output,
                dtype=options.dtype,
                safe=options.safe,
                weights=factors,
                strict=not options.no_strict,
                max_shard_size=options.max_shard_size or MAX_SHARD_SIZE,
                dequantize=options.dequantize,
                template=options.template,
            )
            print(report)
    return 0
