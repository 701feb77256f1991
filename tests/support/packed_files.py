"""Packed checkpoints with a change."""

from __future__ import annotations

import json
import shutil

from model_zoo.checkpoint.safetensors_io import read_file, write_file

KINDS = {"nf4": ("nf4", False), "nf4_double": ("nf4", True), "fp4": ("fp4", False), "int8": ("int8", False)}


def changed(fixtures, tmp_path, name="nf4", config=None, **tensors):
    """A copy of a fixture with other tensors; None takes one away, a function changes it."""
    target = tmp_path / "changed"
    shutil.copytree(fixtures / "bitsandbytes" / name, target)
    arrays = read_file(target / "model.safetensors")
    for key, value in tensors.items():
        value = value(arrays[key]) if callable(value) else value
        arrays.pop(key, None)
        if value is not None:
            arrays[key] = value
    (target / "model.safetensors").unlink()
    write_file(target / "model.safetensors", arrays)
    if config is not None:
        values = json.loads((target / "config.json").read_text())
        values["quantization_config"] = config
        (target / "config.json").write_text(json.dumps(values))
    return target
