"""MindPet's layers, to be put into a network by hand, under its parameters' names, so that its files load here and
these there.

    class Attention(nn.Cell):
        def __init__(self, width):
            self.query = LoRADense(width, width, lora_rank=8, lora_alpha=16)

    freeze_delta(network, mode="lora")

Unlike there, a fresh layer changes nothing, bit for bit, and ``compute_dtype`` is float32 unless it is given. What is
out of range is an InputError, another type `errors.WrongType`, which is a TypeError too.
"""

from __future__ import annotations

import math
from collections import OrderedDict

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import HeUniform, Initializer, initializer

from adapters.bottleneck import activation
from adapters.settings import NON_LINEARITIES
from model_zoo.errors import InputError, warn_once
from pet.compat.mindpet.errors import WrongType, check_types, dropout, keep_whole


class _Layer(nn.Cell):
    """What MindPet's layers have in common."""

    def shard(self, *strategies, **named) -> nn.Cell:
        """Takes MindPet's strategies, which have no effect: a step is divided by `pet`'s own layouts.

        Args:
            strategies, named: tuples or None, named ``strategy_…``.

        Raises:
            InputError: something else, or a layer with LogSoftmax, as there.
        """
        owner = type(self).__name__
        for name, value in {**dict(enumerate(strategies)), **named}.items():
            if not str(name).startswith("strategy_" if name in named else "") or not isinstance(
                value, (tuple, type(None))
            ):
                raise WrongType(f"{owner}.shard: {name}={value!r}; tuples named strategy_… were expected")
        if any(isinstance(cell, nn.LogSoftmax) for _, cell in self.cells_and_names()):
            raise InputError(f"{owner}.shard: LogSoftmax cannot be divided")
        warn_once(f"{owner}.shard: strategies have no effect here; parallel.* of a recipe divides a model")
        return self

    def non_linear(self, name: str) -> nn.Cell:
        """An activation by MindSpore's name."""
        if name in NON_LINEARITIES:
            return activation(name)
        try:
            return nn.get_activation(str(name).lower())
        except KeyError:
            raise WrongType(f"{type(self).__name__}: non_linearity {name!r} is no activation of MindSpore") from None


class _Dense(_Layer, nn.Dense):
    """A Dense over rows ``(N, in)`` that computes in a type of its own."""

    def __init__(self, width_in, width_out, compute_dtype, *settings, **named):
        super().__init__(width_in, width_out, *settings, **named)
        self.compute_dtype = compute_dtype

    def product(self, x):
        """x·Wᵀ + b."""
        y = self.matmul(x.astype(self.compute_dtype), self.weight.astype(self.compute_dtype))
        return self.bias_add(y, self.bias.astype(self.compute_dtype)) if self.has_bias else y

    def activated(self, y):
        """The activation, where there is one."""
        return self.activation(y) if self.activation_flag else y

    def restored(self, y, x):
        """Rows ``(N, out)`` in the input's form and type."""
        return y.reshape(x.shape[:-1] + (self.out_channels,)).astype(x.dtype)

    def construct(self, x):
        return self.product(x).astype(x.dtype)


