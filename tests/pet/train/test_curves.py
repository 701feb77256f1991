"""Twenty steps of LoRA on every family's reference model against the losses of an independent implementation."""

from __future__ import annotations

import numpy as np
import pytest

from adapters.files import load_adapter
from model_zoo.auto import AutoModel
from pet.train.trainer import Trainer

MODELS = ("chatglm1", "chatglm2", "glm", "glm4_0414", "gpt2", "llama_gqa", "llama_mha")


def run(fixtures, name, adapter, numbers="lora_ref.npz"):
    model = AutoModel.from_pretrained(fixtures / name)
    load_adapter(model, fixtures / name / adapter)
    reference = np.load(fixtures / name / numbers)
    base = {p.name: p.asnumpy().copy() for p in model.get_parameters() if not p.requires_grad}
    rows = zip(reference["train_input_ids"], reference["train_labels"], strict=True)
    trainer = Trainer(
        model,
        [{"input_ids": ids, "labels": labels} for ids, labels in rows],
        steps=20,
        learning_rate=1e-3,
        schedule="constant",
        warmup=0,
        clip_norm=None,
    )
    trainer.train()
    for parameter in model.get_parameters():
        if parameter.name in base and not getattr(parameter, "buffer", False):
            assert np.array_equal(parameter.asnumpy(), base[parameter.name]), f"{parameter.name} has changed"
    return np.array([line["loss"] for line in trainer.history]), reference


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_loss_curve(fixtures, name):
    losses, reference = run(fixtures, name, "lora_train_init")
    assert np.abs(losses - reference["train_losses"]).max() < 1e-4


def test_loss_curve_from_an_adapter_that_is_not_zero(fixtures):
    losses, reference = run(fixtures, "llama_gqa", "lora")
    assert np.abs(losses - reference["train_losses_from_nonzero"]).max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["glm", "llama_gqa"])
def test_loss_curve_of_a_prefix(fixtures, name):
    """The real tokens stand behind the prefix: their positions must reach the step moved by its length."""
    losses, reference = run(fixtures, name, "prefix", "prefix_ref.npz")
    assert np.abs(losses - reference["train_losses"]).max() < 1e-4
