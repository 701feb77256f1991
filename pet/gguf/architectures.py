"""What llama.cpp calls the families, and how its tensors differ from the published ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from model_zoo.configs import Config
from model_zoo.errors import InputError
from model_zoo.rope_config import rope_settings


def _chatglm_rope(config) -> dict:
    return {"rope_type": "default", "rope_theta": 10000.0 * config.rope_ratio, "partial_rotary_factor": 0.5}


class Architecture(NamedTuple):
    """One of llama.cpp's architectures.

    Attributes:
        name: `general.architecture`.
        pairs: llama.cpp rotates neighbours (2i, 2i + 1) where the published weights rotate (i, i + d/2), so the rows of
            q and k are put in another order.
        rope: the rotary settings of a configuration, as in `model_zoo.rope_config.rope_settings`.
    """

    name: str
    pairs: bool = False
    rope: Callable[[Config], dict] = rope_settings

    def rows(self, name: str, values: np.ndarray, config: Config) -> np.ndarray:
        """A tensor `(out, …)` with its outputs in llama.cpp's order."""
        heads = {"q_proj": config.dims.heads, "k_proj": config.dims.kv_heads}.get(name.split(".")[-2])
        if not self.pairs or heads is None:
            return values
        return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


# {layout of the family: {model_type: architecture}}
ARCHITECTURES = {
    "llama": {
        "llama": Architecture("llama", pairs=True),
        "mistral": Architecture("llama", pairs=True),
        "ministral": Architecture("llama", pairs=True),
        "qwen2": Architecture("qwen2"),
    },
    "qwen3": {"qwen3": Architecture("qwen3")},
    "glm4": {"glm": Architecture("chatglm"), "glm4": Architecture("glm4")},
    "chatglm2": {"chatglm": Architecture("chatglm", rope=_chatglm_rope)},
}


def architecture_of(config: Config) -> Architecture:
    """llama.cpp's architecture for a configuration.

    Raises:
        InputError: llama.cpp has none, or does not load such a model, or this export does not know it.
    """
    found = ARCHITECTURES.get(config.family.layout, {}).get(config.model_type)
    if found is None:
        known = ", ".join(sorted({kind for kinds in ARCHITECTURES.values() for kind in kinds}))
        raise InputError(
            f"--format gguf: a model of type {config.model_type!r} ({config.family.layout} layout) cannot be written; "
            f"supported: {known}"
        )
    dims, wide = config.dims, found.name in ("qwen2", "chatglm")
    lacking = {
        "num_attention_heads × head_dim other than hidden_size": wide and dims.heads * dims.head_dim != dims.hidden,
        "rotary settings of rope_type 'llama3'": found.name != "llama" and found.rope(config)["rope_type"] == "llama3",
        "attention_bias": found.name == "qwen3" and config.attention_bias,
    }
    for what, lacks in lacking.items():
        if lacks:
            raise InputError(f"--format gguf: llama.cpp's {found.name} has no place for {what}")
    return found


class Names:
    """Tensor names, from the published ones to llama.cpp's."""

    def __init__(self, config: Config):
        import gguf

        wanted = architecture_of(config).name
        number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == wanted)
        self.table = gguf.get_tensor_name_map(number, config.dims.layers)

    def __call__(self, name: str) -> str:
        for one in (name, name.removeprefix("transformer.")):
            found = self.table.get_name(one, try_suffixes=(".weight", ".bias"))
            if found is not None:
                return found
        raise InputError(f"--format gguf: llama.cpp has no tensor for {name}")
