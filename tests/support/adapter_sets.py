"""A model with several adapters."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import ops

import pet
from adapters.registry import registry

IDS = np.random.default_rng(0).integers(3, 120, (3, 6))


def logits(model):
    return model(IDS).asnumpy()


def add(model, name, seed, rank=2, targets=("q_proj",), **settings):
    """A LoRA whose B is not zero."""
    pet.add_adapter(model, pet.LoRAConfig(rank=rank, targets=list(targets), seed=seed, **settings), name)
    generator = np.random.default_rng(seed)
    for parameter in registry(model).get(name).parameters():
        value = parameter.asnumpy() + 0.1 * generator.standard_normal(parameter.shape)
        ops.assign(parameter, ms.Tensor(value.astype(np.float32)))


def snapshot(model):
    """Everything that an error must not change."""
    state = registry(model)
    values = {parameter.name: parameter.asnumpy().copy() for parameter in model.get_parameters()}
    return values, state.active, tuple(state.adapters), state.merged_names, model.adapter_state


def same(first, second):
    assert first[1:] == second[1:]
    assert first[0].keys() == second[0].keys()
    for name, value in first[0].items():
        np.testing.assert_array_equal(value, second[0][name])
