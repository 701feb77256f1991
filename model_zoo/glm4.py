"""ChatGLM2, ChatGLM3 and GLM-4: rotary positions on half of each head, grouped queries, a gated feed-forward.

The same architecture is published in two layouts: `ChatGLM2ForConditionalGeneration` (``chatglm``, projections fused)
and `GlmForCausalLM` (``glm``: projections apart; ``glm4``: with a norm behind each sublayer too).
"""

from __future__ import annotations

import mindspore as ms
from mindspore import nn, ops

from model_zoo.causal_lm import CausalLM, Family, causal_document, next_position
from model_zoo.configs import ChatGLM2Config, Dims, GlmConfig
from model_zoo.counting import BUFFERS
from model_zoo.layers import (
    AttentionCore,
    Embedding,
    GroupedAttention,
    Linear,
    Parts,
    RMSNorm,
    SplitHeads,
    SplitRotary,
    SwiGLU,
)
from model_zoo.rope_config import rope_settings
from model_zoo.rotary import Rotary, RotaryTable, rotary_frequencies
from model_zoo.rotary_decoder import RotaryCausalLM, RotaryDecoder


class ChatGLM2Attention(nn.Cell):
    """Self-attention with one projection whose output is q | k | v."""

    def __init__(self, config: ChatGLM2Config, dtype):
        super().__init__()
        dims = config.dims
        self.heads, self.kv_heads = dims.heads, dims.kv_heads
        width = dims.heads * dims.head_dim
        both = width + 2 * dims.kv_heads * dims.head_dim
        self.query_key_value = Linear(dims.hidden, both, config.add_qkv_bias, dtype)
        self.dense = Linear(width, dims.hidden, False, dtype)
        self.rotate = SplitRotary(Rotary("interleaved", dims.head_dim // 2, dims.head_dim), dims.head_dim)
        self.split = SplitHeads(dims.head_dim)
        self.core = AttentionCore(dims.heads, dims.kv_heads, dims.head_dim)

    def construct(self, x, cosine, sine, start, end, keep):
        mixed = self.query_key_value(x)
        head_dim = mixed.shape[1] // (self.heads + 2 * self.kv_heads)
        first, second = self.heads * head_dim, (self.heads + self.kv_heads) * head_dim
        query = self.rotate(mixed[:, :first], cosine, sine, start)
        keys = self.rotate(mixed[:, first:second], cosine, sine, start)
        values = self.split(mixed[:, second:], start)
        return self.dense(self.core(query, keys, values, start, end, keep))


class GatedFeedForward(nn.Cell):
    """``out(silu(gate)·up)`` where one projection gives gate | up; its names differ between the layouts.

    The sub-classes name the two projections and hand them to ``gated``.
    """

    def __init__(self):
        super().__init__()
        self.act = SwiGLU()
        self.parts = Parts(2)

    def gated(self, both):
        """``(N, 2·ffn)`` → ``(N, ffn)``."""
        gate, up = self.parts(both)
        return self.act(gate, up)


class ChatGLM2MLP(GatedFeedForward):
    """The feed-forward under the remote code's names."""

    def __init__(self, dims: Dims, dtype):
        super().__init__()
        self.dense_h_to_4h = Linear(dims.hidden, 2 * dims.ffn, False, dtype)
        self.dense_4h_to_h = Linear(dims.ffn, dims.hidden, False, dtype)

    def construct(self, x):
        return self.dense_4h_to_h(self.gated(self.dense_h_to_4h(x)))


class GlmMLP(GatedFeedForward):
    """The feed-forward under transformers' names."""

    def __init__(self, dims: Dims, dtype):
        super().__init__()
        self.gate_up_proj = Linear(dims.hidden, 2 * dims.ffn, False, dtype)
        self.down_proj = Linear(dims.ffn, dims.hidden, False, dtype)

    def construct(self, x):
        return self.down_proj(self.gated(self.gate_up_proj(x)))


class ChatGLM2Block(nn.Cell):
    """Attention and feed-forward, each after its norm and added to the stream."""

    def __init__(self, config: ChatGLM2Config, dtype):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.layernorm_epsilon, dtype)
        self.self_attention = ChatGLM2Attention(config, dtype)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.layernorm_epsilon, dtype)
        self.mlp = ChatGLM2MLP(config.dims, dtype)

    def construct(self, x, cosine, sine, start, end, keep):
        x = x + self.self_attention(self.input_layernorm(x), cosine, sine, start, end, keep)
        return x + self.mlp(self.post_attention_layernorm(x))


