"""``pet train``: run a recipe that trains every weight, from random ones where it says so."""

from __future__ import annotations

from collections.abc import Sequence

from pet.cli.finetune import run_recipe
from pet.cli.parser import Parser

EXAMPLES = [
    ("pet train pretrain/gpt_tiny", "rebuild a bundled tiny base from random weights and its corpus"),
    ("pet train pretrain/gpt_tiny train.steps=20 output.dir=output/short", "the first steps of it"),
    ("pet train pretrain/gpt_tiny --resume", "resume from the last complete checkpoint, bit for bit"),
]
DESCRIPTION = (
    "Train every weight of a model by a recipe (adapter.method: none).\n"
    "With model.from_scratch: true it starts from random weights."
)


def main(arguments: Sequence[str]) -> int:
    """Train."""
    return run_recipe("train", Parser("pet train", DESCRIPTION, EXAMPLES), arguments)