class LoRADense(_Dense):
    """A Dense with LoRA (Hu et al. 2021): ``y = f(x·Wᵀ + b + alpha/rank · B·A·x)``.

    Args:
        in_channels, out_channels: widths.
        lora_rank, lora_alpha: inner width, and numerator of the scale, which is not 0.
        lora_dropout: share of the input of A that is zeroed while training, a float.
        lora_a_init, lora_b_init: first values of A ``(rank, in)`` and B ``(out, rank)``, as ``initializer`` takes them.
        param_init_type, compute_dtype: number types of A and B, and of the products.
        dense: ``weight_init, bias_init, has_bias, activation``, as ``nn.Dense`` has them.
    """

    def __init__(
        self,
        in_channels,
        out_channels,
        lora_rank,
        lora_alpha,
        lora_dropout=0.0,
        lora_a_init=None,
        lora_b_init="zeros",
        param_init_type=ms.float32,
        compute_dtype=ms.float32,
        **dense,
    ):
        super().__init__(in_channels, out_channels, compute_dtype, **dense)
        keep_whole(self, lora_rank=lora_rank)
        check_types(self, param_init_type=param_init_type, compute_dtype=compute_dtype)
        if isinstance(lora_alpha, bool) or not isinstance(lora_alpha, (int, float)):
            raise WrongType(f"LoRADense: lora_alpha is {lora_alpha!r}; a number was expected")
        if not lora_alpha:
            raise InputError("LoRADense: lora_alpha is 0, so that LoRA has no effect")
        self.lora_alpha, self.scaling = lora_alpha, lora_alpha / lora_rank
        self.lora_dropout = dropout(self, "lora_dropout", lora_dropout)
        first = HeUniform(math.sqrt(5)) if lora_a_init is None else lora_a_init
        self.mindpet_delta_lora_a = self._matrix("A", first, (lora_rank, in_channels), param_init_type)
        self.mindpet_delta_lora_b = self._matrix("B", lora_b_init, (out_channels, lora_rank), param_init_type)

    def _matrix(self, letter: str, first, shape: tuple[int, int], dtype) -> Parameter:
        if isinstance(first, Tensor) and tuple(first.shape) != shape:
            raise InputError(f"LoRADense: lora_{letter.lower()}_init is {tuple(first.shape)}; {shape} was expected")
        return Parameter(initializer(first, shape, dtype), name=f"mindpet_delta_lora_{letter}")

    def construct(self, x):
        flat = x.reshape(-1, x.shape[-1]).astype(self.compute_dtype)
        inner = self.matmul(self.lora_dropout(flat), self.mindpet_delta_lora_a.astype(self.compute_dtype))
        change = self.matmul(inner, self.mindpet_delta_lora_b.astype(self.compute_dtype)) * self.scaling
        return self.restored(self.activated(self.product(flat) + change), x)


class AdapterLayer(_Layer):
    """A bottleneck adapter (Houlsby et al. 2019): ``x + up(f(down(x)))``; ``up`` starts at zero.

    Args:
        hidden_size: width of the input and output.
        bottleneck_size: width between.
        non_linearity: an activation by MindSpore's name.
        param_init_type, compute_dtype: number types of the weights and of the products.
    """

    def __init__(
        self,
        hidden_size,
        bottleneck_size=64,
        non_linearity="gelu",
        param_init_type=ms.float32,
        compute_dtype=ms.float32,
    ):
        super().__init__()
        keep_whole(self, hidden_size=hidden_size, bottleneck_size=bottleneck_size)
        check_types(self, param_init_type=param_init_type, compute_dtype=compute_dtype)
        self.compute_dtype, dtype = compute_dtype, {"dtype": param_init_type}
        block = {
            "down_sampler": _Dense(hidden_size, bottleneck_size, compute_dtype, "normal", "zeros", **dtype),
            "non_linear": self.non_linear(non_linearity),
            "up_sampler": _Dense(bottleneck_size, hidden_size, compute_dtype, "zeros", "zeros", **dtype),
        }
        named = OrderedDict((f"mindpet_delta_adapter_{name}", cell) for name, cell in block.items())
        self.mindpet_delta_adapter_block = nn.SequentialCell(named)

    def construct(self, x):
        flat = x.reshape(-1, x.shape[-1])
        return (flat + self.mindpet_delta_adapter_block(flat)).reshape(x.shape)


class LowRankLinear(_Dense):
    """``y = x·L·R + b`` with L ``(in, rank)`` and R ``(rank, out)``, in the place of one weight."""

    def __init__(self, width_in, width_out, rank, first, last, param_init_type, compute_dtype):
        super().__init__(width_in, width_out, compute_dtype, "zeros", "zeros", dtype=param_init_type)
        del self.weight
        for side, start, shape in (("left", first, (width_in, rank)), ("right", last, (rank, width_out))):
            name = f"mindpet_delta_low_rank_adapter_weight_{side}"
            setattr(self, name, Parameter(initializer(start, shape, param_init_type), name=name))

    def product(self, x):
        left = self.mindpet_delta_low_rank_adapter_weight_left.astype(self.compute_dtype)
        right = self.mindpet_delta_low_rank_adapter_weight_right.astype(self.compute_dtype)
        return self.bias_add(ops.matmul(x.astype(left.dtype), ops.matmul(left, right)), self.bias.astype(left.dtype))


