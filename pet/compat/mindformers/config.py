"""MindFormers' model configurations: its arguments as keys of a config.json, and classes that take them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from model_zoo.errors import InputError, similar
from model_zoo.families import chatglm, chatglm2, gpt2, llama
from pet.compat.ckpt.names import Form
from pet.compat.mindformers.generation_defaults import NAMES as GENERATION
from pet.compat.mindformers.presets import bare_name
from pet.recipe.translation import is_off

# Arguments that say how MindFormers runs or stores a model; the results are the same without them.
WITHOUT_MEANING = {
    *("use_past", "batch_size", "parallel_config", "moe_config", "parallel_optimizer", "type", "name", "model_name"),
    *("model_type", "checkpoint_name_or_path", "phase", "is_dynamic", "is_first_iteration", "offset"),
    *("use_flash_attention", "use_prompt_flash_attention", "use_incre_flash_attention", "use_paged_attention"),
    *("use_ring_attention", "use_attn_mask_compression", "block_size", "num_blocks", "qkv_concat", "mlp_concat"),
    *("use_rearrange_rope", "fine_grain_interleave", "is_npu_acceleration", "is_sample_acceleration"),
    *("bias_dropout_fusion", "apply_query_key_layer_scaling", "attention_softmax_in_fp32"),
    *("fp32_residual_connection", "compute_dtype", "layernorm_compute_type", "layernorm_compute_dtype"),
    *("softmax_compute_type", "softmax_compute_dtype", "rotary_dtype", "param_init_type", "embedding_init_type"),
    *("initializer_range", "bos_token", "eos_token", "pad_token", "ignore_token_id", "ignore_index"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "mask_token_id", "gmask_token_id"),  # a tokenizer's matter
    # how inputs are prepared, which is done elsewhere here
    *("input_sliced_sig", "is_enhanced_encoder", "pretrain_seqlen"),
    # of a prefix, which pet_config says, and of how products and caches are divided
    *("pre_seq_len", "prefix_projection", "compute_in_2d", "use_past_shard", "max_position_embedding"),
}
# Arguments that would make another model; with these values it is the one that there is.
FIXED = {
    "extend_method": ("none",),
    "scaling_factor": (1,),
    "layernorm_order": ("post",),
    "use_final_layernorm": (True,),
    "activation_func": ("GELU", "gelu"),
    "quantization_bit": (0,),
}
# MindFormers' names -> the names in a config.json
GPT2_NAMES = {
    "hidden_size": "n_embd",
    "num_layers": "n_layer",
    "num_heads": "n_head",
    "num_attention_heads": "n_head",
    "seq_length": "n_positions",
    "max_position_embeddings": "n_positions",
    "layernorm_epsilon": "layer_norm_epsilon",
    "intermediate_size": "n_inner",
    "hidden_act": "activation_function",
}
LLAMA_NAMES = {
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "seq_length": "max_position_embeddings",
    "theta": "rope_theta",
}
GLM_NAMES = {
    "num_heads": "num_attention_heads",
    "seq_length": "max_sequence_length",
    "layernorm_epsilon": "layernorm_epsilon",
    "gmask_token_id": "gmask_token_id",
}
GLM2_NAMES = {"num_heads": "num_attention_heads", "seq_len": "seq_length"}
DROPOUTS = {
    "embedding_dropout_prob": "embedding",
    "hidden_dropout_rate": "hidden",
    "attention_dropout_rate": "attention",
}
"""GPT-2's, and the places of a recipe's ``train.base_dropout``."""
RENAMED_VALUES = {
    ("activation_function", "gelu"): "gelu_new",
    ("activation_function", "fast_gelu"): "quick_gelu",
}


def unsupported(given: Mapping[str, Any]) -> list[str]:
    """Arguments that would make another model than there is."""
    return [
        f"{name}: {given[name]!r} is not supported, {allowed[-1]!r} was expected"
        for name, allowed in FIXED.items()
        if not is_off(given.get(name)) and given[name] not in allowed
    ]


def config_values(cls, names: dict[str, str], given: dict[str, Any]) -> dict[str, Any]:
    """A config.json's dictionary for MindFormers' arguments.

    Raises:
        InputError: an argument that neither side knows.
    """
    fields = {field.name for field in dataclasses.fields(cls)} - {"extra"}
    tokens = {"bos_token_id", "eos_token_id", "pad_token_id"}
    values, problems = {}, [f"{cls.__name__}: {line}" for line in unsupported(given)]
    for name, value in given.items():
        key = names.get(name, name)
        if value in (None, "None"):
            continue
        if key in fields or key in tokens:
            values[key] = RENAMED_VALUES.get((key, value), value)
        elif key.endswith(("dropout_rate", "_dropout", "dropout_prob")):
            if value and cls is not gpt2.GPT2Config:
                problems.append(f"{cls.__name__}: {name} {value!r}: only GPT-2's own dropout is honoured; leave it 0")
        elif key not in FIXED and key not in WITHOUT_MEANING and key not in GENERATION and not is_off(value):
            problems.append(f"{cls.__name__} has no {name!r}{similar(name, [*names, *fields])}")
    if problems:
        raise InputError.collect(problems)
    return values


class _Config:
    """A configuration by MindFormers' argument names; see `config_values`."""

    _own: type
    _names: dict[str, str]

    def __new__(cls, **given):
        config = cls._own.from_dict(config_values(cls._own, cls._names, given))
        # no field: it must not be written to a config.json
        config.checkpoint_name_or_path = given.get("checkpoint_name_or_path")
        config.generation = {name: given[name] for name in GENERATION if name in given}
        config.dropout = {place: given[name] for name, place in DROPOUTS.items() if given.get(name)}
        config.form = Form(use_rearrange_rope=bool(given.get("use_rearrange_rope")))
        return config

    @staticmethod
    def from_pretrained(name_or_directory):
        """The configuration of a directory, a bundled base or a preset (``gpt2``, ``glm_6b_lora``)."""
        from pet.auto import AutoConfig

        return AutoConfig.from_pretrained(bare_name(name_or_directory))


