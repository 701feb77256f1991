"""MindPet's prefixes, under its parameters' names."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from adapters.bottleneck import activation
from model_zoo.errors import InputError
from pet.compat.mindpet.errors import dropout, keep_whole


class PrefixEncoder(nn.Cell):
    """The prefix of P-Tuning v2 (Liu et al. 2021) for all layers.

    Args:
        pre_seq_len: virtual tokens T.
        num_layers, num_heads, kv_channels: of the model.
        prefix_projection: come to them through a network ``E → projection_dim → 2·layers·heads·channels``.
        projection_dim: its inner width.
        dropout_prob: share of the keys and values that is zeroed while training.
        parallel_config: of no effect.
        out_perm: the order of (batch, T, 2·layers, heads, channels) in the result.
    """

    def __init__(
        self,
        pre_seq_len,
        num_layers,
        num_heads,
        kv_channels,
        prefix_projection=False,
        projection_dim=512,
        dropout_prob=0.0,
        parallel_config=None,
        out_perm=(2, 0, 3, 1, 4),
    ):
        super().__init__()
        keep_whole(self, pre_seq_len=pre_seq_len, num_layers=num_layers, num_heads=num_heads, kv_channels=kv_channels)
        self.dropout = dropout(self, "dropout_prob", dropout_prob)
        self.prefix_projection, self.out_perm = bool(prefix_projection), tuple(out_perm)
        width = 2 * num_layers * num_heads * kv_channels
        self.mindpet_delta_ptuning2_prefix = Parameter(Tensor(np.arange(pre_seq_len)), requires_grad=False)
        self.mindpet_delta_ptuning2_embedding = nn.Embedding(pre_seq_len, width)
        if prefix_projection:
            keep_whole(self, projection_dim=projection_dim)
            # in both places, as in MindPet: it is the first that files name in a network, the second alone
            self.mindpet_delta_ptuning2_dense_in = nn.Dense(width, projection_dim)
            self.mindpet_delta_ptuning2_dense_out = nn.Dense(projection_dim, width)
            self.mindpet_delta_ptuning2_trans = nn.SequentialCell(
                self.mindpet_delta_ptuning2_dense_in, activation("tanh"), self.mindpet_delta_ptuning2_dense_out
            )

    def construct(self, batch_size, dtype=ms.float32):
        """Per layer the keys and values ``(2, batch, heads, T, channels)``, by the default `out_perm`."""
        values = self.mindpet_delta_ptuning2_embedding(self.mindpet_delta_ptuning2_prefix)
        if self.prefix_projection:
            values = self.mindpet_delta_ptuning2_trans(values)
        shape = (self.pre_seq_len, 2 * self.num_layers, self.num_heads, self.kv_channels)
        values = ops.broadcast_to(values.reshape((1, *shape)).astype(dtype), (batch_size, *shape))
        return ops.split(self.dropout(values).transpose(self.out_perm), 2, axis=0)


class PrefixLayer(nn.Cell):
    """Keys and values in front of one layer's own (Li & Liang 2021).

    MindPet's files have one projection for both, so that values equal keys. Here the values are the keys and a
    difference, which starts at zero and is trained: a file loads to the same numbers, and training moves the two apart.

    Args:
        prefix_token_num: virtual tokens T, a multiple of `batch_size`.
        batch_size: of no other effect; the batch is taken from the keys.
        num_heads, hidden_dim: of the attention.
        embed_dim, mid_dim: widths of the network that produces them.
        dropout_rate: share of the produced values that is zeroed while training.
    """

    def __init__(
        self, prefix_token_num, batch_size, num_heads, hidden_dim, embed_dim=None, mid_dim=512, dropout_rate=0.1
    ):
        super().__init__()
        embed_dim = hidden_dim if embed_dim is None else embed_dim
        keep_whole(self, prefix_token_num=prefix_token_num, batch_size=batch_size, num_heads=num_heads)
        keep_whole(self, hidden_dim=hidden_dim, embed_dim=embed_dim, mid_dim=mid_dim)
        for name, divisor in (("hidden_dim", "num_heads"), ("prefix_token_num", "batch_size")):
            if getattr(self, name) % getattr(self, divisor):
                raise InputError(
                    f"PrefixLayer: {name} {getattr(self, name)} is no multiple of {divisor} {getattr(self, divisor)}"
                )
        self.dropout = dropout(self, "dropout_rate", dropout_rate)
        tokens = Tensor(np.arange(prefix_token_num, dtype=np.int32))
        self.input_tokens = Parameter(tokens, name="mindpet_delta_prefixtuning_input_tokens", requires_grad=False)
        self.mindpet_delta_prefixtuning_wte = nn.Embedding(prefix_token_num, embed_dim)
        self.mindpet_delta_prefixtuning_control_trans = nn.SequentialCell(
            nn.Dense(embed_dim, mid_dim), activation("tanh"), nn.Dense(mid_dim, hidden_dim)
        )
        self.mindpet_delta_prefixtuning_value = nn.Dense(mid_dim, hidden_dim, "zeros", "zeros")

    def reparametrised(self):
        """The keys and the values ``(T, hidden)``."""
        inner = self.mindpet_delta_prefixtuning_wte(self.input_tokens)
        inner = self.mindpet_delta_prefixtuning_control_trans[1](
            self.mindpet_delta_prefixtuning_control_trans[0](inner)
        )
        keys = self.mindpet_delta_prefixtuning_control_trans[2](inner)
        return self.dropout(keys), self.dropout(keys + self.mindpet_delta_prefixtuning_value(inner))

    @property
    def past_key_reparam(self):
        """The keys ``(T, hidden)``."""
        return self.reparametrised()[0]

    @property
    def past_value_reparam(self):
        """The values ``(T, hidden)``."""
        return self.reparametrised()[1]

    def construct(self, key, value):
        """``(batch, heads, S, width)`` → ``(batch, heads, T + S, width)``, both."""
        batch, _, _, width = key.shape
        shape = (batch, self.num_heads, self.prefix_token_num, width)
        extended = ()
        for prefix, own in zip(self.reparametrised(), (key, value), strict=True):
            heads = prefix.reshape(1, -1, self.num_heads, width).transpose(0, 2, 1, 3).astype(own.dtype)
            extended += (ops.concat((ops.broadcast_to(heads, shape), own), 2),)
        return extended
