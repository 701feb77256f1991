"""LLaMA (Touvron et al. 2023; 1, 2, 3, 3.1, 3.2), and the checkpoints that are LLaMA with a flag: Qwen2, Mistral."""

from __future__ import annotations

import dataclasses

from mindspore import nn

from model_zoo.causal_lm import Config, Dims, Family, causal_document, next_position
from model_zoo.errors import InputError
from model_zoo.layers import (
    GroupedAttention,
    Linear,
    RMSNorm,
    SwiGLU,
)
from model_zoo.rope_config import rope_settings
from model_zoo.rotary import Rotary, rotary_frequencies
from model_zoo.rotary_decoder import RotaryCausalLM, RotaryDecoder


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


class LlamaMLP(nn.Cell):
    """``down(silu(gate)·up)``."""

    def __init__(self, config: LlamaConfig, dtype):
        super().__init__()
        hidden, width, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = Linear(hidden, width, bias, dtype)
        self.up_proj = Linear(hidden, width, bias, dtype)
        self.down_proj = Linear(width, hidden, bias, dtype)
        self.act = SwiGLU()

    def construct(self, x):
        return self.down_proj(self.act(self.gate_proj(x), self.up_proj(x)))

    def record(self, steps, x):
        both = steps.run(self.gate_proj, x), steps.run(self.up_proj, x)
        return steps.run(self.down_proj, steps.run(self.act, *both))


class LlamaBlock(nn.Cell):
    """Attention and feed-forward, each after its norm and added to the stream."""

    tables = 2

    def __init__(self, config: LlamaConfig, dtype):
        super().__init__()
        dims = config.dims
        self.input_layernorm = RMSNorm(dims.hidden, config.rms_norm_eps, dtype)
        self.self_attn = GroupedAttention(
            dims.hidden,
            dims.heads,
            dims.kv_heads,
            dims.head_dim,
            Rotary("half", dims.head_dim, dims.head_dim),
            bias=config.qkv_bias,
            output_bias=config.attention_bias,
            dtype=dtype,
        )
        self.post_attention_layernorm = RMSNorm(dims.hidden, config.rms_norm_eps, dtype)
        self.mlp = LlamaMLP(config, dtype)

    def construct(self, x, cosine, sine, start, end, keep):
        x = x + self.self_attn(self.input_layernorm(x), cosine, sine, start, end, keep)
        return x + self.mlp(self.post_attention_layernorm(x))

    def record(self, steps, x, cosine, sine):
        x = steps.add(x, steps.run(self.self_attn, steps.run(self.input_layernorm, x), cosine, sine))
        return steps.add(x, steps.run(self.mlp, steps.run(self.post_attention_layernorm, x)))


class LlamaForCausalLM(RotaryCausalLM):
    """A LLaMA with its head."""

    def decoder(self, config: LlamaConfig, dtype) -> RotaryDecoder:
        dims, rope = config.dims, rope_settings(config)
        blocks = [LlamaBlock(config, dtype) for _ in range(dims.layers)]
        return RotaryDecoder(config, blocks, rotary_frequencies(dims.head_dim, rope["rope_theta"], rope), "half", dtype)


FAMILY = Family(
    name="llama",
    layers="model.layers",
    attention_core="self_attn.core",
    embedding="model.embed_tokens",
    head="lm_head",
    default_targets=("q_proj", "v_proj"),
    attention=("q_proj", "k_proj", "v_proj", "o_proj"),
    mlp=("gate_proj", "up_proj", "down_proj"),
    sublayer_outputs=("o_proj", "down_proj"),
    feedforward=("down_proj",),
    ia3_targets=("k_proj", "v_proj", "down_proj"),
    column=("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"),
    row=("o_proj", "down_proj"),
    tied={"lm_head.weight": "model.embed_tokens.weight"},
    ignored_tensors=(r"rotary_emb\.inv_freq$",),
    document_layout=causal_document,
    advance=next_position,
)
LlamaForCausalLM.family = FAMILY
