"""The FlagAI script: its own forward_step gives the loss that NumPy gives."""

from __future__ import annotations

import json

import numpy as np
import pytest

import pet
from model_zoo.errors import InputError


def test_forward_step_and_collate(base, alone, losses):
    directory, _ = alone("flagai")
    found = losses(directory)
    assert len(found) == 9
    assert found[-1] < found[0]
    summary = json.loads((directory / "summary.json").read_text())
    model, tokenizer = pet.AutoModel.from_pretrained(str(base)), pet.AutoTokenizer.from_pretrained(str(base))
    pet.load_adapter(model, directory / "adapter")
    # forward_step says the mean over each batch's labels; the evaluation weights batches by their labels again
    total, count = 0.0, 0
    for index in range(12):
        talk = [{"role": "user", "content": f"What is {index}?"}, {"role": "assistant", "content": f"It is {index}."}]
        ids, trained = map(np.asarray, tokenizer.example(talk))
        logits = model(ids[None].astype(np.int32)).asnumpy()[0].astype(np.float64)
        logs = logits - logits.max(-1, keepdims=True)
        logs -= np.log(np.exp(logs).sum(-1, keepdims=True))
        chosen = logs[np.arange(len(ids) - 1), ids[1:]][trained[1:]]
        total, count = total - chosen.sum(), count + len(chosen)
    assert summary["after"]["loss"] == pytest.approx(total / count, rel=1e-4)


def test_environments_and_settings():
    from pet.compat.flagai import Trainer

    assert Trainer(env_type="deepspeed").env_type == "optimizer_shard"
    with pytest.raises(InputError, match="pytorchDDP"):
        Trainer(env_type="pytorchDP")
    with pytest.raises(InputError, match=r"learning_rat.* is not known"):
        Trainer(learning_rat=1)
    with pytest.raises(InputError, match="needs env_type='hybrid'"):
        Trainer(env_type="pytorchDDP", model_parallel_size=2)
