"""``pet launch``: start a command in several processes."""

from __future__ import annotations

from collections.abc import Sequence

from pet.cli.parser import Parser
from pet.launching.launcher import add_arguments, run

EXAMPLES = [
    ("pet launch -n 2 -- pet finetune glm_lora parallel.data=2", "two processes here, each with half of every batch"),
    ("pet launch -n 4 --devices 0,1,2,3 -- python train.py", "a script of your own on four devices"),
    (
        "pet launch -n 8 --nnodes 2 --node-rank 0 --master 10.0.0.1:8118 -- pet finetune job.yaml",
        "the first of two machines; run it on the other with --node-rank 1, and PET_LAUNCH_SECRET set on both",
    ),
]


def main(arguments: Sequence[str]) -> int:
    """Start the workers and wait for them."""
    parser = Parser(
        "pet launch",
        "Start a command in several processes. When one fails or hangs, all are ended and its code is returned.\n"
        "pet finetune starts its own processes on one machine; this is for scripts, and for several machines.",
        EXAMPLES,
    )
    add_arguments(parser)
    parser.answer_shell()
    return run(parser.parse_args(list(arguments)))
