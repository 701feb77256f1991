"""FlagAI's settings: each reaches the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from mindspore import mint, nn
from mindspore.experimental import optim
from pet.compat.flagai.trainer import Trainer

import pet
from model_zoo.engine import available
from model_zoo.errors import InputError

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
    (tmp_path / "hosts").write_text("10.0.0.1 slots=2 # a\u2028b\n# the second\x85\n10.0.0.2 slots=2\n")
    for settings, message in (
        ({"num_nodes": 2}, "num_nodes x num_gpus = 2 processes, but this is one; .* --nnodes 2 --node-rank K"),
        ({"hostfile": str(tmp_path / "hosts"), "num_gpus": 2}, "= 4 processes.*pet launch -n 2 --nnodes 2"),
        ({"num_gpus": 2, "not_call_launch": True}, "by: pet launch -n 2 -- python SCRIPT"),
        ({"num_gpus": 0}, "num_gpus is 0; a whole number of at least 1"),
        ({"num_gpus": 3, "env_type": "hybrid", "model_parallel_size": 2}, "2 does not divide the job's 3 processes"),
    ):
        with pytest.raises(InputError, match=message):
            Trainer(**{"env_type": "pytorchDDP", **settings})
    # one process whatever it says, as FlagAI
    alone = Trainer(env_type="pytorch", num_gpus=2, hostfile=str(tmp_path / "hosts"), model_parallel_size=2)
    translation = alone._translation()
    assert translation.get("parallel.tensor") == 1 and "model_parallel_size" in translation.ignored
    for name, value in {"RANK_ID": "0", "RANK_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="2 machines x 1 are 2 processes, but the job has 4"):
        Trainer(env_type="pytorchDDP", num_nodes=2, num_gpus=1)
    (tmp_path / "hosts").write_text("10.0.0.1 slots=3\n")
    with pytest.raises(InputError, match="1 machines x 3 are 3 processes, but the job has 4"):
        Trainer(env_type="pytorchDDP", hostfile=str(tmp_path / "hosts"))
    Trainer(env_type="pytorchDDP", num_gpus=None)  # as many as there are
    (tmp_path / "hosts").write_bytes(b"\xff\xfe1")
    with pytest.raises(InputError, match="hosts: not UTF-8 text, a hostfile was expected"):
        Trainer(env_type="pytorchDDP", hostfile=str(tmp_path / "hosts"))


class Documented(Trainer):
    """As FlagAI's document writes it."""

    def forward_step(self, data, model, mems):
        output = model(**data)
        self.shape = output.hidden_states.shape
        return {"loss": output.loss, "logits": output.logits, "hidden_states": output.decoder_hidden_states}


def first_count(logits, labels, meta=None):
    """How many labels are the first token's."""
    assert logits.shape[:2] == labels.shape
    return (labels.asnumpy()[:, 0] == labels.asnumpy()[0, 0]).sum()


def test_a_forward_step_gets_outputs_by_their_names(base, tmp_path, caplog):
    """The same losses as by the trainer's own forward; an optimizer, a schedule and measures are given."""
    random, found = np.random.default_rng(0), {}
    rows = [{"input_ids": row, "labels": row} for row in random.integers(10, 40, (4, 9))]
    for kind in (Documented, Trainer):
        model = pet.apply_lora(pet.AutoModel.from_pretrained(str(base)), rank=2)
        optimizer = nn.AdamWeightDecay(model.trainable_params(), learning_rate=0.5, beta2=0.9)
        directory = tmp_path / kind.__name__
        trainer = kind(batch_size=2, epochs=2, eval_interval=2, log_interval=1, save_dir=str(directory))
        given = {"optimizer": optimizer, "lr_scheduler": lambda step: 0.01 * (step + 1)}
        summary = trainer.train(
            model, train_dataset=rows, valid_dataset=rows, metric_methods=[["first", first_count]], **given
        )
        assert summary["after"]["first"] == sum(row["input_ids"][0] == rows[0]["input_ids"][0] for row in rows)
        lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
        assert [line["learning_rate"] for line in lines] == pytest.approx([0.01, 0.02, 0.03, 0.04])
        assert "eval_first" in lines[1]
        found[kind] = [line["loss"] for line in lines]
        if kind is Documented:
            assert trainer.shape == (2, 9, 32)
    assert found[Documented] == pytest.approx(found[Trainer], rel=1e-5)
    said = [record.message for record in caplog.records]
    assert not available() or [line for line in said if "cannot be compiled" in line] == []