class GPT2Config(_Config):
    """``GPT2Config(hidden_size=768, num_layers=12, num_heads=12, seq_length=1024)``.

    The feed-forward is ``expand_ratio`` times as wide as the model.
    """

    _own, _names = gpt2.GPT2Config, GPT2_NAMES

    def __new__(cls, expand_ratio: int | None = None, **given):
        if expand_ratio is not None and given.get("intermediate_size") is None:
            given["intermediate_size"] = expand_ratio * given.get("hidden_size", 768)
        return super().__new__(cls, **given)


class LlamaConfig(_Config):
    """``LlamaConfig(hidden_size=4096, num_layers=32, num_heads=32, n_kv_heads=None, seq_length=2048)``.

    Without ``intermediate_size`` the feed-forward is as wide as MindFormers makes it: two thirds of 4 × hidden, times
    ``ffn_dim_multiplier``, rounded up to ``multiple_of``.
    """

    _own, _names = llama.LlamaConfig, LLAMA_NAMES

    def __new__(cls, multiple_of: int = 256, ffn_dim_multiplier: float | None = None, **given):
        if given.get("intermediate_size") is None:
            width = int(2 * 4 * given.get("hidden_size", 4096) / 3)
            if ffn_dim_multiplier is not None:
                width = int((ffn_dim_multiplier + 0.01) * width)
            given["intermediate_size"] = -(-width // multiple_of) * multiple_of
        return super().__new__(cls, **given)


class GLMConfig(_Config):
    """``GLMConfig(hidden_size=4096, num_layers=28, num_heads=32, seq_length=2048)``: ChatGLM-6B."""

    _own, _names = chatglm.GLMConfig, GLM_NAMES


class ChatGLM2Config(_Config):
    """``ChatGLM2Config(hidden_size=4096, num_layers=28, multi_query_group_num=2)``: ChatGLM2, ChatGLM3, GLM-4."""

    _own, _names = chatglm2.ChatGLM2Config, GLM2_NAMES
