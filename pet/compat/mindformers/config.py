"""MindFormers' model configurations: its arguments as keys of a config.json, and classes that take them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from model_zoo.configs import Config
from model_zoo.errors import InputError, warn_once
from model_zoo.families import chatglm, chatglm2, gpt2, llama
from model_zoo.settings import require
from pet.compat.mindformers.generation_defaults import NAMES as GENERATION
from pet.compat.mindformers.model_file import model_section, saved_model
from pet.compat.mindformers.presets import CLASSES, TYPES, Listed, Making, split_name
from pet.compat.mindformers.script_config import read_number
from pet.compat.mindformers.scripted import Kind, Scripted, make_scripted
from pet.compat.translation import elsewhere, flag, same
from pet.names import preset_names
from pet.recipe.translation import Ignored, Refused, Rule, Translation, is_off


def _on(t: Translation, name: str, value: Any) -> None:
    if is_off(value):
        t.refuse(name, f"{value!r}: only True is supported")


# Arguments that would make another model; with these values it is the one that there is.
FIXED = {
    "rotary_pct": Refused("only 1 is supported", harmless=(1, 1.0)),
    "rotary_percent": Refused("only 0.5 is supported", harmless=(0.5,)),
    "layernorm_order": Refused("only 'post' is supported", harmless=("post",)),
    "activation_func": Refused("only 'gelu' is supported", harmless=("GELU", "gelu")),
    "quantization_bit": Refused("only 0 is supported"),
    **same(_on, "use_final_layernorm mlp_has_gate"),
}
ACTIVATIONS = {"gelu": "gelu_new", "fast_gelu": "quick_gelu"}
# MindFormers' names -> the names in a config.json
GPT2_NAMES = {
    **same("n_embd", "embedding_size hidden_size"),  # the first is release 0.3's
    **same("n_layer", "num_layers num_hidden_layers"),
    **same("n_head", "num_heads num_attention_heads"),
    **same("n_positions", "seq_length max_position_embeddings"),
    "layernorm_epsilon": "layer_norm_epsilon",
    "num_labels": Ignored("a head for classification has them, trainer.type says whether there is one"),
    "intermediate_size": "n_inner",
    **same(lambda t, n, v: t.put("activation_function", ACTIVATIONS.get(v, v)), "hidden_act activation_function"),
    "eos_token": lambda t, n, v: t.put("eos_token_id", v if isinstance(v, int) else None),  # release 0.3's is an id
}
LLAMA_NAMES = {
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "seq_length": "max_position_embeddings",
    "kv_channels": "head_dim",
    "qkv_has_bias": flag("model_type", "qwen2"),
    **same("rope_theta", "theta rotary_emb_base"),
    **same(elsewhere, "extend_method scaling_factor"),  # see `rope_scaling`
}
GLM_NAMES = {"num_heads": "num_attention_heads", "seq_length": "max_sequence_length"}
GLM2_NAMES = {
    "num_heads": "num_attention_heads",
    "seq_len": "seq_length",
    **same(Ignored("MindFormers reads it for ChatGLM-6B only"), "position_encoding_2d inner_hidden_size"),
    **same(Ignored("padded_vocab_size and multi_query_group_num say it"), "vocab_size n_kv_heads"),
}
DROPOUTS = {
    "embedding_dropout_prob": "embedding",
    "hidden_dropout_rate": "hidden",
    "attention_dropout_rate": "attention",
    "dropout_prob": "embedding",
    "hidden_dropout_prob": "hidden",
    "attention_probs_dropout_prob": "attention",
}
"""GPT-2's, and the places of a recipe's ``train.base_dropout``; the last three are release 0.3's names."""
DROPOUT_ENDINGS = ("dropout_rate", "_dropout", "dropout_prob")
"""Of the names of all dropouts."""
TABLE = {
    **same(
        Ignored("it says how MindFormers runs or stores a model"),
        "use_past batch_size parallel_config moe_config parallel_optimizer type name model_name model_type "
        "checkpoint_name_or_path phase is_dynamic is_first_iteration offset use_flash_attention "
        "use_prompt_flash_attention use_incre_flash_attention use_paged_attention use_ring_attention "
        "use_attn_mask_compression block_size num_blocks qkv_concat mlp_concat use_rearrange_rope "
        "fine_grain_interleave is_npu_acceleration is_sample_acceleration bias_dropout_fusion "
        "apply_query_key_layer_scaling attention_softmax_in_fp32 fp32_residual_connection *_dtype *_compute_type "
        "*_init_type mask_type initializer_range compute_in_2d use_past_shard max_position_embedding pet_config "
        "no_recompute_layers pp_interleave_num use_kbk_infer use_kvcache_op ffn_concat pa_block_size pa_num_blocks "
        "bos_token eos_token pad_token ignore_token_id ignore_index mask_token_id gmask_token_id "
        "is_enhanced_encoder auto_map num_block pretrain_seqlen pre_seq_len prefix_projection fused_rms_norm "
        "unk_token_id mindformers_version architectures tokenizer_class is_encoder_decoder _name_or_path "
        "llm_backend",
    ),
    **FIXED,
    **dict.fromkeys((*GENERATION, "input_sliced_sig"), elsewhere),
    **{name: name for name in ("bos_token_id", "eos_token_id", "pad_token_id")},
}
"""Of all families; beside it each has the keys of its own config.json."""


