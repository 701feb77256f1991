"""What Gemma 2 and 3 have in common: LLaMA's projections between norms of 1 + w, embeddings × √hidden, GELU by tanh,
and windows in most layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from model_zoo.configs import CellSpec
from model_zoo.families.rotary import RotaryConfig, published
from model_zoo.rope_config import rope_settings


@dataclasses.dataclass
class GemmaConfig(RotaryConfig):
    """The fields of config.json that Gemma 2 and 3 share, with the values that transformers assumes."""

    block = "gemma"
    acts = ("gelu_pytorch_tanh",)
    norm_offset = 1.0
    assumed_padding = 0

    hidden_size: int = 2304
    intermediate_size: int = 9216
    num_hidden_layers: int = 26
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 256
    hidden_act: str = "gelu_pytorch_tanh"
    hidden_activation: str = "gelu_pytorch_tanh"
    query_pre_attn_scalar: float = 256
    tie_word_embeddings: bool = True

    @property
    def embedding_scale(self) -> float:
        return self.hidden_size**0.5

    @property
    def score_scale(self) -> float:
        return self.query_pre_attn_scalar**-0.5

    @property
    def logit_cap(self) -> float:
        return self.extra.get("final_logit_softcapping") or 0.0

    def layer(self) -> dict[str, CellSpec]:
        norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        return {
            **{f"{name}_layernorm": self.norm() for name in norms},
            **self.attention(self.attention_bias, self.attention_bias),
            **self.feed_forward(),
        }

    def check(self) -> None:
        super().check()
        rope_settings(self, local=True)
        self.require("hidden_activation", *self.acts)
        self.require("use_bidirectional_attention", False)


def published_gemma(config: type[GemmaConfig], dims: Sequence[int], **other: Any) -> dict[str, Any]:
    """As `published`, with what all published ones have in common."""
    common = {"tie_word_embeddings": True, "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
    return published(config, dims, **common, **other)
