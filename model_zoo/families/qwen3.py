"""Qwen3 (Qwen team 2025), dense: LLaMA's layout with a norm of each head's query and key before the rotation."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from model_zoo.families.rotary import RotaryConfig, published, rotary_family


@dataclasses.dataclass
class Qwen3Config(RotaryConfig):
    """config.json of a dense Qwen3; what it leaves out has the values that transformers assumes."""

    family = rotary_family("qwen3")
    architectures: ClassVar[dict[str, str]] = {"qwen3": "Qwen3ForCausalLM"}
    head_norms = True

    vocab_size: int = 151936
    intermediate_size: int = 22016
    num_key_value_heads: int = 32
    head_dim: int = 128
    max_position_embeddings: int = 32768
    model_type: str = "qwen3"

    def slides(self, layer: int) -> bool:
        return self.slides_as_qwen(layer)


CONFIG = Qwen3Config


PUBLISHED = {"max_position_embeddings": 40960, "rope_theta": 1000000.0, "bos_token_id": 151643, "eos_token_id": 151645}
"""What all published models of these generations have in common."""


def _qwen3(layers: int, hidden: int, heads: int, ffn: int, tied: bool = False) -> dict:
    return published(Qwen3Config, (layers, hidden, heads, 8, ffn, 128), tie_word_embeddings=tied, **PUBLISHED)


PRESETS = {
    "qwen3_0_6b": _qwen3(28, 1024, 16, 3072, tied=True),
    "qwen3_1_7b": _qwen3(28, 2048, 16, 6144, tied=True),
    "qwen3_4b": _qwen3(36, 2560, 32, 9728, tied=True),
    "qwen3_8b": _qwen3(36, 4096, 32, 12288),
    "qwen3_14b": _qwen3(40, 5120, 40, 17408),
    "qwen3_32b": _qwen3(64, 5120, 64, 25600),
}
