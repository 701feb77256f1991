"""Adapters for merging on disk, and what is said of those that cannot be."""

from __future__ import annotations

import json

import numpy as np
import pytest

from model_zoo.checkpoint.reading import Checkpoint
from model_zoo.checkpoint.safetensors_io import write_file
from model_zoo.errors import InputError
from pet.export import merge_checkpoint


def tensors(directory):
    with Checkpoint(directory) as checkpoint:
        return {name: checkpoint.read(name) for name in checkpoint}


def raw(directory):
    with Checkpoint(directory) as checkpoint:
        return {name: (checkpoint.dtype(name), checkpoint.raw(name).tobytes()) for name in checkpoint}


def lora_directory(path, entries, tensors, **config):
    """An adapter directory with the given arrays under PEFT's prefix."""
    path.mkdir()
    values = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": entries, **config}
    (path / "adapter_config.json").write_text(json.dumps(values))
    write_file(path / "adapter_model.safetensors", {f"base_model.model.{key}": value for key, value in tensors.items()})
    return path


def random_lora(module, out, into, rank=2, seed=0):
    generator = np.random.default_rng(seed)
    return {
        f"{module}.lora_A.weight": generator.standard_normal((rank, into)).astype(np.float32),
        f"{module}.lora_B.weight": generator.standard_normal((out, rank)).astype(np.float32),
    }


LAYER = "model.layers.1.self_attn.q_proj"


def refused(base, adapter, output, *parts, **options):
    with pytest.raises(InputError) as caught:
        merge_checkpoint(base, adapter, output, **options)
    for part in parts:
        assert part in str(caught.value), str(caught.value)
    assert not output.exists()
    assert not [path for path in output.parent.iterdir() if "unfinished" in path.name]
    return str(caught.value)
