"""Models in LLaMA's layout (`model_zoo.families.rotary`): LLaMA, Qwen2, Qwen3, Mistral, GLM-4, Gemma.

Their configuration says everything: which cells a layer has, how wide they are, how positions are rotated.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import nn, ops

from model_zoo.activations import GATED, Joined, SoftCap
from model_zoo.causal_lm import CausalLM
from model_zoo.engine import mixture, uses_kernel
from model_zoo.factory import CellFactory
from model_zoo.families.rotary import RotaryConfig
from model_zoo.layers import AttentionCore, SplitHeads, SplitRotary
from model_zoo.rope_config import rope_settings, rotary_scale
from model_zoo.rotary import Rotary, RotaryTable, rotary_frequencies


class GroupedAttention(nn.Cell):
    """Self-attention with separate query, key, value and output projections and grouped queries.

    Where the layer has a ``q_norm`` and a ``k_norm``, each head's query and key are normalised before the rotation.

    Args:
        make: makes the cells with weights (`CellFactory`).
        window: as in `AttentionCore`.
    """

    def __init__(self, config: RotaryConfig, rotary: Rotary, make: CellFactory, window: int):
        super().__init__()
        dims = config.dims
        self.q_proj = make.layer("self_attn.q_proj")
        self.k_proj = make.layer("self_attn.k_proj")
        self.v_proj = make.layer("self_attn.v_proj")
        self.o_proj = make.layer("self_attn.o_proj")
        self.q_norm = make.layer("self_attn.q_norm", needed=False)
        self.k_norm = make.layer("self_attn.k_norm", needed=False)
        self.normed = self.q_norm is not None
        self.rotate = SplitRotary(rotary, dims.head_dim)
        self.split = SplitHeads(dims.head_dim)
        self.core = AttentionCore(
            dims.heads,
            dims.kv_heads,
            dims.head_dim,
            scale=config.score_scale,
            window=window,
            cap=config.score_cap,
        )

    def construct(self, x, cosine, sine, start, end, keep):
        query, keys = self.q_proj(x), self.k_proj(x)
        if self.normed:
            width = self.core.head_dim
            query = self.q_norm(query.reshape(-1, width)).reshape(query.shape)  # (N·heads, d) and back
            keys = self.k_norm(keys.reshape(-1, width)).reshape(keys.shape)
        query, keys = self.rotate(query, cosine, sine, start), self.rotate(keys, cosine, sine, start)
        values = self.split(self.v_proj(x), start)
        return self.o_proj(self.core(query, keys, values, start, end, keep))


class GatedMLP(nn.Cell):
    """``down(act(gate)·up)``; gate and up are one projection where the layer has a ``gate_up_proj``."""

    def __init__(self, act: str, make: CellFactory, path: str = "mlp"):
        super().__init__()
        self.gate_up_proj = make.layer(f"{path}.gate_up_proj", needed=False)
        self.joined = self.gate_up_proj is not None
        if not self.joined:
            self.gate_proj, self.up_proj = make.layer(f"{path}.gate_proj"), make.layer(f"{path}.up_proj")
        self.down_proj = make.layer(f"{path}.down_proj")
        self.act = Joined(GATED[act]()) if self.joined else GATED[act]()

    def construct(self, x):
        if self.joined:
            return self.down_proj(self.act(self.gate_up_proj(x)))
        return self.down_proj(self.act(self.gate_proj(x), self.up_proj(x)))


class ExpertShares(nn.Cell):
    """A router's logits ``(N, experts)`` → the softmax, 0 for experts that a token does not go through.

    Args:
        chosen: how many a token goes through: those of the greatest shares.
        normed: whether these are divided by their sum.
    """

    def __init__(self, chosen: int, normed: bool):
        super().__init__()
        uses_kernel(self, "chosen_shares", chosen=chosen, normed=normed)

    def construct(self, logits):
        return self.kernel(logits.astype(ms.float32))

    def trace(self, tracer, logits):
        """Shares, and the rows that `model_zoo.engine.mixture` takes."""
        return tracer.emit_all("chosen_shares", logits, **self.operation[1])


class MixtureOfExperts(nn.Cell):
    """A feed-forward of several (Shazeer et al. 2017): each token goes through those that the router ``gate`` gives the
    greatest share, and gets their sum by these shares.

    In a program of the engine each expert computes the tokens that chose it. By operators every expert computes every
    token, and what was not chosen counts 0 times: the same, at the price of all experts.
    """

    def __init__(self, config: RotaryConfig, make: CellFactory):
        super().__init__()
        count, *choice = config.experts
        self.gate = make.layer("mlp.gate")
        self.experts = nn.CellList([GatedMLP(config.hidden_act, make, f"mlp.experts.{i}") for i in range(count)])
        self.shares = ExpertShares(*choice)

    def construct(self, x):
        return self.mix(x, self.shares(self.gate(x)).astype(x.dtype))

    def trace(self, tracer, x):
        shares, *rows = self.shares(self.gate(x))
        return mixture(tracer, self.experts, x, shares, rows)

    def mix(self, x, shares):
        total = x
        for index, expert in enumerate(self.experts):
            # one after the other: what experts sum over processes has to come in one order on all of them
            part = expert(ops.depend(x, total)) * shares[:, index : index + 1]
            total = total + part if index else part
        return total


class RotaryBlock(nn.Cell):
    """Attention and feed-forward, each after its norm and added to the stream; some layers also normalise each
    sublayer's output before it is added."""

    def __init__(self, config: RotaryConfig, rotary: Rotary, make: CellFactory, window: int):
        super().__init__()
        self.input_layernorm = make.layer("input_layernorm")
        self.self_attn = GroupedAttention(config, rotary, make, window)
        self.post_attention_layernorm = make.layer("post_attention_layernorm")
        self.mlp = MixtureOfExperts(config, make) if config.experts else GatedMLP(config.hidden_act, make)
        self.post_self_attn_layernorm = make.layer("post_self_attn_layernorm", needed=False)
        self.post_mlp_layernorm = make.layer("post_mlp_layernorm", needed=False)
        self.sandwich = self.post_mlp_layernorm is not None

    def construct(self, x, cosine, sine, start, end, keep):
        y = self.self_attn(self.input_layernorm(x), cosine, sine, start, end, keep)
        if self.sandwich:
            y = self.post_self_attn_layernorm(y)
        x = x + y
        y = self.mlp(self.post_attention_layernorm(x))
        if self.sandwich:
            y = self.post_mlp_layernorm(y)
        return x + y


