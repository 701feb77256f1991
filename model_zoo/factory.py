"""Cells with weights, made from what a configuration says of them."""

from __future__ import annotations

from collections.abc import Callable

import mindspore as ms
from mindspore import nn

from model_zoo.configs import CellSpec, Config
from model_zoo.layers import Conv1D, Embedding, Linear
from model_zoo.norms import LayerNorm, RMSNorm

KINDS: dict[str, Callable[[CellSpec, ms.Type], nn.Cell]] = {
    "embedding": lambda spec, dtype: Embedding(*spec.weight, dtype, spec.scale, spec.padding),
    "linear": lambda spec, dtype: Linear(spec.weight[1], spec.weight[0], spec.bias, dtype),
    "conv1d": lambda spec, dtype: Conv1D(*spec.weight, dtype),
    "rms_norm": lambda spec, dtype: RMSNorm(*spec.weight, spec.eps, dtype, spec.offset),
    "layer_norm": lambda spec, dtype: LayerNorm(*spec.weight, spec.eps, dtype),
}
"""The cell of each kind of `CellSpec`."""


class CellFactory:
    """Makes a model's cells with weights, as its configuration describes them.

    Args:
        config: gives `Config.own_tensors`.
    """

    def __init__(self, config: Config, dtype):
        self.tensors, self.layers, self.dtype = config.own_tensors(), config.family.layers, dtype

    def __call__(self, path: str, needed: bool = True) -> nn.Cell | None:
        """The cell at a path; None where the model has none there and none is needed."""
        if not needed and path not in self.tensors:
            return None
        spec = self.tensors[path]
        return KINDS[spec.kind](spec, self.dtype)

    def layer(self, path: str, needed: bool = True) -> nn.Cell | None:
        """The same for a path within a layer."""
        return self(f"{self.layers}.*.{path}", needed)
