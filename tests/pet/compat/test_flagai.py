"""FlagAI's settings: each reaches the run."""

from __future__ import annotations

import os
import subprocess
import sys

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
    ((recipe, objects, schedule),) = recipes
    train, parallel = recipe.train, recipe.parallel
    assert (parallel.data, parallel.tensor, parallel.shard_optimizer) == layout
    assert (train.epochs, train.batch_size, train.learning_rate) == (2.0, 3 * layout[0], 2e-4)
    assert (train.weight_decay, train.warmup, train.accumulation, train.clip_norm) == (0.1, 0.2, 4, 0.5)
    assert (train.seed, train.log_every, train.save_every, train.precision) == (5, 6, 7, "fp16")
    assert (train.recompute, recipe.name, schedule) == (True, "mine", {"eval_schedule": {"every_steps": 8}})
    assert recipe.output.dir.endswith("checkpoints/mine")
    assert (objects.train, objects.evaluation, objects.forward_step) == (data, data, None)


SCRIPT = """
import os, time
from pathlib import Path
from pet.compat.flagai import Trainer
Trainer(env_type="pytorchDDP", num_gpus=2)
Path("rank_" + os.environ["RANK_ID"] + "_of_" + os.environ["RANK_SIZE"]).touch()
while len(list(Path().glob("rank_*_of_*"))) < 2:  # the first that ends so ends the other
    time.sleep(0.01)
raise SystemExit(5)
"""


def test_num_gpus_starts_the_script_in_so_many_processes(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("RANK_", "MS_", "PET_"))}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 5, done.stderr  # that of the processes
    assert sorted(path.name for path in tmp_path.glob("rank_*")) == ["rank_0_of_2", "rank_1_of_2"]


def test_processes_that_cannot_be_started_are_refused(monkeypatch, tmp_path):
    monkeypatch.setattr("pet.launching.launcher.launch", lambda *_, **__: pytest.fail("processes were started"))
    (tmp_path / "hosts").write_text("10.0.0.1 slots=2\n# the second\n10.0.0.2 slots=2\n")
    for settings, message in (
        ({"num_nodes": 2}, "num_nodes x num_gpus = 2 processes, but this is one; .* --nnodes 2 --node-rank K"),
        ({"hostfile": str(tmp_path / "hosts"), "num_gpus": 2}, "= 4 processes.*pet launch -n 2 --nnodes 2"),
        ({"num_gpus": 2, "not_call_launch": True}, "by: pet launch -n 2 -- python SCRIPT"),
        ({"num_gpus": 0}, "num_gpus is 0; a whole number of at least 1"),
        ({"num_gpus": 3, "env_type": "hybrid", "model_parallel_size": 2}, "2 does not divide the job's 3 processes"),
    ):
        with pytest.raises(InputError, match=message):
            Trainer(**{"env_type": "pytorchDDP", **settings})
    Trainer(env_type="pytorch", num_gpus=2, hostfile=str(tmp_path / "hosts"))  # one process whatever it says, as FlagAI
    for name, value in {"RANK_ID": "0", "RANK_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="2 machines x 1 are 2 processes, but the job has 4"):
        Trainer(env_type="pytorchDDP", num_nodes=2, num_gpus=1)


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
