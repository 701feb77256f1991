"""``pet quantize``: a checkpoint in 8 or 4 bits, from disk to disk."""

from __future__ import annotations

from collections.abc import Sequence

from model_zoo.quantization import Quantization
from pet.cli.output import free_output
from pet.cli.parser import Parser
from pet.names import find_model

EXAMPLES = [
    ("pet quantize glm_tiny --type nf4 --double --output packed", "4 bits per weight, scales in 8 bits"),
    ("pet quantize glm_tiny --type int8 --output packed8", "8 bits per weight"),
]


def main(arguments: Sequence[str]) -> int:
    """Pack, and say what was done."""
    parser = Parser(
        "pet quantize",
        "Write a checkpoint with its linear layers in 8 or 4 bits, which transformers with bitsandbytes "
        "opens. One matrix is in memory at a time.",
        EXAMPLES,
    )
    parser.add_argument("base", metavar="MODEL", help="checkpoint directory, or the name of a bundled tiny base")
    parser.add_argument("--type", default="nf4", help="nf4, fp4 or int8 (default nf4)")
    parser.add_argument("--block", type=int, default=64, help="weights that share a scale (default 64; int8: a row)")
    parser.add_argument("--double", action="store_true", help="quantise the scales too (nf4, fp4)")
    parser.add_argument("--skip", metavar="NAME,NAME", help="layers that are not quantised; default: the head")
    parser.add_shared("--output", "--max-shard-size", "--force")
    options = parser.read(arguments)
    if options.type == "int8":
        parser.idle(options, "with int8, whose scales go by row", "block")
    with free_output(options) as output:
        skip = None if options.skip is None else tuple(filter(None, options.skip.split(",")))
        quantization = Quantization(options.type, options.block, options.double, skip)
        from pet.quantize import quantize_checkpoint

        print(quantize_checkpoint(find_model(options.base), output, quantization, options.max_shard_size))
    return 0
