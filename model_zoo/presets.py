"""The published models by name: their config.json as far as it bears on the architecture. No weights, no MindSpore.

``preset("llama_7b")`` gives a fresh dictionary in Hugging Face's form, as `AutoConfig` and `counting` take it.
"""

from __future__ import annotations

import copy

from model_zoo.errors import InputError, nearest


def _gpt2(layers: int, hidden: int, heads: int, context: int = 1024) -> dict:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_layer": layers,
        "n_embd": hidden,
        "n_head": heads,
        "n_positions": context,
        "n_ctx": context,
        "vocab_size": 50257,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": 50256,
        "eos_token_id": 50256,
        "torch_dtype": "float32",
    }


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


def _chatglm2(layers: int = 28, **other) -> dict:
    return {
        "architectures": ["ChatGLMModel"],
        "model_type": "chatglm",
        "num_layers": layers,
        "hidden_size": 4096,
        "ffn_hidden_size": 13696,
        "kv_channels": 128,
        "num_attention_heads": 32,
        "multi_query_attention": True,
        "multi_query_group_num": 2,
        "padded_vocab_size": 65024,
        "seq_length": 32768,
        "add_qkv_bias": True,
        "add_bias_linear": False,
        "rmsnorm": True,
        "post_layer_norm": True,
        "original_rope": True,
        "layernorm_epsilon": 1e-5,
        "tie_word_embeddings": False,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "torch_dtype": "float16",
        **other,
    }


_GLM_6B = {
    "architectures": ["ChatGLMModel"],
    "model_type": "chatglm",
    "position_encoding_2d": True,
    "num_layers": 28,
    "hidden_size": 4096,
    "inner_hidden_size": 16384,
    "num_attention_heads": 32,
    "vocab_size": 130528,
    "max_sequence_length": 2048,
    "layernorm_epsilon": 1e-5,
    "pad_token_id": 3,
    "mask_token_id": 130000,
    "gmask_token_id": 130001,
    "bos_token_id": 130004,
    "eos_token_id": 130005,
    "torch_dtype": "float16",
}

PRESETS: dict[str, dict] = {
    "gpt2": _gpt2(12, 768, 12),
    "gpt2_medium": _gpt2(24, 1024, 16),
    "gpt2_large": _gpt2(36, 1280, 20),
    "gpt2_xl": _gpt2(48, 1600, 25),
    # GPT-3-sized models that MindFormers published under GPT-2's name
    "gpt2_13b": _gpt2(40, 5120, 40, 2048),
    "gpt2_52b": _gpt2(64, 8192, 32, 2048),
    "glm_6b": _GLM_6B,
    "glm2_6b": _chatglm2(),
    "glm3_6b": _chatglm2(seq_length=8192),
    "glm4_9b": _chatglm2(
        40,
        padded_vocab_size=151552,
        seq_length=8192,
        layernorm_epsilon=1.5625e-7,
        eos_token_id=[151329, 151336, 151338],
        pad_token_id=151329,
        torch_dtype="bfloat16",
    ),
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
PRESETS["gpt2_small"] = PRESETS["gpt2"]


def preset(name: str) -> dict:
    """The configuration of a published model, as a dictionary of one's own.

    Raises:
        InputError: there is no such preset; the nearest names are given.
    """
    if name not in PRESETS:
        raise InputError(f"model {name!r} is not a preset{nearest(name, PRESETS)}")
    return copy.deepcopy(PRESETS[name])
