"""What LoRA's modules are made of: named matrices, and where their first values come from."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn


class Factor(nn.Cell):
    """A trained matrix under the name ``weight``, as PEFT's files call it."""

    def __init__(self, values: np.ndarray):
        super().__init__()
        self.weight = Parameter(Tensor(np.ascontiguousarray(values)).astype(ms.float32), name="weight")


def generator_for(seed: int, path: str) -> np.random.Generator:
    """A random stream of this cell's own: values depend on its name, not on the order of building."""
    return np.random.Generator(np.random.Philox([seed, *path.encode()]))


def kaiming_uniform(generator: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Kaiming-uniform with a = √5: uniform in ±1/√columns (He et al. 2015)."""
    bound = 1 / math.sqrt(columns)
    return generator.uniform(-bound, bound, (rows, columns)).astype(np.float32)


def first_a(config, generator: np.random.Generator, rank: int, columns: int) -> np.ndarray:
    """The first A ``(rank, columns)`` of a configuration whose B starts at zero."""
    if config.init == "gaussian":
        return (generator.standard_normal((rank, columns)) / rank).astype(np.float32)
    return kaiming_uniform(generator, rank, columns)
