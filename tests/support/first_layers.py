"""Bases of fewer layers: each layer of a model takes its time to compile, once in every graph."""

import json
import re
import shutil
from pathlib import Path

from model_zoo.checkpoint.reading import read_config
from model_zoo.checkpoint.safetensors_io import read_file, write_file
from pet.meta_model import MetaModel

NAMES = ("num_hidden_layers", "num_layers", "n_layer")


def config_of(source: Path, layers: int | None) -> dict:
    """A base's configuration with so many layers; None leaves them."""
    values = read_config(source)
    if layers and "layer_types" in values:
        values["layer_types"] = values["layer_types"][:layers]
    return values | {name: layers for name in NAMES if layers and name in values}


def first_layers(source: Path, directory: Path, layers: int) -> Path:
    """Writes a base and its tokenizer, without the layers behind the first ones, and returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.is_file() and file.suffix != ".safetensors":
            shutil.copyfile(file, directory / file.name)
    config = config_of(source, layers)
    (directory / "config.json").write_text(json.dumps(config))
    layer = re.compile(rf"{re.escape(MetaModel(config).family.layers)}\.(\d+)\.")
    tensors = read_file(source / "model.safetensors")
    kept = [name for name in tensors if not (found := layer.match(name)) or int(found[1]) < layers]
    write_file(directory / "model.safetensors", {name: tensors[name] for name in kept})
    return directory
