"""Random weights for training from scratch."""

from __future__ import annotations

import hashlib
import math
from typing import TypeVar

import mindspore as ms
import numpy as np
from mindspore import nn

from model_zoo.configs import Config

Model = TypeVar("Model", bound=nn.Cell)


def initialise(model: Model, seed: int = 0) -> Model:
    """Draws the weights in place, as GPT-2 does (Radford et al. 2019).

    Matrices are normal with the configuration's ``initializer_range`` (0.02 when it has none); the two projections
    that write into the residual stream are narrower by ``1 / sqrt(2·layers)``, which keeps the stream's variance
    independent of the depth. Biases are zero and norms one, as built. Each tensor has a generator of its own, seeded
    by its name: the values do not depend on order, or on which slice of a model a process holds.
    """
    outputs = tuple(f".{name}.weight" for name in model.family.row)
    for name, parameter in model.parameters_dict().items():
        if len(parameter.shape) > 1:
            depth = 2 * model.config.dims.layers if name.endswith(outputs) else 1
            draw(parameter, model.config, seed, depth)
    return model


def draw(parameter, config: Config, seed: int, depth: int = 1) -> None:
    """Draws one matrix, by its name; narrower by the root of `depth`."""
    digest = hashlib.sha256(f"{seed}:{parameter.name}".encode()).digest()
    generator = np.random.Generator(np.random.Philox(int.from_bytes(digest[:8], "little")))
    said = config.extra.get("initializer_range")
    scale = float(0.02 if said is None else said) / math.sqrt(depth)
    values = generator.standard_normal(parameter.shape, dtype=np.float32) * np.float32(scale)
    parameter.set_data(ms.Tensor(values).astype(parameter.dtype))
