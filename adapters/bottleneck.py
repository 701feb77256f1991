"""Bottleneck adapters: a small two-layer network at the end of a sublayer, or beside it.

    houlsby    after attention and after the feed-forward    y + s·U·f(D·y)     (Houlsby et al. 2019)
    pfeiffer   after the feed-forward only                   y + s·U·f(D·y)     (Pfeiffer et al. 2020)
    parallel   beside the feed-forward                       y + s·U·f(D·x)     (He et al. 2022)

x is the sublayer's input and y its output. U and its bias start at zero, so that a fresh adapter changes nothing, bit
for bit, and still gets a gradient.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from adapters.cells import Site
from adapters.dropout import Dropout
from adapters.factors import generator_for, kaiming_uniform
from adapters.method import AdapterModule, MethodConfig
from adapters.settings import Bottleneck as Settings
from model_zoo.activations import ACTIVATIONS
from model_zoo.layers import Linear
from model_zoo.norms import LayerNorm


class BottleneckConfig(Settings, MethodConfig):
    """Bottleneck adapters. With `targets` given, ``parallel`` reads the input of each named cell, and the other
    placements its output."""

    def relocated(self, model, chosen) -> list[Site]:
        """Beside a sublayer stands a module on its whole cell, which sees the sublayer's input."""
        if self.placement != "parallel" or self.targets or getattr(model, "family", None) is None:
            return chosen
        cells, hidden = dict(model.cells_and_names()), model.config.dims.hidden
        paths = [(site.path.rpartition(".")[0], site.layer) for site in chosen]
        return [Site(path, cells[path], "sublayer", hidden, hidden, layer=layer) for path, layer in paths]

    def parameters_at(self, site) -> int:
        into = site.in_features if self.placement == "parallel" else site.out_features
        norm = 2 * into if self.layer_norm else 0
        return norm + self.size * (into + 1) + site.out_features * (self.size + 1)

    def build(self, site) -> AdapterModule:
        return Bottleneck(self, site)


def activation(name: str) -> nn.Cell:
    """A function by its name, of which gelu is the one by tanh, as MindSpore's."""
    return ACTIVATIONS["gelu_new" if name == "gelu" else name]()


def projection(weight: np.ndarray) -> Linear:
    """A linear cell that starts with this weight ``(out, in)`` and a bias of zero."""
    made = Linear(weight.shape[1], weight.shape[0])
    made.weight.set_data(Tensor(np.ascontiguousarray(weight, np.float32)))
    return made


class Bottleneck(AdapterModule):
    """The network at one cell."""

    def __init__(self, config: BottleneckConfig, site):
        super().__init__()
        self.parallel = config.placement == "parallel"
        self.reads_output = not self.parallel
        into = site.in_features if self.parallel else site.out_features
        self.scaling = config.scaling
        self.norm = LayerNorm(into, 1e-5) if config.layer_norm else None
        self.dropout = Dropout(config.dropout, site.path) if config.dropout else None
        self.down = projection(kaiming_uniform(generator_for(config.seed, site.path), config.size, into))
        self.activation = activation(config.non_linearity)
        self.up = projection(np.zeros((site.out_features, config.size)))
        cells = ("down", "up", "norm") if config.layer_norm else ("down", "up")
        self.saved = tuple(f"bottleneck_{name}={name}" for cell in cells for name in (f"{cell}.weight", f"{cell}.bias"))

    def construct(self, x, y):
        source = x if self.parallel else y
        change = self.network(source.reshape(-1, source.shape[-1]).astype(ms.float32)) * self.scaling
        return y + change.reshape(y.shape).astype(y.dtype)

    def network(self, flat):
        """``(N, in)`` → ``(N, out)``."""
        if self.norm is not None:
            flat = self.norm(flat)
        if self.dropout is not None:
            flat = self.dropout(flat)
        return self.up(self.activation(self.down(flat)))

    def trace(self, tracer, x, y):
        return tracer.add(self.network(x if self.parallel else y), y, self.scaling)