class ChatGLM2Encoder(nn.Cell):
    """The layers and the last norm, as the remote code nests them."""

    def __init__(self, config: ChatGLM2Config, dtype):
        super().__init__()
        self.layers = nn.CellList([ChatGLM2Block(config, dtype) for _ in range(config.num_layers)])
        self.final_layernorm = RMSNorm(config.hidden_size, config.layernorm_epsilon, dtype)

    def construct(self, x, cosine, sine, start, end, keep):
        for layer in self.layers:
            x = layer(x, cosine, sine, start, end, keep)
        return self.final_layernorm(x)


class ChatGLM2Embedding(nn.Cell):
    """The token embedding, one level down as in the remote code."""

    def __init__(self, dims: Dims, dtype):
        super().__init__()
        self.word_embeddings = Embedding(dims.vocab, dims.hidden, dtype)

    def construct(self, ids):
        return self.word_embeddings(ids)


class ChatGLM2Model(nn.Cell):
    """Embedding, encoder and the head, which this layout keeps within."""

    def __init__(self, config: ChatGLM2Config, dtype):
        super().__init__()
        dims = config.dims
        self.embedding = ChatGLM2Embedding(dims, dtype)
        self.encoder = ChatGLM2Encoder(config, dtype)
        self.output_layer = Linear(dims.hidden, dims.vocab, False, dtype)
        frequencies = rotary_frequencies(dims.head_dim // 2, 10000.0 * config.rope_ratio)
        self.rotary_table = RotaryTable(frequencies, "interleaved")

    def construct(self, input_ids, position_ids, start, end, keep):
        batch, length = start.shape
        x = self.embedding(input_ids).reshape(batch * length, -1)
        cosine, sine = self.rotary_table(position_ids)
        return self.encoder(x, cosine, sine, start, end, keep)


class ChatGLM2ForConditionalGeneration(CausalLM):
    """ChatGLM2, ChatGLM3 or GLM-4-9B in the remote-code layout."""

    def __init__(self, config: ChatGLM2Config, dtype=ms.float32):
        super().__init__(config)
        self.transformer = ChatGLM2Model(config, dtype)
        self.finish()

    def hidden_states(self, input_ids, position_ids, start, end, keep=None):
        return self.transformer(input_ids, position_ids, start, end, keep)

    def layout(self, input_ids, attention_mask=None, position_ids=None):
        """As everywhere, but that a padding token on the left sees every column: the published code has it so, and a
        loss over the first real token is read off such a row."""
        position_ids, start, end, keep = self.causal_layout(input_ids, attention_mask, position_ids)
        if attention_mask is not None:
            leading = ops.cumsum(attention_mask.astype(ms.float32), 1) == 0  # (B, S)
            first = leading.astype(ms.float32).sum(1, keepdims=True).astype(ms.int32)
            start = ops.select(leading, start, start + first)
            end = ops.select(leading, ops.zeros_like(end) + input_ids.shape[1], end)
            keep = ops.logical_or(attention_mask != 0, leading).astype(ms.int32)
        return position_ids, start, end, keep

    def head(self, hidden):
        return self.transformer.output_layer(hidden).astype(ms.float32)


class GlmBlock(nn.Cell):
    """Attention and feed-forward; ``glm4`` also normalises each sublayer's output before it is added."""

    def __init__(self, config: GlmConfig, rotary_width: int, dtype):
        super().__init__()
        dims, eps = config.dims, config.rms_norm_eps
        self.input_layernorm = RMSNorm(dims.hidden, eps, dtype)
        self.self_attn = GroupedAttention(
            dims.hidden,
            dims.heads,
            dims.kv_heads,
            dims.head_dim,
            Rotary("interleaved", rotary_width, dims.head_dim),
            bias=config.attention_bias,
            dtype=dtype,
        )
        self.post_attention_layernorm = RMSNorm(dims.hidden, eps, dtype)
        self.mlp = GlmMLP(dims, dtype)
        self.sandwich = config.model_type == "glm4"
        if self.sandwich:
            self.post_self_attn_layernorm = RMSNorm(dims.hidden, eps, dtype)
            self.post_mlp_layernorm = RMSNorm(dims.hidden, eps, dtype)

    def construct(self, x, cosine, sine, start, end, keep):
        y = self.self_attn(self.input_layernorm(x), cosine, sine, start, end, keep)
        if self.sandwich:
            y = self.post_self_attn_layernorm(y)
        x = x + y
        y = self.mlp(self.post_attention_layernorm(x))
        if self.sandwich:
            y = self.post_mlp_layernorm(y)
        return x + y


class GlmForCausalLM(RotaryCausalLM):
    """GLM-4 in transformers' layout, with its head."""

    def decoder(self, config: GlmConfig, dtype) -> RotaryDecoder:
        dims, rope = config.dims, rope_settings(config)
        width = int(dims.head_dim * rope["partial_rotary_factor"])
        blocks = [GlmBlock(config, width, dtype) for _ in range(dims.layers)]
        frequencies = rotary_frequencies(width, rope["rope_theta"], rope)
        return RotaryDecoder(config, blocks, frequencies, "interleaved", dtype)


REMOTE_CODE_FAMILY = Family(
    name="glm4",
    layers="transformer.encoder.layers",
    attention_core="self_attention.core",
    embedding="transformer.embedding.word_embeddings",
    head="transformer.output_layer",
    default_targets=("query_key_value",),
    attention=("query_key_value", "dense"),
    mlp=("dense_h_to_4h", "dense_4h_to_h"),
    sublayer_outputs=("dense", "dense_4h_to_h"),
    feedforward=("dense_4h_to_h",),
    ia3_targets=("query_key_value", "dense_4h_to_h"),
    column=("query_key_value", "dense_h_to_4h"),
    row=("dense", "dense_4h_to_h"),
    fused={"query_key_value": "qkv", "dense_h_to_4h": "gate_up"},
    ignored_tensors=BUFFERS["chatglm2"],
    document_layout=causal_document,
    advance=next_position,
)
NATIVE_FAMILY = Family(
    name="glm4",
    layers="model.layers",
    attention_core="self_attn.core",
    embedding="model.embed_tokens",
    head="lm_head",
    default_targets=("q_proj", "v_proj"),
    attention=("q_proj", "k_proj", "v_proj", "o_proj"),
    mlp=("gate_up_proj", "down_proj"),
    sublayer_outputs=("o_proj", "down_proj"),
    feedforward=("down_proj",),
    ia3_targets=("k_proj", "v_proj", "down_proj"),
    column=("q_proj", "k_proj", "v_proj", "gate_up_proj"),
    row=("o_proj", "down_proj"),
    fused={"gate_up_proj": "gate_up"},
    tied={"lm_head.weight": "model.embed_tokens.weight"},
    ignored_tensors=BUFFERS["glm4"],
    document_layout=causal_document,
    advance=next_position,
)
ChatGLM2ForConditionalGeneration.family = REMOTE_CODE_FAMILY
GlmForCausalLM.family = NATIVE_FAMILY
