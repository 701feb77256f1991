"""P-Tuning v2 (Liu et al. 2021) as ChatGLM-6B and ChatGLM2-6B ship it: a prefix that moves no positions.

It differs from `adapters.prefix` in two ways: real tokens keep the positions 0, 1, 2 …, and the file holds the
network itself, under the names of ChatGLM's own code::

    transformer.prefix_encoder.embedding.weight     (T, 2·L·kv_dim), or E (T, width) with a projection
    transformer.prefix_encoder.trans.0.weight/bias  W₁ (hidden, width)
    transformer.prefix_encoder.trans.2.weight/bias  W₂ (2·L·kv_dim, hidden)

The key of layer i lies at 2i, its value at 2i + 1, as in PEFT's prefix tuning. `save_ptuning` writes such a file alone,
to be loaded by ChatGLM's code; `adapters.saving` writes the same tensors into an adapter directory, whose JSON carries
ChatGLM's ``pre_seq_len`` and ``prefix_projection``.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from adapters.method import COMMON_KEYS
from adapters.prefix import PEFT_NAME, TRUNK_KEYS, PrefixConfig, check_only, gathered, model_dims
from model_zoo.errors import InputError

NATIVE = "transformer.prefix_encoder."
PLAIN = (NATIVE + "embedding.weight",)
PROJECTED = (
    *PLAIN,
    NATIVE + "trans.0.weight",
    NATIVE + "trans.0.bias",
    NATIVE + "trans.2.weight",
    NATIVE + "trans.2.bias",
)


@dataclasses.dataclass(kw_only=True)
class PTuningV2Config(PrefixConfig):
    """P-Tuning v2: `PrefixConfig` with ChatGLM's positions and file.

    Args:
        length: T (``pre_seq_len``); 128 is what ChatGLM's own script uses.
        embedding_size: width of E with a projection. None for ChatGLM's: the hidden size where every head has keys of
            its own (ChatGLM-6B), all layers' keys and values together where they are shared (ChatGLM2-6B).
    """

    length: int = 128
    embedding_size: int | None = None

    method: ClassVar[str] = "ptuning2"
    peft_type: ClassVar[str] = "PTUNING_V2"
    peft_keys: ClassVar[tuple[str, ...]] = (
        *COMMON_KEYS,
        "embedding_size",
        "encoder_hidden_size",
        "pre_seq_len",
        "prefix_projection",
    )

    @property
    def position_offset(self) -> int:
        """Real tokens keep their positions."""
        return 0

    def resolved(self, model) -> PTuningV2Config:
        config = super().resolved(model)
        if not self.projection or self.embedding_size is not None:
            return config
        return dataclasses.replace(config, embedding_size=config.embedding_width(model, model.config.dims.layers))

    def embedding_width(self, model, layers: int) -> int:
        dims = model.config.dims
        if self.embedding_size is not None:
            return self.embedding_size
        return dims.hidden if dims.heads == dims.kv_heads else 2 * layers * dims.kv_heads * dims.head_dim

    def check_tensors(self, model, tensors, where) -> None:
        dims = model_dims(model, self.method)
        whole = 2 * dims.layers * dims.kv_heads * dims.head_dim
        if not self.projection:
            return check_only(tensors, {PLAIN[0]: (self.length, whole)}, where)
        width, hidden = self.embedding_width(model, dims.layers), self.projection_hidden or dims.hidden
        shapes = ((self.length, width), (hidden, width), (hidden,), (whole, hidden), (whole,))
        return check_only(tensors, dict(zip(PROJECTED, shapes, strict=True)), where)

    def pack(self, arrays: dict[str, np.ndarray], adapter) -> dict[str, np.ndarray]:
        if not self.projection:
            return {PLAIN[0]: super().pack(arrays, adapter)[PEFT_NAME]}
        return dict(zip(PROJECTED, gathered(arrays), strict=True))

    def unpack(self, arrays: dict[str, np.ndarray], model) -> dict[str, np.ndarray]:
        if not self.projection:
            return super().unpack({PEFT_NAME: arrays[PLAIN[0]]}, model)
        paths = [site.path for site in self.fixed_sites(model)]
        found = {f"{paths[0]}.{key}": arrays[name] for key, name in zip(TRUNK_KEYS, PROJECTED[:3], strict=True)}
        for name, key in ((PROJECTED[3], "weight"), (PROJECTED[4], "bias")):
            for path, part in zip(paths, np.split(arrays[name], len(paths)), strict=True):
                found[f"{path}.prefix_output.{key}"] = part
        return found

    def to_peft(self, model, adapter) -> dict[str, Any]:
        return {
            "pre_seq_len": self.length,
            "prefix_projection": self.projection,
            "encoder_hidden_size": self.projection_hidden,
            "embedding_size": self.embedding_size,
        }

    @classmethod
    def from_peft(cls, values: dict[str, Any]):
        return cls(
            length=values.get("pre_seq_len"),
            projection=bool(values.get("prefix_projection", False)),
            projection_hidden=values.get("encoder_hidden_size"),
            embedding_size=values.get("embedding_size"),
        )


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
        found = sorted(path.glob("*.safetensors"))
        if len(found) != 1:
            pickled = "; *.bin is pickled and not opened: save it as safetensors" if any(path.glob("*.bin")) else ""
            raise InputError(f"{path}: one *.safetensors file expected, there are {len(found)}{pickled}")
        return found[0]
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    return path


def load_ptuning(model, path: str | Path, name: str = "default") -> None:
    """Adds the prefix in a file of ChatGLM's own P-Tuning v2 to a model, and makes it the active adapter.

    Args:
        model: its base, without a prefix; other families work where the shapes fit.
        path: a safetensors file with ``transformer.prefix_encoder.*``, or a directory that holds one. Other tensors in
            it (ChatGLM's script saves only these) are an error.
        name: of the adapter.

    Raises:
        InputError: no such file, or tensors that do not fit the model.
    """
    from adapters.registry import registry
    from adapters.saving import fill
    from model_zoo.checkpoint.safetensors_io import SafetensorsFile

    path, state = native_file(path), registry(model)
    with SafetensorsFile(path) as file:
        config = native_config(file.tensors, path)
        config.validate()
        config.check_tensors(model, file.tensors, path)
        arrays = config.unpack({key: file.read(key, dtype="float32") for key in file.tensors}, model)
    fill(state.add(config, name), arrays)
    state.set(name)


def save_ptuning(model, path: str | Path, name: str = "default") -> None:
    """Writes a P-Tuning v2 adapter as the safetensors file that ChatGLM's own code reads.

    The base's config.json then needs ``pre_seq_len`` and ``prefix_projection``, which ChatGLM's code takes from there.

    Raises:
        InputError: an unknown name, or an adapter of another method.
    """
    from adapters.registry import registry
    from adapters.saving import saved_arrays
    from model_zoo.checkpoint.safetensors_io import write_file

    adapter = registry(model).get(name)
    if not isinstance(adapter.config, PTuningV2Config):
        raise InputError(f"adapter {name!r} is of method {adapter.config.method}; only ptuning2 has ChatGLM's form")
    write_file(Path(path), saved_arrays(adapter), {"format": "pt"})
