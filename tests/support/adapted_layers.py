"""Layers with adapters, and their gradients."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

from adapters.dropout import set_dropout_key
from pet.train.objectives.causal import CausalLM
from pet.train.optimizers import AdamW
from pet.train.segments import make_segments
from pet.train.step import TrainStep

DENSE = ("llama_gqa", "mistral", "gemma2", "gemma3", "gpt2", "chatglm1", "chatglm2", "glm", "glm4_0414")
FAMILIES = (*DENSE, "qwen3_moe")


def batch_of(model, rows=2, length=17, seed=0):
    """Two documents in each row, the second of which sees nothing of the first."""
    generator = np.random.default_rng(seed)
    ids = generator.integers(10, 60, (rows, length)).astype(np.int32)
    index = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    border = length // 3
    start = np.where(index < border, 0, border).astype(np.int32)
    positions = index - start
    if model.family.name == "glm":
        positions = np.stack([positions, positions // 2], 1)
    return {"input_ids": ids, "labels": ids, "position_ids": positions, "start": start, "end": index + 1}


def disturb(model) -> None:
    """Makes adapters and norms something that changes what goes through."""
    set_dropout_key(model, 12345, 1)
    generator = np.random.default_rng(3)
    for parameter in model.get_parameters():
        if ".ia3_l" in parameter.name:
            parameter.set_data(Tensor(1.0 + 0.3 * generator.standard_normal(parameter.shape).astype(np.float32)))
        if "prompt_embeddings" in parameter.name:
            parameter.set_data(Tensor(generator.standard_normal(parameter.shape).astype(np.float32)))
        if ".lora_magnitude_vector" in parameter.name:
            factors = 1.0 + 0.3 * generator.standard_normal(parameter.shape)
            parameter.set_data(Tensor((parameter.asnumpy() * factors).astype(np.float32)))
        if parameter.name.endswith(".bias"):
            parameter.set_data(Tensor(0.1 * generator.standard_normal(parameter.shape).astype(np.float32)))
        if (
            ".lora_B." in parameter.name
            or "bottleneck_up" in parameter.name
            or ".up.weight" in parameter.name
            or "up_b." in parameter.name
        ):
            parameter.set_data(Tensor(generator.standard_normal(parameter.shape).astype(np.float32) * np.float32(0.1)))


def gradients(model, batch, fast: bool, graph: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The summed loss of a batch, and all gradients end to end; `graph`: whether a graph is to compute them."""
    model.set_fast(fast)
    trained = [parameter for parameter in model.get_parameters() if parameter.requires_grad]
    step = TrainStep(model, AdamW(make_segments(trained)), CausalLM(), compiled=fast)
    total, vectors = step.accumulate([batch], 0, Tensor(0.05, ms.float32))
    model.set_fast(False)
    assert step.gradient.compiled == fast and (step.gradient.graph is not None) == graph
    return total, np.concatenate([vector.asnumpy() for vector in vectors])


def same(model, batch, before=lambda model: None, graph: bool = False) -> None:
    """Whether both paths agree; `before` is what is done to the model before the fast one."""
    expected_total, expected = gradients(model, batch, False)
    before(model)
    total, found = gradients(model, batch, True, graph)
    assert np.abs(expected).max() > 1e-3
    assert total == pytest.approx(expected_total, rel=1e-5)
    assert np.abs(found - expected).max() < 3e-5 * np.abs(expected).max()
