"""Packed weights in the engine: what the float32 model of the dequantised weights computes."""

from __future__ import annotations

import numpy as np
import pytest

import pet
from adapters.apply import apply
from adapters.lora import LoRAConfig
from model_zoo.auto import AutoModel
from model_zoo.engine import available, run as whole
from model_zoo.quantization import Quantization
from model_zoo.quantization.cells import quantized_cells

pytestmark = pytest.mark.skipif(not available(), reason="there are no C kernels here")

FORMS = {
    "nf4": (Quantization("nf4"), {}),
    "double, DoRA": (Quantization("nf4", 64, True), {"use_dora": True}),
    "int8, dropout": (Quantization("int8"), {"dropout": 0.2}),
    "int4": (Quantization("int4", 32, skip=("down_proj", "lm_head")), {}),
}


def dequantised(directory, quantization):
    """The packed model, and the float32 model of the same numbers."""
    packed = AutoModel.from_pretrained(directory, quantization=quantization)
    wide = AutoModel.from_pretrained(directory)
    parameters = {parameter.name: parameter for parameter in wide.get_parameters()}
    cells = quantized_cells(packed)
    assert cells
    for name, cell in cells.items():
        parameters[name].asnumpy()[...] = cell.published()
    return packed, wide


@pytest.mark.parametrize("name", FORMS)
def test_training_is_that_on_the_dequantised_weights(name, fixtures, monkeypatch, tmp_path):
    """Bit for bit, all layers one operator; single tokens, and DoRA's product with its few rows of A, to rounding."""
    groups, found = [], []
    replace = whole.replace_layers
    monkeypatch.setattr(whole, "replace_layers", lambda old, new: groups.append(list(new)) or replace(old, new))
    quantization, settings = FORMS[name]
    for index, model in enumerate(dequantised(fixtures / "llama_gqa", quantization)):
        apply(model, LoRAConfig(rank=3, targets="all-linear", **settings))
        ids = [np.random.default_rng(seed).integers(10, 60, (2, 17)).astype(np.int32) for seed in range(3)]
        batches = [{"input_ids": one, "labels": one} for one in ids]
        trainer = pet.Trainer(model, batches, steps=3, learning_rate=1e-2, batch_size=2)
        trainer.train()
        pet.save_adapter(model, tmp_path / str(index))
        tensors = (tmp_path / str(index) / "adapter_model.safetensors").read_bytes()
        start = tensors[8 : 8 + int.from_bytes(tensors[:8], "little")]
        found.append(([record["loss"] for record in trainer.history], tensors[8 + len(start) :]))
        found[-1] += (model.generate(ids[0][:, :9], max_new_tokens=5).tolist(),)
    if "use_dora" in settings:
        assert found[0][0] == pytest.approx(found[1][0], rel=1e-6) and found[0][2] == found[1][2]
    else:
        assert found[0] == found[1]
    assert len(set(found[0][0])) == 3
    assert groups and all(isinstance(cell, whole.FusedLayers) for group in groups for cell in group)
