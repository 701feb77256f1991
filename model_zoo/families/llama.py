"""LLaMA (Touvron et al. 2023; 1, 2, 3, 3.1, 3.2), and the checkpoints that are LLaMA with a flag: Qwen2 and Qwen2.5,
Mistral and Ministral, and DeepSeek-R1's distillations of Llama and Qwen2.5."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from model_zoo.configs import CellSpec
from model_zoo.families.rotary import RotaryConfig, published, rotary_family

_MISTRAL = {"intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072}
ASSUMED = {
    "qwen2": {
        "vocab_size": 151936,
        "intermediate_size": 22016,
        "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
    },
    "mistral": _MISTRAL,
    "ministral": _MISTRAL,
}
"""What transformers assumes for the siblings where it is not what it assumes for LLaMA."""


@dataclasses.dataclass
class LlamaConfig(RotaryConfig):
    """config.json of a LLaMA; what it leaves out has the values that Hugging Face transformers assumes."""

    family = rotary_family("llama")
    architectures: ClassVar[dict[str, str]] = {
        "llama": "LlamaForCausalLM",
        "qwen2": "Qwen2ForCausalLM",
        "mistral": "MistralForCausalLM",
        "ministral": "MinistralForCausalLM",
    }

    mlp_bias: bool = False
    model_type: str = "llama"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]):
        return super().from_dict({**ASSUMED.get(values.get("model_type"), {}), **values})

    @property
    def reads_window(self) -> bool:
        return self.model_type != "llama"

    def slides(self, layer: int) -> bool:
        # a `mistral` with `layer_types` is opened as a `ministral` by transformers
        listed = self.model_type in ("mistral", "ministral") and self.slides_as_listed(layer, True)
        return listed or (self.model_type == "qwen2" and self.slides_as_qwen(layer))

    def layer(self) -> dict[str, CellSpec]:
        # LLaMA alone heeds the settings; Qwen2's q, k and v always have a bias
        bias, mlp_bias = (self.model_type == "llama" and said for said in (self.attention_bias, self.mlp_bias))
        return {
            "input_layernorm": self.norm(),
            "post_attention_layernorm": self.norm(),
            **self.attention(bias or self.model_type == "qwen2", bias),
            **self.feed_forward(mlp_bias),
        }


CONFIG = LlamaConfig

LLAMA = {"bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float16"}
LLAMA2 = {**LLAMA, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5}
LLAMA3 = {
    **LLAMA,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "torch_dtype": "bfloat16",
}
# long contexts, by rotations that are slowed down
SLOWED = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SLOWED["original_max_position_embeddings"] = 8192
LLAMA3_1 = {**LLAMA3, "max_position_embeddings": 131072, "rope_scaling": SLOWED}
QWEN2 = {
    **LLAMA,
    "model_type": "qwen2",
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
    "use_sliding_window": False,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "torch_dtype": "bfloat16",
}
SMALL_QWEN2 = {**QWEN2, "vocab_size": 151936, "tie_word_embeddings": True}
R1_QWEN = {**QWEN2, "max_position_embeddings": 131072, "eos_token_id": 151643}
MISTRAL = {
    **LLAMA,
    "model_type": "mistral",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}


def _of(values: Mapping[str, Any], *dims: int, **other) -> dict:
    return published(LlamaConfig, dims, **{**values, **other})


_QWEN2_7B = 28, 3584, 28, 4, 18944
_QWEN2_14B = 48, 5120, 40, 8, 13824
_QWEN2_32B = 64, 5120, 40, 8, 27648
_SMALL = {"rope_scaling": {**SLOWED, "factor": 32.0}, "head_dim": 64, "tie_word_embeddings": True}

PRESETS = {
    "llama_7b": _of(LLAMA, 32, 4096, 32, 32, 11008),
    "llama_13b": _of(LLAMA, 40, 5120, 40, 40, 13824),
    "llama_65b": _of(LLAMA, 80, 8192, 64, 64, 22016),
    "llama2_7b": _of(LLAMA2, 32, 4096, 32, 32, 11008),
    "llama2_13b": _of(LLAMA2, 40, 5120, 40, 40, 13824),
    "llama2_70b": _of(LLAMA2, 80, 8192, 64, 8, 28672),
    "llama3_8b": _of(LLAMA3, 32, 4096, 32, 8, 14336),
    "llama3_70b": _of(LLAMA3, 80, 8192, 64, 8, 28672),
    "llama3_1_8b": _of(LLAMA3_1, 32, 4096, 32, 8, 14336),
    "llama3_2_1b": _of(LLAMA3_1, 16, 2048, 32, 8, 8192, **_SMALL),
    "qwen2_5_0_5b": _of(SMALL_QWEN2, 24, 896, 14, 2, 4864),
    "qwen2_5_1_5b": _of(SMALL_QWEN2, 28, 1536, 12, 2, 8960),
    "qwen2_5_3b": _of(SMALL_QWEN2, 36, 2048, 16, 2, 11008),
    "qwen2_5_7b": _of(QWEN2, *_QWEN2_7B),
    "qwen2_5_14b": _of(QWEN2, *_QWEN2_14B),
    "qwen2_5_32b": _of(QWEN2, *_QWEN2_32B),
    "qwen2_5_72b": _of(QWEN2, 80, 8192, 64, 8, 29568),
    "deepseek_r1_qwen_1_5b": _of(R1_QWEN, 28, 1536, 12, 2, 8960, vocab_size=151936, rope_theta=10000.0),
    "deepseek_r1_qwen_7b": _of(R1_QWEN, *_QWEN2_7B, rope_theta=10000.0),
    "deepseek_r1_qwen_14b": _of(R1_QWEN, *_QWEN2_14B, rms_norm_eps=1e-5),
    "deepseek_r1_qwen_32b": _of(R1_QWEN, *_QWEN2_32B, rms_norm_eps=1e-5),
    "deepseek_r1_llama_8b": _of(LLAMA3_1, 32, 4096, 32, 8, 14336),
    "deepseek_r1_llama_70b": _of(LLAMA3_1, 80, 8192, 64, 8, 28672),
    "mistral_7b": _of(MISTRAL, 32, 4096, 32, 8, 14336, sliding_window=4096),
    "mistral_7b_v0_3": _of(
        MISTRAL, 32, 4096, 32, 8, 14336, vocab_size=32768, rope_theta=1000000.0, sliding_window=None
    ),
}