def rope_scaling(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """``rope_scaling`` of a config.json for LLaMA's extend_method and scaling_factor; None where there is none."""
    method, factor = str(given.get("extend_method") or "none").lower(), given.get("scaling_factor", 1)
    if method == "none":
        return None
    kind = "linear" if method == "pi" else method  # LLAMA3 and YARN are called the same
    return {"rope_type": kind, **(factor if isinstance(factor, Mapping) else {"factor": factor})}


def rules_of(own: type[Config], names: Mapping[str, Rule]) -> dict[str, Rule]:
    """All that may stand in a family's configuration, by MindFormers' names and by those of its config.json."""
    fields = {field.name: field.name for field in dataclasses.fields(own) if field.name != "extra"}
    refused = Refused("only GPT-2's own dropout is honoured; leave it 0", harmless=(0, 0.0))
    dropout = elsewhere if own is gpt2.GPT2Config else refused
    return {**TABLE, **fields, **names, **{f"*{ending}": dropout for ending in DROPOUT_ENDINGS}}


def config_values(own: type[Config], rules: Mapping[str, Rule], given: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json's dictionary for MindFormers' arguments.

    Raises:
        InputError: an argument that neither side knows.
    """
    t = Translation(own.__name__)
    given = {name: value for name, value in given.items() if name != "model_type" or value not in TYPES}  # not ours
    t.apply({name: read_number(value) for name, value in given.items()}, rules)
    InputError.raise_any(t.problems)
    return t.settings


class TransformerOpParallelConfig(SimpleNamespace):
    """What scripts set as a configuration's ``parallel_config``: the layout of a model's processes, as far as neither a
    trainer nor its file says it."""


def feed_forward_width(of: Mapping[str, Any]) -> int:
    """How wide MindFormers makes LLaMA's feed-forward: two thirds of 4 × hidden, times ``ffn_dim_multiplier``, rounded
    up to ``multiple_of``.

    Raises:
        InputError: one of these is no number above 0.
    """
    for name, kind in {"hidden_size": int, "multiple_of": int, "ffn_dim_multiplier": float | None}.items():
        require("LlamaConfig", name, of[name], kind, gt=0)
    width = int(2 * 4 * of["hidden_size"] / 3)
    if of["ffn_dim_multiplier"] is not None:
        width = int((of["ffn_dim_multiplier"] + 0.01) * width)
    return -(-width // of["multiple_of"]) * of["multiple_of"]


WIDTH = ("hidden_size", "multiple_of", "ffn_dim_multiplier")
"""What the width is made of."""


def _rope_scaling(config: Any) -> dict[str, Any] | None:
    if config.extend_method is None:
        return config.rope_scaling
    return rope_scaling({"extend_method": config.extend_method, "scaling_factor": config.scaling_factor or 1})


ROTARY_FOLLOWS = {
    "intermediate_size": lambda config: feed_forward_width({name: getattr(config, name) for name in WIDTH}),
    "num_key_value_heads": lambda config: config.num_attention_heads,
    "head_dim": lambda config: config.hidden_size // config.num_attention_heads,
    "rope_scaling": _rope_scaling,
}
ROTARY_SOURCES = {
    **same("intermediate_size", "multiple_of ffn_dim_multiplier"),
    **same("rope_scaling", "extend_method scaling_factor"),
}
GPT2_FOLLOWS = {"n_inner": lambda config: config.expand_ratio and config.expand_ratio * config.n_embd}


@functools.cache
def kind_of(own: type[Config]) -> Kind:
    """How scripts speak of a family's configuration: the families of LLaMA's layout as of LLaMA's."""
    names, follows, sources = NAMES.get(own) or (LLAMA_NAMES, ROTARY_FOLLOWS, ROTARY_SOURCES)
    if own is not llama.LlamaConfig:
        names = {name: rule for name, rule in names.items() if name != "qkv_has_bias"}
    rules = rules_of(own, names)
    return Kind(own, rules, functools.partial(config_values, own, rules), follows, sources)


NAMES: dict[type[Config], tuple[Mapping[str, Rule], Mapping, Mapping]] = {
    gpt2.GPT2Config: (GPT2_NAMES, GPT2_FOLLOWS, {"expand_ratio": "n_inner"}),
    chatglm.GLMConfig: (GLM_NAMES, {}, {}),
    chatglm2.ChatGLM2Config: (GLM2_NAMES, {}, {}),
}


def give_names(config: Config, given: Mapping[str, Any] | None = None) -> None:
    """Lets scripts read and set a configuration by MindFormers' names.

    Args:
        config: is changed in place.
        given: what it was made of, by these names; None of one that was read.
    """
    if isinstance(config, Scripted):
        return
    kind, given = kind_of(type(config)), given or {}
    said = {name: value for name, value in given.items() if value is not None and kind.rule(name) is not None}
    stated = {field: name for name, value in said.items() for field in kind.translate({name: value})}
    stated |= {field: name for name, field in kind.sources.items() if given.get(name) is not None}
    if "intermediate_size" in kind.follows and said.get("hidden_size") is not None:
        stated.setdefault("intermediate_size", "hidden_size")
    make_scripted(config, kind, given, stated)


def name_weights(config: Config, name: Any) -> None:
    """See `give_names`; with the checkpoint whose weights a model of the configuration has, or the size that has none
    here."""
    give_names(config)
    size = name in preset_names()
    vars(config).update(checkpoint_name_or_path=None if size else name, named_size=name if size else None)


class _Config(Listed, metaclass=Making):
    """A configuration by MindFormers' argument names; see `config_values`. They can be read and set on it."""

    _own: type[Config]

    def __new__(cls, *unnamed, **given):
        if unnamed:
            raise InputError(f"{cls.__name__}: settings are given by name: {cls.__name__}(**config.model.model_config)")
        kind, given = kind_of(cls._own), {name: read_number(value) for name, value in given.items()}
        named = {name: value for name, value in given.items() if name not in kind.sources}
        config = cls._own.from_dict(kind.translate({**named, **cls._made(given)}))
        give_names(config, given)
        return config

    @classmethod
    def _makes(cls, one: object) -> bool:
        return isinstance(one, Config) and one.family.layout in CLASSES[cls._own.__name__][0]

    @classmethod
    def _made(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """What MindFormers makes of the arguments."""
        return {}

    @staticmethod
    def from_pretrained(name_or_directory):
        """The configuration of a directory, a bundled base or a preset (``gpt2``, ``glm_6b_lora``)."""
        from pet.auto import AutoConfig

        if str(name_or_directory).endswith((".yaml", ".yml")):
            raise InputError(f"{name_or_directory}: AutoConfig.from_pretrained reads MindFormers' YAML files")
        name, saved = split_name(name_or_directory)[0], saved_model(name_or_directory)
        config = AutoConfig.from_pretrained(name) if saved is None else of_section(model_section(saved))
        name_weights(config, name if saved is None else model_section(saved)["checkpoint_name_or_path"])
        return config


class GPT2Config(_Config):
    """``GPT2Config(hidden_size=768, num_layers=12, num_heads=12, seq_length=1024)``.

    The feed-forward is ``expand_ratio`` times as wide as the model.
    """

    _own = gpt2.GPT2Config

    @classmethod
    def _made(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        if given.get("expand_ratio") is None or given.get("intermediate_size") is not None:
            return {}
        width = given.get("hidden_size") or given.get("embedding_size") or 768
        return {"intermediate_size": given["expand_ratio"] * width}


class LlamaConfig(_Config):
    """``LlamaConfig(hidden_size=4096, num_layers=32, num_heads=32, n_kv_heads=None, seq_length=2048)``.

    Without ``intermediate_size`` the feed-forward is as wide as MindFormers makes it: see `feed_forward_width`.
    """

    _own = llama.LlamaConfig

    @classmethod
    def _made(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        said = {name: value for name, value in given.items() if value is not None}
        width = feed_forward_width({"hidden_size": 4096, "multiple_of": 256, "ffn_dim_multiplier": None, **said})
        made = {"intermediate_size": width, "rope_scaling": rope_scaling(given), "rms_norm_eps": 1e-5}
        return {name: value for name, value in made.items() if name not in said}


class GLMConfig(_Config):
    """``GLMConfig(hidden_size=4096, num_layers=28, num_heads=32, seq_length=2048)``: ChatGLM-6B."""

    _own = chatglm.GLMConfig

    @classmethod
    def _made(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        if given.get("num_layers") not in (None, 28):
            warn_once("GLMConfig: residuals are those of 28 layers, as in ChatGLM-6B's own code, at any num_layers")
        return {}


class ChatGLM2Config(_Config):
    """``ChatGLM2Config(hidden_size=4096, num_layers=28, multi_query_group_num=2)``: ChatGLM2, ChatGLM3, GLM-4."""

    _own = chatglm2.ChatGLM2Config


def of_section(section: Mapping[str, Any]) -> Config:
    """The configuration that a file's ``model.model_config`` describes, but for its adapter."""
    return globals()[section["type"]](**{key: value for key, value in section.items() if key != "pet_config"})
