"""A user's own network with adapters."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, ops

from adapters.registry import registry


def weights(network) -> dict[str, np.ndarray]:
    return {one.name: one.asnumpy().copy() for one in network.get_parameters() if not hasattr(one, "adapter")}


def randomise(network, scale: float = 0.1) -> None:
    generator = np.random.default_rng(3)
    for parameter in registry(network).get("default").parameters():
        value = parameter.asnumpy() + scale * generator.standard_normal(parameter.shape)
        ops.assign(parameter, Tensor(value.astype(np.float32)))
