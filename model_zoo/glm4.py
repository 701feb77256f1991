"""ChatGLM2, ChatGLM3 and GLM-4-9B in their remote-code layout, with fused projections, half of each head rotated.

GLM-4 in transformers' layout, with its projections apart, is built by `model_zoo.rotary_decoder`.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import nn, ops

from model_zoo.activations import Joined, SwiGLU
from model_zoo.causal_lm import CausalLM, count_ones
from model_zoo.configs import Dims
from model_zoo.factory import CellFactory
from model_zoo.families.chatglm2 import ChatGLM2Config
from model_zoo.glm import GLMFeedForward
from model_zoo.layers import AttentionCore, SplitHeads, SplitRotary
from model_zoo.rotary import Rotary, RotaryTable, rotary_frequencies


class ChatGLM2Attention(nn.Cell):
    """Self-attention with one projection whose output is q | k | v."""

    def __init__(self, dims: Dims, make: CellFactory):
        super().__init__()
        self.heads, self.kv_heads = dims.heads, dims.kv_heads
        self.query_key_value = make.layer("self_attention.query_key_value")
        self.dense = make.layer("self_attention.dense")
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


class ChatGLM2Block(nn.Cell):
    """Attention and feed-forward, each after its norm and added to the stream."""

    def __init__(self, dims: Dims, make: CellFactory):
        super().__init__()
        self.input_layernorm = make.layer("input_layernorm")
        self.self_attention = ChatGLM2Attention(dims, make)
        self.post_attention_layernorm = make.layer("post_attention_layernorm")
        self.mlp = GLMFeedForward(make, Joined(SwiGLU()))

    def construct(self, x, cosine, sine, start, end, keep):
        x = x + self.self_attention(self.input_layernorm(x), cosine, sine, start, end, keep)
        return x + self.mlp(self.post_attention_layernorm(x))


class ChatGLM2Encoder(nn.Cell):
    """The layers and the last norm, as the remote code nests them."""

    def __init__(self, dims: Dims, make: CellFactory):
        super().__init__()
        self.layers = nn.CellList([ChatGLM2Block(dims, make) for _ in range(dims.layers)])
        self.final_layernorm = make("transformer.encoder.final_layernorm")

    def construct(self, x, cosine, sine, start, end, keep):
        for layer in self.layers:
            x = layer(x, cosine, sine, start, end, keep)
        return self.final_layernorm(x)


class ChatGLM2Embedding(nn.Cell):
    """The token embedding, one level down as in the remote code."""

    def __init__(self, make: CellFactory):
        super().__init__()
        self.word_embeddings = make("transformer.embedding.word_embeddings")

    def construct(self, ids):
        return self.word_embeddings(ids)


class ChatGLM2Model(nn.Cell):
    """Embedding, encoder and the head, which this layout keeps within."""

    def __init__(self, config: ChatGLM2Config, make: CellFactory):
        super().__init__()
        dims = config.dims
        self.embedding = ChatGLM2Embedding(make)
        self.encoder = ChatGLM2Encoder(dims, make)
        self.output_layer = make("transformer.output_layer")
        frequencies = rotary_frequencies(dims.head_dim // 2, 10000.0 * config.rope_ratio)
        self.rotary_table = RotaryTable(frequencies, "interleaved")

    def construct(self, input_ids, position_ids, start, end, keep):
        x = self.embedding(input_ids)
        x = x.reshape(-1, x.shape[-1])  # (B·S, H)
        cosine, sine = self.rotary_table(position_ids)
        return self.encoder(x, cosine, sine, start, end, keep)


class ChatGLM2ForConditionalGeneration(CausalLM):
    """ChatGLM2, ChatGLM3 or GLM-4-9B in the remote-code layout."""

    def __init__(self, config: ChatGLM2Config, dtype=ms.float32):
        super().__init__(config)
        self.transformer = ChatGLM2Model(config, CellFactory(config, dtype))
        self.finish()

    def layout(self, input_ids, attention_mask=None, position_ids=None):
        """As everywhere, but that a padding token on the left sees every column: the published code has it so, and a
        loss over the first real token is read off such a row."""
        position_ids, start, end, keep = self.causal_layout(input_ids, attention_mask, position_ids)
        if attention_mask is not None:
            leading = count_ones(attention_mask) == 0  # (B, S)
            first = leading.astype(ms.float32).sum(1, keepdims=True).astype(ms.int32)
            start = ops.select(leading, start, start + first)
            end = ops.select(leading, ops.zeros_like(end) + input_ids.shape[1], end)
            keep = ops.logical_or(attention_mask != 0, leading).astype(ms.int32)
        return position_ids, start, end, keep

    def logits(self, hidden):
        return self.transformer.output_layer(hidden).astype(ms.float32)
