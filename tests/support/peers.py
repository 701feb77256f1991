"""The libraries that tests compare with, and what is done to PEFT's models before."""

from __future__ import annotations

import sys

import pytest

LEAST = {"transformers": "5"}
"""Whose answers are compared: version 4 passes over the fixtures' rope_parameters, and has other windows and caches."""


def seed() -> None:
    """What torch draws in a test is the same whichever ran before, PEFT's first factors for one."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


def imported(module: dict, *names: str):
    """A fixture for a whole file, which imports these when its first test runs, or skips it where one is missing.

    Every process collects every file, and importing the peers there took longer than all else.
    """

    @pytest.fixture(scope="module", autouse=True)
    def peers():
        for name in names:
            module[name] = pytest.importorskip(
                name, LEAST.get(name), f"{name} is not installed: nothing to compare with"
            )
        seed()

    return peers


def random_second_factors(model, scale: float) -> None:
    """Gives LoRA's second factors, which start at 0, random values, so that the adapter does something."""
    import torch

    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
