"""The activations that a GPT's config.json may name."""

from __future__ import annotations

import numpy as np
import pytest
from mindspore import Tensor

import pet
from model_zoo.activations import GELUS
from pet.train.trainer import Trainer


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("gelu_new", lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))),
        ("quick_gelu", lambda x: x / (1 + np.exp(-1.702 * x))),
    ],
)
def test_values(name, formula):
    x = np.linspace(-6, 6, 101, dtype=np.float32)
    assert np.abs(GELUS[name]()(Tensor(x)).asnumpy() - formula(x.astype(np.float64))).max() < 2e-6


def test_quick_gelu_within_fused_layers_is_that_of_the_operators():
    config = {**pet.AutoConfig.from_pretrained("gpt_tiny").to_dict(), "activation_function": "quick_gelu", "n_layer": 2}
    ids = np.arange(10, 26, dtype=np.int32).reshape(2, 8)
    found = []
    for compiled in (True, False):
        model = pet.apply_lora(pet.AutoModel.from_config(config), rank=2)
        trainer = Trainer(model, [{"input_ids": ids}] * 2, steps=2, batch_size=2, warmup=0, compiled=compiled)
        trainer.train()
        found.append([record["loss"] for record in trainer.history])
    assert found[0] == pytest.approx(found[1], rel=1e-5)
