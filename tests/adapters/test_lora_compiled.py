"""Variants of LoRA in a compiled training step: the same loss and gradients as operator by operator."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops

import pet
from adapters.dropout import set_dropout_key
from adapters.registry import registry

IDS = ms.Tensor(np.array([[3, 5, 77, 8], [5, 90, 77, 77]], np.int32))


def randomise(model):
    generator = np.random.default_rng(3)
    for parameter in registry(model).get("default").parameters():
        value = parameter.asnumpy() + 0.05 * generator.standard_normal(parameter.shape)
        ops.assign(parameter, ms.Tensor(value.astype(np.float32)))


def compare(model, inputs):
    parameters = ms.ParameterTuple(pet.trainable_parameters(model))

    def loss(inputs):
        y = model.construct(inputs)
        return (y * y).mean()

    step = ms.value_and_grad(loss, None, parameters)
    plain_loss, plain = step(inputs)
    compiled_loss, compiled = ms.jit(step)(inputs)
    np.testing.assert_allclose(compiled_loss.asnumpy(), plain_loss.asnumpy(), rtol=1e-5)
    for parameter, one, other in zip(parameters, plain, compiled, strict=True):
        one, other = one.asnumpy(), other.asnumpy()
        assert np.abs(one).max() > 0, parameter.name
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-4 * np.abs(one).max(), err_msg=parameter.name)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("gpt2", {"use_dora": True, "targets": "all-linear", "bias": "all", "trainable_tokens": [5, 77]}),
        pytest.param("glm", {"init": "pissa", "dropout": 0.2, "modules_to_save": ["lm_head"]}, marks=pytest.mark.full),
        ("llama_gqa", {"targets": ["embed_tokens", "lm_head"], "use_dora": True}),
    ],
    ids=["gpt2", "glm", "llama"],
)
def test_models(shortened, family, settings):
    model = pet.AutoModel.from_pretrained(shortened(family))
    pet.apply_lora(model, rank=2, **settings)
    randomise(model)
    model.set_train(True)
    set_dropout_key(model, 5)
    compare(model, IDS)


class Pictures(nn.Cell):
    """An embedding and both convolutions of MindSpore's own."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 4)
        self.line = nn.Conv1d(4, 3, 3, pad_mode="same", has_bias=True)
        self.plane = nn.Conv2d(1, 2, 3, pad_mode="valid", has_bias=True)

    def construct(self, ids):
        x = self.line(self.embed(ids).transpose(0, 2, 1))  # (B, 3, S)
        return self.plane(x.expand_dims(1))


@pytest.mark.parametrize("dora", [False, True])
def test_cells_of_ones_own(dora):
    model = Pictures()
    pet.apply_lora(model, rank=2, targets=["embed", "line", "plane"], use_dora=dora, dropout=0.1)
    randomise(model)
    model.set_train(True)
    set_dropout_key(model, 5)
    compare(model, IDS)
