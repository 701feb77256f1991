"""The activations and the scales of attention that a GPT's config.json may name."""

from __future__ import annotations

import math

import numpy as np
import pytest
from mindspore import Tensor

import pet
from model_zoo.activations import ACTIVATIONS
from model_zoo.checkpoint.saving import save_pretrained
from model_zoo.families.gpt2 import GPT2Config
from pet.train.trainer import Trainer

IDS = np.arange(10, 26, dtype=np.int32).reshape(2, 8)


def by_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def exact(x):
    return x * np.vectorize(lambda value: 0.5 * math.erfc(-value / math.sqrt(2)))(x)


FORMULAS = {
    **dict.fromkeys(("gelu", "gelu_python"), exact),
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), by_tanh),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "relu": lambda x: np.maximum(x, 0),
    **dict.fromkeys(("silu", "swish"), lambda x: x / (1 + np.exp(-x))),
    "tanh": np.tanh,
}


@pytest.mark.parametrize("name", GPT2Config.acts)
def test_values(name):
    x = np.linspace(-6, 6, 101, dtype=np.float32)
    assert np.abs(ACTIVATIONS[name]()(Tensor(x)).asnumpy() - FORMULAS[name](x.astype(np.float64))).max() < 2e-6


SCALES = {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True}
OTHERS = {
    "quick": {"activation_function": "quick_gelu"},
    "exact": {"activation_function": "gelu"},
    "by layer": {**SCALES, "activation_function": "silu"},
    "not scaled": {**SCALES, "scale_attn_weights": False, "activation_function": "relu"},
}


@pytest.fixture(params=OTHERS)
def config(request) -> dict:
    return {**pet.AutoConfig.from_pretrained("gpt_tiny").to_dict(), "n_layer": 2, **OTHERS[request.param]}


def test_fused_layers_are_the_operators(config):
    found = []
    for compiled in (True, False):
        model = pet.apply_lora(pet.AutoModel.from_config(config), rank=2)
        trainer = Trainer(model, [{"input_ids": IDS}] * 2, steps=2, batch_size=2, warmup=0, compiled=compiled)
        trainer.train()
        found.append([record["loss"] for record in trainer.history])
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_transformers_computes_the_same(config, tmp_path):
    torch = pytest.importorskip("torch", reason="the live comparison needs torch")
    transformers = pytest.importorskip("transformers", reason="the live comparison needs transformers")
    model = pet.AutoModel.from_config(config, seed=3)
    for parameter in model.get_parameters():  # so large that scores and activations matter
        if parameter.name.endswith("c_attn.weight") or parameter.name.endswith("c_fc.weight"):
            parameter.set_data(Tensor(parameter.asnumpy() * 8))
    save_pretrained(model, tmp_path)
    peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    ids = torch.tensor(IDS.astype(np.int64))
    with torch.no_grad():
        expected = peer(ids).logits.numpy()
        written = peer.generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0).numpy()
    assert np.abs(model(IDS).asnumpy() - expected).max() < 1e-5
    assert np.array_equal(model.generate(IDS, max_new_tokens=6, eos_token_id=None), written)