def test_optimizers_are_taken_by_their_numbers(recipes):
    cell, data = nn.Dense(2, 2), [{"input_ids": [1, 2]}]
    rate = nn.PolynomialDecayLR(0.2, 0.1, 4, 1.0)
    for optimizer, expected in (
        (nn.Adam(cell.trainable_params(), 0.1, beta1=0.8, weight_decay=0.2), ("adam", 0.1, [0.8, 0.999], 1e-8, 0.2)),
        (nn.Momentum(cell.trainable_params(), 0.1, momentum=0.7), ("momentum", 0.1, 0.7)),
        (nn.Lamb(cell.trainable_params(), rate), ("lamb",)),
    ):
        Trainer().train(object(), optimizer=optimizer, train_dataset=data)
        recipe, objects, _ = recipes.pop()
        train = recipe.train
        known = (train.optimizer, train.learning_rate, train.betas, train.eps, train.weight_decay)
        if train.optimizer == "momentum":
            known = (*known[:2], train.momentum)
        for value, wanted in zip(known, expected, strict=False):
            assert value == (pytest.approx(wanted) if not isinstance(wanted, str) else wanted)
    assert [objects.rates(step) for step in (0, 2, 9)] == pytest.approx([0.2, 0.15, 0.1])
    for scheduler in ([0.1, 0.2, 0.3], lambda step: 0.1 * (step + 1)):
        Trainer().train(object(), lr_scheduler=scheduler, train_dataset=data)
        assert recipes.pop()[1].rates(1) == pytest.approx(0.2)
    grouped = nn.Adam([{"params": [cell.weight], "lr": 0.1}, {"params": [cell.bias]}], 0.2)
    with pytest.raises(InputError, match=r"is_group_lr.*train\.groups"):
        Trainer().train(object(), optimizer=grouped, train_dataset=data)
    apart = [{"params": [cell.weight], "weight_decay": 0.1}, {"params": [cell.bias], "weight_decay": 0.0}]
    Trainer().train(object(), optimizer=nn.AdamWeightDecay(apart, 0.2), train_dataset=data)
    train = recipes.pop()[0].train
    assert train.weight_decay == pytest.approx(0.1) and not train.decay_vectors
    # of torch's kind, whose numbers stand in groups
    for kind in (mint.optim.AdamW, optim.AdamW):
        Trainer().train(object(), optimizer=kind(apart, lr=1e-3), train_dataset=data)
        train = recipes.pop()[0].train
        assert (train.learning_rate, train.weight_decay, train.decay_vectors) == (1e-3, 0.1, False)
        alike = [{**one, "lr": 0.5, "weight_decay": 0.2} for one in apart]
        Trainer().train(object(), optimizer=kind(alike, lr=1e-3), train_dataset=data)
        train = recipes.pop()[0].train
        assert (train.learning_rate, train.weight_decay, train.decay_vectors) == (0.5, 0.2, True)
        for groups, more, why in (
            ([{**apart[0], "lr": 0.5}, apart[1]], {}, r"is_group_lr.*train\.groups"),
            ([apart[0], {**apart[1], "weight_decay": 0.2}], {}, "has 2 weight decays"),
            (apart, {"maximize": True}, "maximize: is not here"),
        ):
            with pytest.raises(InputError, match=why):
                Trainer().train(object(), optimizer=kind(groups, lr=1e-3, **more), train_dataset=data)
    with pytest.raises(InputError, match="int is no function of the step"):
        Trainer().train(object(), lr_scheduler=5, train_dataset=data)


