"""GPT-2 (Radford et al. 2019): learned positions, projections stored transposed, a head tied to the embedding."""

from __future__ import annotations

import mindspore as ms
from mindspore import nn

from model_zoo.activations import ACTIVATIONS
from model_zoo.causal_lm import CausalLM
from model_zoo.factory import CellFactory
from model_zoo.families.gpt2 import GPT2Config
from model_zoo.layers import AttentionCore, Parts, SplitHeads


class GPT2Attention(nn.Cell):
    """Self-attention with one projection whose output is q | k | v."""

    def __init__(self, config: GPT2Config, make: CellFactory, layer: int):
        super().__init__()
        dims = config.dims
        self.c_attn = make.layer("attn.c_attn")
        self.c_proj = make.layer("attn.c_proj")
        self.parts, self.split = Parts(3), SplitHeads(dims.head_dim)
        self.core = AttentionCore(dims.heads, dims.heads, dims.head_dim, scale=config.score_scale(layer))
        self.drop = None  # `pet.train.base_dropout`

    def construct(self, x, start, end, keep):
        query, keys, values = self.parts(self.c_attn(x))  # each (N, width)
        query, keys, values = self.split(query, start), self.split(keys, start), self.split(values, start)
        x = self.c_proj(self.core(query, keys, values, start, end, keep))
        return x if self.drop is None else self.drop(x)


class GPT2MLP(nn.Cell):
    """Two projections around an activation, a GELU as a rule."""

    def __init__(self, config: GPT2Config, make: CellFactory):
        super().__init__()
        self.c_fc = make.layer("mlp.c_fc")
        self.act = ACTIVATIONS[config.activation_function]()
        self.c_proj = make.layer("mlp.c_proj")
        self.drop = None

    def construct(self, x):
        x = self.c_proj(self.act(self.c_fc(x)))
        return x if self.drop is None else self.drop(x)


class GPT2Block(nn.Cell):
    """Attention and feed-forward, each after its norm and added to the stream."""

    def __init__(self, config: GPT2Config, make: CellFactory, layer: int):
        super().__init__()
        self.ln_1 = make.layer("ln_1")
        self.attn = GPT2Attention(config, make, layer)
        self.ln_2 = make.layer("ln_2")
        self.mlp = GPT2MLP(config, make)

    def construct(self, x, start, end, keep):
        x = x + self.attn(self.ln_1(x), start, end, keep)
        return x + self.mlp(self.ln_2(x))


class GPT2Model(nn.Cell):
    """Token and position embeddings, layers and the last norm."""

    def __init__(self, config: GPT2Config, make: CellFactory):
        super().__init__()
        self.wte = make("transformer.wte")
        self.wpe = make("transformer.wpe")
        self.h = nn.CellList([GPT2Block(config, make, layer) for layer in range(config.n_layer)])
        self.ln_f = make("transformer.ln_f")
        self.drop = None

    def construct(self, input_ids, position_ids, start, end, keep):
        x = self.wte(input_ids) + self.wpe(position_ids)
        x = x.reshape(-1, x.shape[-1])  # (B·S, H)
        if self.drop is not None:
            x = self.drop(x)
        for layer in self.h:
            x = layer(x, start, end, keep)
        return self.ln_f(x)


class GPT2LMHeadModel(CausalLM):
    """GPT-2 with its head."""

    def __init__(self, config: GPT2Config, dtype=ms.float32):
        super().__init__(config)
        make = CellFactory(config, dtype)
        self.transformer = GPT2Model(config, make)
        self.add_head(make, self.transformer.wte)
        self.finish()
