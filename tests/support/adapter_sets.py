"""A model with several adapters."""

from __future__ import annotations

import numpy as np
from adapter_states import randomise

import pet
from adapters.registry import registry


def add(model, name, seed, rank=2, targets=("q_proj",), **settings):
    """A LoRA whose B is not zero."""
    pet.add_adapter(model, pet.LoRAConfig(rank=rank, targets=list(targets), seed=seed, **settings), name)
    randomise(model, name, seed, scale=0.1)


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
