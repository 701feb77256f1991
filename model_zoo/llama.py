"""LLaMA (Touvron et al. 2023; 1, 2, 3, 3.1, 3.2), and the checkpoints that are LLaMA with a flag: Qwen2, Mistral."""

from __future__ import annotations

from mindspore import nn

from model_zoo.causal_lm import Family, causal_document, next_position
from model_zoo.configs import LlamaConfig
from model_zoo.counting import BUFFERS
from model_zoo.layers import (
    GroupedAttention,
    Linear,
    RMSNorm,
    SwiGLU,
)
from model_zoo.rope_config import rope_settings
from model_zoo.rotary import Rotary, rotary_frequencies
from model_zoo.rotary_decoder import RotaryCausalLM, RotaryDecoder


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


class LlamaBlock(nn.Cell):
    """Attention and feed-forward, each after its norm and added to the stream."""

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
    ignored_tensors=BUFFERS["llama"],
    document_layout=causal_document,
    advance=next_position,
)
LlamaForCausalLM.family = FAMILY
