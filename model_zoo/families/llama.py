"""LLaMA (Touvron et al. 2023; 1, 2, 3, 3.1, 3.2), and the checkpoints that are LLaMA with a flag: Qwen2, Mistral."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from model_zoo.configs import CellSpec
from model_zoo.families.rotary import RotaryConfig, rotary_family


@dataclasses.dataclass
class LlamaConfig(RotaryConfig):
    """config.json of a LLaMA; what it leaves out has the values that Hugging Face transformers assumes."""

    family = rotary_family("llama")
    architectures: ClassVar = {
        "llama": "LlamaForCausalLM",
        "qwen2": "Qwen2ForCausalLM",
        "mistral": "MistralForCausalLM",
    }

    mlp_bias: bool = False
    model_type: str = "llama"

    @property
    def context(self) -> int:
        """How many tokens one sequence may have. Up to its window, Mistral's sliding attention is full attention."""
        window = None
        if self.model_type == "mistral" or (self.model_type == "qwen2" and self.extra.get("use_sliding_window")):
            window = self.extra.get("sliding_window", 4096)
        return min(self.max_position_embeddings, window or self.max_position_embeddings)

    def layer(self) -> dict[str, CellSpec]:
        qwen = self.model_type == "qwen2"  # its q, k and v always have a bias
        return {
            "input_layernorm": self.norm(),
            "post_attention_layernorm": self.norm(),
            **self.attention(self.attention_bias or qwen, self.attention_bias and not qwen),
            **self.feed_forward(self.mlp_bias),
        }


CONFIG = LlamaConfig


def _llama(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, **other) -> dict:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": ffn,
        "hidden_act": "silu",
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float16",
        **other,
    }


def _llama2(*dims: int) -> dict:
    return _llama(*dims, max_position_embeddings=4096, rms_norm_eps=1e-5)


def _llama3(*dims: int, **other) -> dict:
    values = {
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
        "torch_dtype": "bfloat16",
    }
    return _llama(*dims, **{**values, **other})


PRESETS = {
    "llama_7b": _llama(32, 4096, 32, 32, 11008),
    "llama_13b": _llama(40, 5120, 40, 40, 13824),
    "llama_65b": _llama(80, 8192, 64, 64, 22016),
    "llama2_7b": _llama2(32, 4096, 32, 32, 11008),
    "llama2_13b": _llama2(40, 5120, 40, 40, 13824),
    "llama2_70b": _llama2(80, 8192, 64, 8, 28672),
    "llama3_8b": _llama3(32, 4096, 32, 8, 14336),
    "llama3_70b": _llama3(80, 8192, 64, 8, 28672),
    "llama3_2_1b": _llama3(
        16,
        2048,
        32,
        8,
        8192,
        head_dim=64,
        max_position_embeddings=131072,
        tie_word_embeddings=True,
        rope_scaling={
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ),
}