class LowRankAdapterLayer(_Layer):
    """A bottleneck whose projections are products of thin matrices (Mahabadi et al. 2021); the last starts at zero.

    Args:
        hidden_size: width of the input and output.
        reduction_factor: the bottleneck is the width over this.
        low_rank_size: inner width of each product.
        low_rank_w_init: first values of the other matrices, a name or an ``Initializer``.
        non_linearity, param_init_type, compute_dtype: as for `AdapterLayer`.
    """

    def __init__(
        self,
        hidden_size,
        reduction_factor=1,
        low_rank_size=1,
        low_rank_w_init="xavier_uniform",
        non_linearity="gelu",
        param_init_type=ms.float32,
        compute_dtype=ms.float32,
    ):
        super().__init__()
        keep_whole(self, hidden_size=hidden_size, reduction_factor=reduction_factor, low_rank_size=low_rank_size)
        check_types(self, param_init_type=param_init_type, compute_dtype=compute_dtype)
        owner, first = type(self).__name__, low_rank_w_init
        if not isinstance(first, (str, Initializer)):
            raise WrongType(f"{owner}: low_rank_w_init is {first!r}; a name or an Initializer was expected")
        if reduction_factor > hidden_size:
            raise InputError(f"{owner}: reduction_factor {reduction_factor} is above the width {hidden_size}")
        self.bottleneck_size, self.compute_dtype = hidden_size // reduction_factor, compute_dtype
        down = (hidden_size, self.bottleneck_size, low_rank_size, first, first, param_init_type, compute_dtype)
        up = (self.bottleneck_size, hidden_size, low_rank_size, first, "zeros", param_init_type, compute_dtype)
        self.mindpet_delta_low_rank_adapter_down_sampler = LowRankLinear(*down)
        self.mindpet_delta_low_rank_adapter_non_linear = self.non_linear(non_linearity)
        self.mindpet_delta_low_rank_adapter_up_sampler = LowRankLinear(*up)

    def construct(self, x):
        flat = x.reshape(-1, x.shape[-1])
        inner = self.mindpet_delta_low_rank_adapter_down_sampler(flat)
        inner = self.mindpet_delta_low_rank_adapter_non_linear(inner)
        return (flat + self.mindpet_delta_low_rank_adapter_up_sampler(inner)).reshape(x.shape)


class _Followed(_Dense):
    """A Dense with an adapter layer behind it: its arguments after ``nn.Dense``'s, without the first."""

    layer: type
    name: str

    def __init__(
        self,
        in_channels,
        out_channels,
        weight_init="normal",
        bias_init="zeros",
        has_bias=True,
        activation=None,
        *settings,
        **named,
    ):
        adapter = self.layer(out_channels, *settings, **named)
        plain = (weight_init, bias_init, has_bias, activation)
        super().__init__(in_channels, out_channels, adapter.compute_dtype, *plain)
        self.bottleneck_size = adapter.bottleneck_size
        setattr(self, self.name, adapter)

    def construct(self, x):
        rows = self.activated(self.product(x.reshape(-1, x.shape[-1])))
        return self.restored(getattr(self, self.name)(rows), x)


class AdapterDense(_Followed):
    """A Dense followed by an `AdapterLayer`: the arguments of both."""

    layer, name = AdapterLayer, "mindpet_delta_adapter"


class LowRankAdapterDense(_Followed):
    """A Dense followed by a `LowRankAdapterLayer`: the arguments of both."""

    layer, name = LowRankAdapterLayer, "mindpet_delta_low_rank_adapter"
