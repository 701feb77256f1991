"""``pet transform``: a sharded checkpoint in another layout, or whole, or a whole one sharded."""

from __future__ import annotations

from collections.abc import Sequence

from model_zoo.errors import InputError
from pet.cli.output import sole_writer
from pet.cli.parser import Parser

EXAMPLES = [
    (
        "pet transform --src_ckpt_dir glm_tiny --dst_ckpt_strategy output/sharded/strategy --dst_ckpt_dir sharded",
        "a whole checkpoint divided: sharded/rank_0/checkpoint_0.ckpt and so on",
    ),
    (
        "pet transform --src_ckpt_strategy output/sharded/strategy --src_ckpt_dir sharded --dst_ckpt_dir whole",
        "and put together again: whole/rank_0/checkpoint_0.ckpt",
    ),
]
DESCRIPTION = (
    "Write a checkpoint in another layout. A strategy is a file (all stages in one, or a single stage), a folder with "
    "the files of all ranks or stages, or left out: whole. MindSpore's own strategy files are read as well.\n"
    "pet finetune RECIPE output.only_save_strategy=true writes those of a layout. This library's own checkpoints "
    "need none of it: they are whole, and open on any layout."
)


def main(arguments: Sequence[str]) -> int:
    """Transform, and say what was done."""
    parser = Parser("pet transform", DESCRIPTION, EXAMPLES)
    for name, what in (("src", "of the checkpoint"), ("dst", "to write it in")):
        names = (f"--{name}_ckpt_strategy", f"--{name}-ckpt-strategy", f"--{name}_strategy")
        parser.add_argument(*names, metavar="PATH", help=f"layout {what}")
    parser.add_argument(
        *("--src_ckpt_dir", "--src-ckpt-dir", "--src_checkpoint"),
        required=True,
        metavar="DIR",
        help="rank_N/*.ckpt or MindSpore's *.safetensors, a whole checkpoint, or a bundled base",
    )
    parser.add_argument(
        *("--dst_ckpt_dir", "--dst-ckpt-dir", "--dst_checkpoint_dir"),
        required=True,
        metavar="DIR",
        help="output directory; must be empty or absent",
    )
    parser.add_argument("--prefix", default="checkpoint_", help="of the written files (default checkpoint_)")
    options = parser.read(arguments)
    if not options.prefix or "/" in options.prefix:
        raise InputError(f"--prefix {options.prefix!r}: the beginning of a file name was expected")
    from pet.names import bundled_models
    from pet.parallel.transform import transform

    source, output = (
        None if text in (None, "None", "") else text for text in (options.src_ckpt_strategy, options.dst_ckpt_strategy)
    )
    whole = bundled_models().get(options.src_ckpt_dir, options.src_ckpt_dir)
    with sole_writer(options.dst_ckpt_dir):
        print(transform(whole, options.dst_ckpt_dir, source, output, options.prefix))
    return 0
