"""ChatGLM-6B (Du et al. 2022; Zeng et al. 2023): 2D rotary positions, a prefix mask, residuals from the norm.

What is unlike other decoders:

- the residual is the *normalised* input times alpha: ``x = LN(x)·alpha + sublayer(LN(x))``;
- a head's first half turns with the token's place in the text, its second half with its place in the answer;
- what comes before ``<sop>`` sees all of itself; from ``<sop>`` on, attention is causal.
"""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from model_zoo.activations import GeluTanh
from model_zoo.causal_lm import CausalLM
from model_zoo.configs import Dims
from model_zoo.errors import InputError
from model_zoo.factory import CellFactory
from model_zoo.families.chatglm import GLMConfig
from model_zoo.layers import AttentionCore, SplitHeads, int_range
from model_zoo.rotary import Rotary, RotaryTable, rotary_frequencies

ALPHA = math.sqrt(56)
"""sqrt(2·28): that of the published 28-layer model, also for models with fewer layers."""


class GLMAttention(nn.Cell):
    """Self-attention with one projection for q, k and v, interleaved per head."""

    def __init__(self, dims: Dims, make: CellFactory):
        super().__init__()
        self.head_dim = dims.head_dim
        self.query_key_value = make.layer("attention.query_key_value")
        self.dense = make.layer("attention.dense")
        self.rotary = Rotary("half", dims.head_dim // 2, dims.head_dim // 2)
        self.split = SplitHeads(3 * dims.head_dim)
        self.parts, self.halves = ops.Split(-1, 3), ops.Split(-1, 2)
        self.core = AttentionCore(dims.heads, dims.heads, dims.head_dim, causal=False)

    def turn(self, x, cosine, sine, block_cosine, block_sine):
        """The first half of each head by the text position, the second by the answer position."""
        first, second = self.halves(x)
        return ops.concat((self.rotary(first, cosine, sine), self.rotary(second, block_cosine, block_sine)), -1)

    def construct(self, x, cosine, sine, block_cosine, block_sine, start, end, keep):
        query, keys, values = self.parts(self.split(self.query_key_value(x), start))  # each (B, heads, S, d)
        query = self.turn(query, cosine, sine, block_cosine, block_sine)
        keys = self.turn(keys, cosine, sine, block_cosine, block_sine)
        return self.dense(self.core(query, keys, values, start, end, keep))

    def trace(self, tracer, x, cosine, sine, block_cosine, block_sine, start, end, keep):
        """Parts before heads, so that q, k and v are copied once."""
        mixed = self.query_key_value(x)
        half = self.head_dim // 2
        rows = tracer.view(mixed, mixed.width // (6 * half))  # a head's q | k | v
        tables, turned = ((cosine, sine), (block_cosine, block_sine)), []
        for which in range(2):
            halves = [tracer.columns(rows, (2 * which + index) * half, half) for index in range(2)]
            halves = [
                tracer.rotated_heads(self.rotary.form, part, half, *tables[index]) for index, part in enumerate(halves)
            ]
            turned.append(tracer.emit("join_columns", *halves))  # (B, heads, S, d)
        values = tracer.heads(tracer.columns(rows, 4 * half, 2 * half), self.head_dim)
        return self.dense(self.core(*turned, values, start, end, keep))


class GLMFeedForward(nn.Cell):
    """Two projections around an activation: here a tanh-GELU, from ChatGLM2 on ``silu(gate)·up`` of both in one."""

    def __init__(self, make: CellFactory, act: nn.Cell):
        super().__init__()
        self.dense_h_to_4h = make.layer("mlp.dense_h_to_4h")
        self.act = act
        self.dense_4h_to_h = make.layer("mlp.dense_4h_to_h")

    def construct(self, x):
        return self.dense_4h_to_h(self.act(self.dense_h_to_4h(x)))


class GLMBlock(nn.Cell):
    """One layer, with the residual taken after the norm."""

    def __init__(self, dims: Dims, make: CellFactory):
        super().__init__()
        self.input_layernorm = make.layer("input_layernorm")
        self.attention = GLMAttention(dims, make)
        self.post_attention_layernorm = make.layer("post_attention_layernorm")
        self.mlp = GLMFeedForward(make, GeluTanh())

    def construct(self, x, cosine, sine, block_cosine, block_sine, start, end, keep):
        y = self.input_layernorm(x)
        x = y * ALPHA + self.attention(y, cosine, sine, block_cosine, block_sine, start, end, keep)
        y = self.post_attention_layernorm(x)
        return y * ALPHA + self.mlp(y)


class PositionRows(nn.Cell):
    """Positions ``(B, 2, S)`` → those in the text and those in the block, ``(B, S)`` each."""

    def __init__(self):
        super().__init__()
        self.split = ops.Unstack(1)

    def construct(self, positions):
        return self.split(positions)

    def trace(self, tracer, positions):
        return tracer.columns(positions, 0, 1), tracer.columns(positions, 1, 1)


class GLMTransformer(nn.Cell):
    """Embedding, layers and the last norm."""

    def __init__(self, dims: Dims, make: CellFactory):
        super().__init__()
        self.word_embeddings = make("transformer.word_embeddings")
        self.layers = nn.CellList([GLMBlock(dims, make) for _ in range(dims.layers)])
        self.final_layernorm = make("transformer.final_layernorm")
        # The published model keeps its frequencies in fp16 and never computes them again in fp32.
        frequencies = rotary_frequencies(dims.head_dim // 2).astype(np.float16).astype(np.float32)
        self.rotary_table, self.rows = RotaryTable(frequencies, "half"), PositionRows()

    def construct(self, input_ids, position_ids, start, end, keep):
        x = self.word_embeddings(input_ids)
        x = x.reshape(-1, x.shape[-1])  # (B·S, H)
        text, block = self.rows(position_ids)
        cosine, sine = self.rotary_table(text)
        block_cosine, block_sine = self.rotary_table(block)
        for layer in self.layers:
            x = layer(x, cosine, sine, block_cosine, block_sine, start, end, keep)
        return self.final_layernorm(x)


class GLMForConditionalGeneration(CausalLM):
    """ChatGLM-6B with its head, which is the embedding although files hold a copy of it."""

    def __init__(self, config: GLMConfig, dtype=ms.float32):
        super().__init__(config)
        make = CellFactory(config, dtype)
        self.transformer = GLMTransformer(config.dims, make)
        self.add_head(make, self.transformer.word_embeddings)
        self.finish()

    def check_ids(self, ids, predicted=0) -> None:
        super().check_ids(ids, predicted)
        rows = np.flatnonzero((ids.asnumpy() != self.config.bos_token_id).all(1))
        if rows.size:
            raise InputError(
                f"input_ids row {rows[0]} holds no <sop> ({self.config.bos_token_id}): "
                "ChatGLM-6B needs [gMASK] <sop> between the question and the answer"
            )

    def layout(self, input_ids, attention_mask=None, position_ids=None):
        length = input_ids.shape[1]
        index = ops.zeros_like(input_ids) + int_range(length)
        context = self.first(input_ids, self.config.bos_token_id, length)  # (B, 1): where <sop> is
        if position_ids is None:
            gmask = self.first(input_ids, self.config.gmask_token_id, length)
            mask = self.first(input_ids, self.config.mask_token_id, length)
            held = ops.select(gmask < length, gmask, ops.select(mask < length, mask, context))
            offset = ops.zeros_like(context)
            if attention_mask is not None:  # left padding takes no positions
                offset = length - attention_mask.astype(ms.float32).sum(1, keepdims=True).astype(ms.int32)
                offset = ops.select(attention_mask[:, :1] == 0, offset, ops.zeros_like(offset))
            answer = index >= context
            text = ops.maximum(ops.select(answer, ops.zeros_like(index) + held, index) - offset, 0)
            block = ops.select(answer, index - context + 1, ops.zeros_like(index))
            position_ids = ops.stack((text + self.position_offset, block), 1)
        end = ops.maximum(index + 1, ops.zeros_like(index) + context)
        return position_ids, ops.zeros_like(index), end, attention_mask

    def first(self, ids, token, length):
        """``(B, 1)``: the index of the first such token in each row, or the row's length."""
        index = int_range(length)
        return ops.select(ids == token, ops.zeros_like(ids) + index, ops.zeros_like(ids) + length).min(1, keepdims=True)
