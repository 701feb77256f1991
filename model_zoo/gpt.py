"""GPT-2 (Radford et al. 2019): learned positions, projections stored transposed, a head tied to the embedding."""

from __future__ import annotations

import mindspore as ms
from mindspore import nn, ops

from model_zoo.causal_lm import CausalLM, Family, causal_document, next_position
from model_zoo.configs import Dims, GPT2Config
from model_zoo.counting import BUFFERS
from model_zoo.layers import AttentionCore, Conv1D, Embedding, GeluTanh, LayerNorm, Linear, Parts, SplitHeads


class GPT2Attention(nn.Cell):
    """Self-attention with one projection whose output is q | k | v."""

    def __init__(self, dims: Dims, dtype):
        super().__init__()
        self.heads = dims.heads
        self.c_attn = Conv1D(dims.hidden, 3 * dims.hidden, dtype)
        self.c_proj = Conv1D(dims.hidden, dims.hidden, dtype)
        self.parts, self.split = Parts(3), SplitHeads(dims.head_dim)
        self.core = AttentionCore(dims.heads, dims.heads, dims.head_dim)

    def construct(self, x, start, end, keep):
        query, keys, values = self.parts(self.c_attn(x))  # each (N, width)
        query, keys, values = self.split(query, start), self.split(keys, start), self.split(values, start)
        return self.c_proj(self.core(query, keys, values, start, end, keep))


class GPT2MLP(nn.Cell):
    """Two projections around a tanh-GELU."""

    def __init__(self, dims: Dims, dtype):
        super().__init__()
        self.c_fc = Conv1D(dims.hidden, dims.ffn, dtype)
        self.act = GeluTanh()
        self.c_proj = Conv1D(dims.ffn, dims.hidden, dtype)

    def construct(self, x):
        return self.c_proj(self.act(self.c_fc(x)))


class GPT2Block(nn.Cell):
    """Attention and feed-forward, each after its norm and added to the stream."""

    def __init__(self, config: GPT2Config, dtype):
        super().__init__()
        dims = config.dims
        self.ln_1 = LayerNorm(dims.hidden, config.layer_norm_epsilon, dtype)
        self.attn = GPT2Attention(dims, dtype)
        self.ln_2 = LayerNorm(dims.hidden, config.layer_norm_epsilon, dtype)
        self.mlp = GPT2MLP(dims, dtype)

    def construct(self, x, start, end, keep):
        x = x + self.attn(self.ln_1(x), start, end, keep)
        return x + self.mlp(self.ln_2(x))


class GPT2Model(nn.Cell):
    """Token and position embeddings, layers and the last norm."""

    def __init__(self, config: GPT2Config, dtype):
        super().__init__()
        dims = config.dims
        self.wte = Embedding(dims.vocab, dims.hidden, dtype)
        self.wpe = Embedding(dims.context, dims.hidden, dtype)
        self.h = nn.CellList([GPT2Block(config, dtype) for _ in range(dims.layers)])
        self.ln_f = LayerNorm(dims.hidden, config.layer_norm_epsilon, dtype)

    def construct(self, input_ids, position_ids, start, end, keep):
        batch, length = start.shape
        positions = ops.zeros_like(start) + position_ids
        x = (self.wte(input_ids) + self.wpe(positions)).reshape(batch * length, -1)
        for layer in self.h:
            x = layer(x, start, end, keep)
        return self.ln_f(x)


class GPT2LMHeadModel(CausalLM):
    """GPT-2 with its head."""

    def __init__(self, config: GPT2Config, dtype=ms.float32):
        super().__init__(config)
        self.transformer = GPT2Model(config, dtype)
        rows = 1 if config.tie_word_embeddings else config.vocab_size
        self.lm_head = Linear(config.n_embd, rows, False, dtype)
        if config.tie_word_embeddings:
            self.tie_head(self.transformer.wte)
        self.finish()

    def hidden_states(self, input_ids, position_ids, start, end, keep=None):
        return self.transformer(input_ids, position_ids, start, end, keep)


FAMILY = Family(
    name="gpt",
    layers="transformer.h",
    attention_core="attn.core",
    embedding="transformer.wte",
    head="lm_head",
    default_targets=("c_attn",),
    attention=("c_attn", "attn.c_proj"),
    mlp=("c_fc", "mlp.c_proj"),
    sublayer_outputs=("attn.c_proj", "mlp.c_proj"),
    feedforward=("mlp.c_proj",),
    ia3_targets=("c_attn", "mlp.c_proj"),
    column=("c_attn", "c_fc"),
    row=("attn.c_proj", "mlp.c_proj"),
    fused={"c_attn": "qkv"},
    tied={"lm_head.weight": "transformer.wte.weight"},
    ignored_tensors=BUFFERS["gpt2"],
    optional_prefix="transformer.",
    document_layout=causal_document,
    advance=next_position,
)
GPT2LMHeadModel.family = FAMILY
