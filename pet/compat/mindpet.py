"""MindPet's layers, to be put into a network by hand, and its functions; over the same modules as `adapters`.

    class Attention(nn.Cell):
        def __init__(self, width):
            self.query = LoRADense(width, width, lora_rank=8, lora_alpha=16)

    freeze_delta(network, mode="lora")

A fresh layer changes nothing, bit for bit. Its own parameters have ``mindpet_delta_<method>`` in their names, so that
MindPet's patterns find them; ``weight`` and ``bias`` keep the names that a plain ``nn.Dense`` has.
"""

from __future__ import annotations

import itertools

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from adapters.bottleneck import Bottleneck, BottleneckConfig
from adapters.factors import generator_for
from adapters.freeze import MODES, TrainableParamsCheckPoint, freeze_from_config, freeze_modules
from adapters.freeze import freeze_delta as freeze_adapters
from adapters.lora import LoRAConfig, LoRALinear
from adapters.low_rank_adapter import LowRankAdapter, LowRankAdapterConfig
from adapters.prefix import PrefixTrunk
from adapters.sites import Site
from model_zoo.errors import InputError, nearest, similar
from pet.train.objectives.rdrop import RDropLoss, rdrop_repeat

__all__ = [
    "AdapterDense",
    "AdapterLayer",
    "LoRADense",
    "LowRankAdapterDense",
    "LowRankAdapterLayer",
    "PrefixEncoder",
    "PrefixLayer",
    "RDropLoss",
    "TrainableParamsCheckPoint",
    "freeze_delta",
    "freeze_from_config",
    "freeze_modules",
    "rdrop_repeat",
]

_numbers = itertools.count()


def _site(cell: nn.Cell, width_in: int, width_out: int) -> Site:
    """A place of its own for every layer: its start is a function of the order in which layers are made."""
    return Site(f"mindpet_{next(_numbers)}", cell, "linear", width_in, width_out)


class _Dense(nn.Dense):
    """A Dense whose output an adapter changes before the activation."""

    def __init__(self, in_channels, out_channels, weight_init=None, bias_init=None, has_bias=True, activation=None):
        super().__init__(in_channels, out_channels, weight_init, bias_init, has_bias)
        self.after = nn.get_activation(activation) if isinstance(activation, str) else activation

    def finished(self, y):
        return y if self.after is None else self.after(y)


class LoRADense(_Dense):
    """A Dense with LoRA (Hu et al. 2021): ``y = x·Wᵀ + b + alpha/rank · B·A·x``.

    Args:
        in_channels, out_channels: widths.
        lora_rank, lora_alpha: inner width, and numerator of the scale.
        lora_dropout: share of the input of A that is zeroed while training.
        weight_init, bias_init, has_bias, activation: those of ``nn.Dense``.

    Raises:
        InputError: a rank or share out of range.
    """

    def __init__(self, in_channels, out_channels, lora_rank, lora_alpha, lora_dropout=0.0, **dense):
        super().__init__(in_channels, out_channels, **_without_types(dense))
        config = LoRAConfig(rank=lora_rank, alpha=lora_alpha, dropout=lora_dropout)
        config.validate()
        config.dropout = 0.0
        self.mindpet_delta_lora = LoRALinear(config, _site(self, in_channels, out_channels))
        if lora_dropout:  # loops of one's own set no key for the trainer's dropout
            self.mindpet_delta_lora.dropout = nn.Dropout(p=lora_dropout)

    def construct(self, x):
        return self.finished(self.mindpet_delta_lora(x, super().construct(x)))


class AdapterLayer(nn.Cell):
    """A bottleneck adapter (Houlsby et al. 2019): ``x + up(f(down(x)))``.

    Args:
        hidden_size: width of the input and output.
        bottleneck_size: width between.
        non_linearity: ``gelu``, ``relu``, ``silu`` or ``tanh``.
    """

    def __init__(self, hidden_size, bottleneck_size=64, non_linearity="gelu", **types):
        super().__init__()
        _without_types(types)
        config = BottleneckConfig(size=bottleneck_size, non_linearity=str(non_linearity).lower())
        config.validate()
        self.mindpet_delta_adapter = Bottleneck(config, _site(self, hidden_size, hidden_size))

    def construct(self, x):
        return self.mindpet_delta_adapter(x, x)


