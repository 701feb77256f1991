"""The decoder that LLaMA and GLM-4 share in transformers' layout: embedding, layers over rotary positions, norm."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import nn

from model_zoo.causal_lm import CausalLM
from model_zoo.configs import Config
from model_zoo.layers import Embedding, Linear, RMSNorm
from model_zoo.rotary import RotaryTable


class RotaryDecoder(nn.Cell):
    """Embedding, layers and the last norm.

    Args:
        config: has ``rms_norm_eps``.
        blocks: the decoder layers, each ``(x, cosine, sine, start, end, keep) → x``.
        frequencies: of the rotated pairs, as `rotary_frequencies` gives them.
        form: how the pairs lie, as in `RotaryTable`.
    """

    def __init__(self, config: Config, blocks: list[nn.Cell], frequencies: np.ndarray, form: str, dtype):
        super().__init__()
        dims = config.dims
        self.embed_tokens = Embedding(dims.vocab, dims.hidden, dtype)
        self.layers = nn.CellList(blocks)
        self.norm = RMSNorm(dims.hidden, config.rms_norm_eps, dtype)
        self.rotary_table = RotaryTable(frequencies, form)

    def construct(self, input_ids, position_ids, start, end, keep):
        batch, length = start.shape
        x = self.embed_tokens(input_ids).reshape(batch * length, -1)
        cosine, sine = self.rotary_table(position_ids)
        for layer in self.layers:
            x = layer(x, cosine, sine, start, end, keep)
        return self.norm(x)


class RotaryCausalLM(CausalLM):
    """A `RotaryDecoder` with its head, tied to the embedding where the config says so.

    Sub-classes give ``decoder``.
    """

    def __init__(self, config: Config, dtype=ms.float32):
        super().__init__(config)
        self.model = self.decoder(config, dtype)
        tied = config.tie_word_embeddings
        self.lm_head = Linear(config.dims.hidden, 1 if tied else config.dims.vocab, False, dtype)
        if tied:
            self.tie_head(self.model.embed_tokens)
        self.finish()

    def hidden_states(self, input_ids, position_ids, start, end, keep=None):
        return self.model(input_ids, position_ids, start, end, keep)
