"""P-Tuning v2 in the file that ChatGLM's own code writes and reads: the tensors of its prefix encoder alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adapters.ptuning import PLAIN, PROJECTED, PTuningV2Config
from adapters.registry import registry
from adapters.saving import fill, saved_arrays
from model_zoo.arguments import checked
from model_zoo.checkpoint.directory import PICKLED
from model_zoo.checkpoint.safetensors_io import SafetensorsFile, write_file
from model_zoo.errors import InputError


def native_config(tensors: dict[str, Any], where) -> PTuningV2Config:
    """The configuration that a ChatGLM prefix file's tensors (name → shape) describe.

    Raises:
        InputError: no such tensors.
    """
    if PLAIN[0] not in tensors or len(tensors[PLAIN[0]].shape) != 2:
        raise InputError(f"{where}: holds no {PLAIN[0]}; a P-Tuning v2 file of ChatGLM was expected")
    length, width = tensors[PLAIN[0]].shape
    if PROJECTED[1] not in tensors:
        return PTuningV2Config(length=length)
    hidden = tensors[PROJECTED[1]].shape[0]
    return PTuningV2Config(length=length, projection=True, projection_hidden=hidden, embedding_size=width)


def native_file(path: str | Path) -> Path:
    """The file in a ChatGLM P-Tuning v2 checkpoint directory, or the file itself."""
    path = Path(path)
    if path.is_dir():
        found = sorted(path.glob("*.safetensors")) or sorted(path.glob(PICKLED))
        if len(found) != 1:
            raise InputError(f"{path}: one *.safetensors file expected, or {PICKLED}; there are {len(found)}")
        return found[0]
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    return path


@checked
def load_ptuning(model, path: str | Path, name: str = "default") -> None:
    """Adds the prefix in a file of ChatGLM's own P-Tuning v2 to a model, and makes it the active adapter.

    Args:
        model: its base, without a prefix; other families work where the shapes fit.
        path: a safetensors file, or ``pytorch_model.bin``, with ``transformer.prefix_encoder.*``, or a directory that
            holds one. Other tensors in it (ChatGLM's script saves only these) are an error.
        name: of the adapter.

    Raises:
        InputError: no such file, or tensors that do not fit the model.
    """
    path, state = native_file(path), registry(model)
    with SafetensorsFile(path) as file:
        config = native_config(file.tensors, path)
        config.validate()
        config.check_tensors(model, file.tensors, path)
        arrays = config.unpack({key: file.read(key, dtype="float32") for key in file.tensors}, model)
    fill(state.add(config, name), arrays)
    state.set(name)


@checked
def save_ptuning(model, path: str | Path, name: str = "default") -> None:
    """Writes a P-Tuning v2 adapter as the safetensors file that ChatGLM's own code reads.

    The base's config.json then needs ``pre_seq_len`` and ``prefix_projection``, which ChatGLM's code takes from there.

    Raises:
        InputError: an unknown name, or an adapter of another method.
    """
    adapter = registry(model).get(name)
    if not isinstance(adapter.config, PTuningV2Config):
        raise InputError(f"adapter {name!r} is of method {adapter.config.method}; only ptuning2 has ChatGLM's form")
    write_file(Path(path), saved_arrays(adapter), {"format": "pt"})
