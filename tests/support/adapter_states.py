"""A model with adapters in several states."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import nn, ops

import pet
from adapters.registry import registry

IDS = np.random.default_rng(0).integers(3, 120, (3, 6))


def logits(model):
    return model(IDS).asnumpy()


def randomise(model, name, seed=1, scale=0.3) -> None:
    """Moves an adapter's parameters, so that none does nothing."""
    generator = np.random.default_rng(seed)
    for parameter in registry(model).get(name).parameters():
        value = parameter.asnumpy() + scale * generator.standard_normal(parameter.shape)
        ops.assign(parameter, ms.Tensor(value.astype(np.float32)))


def add(model, name, config, seed=1):
    pet.add_adapter(model, config, name)
    randomise(model, name, seed)


def lora(**settings):
    return pet.LoRAConfig(**{"rank": 2, "targets": ["k_proj", "down_proj"], **settings})


class Own(nn.Cell):
    """A user's own cell, with names that begin as those of adapters do."""

    def __init__(self):
        super().__init__()
        self.adapter_first = nn.Dense(6, 5)
        self.adapter_list = nn.CellList([nn.Dense(5, 5)])
        self.last = nn.Dense(5, 4)

    def construct(self, x):
        return self.last(self.adapter_list[0](self.adapter_first(x)))
