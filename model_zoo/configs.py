"""The configurations of all families: the fields of config.json that this library reads, and what may stand there.

Nothing here imports MindSpore: a model's sizes are counted, and a wrong file refused, before it is needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

from model_zoo.errors import InputError, shown, similar
from model_zoo.field_types import TokenId, check_types
from model_zoo.rope_config import rope_settings

OTHER_FIELDS = {
    "bos_token_id": TokenId | list[TokenId],
    "eos_token_id": TokenId | list[TokenId],
    "pad_token_id": TokenId,
    "sliding_window": int,
    "use_sliding_window": bool,
    "pre_seq_len": TokenId,
}
"""Fields that are read out of `Config.extra`."""


@dataclasses.dataclass(frozen=True)
class Dims:
    """A model's sizes under one name each, whatever its family calls them."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context: int


@dataclasses.dataclass
class Config:
    """A config.json: the fields this library reads, and the rest as it was (`extra`), to be written back."""

    @classmethod
    def from_dict(cls, values: dict[str, Any]):
        """Reads a config.json's dictionary. Raises InputError for a value that the family does not support."""
        cls.check_types(values)
        names = {field.name for field in dataclasses.fields(cls)} - {"extra"}
        known = {key: value for key, value in values.items() if key in names and value is not None}
        missing = [
            field.name
            for field in dataclasses.fields(cls)
            if field.default is dataclasses.MISSING
            and field.default_factory is dataclasses.MISSING
            and field.name not in known
        ]
        if missing:
            raise InputError(f"config.json: {', '.join(missing)} missing for model_type {values.get('model_type')!r}")
        config = cls(**known)
        config.extra = {key: value for key, value in values.items() if key not in known}
        config.check()
        return config

    @classmethod
    def check_types(cls, values: Mapping[str, Any]) -> None:
        """Raises InputError for every value that is not of its field's type, sizes below 1 among them."""
        kinds = {key: kind for key, kind in get_type_hints(cls).items() if key != "extra"}
        check_types("config.json", values, {**OTHER_FIELDS, **kinds})

    def to_dict(self) -> dict[str, Any]:
        """The dictionary that config.json holds."""
        values = dataclasses.asdict(self)
        extra = values.pop("extra", {})
        return {**values, **{key: value for key, value in extra.items() if values.get(key) is None}}

    def save_pretrained(self, directory) -> None:
        """Writes config.json into a directory, which is made if need be."""
        from model_zoo.atomic import write_json
        from model_zoo.checkpoint.saving import config_for_file

        Path(directory).mkdir(parents=True, exist_ok=True)
        write_json(Path(directory) / "config.json", config_for_file(self.to_dict(), None))

    def check(self) -> None:
        """Raises InputError where a value is one that this family cannot compute."""

    def require(self, key: str, *supported) -> None:
        """Raises InputError unless ``key`` is absent or has one of the supported values."""
        value = getattr(self, key, None) if key in self.__dict__ else self.extra.get(key)
        if value is not None and value not in supported:
            choices = ", ".join(repr(choice) for choice in supported)
            raise InputError(f"config.json: {key} is {shown(value)}; supported: {choices}")


