"""Gemma 3's text models (Gemma team 2025): norms of each head's query and key, five layers with a window to one
without, and rotations of a base for each kind."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from model_zoo.families.gemma import GemmaConfig, published_gemma
from model_zoo.families.rotary import rotary_family, said_once
from model_zoo.rope_config import LAYER_TYPES


@dataclasses.dataclass
class Gemma3Config(GemmaConfig):
    """config.json of a Gemma 3 for text; what it leaves out has the values that transformers assumes."""

    family = rotary_family("gemma3")
    architectures: ClassVar[dict[str, str]] = {"gemma3_text": "Gemma3ForCausalLM"}
    head_norms = True

    vocab_size: int = 262208
    max_position_embeddings: int = 131072
    rope_theta: float = 1000000.0
    rope_local_base_freq: float = 10000.0
    model_type: str = "gemma3_text"

    def slides(self, layer: int) -> bool:
        pattern = self.extra.get("sliding_window_pattern") or 6
        return self.slides_as_listed(layer, (layer + 1) % pattern > 0)

    def to_dict(self) -> dict:
        values = super().to_dict()
        for key, kind in zip(("rope_theta", "rope_local_base_freq"), LAYER_TYPES, strict=True):
            said_once(values, key, (self.rope_parameters or {}).get(kind))
        return values

    def check(self) -> None:
        super().check()
        self.require("attn_logit_softcapping", None)


CONFIG = Gemma3Config


def _gemma3(*dims: int, context: int = 131072, window: int = 1024, **other) -> dict:
    return published_gemma(
        Gemma3Config,
        dims,
        max_position_embeddings=context,
        sliding_window=window,
        sliding_window_pattern=6,
        **other,
    )


_SLOWED = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}

PRESETS = {
    "gemma3_270m": _gemma3(18, 640, 4, 1, 2048, 256, context=32768, window=512, vocab_size=262144),
    "gemma3_1b": _gemma3(26, 1152, 4, 1, 6912, 256, context=32768, window=512, vocab_size=262144),
    "gemma3_4b": _gemma3(34, 2560, 8, 4, 10240, 256, **_SLOWED),
    "gemma3_12b": _gemma3(48, 3840, 16, 8, 15360, 256, **_SLOWED),
    "gemma3_27b": _gemma3(62, 5376, 32, 16, 21504, 128, query_pre_attn_scalar=168, **_SLOWED),
}