class GemmaBlock(nn.Cell):
    """Attention and feed-forward, each between two norms; layers with a window have rotations of their own."""

    def __init__(self, config: RotaryConfig, rotary: Rotary, make: CellFactory, window: int):
        super().__init__()
        self.input_layernorm = make.layer("input_layernorm")
        self.self_attn = GroupedAttention(config, rotary, make, window)
        self.post_attention_layernorm = make.layer("post_attention_layernorm")
        self.pre_feedforward_layernorm = make.layer("pre_feedforward_layernorm")
        self.mlp = GatedMLP(config.hidden_act, make)
        self.post_feedforward_layernorm = make.layer("post_feedforward_layernorm")
        self.local = window > 0

    def construct(self, x, cosine, sine, local_cosine, local_sine, start, end, keep):
        if self.local:
            cosine, sine = local_cosine, local_sine
        y = self.self_attn(self.input_layernorm(x), cosine, sine, start, end, keep)
        x = x + self.post_attention_layernorm(y)
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))


BLOCKS = {"llama": RotaryBlock, "gemma": GemmaBlock}
"""Layers by `RotaryConfig.block`."""


class RotaryDecoder(nn.Cell):
    """Embedding, layers and the last norm."""

    def __init__(self, config: RotaryConfig, make: CellFactory):
        super().__init__()
        dims, rope = config.dims, rope_settings(config)
        width = int(dims.head_dim * rope["partial_rotary_factor"])
        self.embed_tokens = make(config.family.embedding)
        block, rotary = BLOCKS[config.block], (config.rotary, width, dims.head_dim)
        self.layers = nn.CellList([block(config, Rotary(*rotary), make, window) for window in config.windows])
        self.norm = make(f"{config.root}.norm")

        def table(rope: dict) -> RotaryTable:
            frequencies = rotary_frequencies(width, rope["rope_theta"], rope)
            return RotaryTable(frequencies, config.rotary, rotary_scale(rope))

        self.rotary_table = table(rope)
        self.local_table = table(rope_settings(config, local=True)) if config.block == "gemma" else None

    def construct(self, input_ids, position_ids, start, end, keep):
        x = self.embed_tokens(input_ids)
        x = x.reshape(-1, x.shape[-1])  # (B·S, H)
        tables = self.rotary_table(position_ids)
        if self.local_table is not None:
            tables = tables + self.local_table(position_ids)
        for layer in self.layers:
            x = layer(x, *tables, start, end, keep)
        return self.norm(x)


class LanguageModel(nn.Cell):
    """A decoder at the place that it has beside the encoders of a multimodal model."""

    def __init__(self, decoder: RotaryDecoder):
        super().__init__()
        self.language_model = decoder

    def construct(self, input_ids, position_ids, start, end, keep):
        return self.language_model(input_ids, position_ids, start, end, keep)


class RotaryCausalLM(CausalLM):
    """A `RotaryDecoder` with its head, tied to the embedding where the configuration says so."""

    def __init__(self, config: RotaryConfig, dtype=ms.float32):
        super().__init__(config)
        make = CellFactory(config, dtype)
        decoder = RotaryDecoder(config, make)
        self.model = decoder if config.root == "model" else LanguageModel(decoder)
        self.add_head(make, decoder.embed_tokens)
        self.cap = SoftCap(config.logit_cap) if config.logit_cap > 0 else None
        self.finish()

    def logits(self, hidden):
        logits = self.lm_head(hidden).astype(ms.float32)
        return logits if self.cap is None else self.cap(logits)

    def hidden_states(self, input_ids, position_ids, start, end, keep=None):
        return self.model(input_ids, position_ids, start, end, keep)
