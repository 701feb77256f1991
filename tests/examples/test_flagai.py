"""The FlagAI script: its own forward_step gives the loss that NumPy gives."""

from __future__ import annotations

import json

import pytest

import pet
from model_zoo.errors import InputError


def test_forward_step_and_collate(base, alone, losses, numpy_loss, asked):
    directory, _ = alone("flagai")
    found = losses(directory)
    assert len(found) == 9
    assert found[-1] < found[0]
    summary = json.loads((directory / "summary.json").read_text())
    model, tokenizer = pet.AutoModel.from_pretrained(str(base)), pet.AutoTokenizer.from_pretrained(str(base))
    pet.load_adapter(model, directory / "adapter")
    # forward_step says the mean over each batch's labels; the evaluation weights batches by their labels again
    rows = [{"prompt": f"What is {index}?", "completion": f"It is {index}."} for index in range(12)]
    expected = numpy_loss(model, asked(tokenizer, rows))
    assert summary["after"]["loss"] == pytest.approx(expected, rel=1e-4)


def test_environments_and_settings():
    from pet.compat.flagai import Trainer

    assert Trainer(env_type="deepspeed").env_type == "optimizer_shard"
    with pytest.raises(InputError, match="pytorchDDP"):
        Trainer(env_type="pytorchDP")
    with pytest.raises(InputError, match=r"learning_rat.* is not known"):
        Trainer(learning_rat=1)
