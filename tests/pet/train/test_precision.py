"""Narrow products and recomputation on a reference model: close to, or the same as, the plain losses."""

from __future__ import annotations

import numpy as np
import pytest

from adapters.saving import load_adapter
from model_zoo.auto import AutoModel
from model_zoo.errors import InputError
from pet.train.precision import NarrowProduct, set_precision
from pet.train.trainer import Trainer


def losses(fixtures, **settings):
    model = AutoModel.from_pretrained(fixtures / "llama_mha")
    load_adapter(model, fixtures / "llama_mha" / "lora_train_init")
    reference = np.load(fixtures / "llama_mha" / "lora_ref.npz")
    rows = zip(reference["train_input_ids"], reference["train_labels"], strict=True)
    trainer = Trainer(
        model,
        [{"input_ids": ids, "labels": labels} for ids, labels in rows],
        steps=6,
        learning_rate=1e-3,
        schedule="constant",
        warmup=0,
        clip_norm=None,
        **settings,
    )
    trainer.train()
    return np.array([line["loss"] for line in trainer.history]), reference["train_losses"][:6], trainer


@pytest.mark.slow
def test_half_precision_trains_like_single(fixtures):
    found, expected, trainer = losses(fixtures, precision="fp16")
    difference = np.abs(found - expected).max()
    assert 1e-6 < difference < 2e-2
    assert trainer.loss_scale.scale == 65536.0
    assert all(p.dtype == trainer.optimizer.segments[0].parameters[0].dtype for p in trainer.model.get_parameters())


@pytest.mark.slow
def test_recomputed_layers_give_the_same_losses(fixtures):
    found, expected, _ = losses(fixtures, recompute=True)
    assert np.abs(found - expected).max() < 1e-4


def test_precision_is_taken_back_and_bf16_is_refused_on_a_cpu(fixtures):
    model = AutoModel.from_pretrained(fixtures / "llama_mha")
    names = list(model.parameters_dict())

    def narrow():
        return sum(isinstance(cell, NarrowProduct) for _, cell in model.cells_and_names())

    set_precision(model, "fp16")
    assert narrow() > 10 and list(model.parameters_dict()) == names
    set_precision(model, "fp16")
    once = narrow()
    set_precision(model, "fp32")
    assert once > 10 and narrow() == 0
    with pytest.raises(InputError, match="bf16 has no matrix product on a CPU"):
        set_precision(model, "bf16")