@dataclasses.dataclass
class GPT2Config(Config):
    """config.json of a GPT-2; defaults are those of the small one."""

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int | None = None
    activation_function: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    add_cross_attention: bool = False
    tie_word_embeddings: bool = True
    model_type: str = "gpt2"
    extra: dict = dataclasses.field(default_factory=dict)

    @property
    def dims(self) -> Dims:
        width, heads = self.n_embd, self.n_head
        ffn = self.n_inner or 4 * width
        return Dims(self.n_layer, width, heads, heads, width // heads, ffn, self.vocab_size, self.n_positions)

    def check(self) -> None:
        self.require("activation_function", "gelu_new", "gelu_pytorch_tanh")
        self.require("scale_attn_weights", True)
        self.require("scale_attn_by_inverse_layer_idx", False)
        self.require("add_cross_attention", False)
        if self.n_embd % self.n_head:
            raise InputError(f"config.json: n_embd {self.n_embd} is no multiple of n_head {self.n_head}")


@dataclasses.dataclass
class LlamaConfig(Config):
    """config.json of a LLaMA; what it leaves out has the values that Hugging Face transformers assumes."""

    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: dict | None = None
    rope_parameters: dict | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    model_type: str = "llama"
    extra: dict = dataclasses.field(default_factory=dict)

    @property
    def dims(self) -> Dims:
        heads = self.num_attention_heads
        return Dims(
            self.num_hidden_layers,
            self.hidden_size,
            heads,
            self.num_key_value_heads or heads,
            self.head_dim or self.hidden_size // heads,
            self.intermediate_size,
            self.vocab_size,
            self.context,
        )

    @property
    def context(self) -> int:
        """How many tokens one sequence may have. Up to its window, Mistral's sliding attention is full attention."""
        window = None
        if self.model_type == "mistral" or (self.model_type == "qwen2" and self.extra.get("use_sliding_window")):
            window = self.extra.get("sliding_window", 4096)
        return min(self.max_position_embeddings, window or self.max_position_embeddings)

    @property
    def qkv_bias(self) -> bool:
        """Qwen2's q, k and v always have one."""
        return self.attention_bias or self.model_type == "qwen2"

    def to_dict(self) -> dict:
        values = super().to_dict()
        if self.rope_parameters:
            values.pop("rope_theta")
        return values

    def check(self) -> None:
        self.require("hidden_act", "silu")
        rope_settings(self)
        dims = self.dims
        if dims.heads % dims.kv_heads:
            raise InputError(
                f"config.json: num_attention_heads {dims.heads} is no multiple of num_key_value_heads {dims.kv_heads}"
            )


@dataclasses.dataclass
class ChatGLM2Config(Config):
    """config.json of ChatGLM2, ChatGLM3 and GLM-4-9B in their remote-code layout; defaults are ChatGLM2-6B's."""

    padded_vocab_size: int = 65024
    hidden_size: int = 4096
    num_layers: int = 28
    num_attention_heads: int = 32
    multi_query_group_num: int = 2
    kv_channels: int = 128
    ffn_hidden_size: int = 13696
    seq_length: int = 32768
    layernorm_epsilon: float = 1e-5
    rope_ratio: float = 1.0
    add_qkv_bias: bool = True
    add_bias_linear: bool = False
    multi_query_attention: bool = True
    rmsnorm: bool = True
    post_layer_norm: bool = True
    apply_residual_connection_post_layernorm: bool = False
    original_rope: bool = True
    tie_word_embeddings: bool = False
    model_type: str = "chatglm"
    extra: dict = dataclasses.field(default_factory=dict)

    @property
    def dims(self) -> Dims:
        return Dims(
            self.num_layers,
            self.hidden_size,
            self.num_attention_heads,
            self.multi_query_group_num,
            self.kv_channels,
            self.ffn_hidden_size,
            self.padded_vocab_size,
            self.seq_length,
        )

    def check(self) -> None:
        for key in ("multi_query_attention", "rmsnorm", "post_layer_norm", "original_rope"):
            self.require(key, True)
        for key in ("add_bias_linear", "apply_residual_connection_post_layernorm", "tie_word_embeddings"):
            self.require(key, False)
        if self.extra.get("pre_seq_len"):
            raise InputError("config.json: pre_seq_len is set: load the base without it and its P-Tuning v2 file apart")
        check_groups(self.dims)


@dataclasses.dataclass
class GlmConfig(Config):
    """config.json of GLM-4 in transformers' own layouts, ``glm`` and ``glm4``."""

    vocab_size: int = 151552
    hidden_size: int = 4096
    intermediate_size: int = 13696
    num_hidden_layers: int = 40
    num_attention_heads: int = 32
    num_key_value_heads: int = 2
    head_dim: int = 128
    hidden_act: str = "silu"
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1.5625e-07
    rope_theta: float = 10000.0
    partial_rotary_factor: float = 0.5
    rope_scaling: dict | None = None
    rope_parameters: dict | None = None
    attention_bias: bool = False
    tie_word_embeddings: bool = False
    model_type: str = "glm"
    extra: dict = dataclasses.field(default_factory=dict)

    @property
    def dims(self) -> Dims:
        return Dims(
            self.num_hidden_layers,
            self.hidden_size,
            self.num_attention_heads,
            self.num_key_value_heads,
            self.head_dim,
            self.intermediate_size,
            self.vocab_size,
            self.max_position_embeddings,
        )

    def to_dict(self) -> dict:
        values = super().to_dict()
        if self.rope_parameters:
            values.pop("rope_theta")
            values.pop("partial_rotary_factor")
        return values

    def check(self) -> None:
        self.require("model_type", "glm", "glm4")
        self.require("hidden_act", "silu")
        rope_settings(self)
        check_groups(self.dims)


def check_groups(dims: Dims) -> None:
    """Raises InputError where the query heads do not share the key heads evenly."""
    if dims.heads % dims.kv_heads:
        raise InputError(f"config.json: {dims.heads} attention heads are no multiple of {dims.kv_heads} key heads")


@dataclasses.dataclass
class GLMConfig(Config):
    """config.json of ChatGLM-6B; defaults are the published model's."""

    model_type: str = "chatglm"
    position_encoding_2d: bool = True
    vocab_size: int = 130528
    hidden_size: int = 4096
    num_layers: int = 28
    num_attention_heads: int = 32
    inner_hidden_size: int | None = None
    max_sequence_length: int = 2048
    layernorm_epsilon: float = 1e-5
    bos_token_id: TokenId = 130004
    eos_token_id: TokenId = 130005
    mask_token_id: TokenId = 130000
    gmask_token_id: TokenId = 130001
    pad_token_id: TokenId = 3
    torch_dtype: str = "float32"
    extra: dict = dataclasses.field(default_factory=dict)

    @property
    def dims(self) -> Dims:
        width = self.inner_hidden_size or 4 * self.hidden_size
        head_dim = self.hidden_size // self.num_attention_heads
        heads = self.num_attention_heads
        return Dims(
            self.num_layers,
            self.hidden_size,
            heads,
            heads,
            head_dim,
            width,
            self.vocab_size,
            self.max_sequence_length,
        )

    def check(self) -> None:
        self.require("position_encoding_2d", True)
        if self.hidden_size % self.num_attention_heads or self.dims.head_dim % 4:
            raise InputError(
                f"config.json: hidden_size {self.hidden_size} over num_attention_heads {self.num_attention_heads}: "
                "a head's width must be a whole multiple of 4"
            )
        if self.extra.get("pre_seq_len"):
            raise InputError("config.json: pre_seq_len is set: load the base without it and its P-Tuning v2 file apart")


BY_TYPE = {
    "gpt2": GPT2Config,
    "llama": LlamaConfig,
    "qwen2": LlamaConfig,
    "mistral": LlamaConfig,
    "glm": GlmConfig,
    "glm4": GlmConfig,
}


def config_class(values: Mapping[str, Any]) -> type[Config]:
    """The configuration class for a config.json's dictionary.

    ``chatglm`` is the type of two architectures: ChatGLM-6B says ``position_encoding_2d``, its successors have a
    ``padded_vocab_size``.

    Raises:
        InputError: no or an unknown ``model_type``.
    """
    kind = values.get("model_type")
    if kind == "chatglm":
        if values.get("position_encoding_2d"):
            return GLMConfig
        if "padded_vocab_size" in values or "kv_channels" in values:
            return ChatGLM2Config
        raise InputError(
            "config.json: model_type 'chatglm' with neither position_encoding_2d (ChatGLM-6B) "
            "nor padded_vocab_size (ChatGLM2 and later)"
        )
    if not isinstance(kind, str) or kind not in BY_TYPE:
        known = [*BY_TYPE, "chatglm"]
        choices = ", ".join(known) + similar(kind, known)
        raise InputError(f"config.json: model_type is {shown(kind)}; supported: {choices}")
    return BY_TYPE[kind]