class AdapterDense(_Dense):
    """A Dense followed by an `AdapterLayer`."""

    def __init__(self, in_channels, out_channels, bottleneck_size=64, non_linearity="gelu", **dense):
        super().__init__(in_channels, out_channels, **_without_types(dense))
        self.adapter = AdapterLayer(out_channels, bottleneck_size, non_linearity)

    def construct(self, x):
        return self.adapter(self.finished(super().construct(x)))


class LowRankAdapterLayer(nn.Cell):
    """A bottleneck whose projections are products of thin matrices (Mahabadi et al. 2021).

    Args:
        hidden_size: width of the input and output.
        reduction_factor: the bottleneck is the width over this.
        low_rank_size: inner width of each product.
        low_rank_w_init: of no effect: the last factor starts at zero, the others Kaiming-uniform, so that a fresh layer
            is the identity.
        non_linearity: as for `AdapterLayer`.
    """

    def __init__(
        self, hidden_size, reduction_factor=1, low_rank_size=1, low_rank_w_init=None, non_linearity="gelu", **types
    ):
        super().__init__()
        _without_types(types)
        config = LowRankAdapterConfig(
            reduction_factor=reduction_factor, rank=low_rank_size, non_linearity=str(non_linearity).lower()
        )
        config.validate()
        site = _site(self, hidden_size, hidden_size)
        self.mindpet_delta_low_rank_adapter = LowRankAdapter(config, site, config.width_at(site))

    def construct(self, x):
        return self.mindpet_delta_low_rank_adapter(x, x)


class LowRankAdapterDense(_Dense):
    """A Dense followed by a `LowRankAdapterLayer`."""

    def __init__(
        self,
        in_channels,
        out_channels,
        weight_init=None,
        bias_init=None,
        has_bias=True,
        activation=None,
        reduction_factor=1,
        low_rank_size=1,
        low_rank_w_init=None,
        non_linearity="gelu",
        **types,
    ):
        super().__init__(in_channels, out_channels, weight_init, bias_init, has_bias, activation)
        _without_types(types)
        self.adapter = LowRankAdapterLayer(
            out_channels, reduction_factor, low_rank_size, low_rank_w_init, non_linearity
        )

    def construct(self, x):
        return self.adapter(self.finished(super().construct(x)))


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
        width = 2 * num_layers * num_heads * kv_channels
        self.shape, self.layers = (pre_seq_len, 2 * num_layers, num_heads, kv_channels), num_layers
        self.out_perm = tuple(out_perm)
        generator = generator_for(0, f"mindpet_{next(_numbers)}")
        self.mindpet_delta_ptuning2 = _Source(pre_seq_len, width, projection_dim if prefix_projection else 0, generator)
        self.dropout = nn.Dropout(p=dropout_prob) if dropout_prob else None

    def construct(self, batch_size, dtype=ms.float32):
        """Per layer the keys and values ``(2, batch, heads, T, channels)``, by the default `out_perm`."""
        values = self.mindpet_delta_ptuning2().reshape((1, *self.shape)).astype(dtype)
        values = ops.broadcast_to(values, (batch_size, *self.shape))
        if self.dropout is not None:
            values = self.dropout(values)
        values = values.transpose(self.out_perm)
        return ops.split(values, 2, axis=0)


class _Source(nn.Cell):
    """A prefix ``(T, width)``: as it is, or by way of a hidden layer."""

    def __init__(self, length: int, width: int, hidden: int, generator: np.random.Generator):
        super().__init__()
        self.projected = hidden > 0
        if hidden:
            self.trunk = PrefixTrunk(length, width, hidden, generator)
            self.out = nn.Dense(hidden, width)
        else:
            start = 0.02 * generator.standard_normal((length, width), np.float32)
            self.prefix = Parameter(Tensor(start), name="prefix")

    def construct(self):
        return self.out(self.trunk()) if self.projected else self.prefix