def test_rates_are_those_of_flagai(recipes):
    data = [{"input_ids": [1, 2]}]

    def rates(environment, steps, **settings):
        Trainer(env_type=environment, lr=1e-3, **settings).train(object(), train_dataset=data)
        recipe, objects, _ = recipes.pop()
        objects.steps = steps
        return recipe.train, [objects.rates(step) for step in range(steps)]

    # printed by its AnnealingLR, for ten steps
    train, found = rates("pytorch", 10)
    expected = [0, 1e-3, 9.7797e-4, 9.1406e-4, 8.1450e-4, 6.8906e-4, 5.5e-4, 4.1094e-4, 2.8550e-4, 1.8594e-4]
    assert found == pytest.approx(expected, rel=1e-4) and train.weight_decay == 0.1
    # it is moved by every micro-batch
    _, halved = rates("pytorch", 5, gradient_accumulation_steps=2)
    assert halved == pytest.approx(expected[1::2], rel=1e-4)
    _, found = rates("bmtrain", 10, warm_up=0.2)
    assert found[1:4] == pytest.approx([1e-3 / 2**1.5, 1e-3 / 2**0.5, 1e-3 / 3**0.5])
    assert rates("deepspeed", 10, num_gpus=1)[1] == pytest.approx(expected, rel=1e-4), "without a file of its own"
    Trainer(env_type="pytorch", warm_up=0).train(object(), train_dataset=data)
    recipe, objects, _ = recipes.pop()
    assert objects.rates is None and (recipe.train.schedule, recipe.train.warmup) == ("constant", 0)


DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 3,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 0.7,
    "steps_per_print": 10,
    "zero_optimization": {"stage": 2, "cpu_offload": True},
    "fp16": {"enabled": True, "loss_scale": 0, "loss_scale_window": 500},
    "optimizer": {"type": "AdamW", "params": {"lr": 2e-5, "betas": [0.9, 0.95], "eps": 1e-6, "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 0, "warmup_num_steps": 5}},
    "activation_checkpointing": {"partition_activations": True},
}


def test_a_deepspeed_file_is_read(monkeypatch, recipes, tmp_path, caplog):
    path = tmp_path / "deepspeed.json"
    path.write_text(json.dumps(DEEPSPEED))
    data = [{"input_ids": [1, 2]}]
    Trainer(env_type="deepspeed", deepspeed_config=str(path), lr=1.0).train(object(), train_dataset=data)
    train, parallel = recipes[-1][0].train, recipes[-1][0].parallel
    assert (train.batch_size, train.accumulation, train.clip_norm, train.precision) == (3, 2, 0.7, "fp16")
    assert (train.optimizer, train.learning_rate, train.betas, train.eps) == ("adamw", 2e-5, [0.9, 0.95], 1e-6)
    assert (train.schedule, train.warmup, train.weight_decay) == ("linear", 5, 0.0)
    assert not parallel.shard_optimizer  # one process
    (said,) = (record.message for record in caplog.records if "deepspeed.json" in record.message)
    assert "zero_optimization.stage: 2: the optimizer's state is divided (stage 1)" in said
    for name, value in {"RANK_ID": "0", "RANK_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "8118"}.items():
        monkeypatch.setenv(name, value)
    for stage, divided in ((0, False), (1, True)):
        path.write_text(json.dumps({"zero_optimization": {"stage": stage}}))
        trainer = Trainer(env_type="deepspeed", deepspeed_config=str(path), batch_size=4, num_gpus=2)
        trainer.train(object(), train_dataset=data)
        assert recipes[-1][0].parallel.shard_optimizer is divided
        assert recipes[-1][0].train.batch_size == 8
    path.write_text(json.dumps({"optimizer": {"type": "Adam", "params": {"lr": 4e-4}}}))
    trainer = Trainer(env_type="deepspeed", deepspeed_config=str(path), num_gpus=2)
    trainer.train(object(), train_dataset=data)
    recipe, objects, _ = recipes[-1]
    assert objects.rates is None and (recipe.train.schedule, recipe.train.warmup) == ("constant", 0)
    assert (recipe.train.learning_rate, recipe.train.weight_decay) == (4e-4, 0.0)
    # DeepSpeed's Adam decays as AdamW does, and so does FlagAI's own, unless the file says not to
    for params, kind in (({}, "adamw"), ({"adam_w_mode": True}, "adamw"), ({"adam_w_mode": False}, "adam")):
        told = {"optimizer": {"type": "Adam", "params": params}, "scheduler": {"type": "WarmupLR"}}
        path.write_text(json.dumps(told))
        t = Trainer(env_type="deepspeed", deepspeed_config=str(path), num_gpus=2)._translation()
        assert t.get("train.optimizer") == kind
        assert t.get("train.warmup") == 1000, "DeepSpeed's own where the file does not say it"
    t = Trainer(env_type="pytorchDDP", num_gpus=2, optimizer_type="adam")._translation()
    assert t.get("train.optimizer") == "adamw"
    path.write_text(json.dumps({"fp16": {"loss_scale": 128}, "optimizer": {"type": "OneBitAdam"}}))
    with pytest.raises(
        InputError, match=r"fp16.loss_scale: 128: a fixed loss scale(.|\n)*'OneBitAdam' is not supported"
    ):
        Trainer(env_type="deepspeed", deepspeed_config=str(path))


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
    with pytest.raises(InputError, match="optimizer: 'object' is not supported; known: adamw"):
        Trainer().train(model, optimizer=object(), train_dataset=rows)


def test_a_measure_gets_each_row_once(base, tmp_path):
    """Also those of a last batch that is not full."""
    rows = [{"input_ids": row, "labels": row} for row in np.random.default_rng(0).integers(10, 40, (5, 9))]
    model = pet.apply_lora(pet.AutoModel.from_pretrained(str(base)), rank=2)
    trainer = Trainer(batch_size=4, epochs=1, eval_interval=1, save_dir=str(tmp_path))
    measures = [["rows", lambda logits, labels: len(logits)], ["learnt", lambda logits, labels: (labels != -100).sum()]]
    summary = trainer.train(model, train_dataset=rows, valid_dataset=rows, metric_methods=measures)
    assert (summary["after"]["rows"], summary["after"]["learnt"]) == (5, 45)


def test_a_loader_of_torch_in_the_place_of_a_dataset(recipes):
    """FlagAI takes it as it is: its ``batch_size``, order and ``collate_fn`` count, not those of the trainer."""
    pytest.importorskip("torch", reason="torch is not installed: there is no loader of it")
    from torch.utils.data import DataLoader, IterableDataset, WeightedRandomSampler

    class Stream(IterableDataset):
        def __iter__(self):
            yield from data

    def join(batch):
        return {"input_ids": [row["input_ids"] for row in batch]}

    data = [{"input_ids": [1, 2, number]} for number in range(6)]
    for shuffle in (False, True):
        loader = DataLoader(data, batch_size=3, shuffle=shuffle, collate_fn=join)
        Trainer(batch_size=8).train(object(), train_dataset=loader, valid_dataset=DataLoader(data, collate_fn=join))
        recipe, objects, _ = recipes.pop()
        assert (recipe.train.batch_size, recipe.data.shuffle) == (3, shuffle)
        assert [*objects.train] == [*objects.evaluation] == data and objects.collate_fn is join
    Trainer(batch_size=8).train(object(), train_dataset=DataLoader(data, collate_fn=join), collate_fn=dict)
    assert recipes.pop()[1].collate_fn is join
    Trainer().train(object(), train_dataset=DataLoader(data, 4, drop_last=True))
    assert recipes.pop()[0].data.drop_last
    with pytest.raises(InputError, match="its drop_last leaves out a batch, "):
        Trainer(gradient_accumulation_steps=2).train(object(), train_dataset=DataLoader(data, 4, drop_last=True))
    Trainer(gradient_accumulation_steps=2).train(object(), train_dataset=DataLoader(data, 2, drop_last=True))
    assert not recipes.pop()[0].data.drop_last
    with pytest.raises(InputError, match="valid_dataset: its drop_last leaves rows out; "):
        Trainer().train(object(), train_dataset=data, valid_dataset=DataLoader(data, 4, drop_last=True))
    refused = {
        "a WeightedRandomSampler": DataLoader(data, 2, sampler=WeightedRandomSampler([1.0] * 6, 6)),
        "_InfiniteConstantSampler": DataLoader(Stream(), 2),
        "it has no batch_size": DataLoader(data, batch_size=None),
    }
    for why, loader in refused.items():
        with pytest.raises(InputError, match=rf"train_dataset: .*{why}.*; give the dataset itself and collate_fn="):
            Trainer().train(object(), train_dataset=loader)
    with pytest.raises(InputError, match="have two collate_fn; one was expected"):
        Trainer().train(object(), train_dataset=DataLoader(data, collate_fn=join), valid_dataset=data, collate_fn=dict)
    assert not recipes
