"""A user's own network with adapters."""

from __future__ import annotations

import adapter_states
import numpy as np


def weights(network) -> dict[str, np.ndarray]:
    return {one.name: one.asnumpy().copy() for one in network.get_parameters() if not hasattr(one, "adapter")}


def randomise(network, scale: float = 0.1) -> None:
    adapter_states.randomise(network, "default", seed=3, scale=scale)
