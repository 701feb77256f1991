"""FlagAI's settings: each reaches the run."""

from __future__ import annotations

import numpy as np
import pytest

import pet
from model_zoo.errors import InputError
from pet.compat.flagai import Trainer

SETTINGS = {
    "epochs": 2,
    "batch_size": 3,
    "lr": 2e-4,
    "weight_decay": 0.1,
    "warm_up": 0.2,
    "gradient_accumulation_steps": 4,
    "clip_grad": 0.5,
    "seed": 5,
    "log_interval": 6,
    "save_interval": 7,
    "eval_interval": 8,
    "fp16": True,
    "checkpoint_activations": True,
    "experiment_name": "mine",
    "num_nodes": 2,
    "num_gpus": 2,
    "master_ip": "10.0.0.1",
    "master_port": 1234,
    "hostfile": "hosts",
    "training_script": "train.py",
}


@pytest.fixture
def recipes(monkeypatch):
    """What runs are asked for, instead of being run."""
    asked = []
    monkeypatch.setattr(
        "pet.compat.objects.run", lambda recipe, objects, **more: asked.append((recipe, objects, more)) or {}
    )
    return asked


@pytest.mark.parametrize(
    ("environment", "layout"),
    [
        ("pytorchDDP", (4, 1, False)),
        ("data_parallel", (4, 1, False)),
        ("deepspeed", (4, 1, True)),
        ("optimizer_shard", (4, 1, True)),
        ("deepspeed+mpu", (2, 2, False)),
        ("hybrid", (2, 2, False)),
    ],
)
def test_every_setting_in_a_job_of_four(monkeypatch, recipes, environment, layout):
    for name, value in {"RANK_ID": "0", "RANK_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "8118"}.items():
        monkeypatch.setenv(name, value)
    more = {"model_parallel_size": 2} if layout[1] == 2 else {}
    data = [{"input_ids": [1, 2]}]
    Trainer(env_type=environment, **SETTINGS, **more).train(object(), train_dataset=data, valid_dataset=data)
    ((recipe, objects, rhythm),) = recipes
    train, parallel = recipe.train, recipe.parallel
    assert (parallel.data, parallel.tensor, parallel.shard_optimizer) == layout
    assert (train.epochs, train.batch_size, train.learning_rate) == (2.0, 3 * layout[0], 2e-4)
    assert (train.weight_decay, train.warmup, train.accumulation, train.clip_norm) == (0.1, 0.2, 4, 0.5)
    assert (train.seed, train.log_every, train.save_every, train.precision) == (5, 6, 7, "fp16")
    assert (train.recompute, recipe.name, rhythm) == (True, "mine", {"eval_rhythm": {"every_steps": 8}})
    assert recipe.output.dir.endswith("checkpoints/mine")
    assert (objects.train, objects.evaluation, objects.forward_step) == (data, data, None)


def test_load_dir_goes_on_from_another_run(base, tmp_path, recipes):
    rows = [{"input_ids": row} for row in np.random.default_rng(0).integers(10, 40, (4, 9))]

    def collate(samples):
        return {"input_ids": np.stack([sample["input_ids"] for sample in samples])}

    model = pet.apply_lora(pet.AutoModel.from_pretrained(str(base)), rank=2)
    pet.Trainer(model, [collate(rows)], steps=1, warmup=0, directory=tmp_path / "first").train()
    trainer = Trainer(env_type="pytorch", load_dir=str(tmp_path / "first"), save_dir=str(tmp_path / "second"))
    trainer.train(model, train_dataset=rows, collate_fn=collate)
    recipe, objects, _ = recipes[0]
    assert recipe.train.resume
    assert (tmp_path / "second/checkpoints/step-000001/state.json").is_file()
    assert objects.collate_fn is collate
    with pytest.raises(InputError, match="holds no whole checkpoint"):
        Trainer(load_dir=str(tmp_path)).train(model, train_dataset=rows, collate_fn=collate)
    with pytest.raises(InputError, match="train_dataset is missing"):
        Trainer().train(model)
    with pytest.raises(InputError, match="optimizer: the trainer makes its own"):
        Trainer().train(model, optimizer=object(), train_dataset=rows)
