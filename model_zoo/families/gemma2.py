"""Gemma 2 (Gemma team 2024): every other layer has a window, and scores and logits are capped."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from model_zoo.families.gemma import GemmaConfig, published_gemma
from model_zoo.families.rotary import rotary_family


@dataclasses.dataclass
class Gemma2Config(GemmaConfig):
    """config.json of Gemma 2; what it leaves out has the values that transformers assumes."""

    family = rotary_family("gemma2")
    architectures: ClassVar[dict[str, str]] = {"gemma2": "Gemma2ForCausalLM"}

    vocab_size: int = 256000
    max_position_embeddings: int = 8192
    model_type: str = "gemma2"

    @property
    def score_cap(self) -> float:
        return self.extra.get("attn_logit_softcapping", 50.0) or 0.0

    @property
    def logit_cap(self) -> float:
        return self.extra.get("final_logit_softcapping", 30.0) or 0.0

    def slides(self, layer: int) -> bool:
        return self.slides_as_listed(layer, layer % 2 == 0)


CONFIG = Gemma2Config


def _gemma2(*dims: int, scalar: int = 256) -> dict:
    return published_gemma(
        Gemma2Config,
        dims,
        query_pre_attn_scalar=scalar,
        sliding_window=4096,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
    )


PRESETS = {
    "gemma2_2b": _gemma2(26, 2304, 8, 4, 9216, 256),
    "gemma2_9b": _gemma2(42, 3584, 16, 8, 14336, 256),
    "gemma2_27b": _gemma2(46, 4608, 32, 16, 36864, 128, scalar=144),
}
