"""Adapters' files, as PEFT wrote them and changed."""

from __future__ import annotations

import json
import tracemalloc

import adapter_states
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import pet

IDS = np.random.default_rng(0).integers(3, 120, (2, 6))
NAMES = ("adapter_config.json", "adapter_model.safetensors")
SETS = ("target_modules", "modules_to_save", "exclude_modules")


def as_values(path):
    values = json.loads(path.read_text())
    return {key: sorted(value) if key in SETS and isinstance(value, list) else value for key, value in values.items()}


def randomise(model, name="default"):
    adapter_states.randomise(model, name, seed=3, scale=0.05)


def edit(directory, **changes):
    path = directory / NAMES[0]
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def refuse(model, directory, message, **settings):
    """Loading is one InputError, allocates next to nothing, and leaves the model alone."""
    before = [(p.name, id(p)) for p in model.get_parameters()]
    tracemalloc.start()
    with pytest.raises(pet.InputError, match=message) as error:
        pet.load_adapter(model, directory, **settings)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 2**20
    assert [(p.name, id(p)) for p in model.get_parameters()] == before and pet.list_adapters(model) == []
    return str(error.value)


def change_tensors(directory, change):
    tensors = load_file(directory / NAMES[1])
    change(tensors)
    save_file(tensors, directory / NAMES[1], {"format": "pt"})


PART = "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"