class PrefixLayer(nn.Cell):
    """Keys and values in front of one layer's own (Li & Liang 2021), each with parameters and a gradient of its own.

    Args:
        prefix_token_num: virtual tokens T.
        batch_size: of no effect; the batch is taken from the keys.
        num_heads, hidden_dim: of the attention.
        embed_dim, mid_dim: widths of the network that produces them.
        dropout_rate: share of the produced values that is zeroed while training.
    """

    def __init__(
        self, prefix_token_num, batch_size, num_heads, hidden_dim, embed_dim=None, mid_dim=512, dropout_rate=0.1
    ):
        super().__init__()
        if hidden_dim % num_heads:
            raise InputError(f"PrefixLayer: hidden_dim {hidden_dim} is no multiple of num_heads {num_heads}")
        self.heads, self.hidden = num_heads, hidden_dim
        generator = generator_for(0, f"mindpet_{next(_numbers)}")
        self.mindpet_delta_prefixtuning = PrefixTrunk(prefix_token_num, embed_dim or hidden_dim, mid_dim, generator)
        self.mindpet_delta_prefixtuning_out = nn.Dense(mid_dim, 2 * hidden_dim)
        self.dropout = nn.Dropout(p=dropout_rate) if dropout_rate else None

    def reparametrised(self):
        """``(T, 2·hidden)``: the keys, then the values."""
        both = self.mindpet_delta_prefixtuning_out(self.mindpet_delta_prefixtuning())
        return both if self.dropout is None else self.dropout(both)

    @property
    def past_key_reparam(self):
        """The keys ``(T, hidden)``."""
        return self.reparametrised()[:, : self.hidden]

    @property
    def past_value_reparam(self):
        """The values ``(T, hidden)``."""
        return self.reparametrised()[:, self.hidden :]

    def construct(self, key, value):
        """``(batch, heads, S, width)`` → ``(batch, heads, T + S, width)``, both."""
        batch, _, _, width = key.shape
        both = self.reparametrised().reshape(1, -1, 2, self.heads, width).transpose(2, 0, 3, 1, 4).astype(key.dtype)
        shape = (batch, self.heads, both.shape[3], width)
        keys, values = ops.broadcast_to(both[0], shape), ops.broadcast_to(both[1], shape)
        return ops.concat((keys, key), 2), ops.concat((values, value), 2)


LAYERS = {
    "lora": (LoRALinear,),
    "adapter": (Bottleneck,),
    "low_rank_adapter": (LowRankAdapter,),
    "prefix": (PrefixLayer,),
    "ptuning2": (_Source,),
}


def freeze_delta(network: nn.Cell, mode: str, include=None, exclude=None) -> None:
    """Freezes everything but one method's parameters, of layers put in by hand or of adapters; `include` and `exclude`
    then act as in `freeze_modules`.

    Raises:
        InputError: an unknown mode, or a network without parameters of this method; nothing has been changed then.
    """
    key = str(mode).lower()
    if key not in MODES:
        raise InputError(
            f"freeze_delta: mode {mode!r} is not known; supported: {', '.join(MODES)}{similar(key, MODES)}"
        )
    kinds = LAYERS.get(MODES[key], ())
    own = {
        id(parameter)
        for cell in ([network] + [cell for _, cell in network.cells_and_names()])
        if isinstance(cell, kinds)
        for parameter in cell.get_parameters()
    }
    if not own:
        freeze_adapters(network, mode, include, exclude)
        return
    before = [(parameter, parameter.requires_grad) for parameter in network.get_parameters()]
    for parameter, _ in before:
        parameter.requires_grad = id(parameter) in own
    if not include and not exclude:
        return
    try:
        freeze_modules(network, include, exclude)
    except InputError:
        for parameter, trained in before:
            parameter.requires_grad = trained
        raise


def _without_types(settings: dict) -> dict:
    """Settings of ``nn.Dense``; MindPet's number types are accepted: adapters compute in float32 in any case.

    Raises:
        InputError: an unknown setting.
    """
    known = ("weight_init", "bias_init", "has_bias", "activation")
    for name in settings:
        if name not in (*known, "param_init_type", "compute_dtype"):
            raise InputError(f"there is no setting {name!r}{nearest(name, known)}")
    return {name: value for name, value in settings.items() if name in known}
