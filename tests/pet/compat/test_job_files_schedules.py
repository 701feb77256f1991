"""When job files of LLaMA-Factory and axolotl warm up, decay, begin anew, measure, save and stop."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import yaml
from job_files import JOBS, write

from model_zoo.errors import InputError
from pet.compat import axolotl, llama_factory
from pet.compat.yaml_files import convert, load_any
from pet.recipe.training import Train
from pet.train.schedules import Schedule


@pytest.mark.parametrize(
    ("given", "power", "final_ratio"),
    [
        ({"lr_quadratic_warmup": True, "lr_scheduler": "cosine", "cosine_min_lr_ratio": 0.1}, 2.0, 0.0),
        ({"lr_quadratic_warmup": True}, 2.0, 0.0),  # the schedule is cosine unless the file says another
        ({"lr_quadratic_warmup": True, "lr_scheduler": "linear"}, 1.0, 0.0),
        ({"lr_quadratic_warmup": False, "cosine_min_lr_ratio": 0.1}, 1.0, 0.1),
        ({"lr_scheduler": "linear", "cosine_min_lr_ratio": 0.1}, 1.0, 0.0),  # which reads it with cosine alone
        ({"lr_scheduler": "constant", "cosine_min_lr_ratio": 0.1}, 1.0, 0.0),
    ],
    ids=str,
)
def test_axolotls_numbers_of_the_cosine_schedule_are_of_it_alone(base, tmp_path, given, power, final_ratio):
    file = {"base_model": str(base), "datasets": [{"path": str(base / "data.jsonl"), "type": "alpaca"}]}
    file |= {"adapter": "lora", "sequence_len": 64, "dataset_exact_deduplication": True, **given}
    recipe = load_any(write(tmp_path / "ax.yaml", yaml.safe_dump(file)), ["train.learning_rate=1e-3"])
    assert (recipe.train.warmup_power, recipe.train.final_ratio) == (power, final_ratio)
    assert recipe.data.deduplicate


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("cosine_with_restarts", {"train.schedule": "cosine_restarts", "train.cycles": 1, "train.warmup": 0.1}),
        ("polynomial", {"train.schedule": "polynomial", "train.power": 1.0, "train.final_ratio": 1e-7 / 1e-3}),
        ("constant", {"train.schedule": "constant", "train.warmup": 0}),
        ("constant_with_warmup", {"train.schedule": "constant", "train.warmup": 0.1, "train.cycles": None}),
    ],
)
def test_schedules_are_those_of_transformers(word, expected):
    for system, key in ((llama_factory, "lr_scheduler_type"), (axolotl, "lr_scheduler")):
        values = {"learning_rate": 1e-3, "warmup_ratio": 0.1}
        found = system.translate({**values, key: word}, Path("x.yaml"))
        assert {name: found.get(name) for name in expected} == expected and not found.problems
        like = "axolotl" if system is axolotl and word != "constant" else "transformers"
        assert found.get("train.warmup_like") == like  # axolotl rounds a share of all steps down
        for wrong, why in (
            (
                {key: "warmup_stable_decay"},
                "needs lr_scheduler_kwargs: num_decay_steps" if system is axolotl else "give max_steps",
            ),
            ({key: "cosine_with_min_lr"}, "needs lr_scheduler_kwargs: min_lr or min_lr_rate"),
            ({key: "cosine", "lr_scheduler_kwargs": {"min_lr": 1e-5}}, "min_lr: 1e-05: cosine has no such number"),
            (
                {key: "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 0.1}},
                "0.1 is above the learning rate, 0.001",
            ),
            (
                {key: "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-5, "min_lr_rate": 0.5}},
                "min_lr and min_lr_rate are two ways to say one thing",
            ),
            ({key: "linear", "lr_scheduler_kwargs": "{no"}, "lr_scheduler_kwargs"),
        ):
            found = system.translate({**values, **wrong}, Path("x.yaml"))
            assert len(found.problems) == 1 and why in found.problems[0]


@pytest.mark.parametrize(
    ("word", "own"),
    [
        ("cosine_with_min_lr", {"min_lr": 1e-4}),
        ("cosine_with_min_lr", {"min_lr_rate": 0.3}),
        ("inverse_sqrt", {}),
        ("cosine_with_restarts", {"num_cycles": 3}),
        ("polynomial", {"power": 2.0, "lr_end": 1e-4}),
        ("warmup_stable_decay", {"num_decay_steps": 7}),
        ("warmup_stable_decay", {"num_decay_steps": 9, "decay_type": "1-sqrt"}),
        ("warmup_stable_decay", {"num_decay_steps": 9, "decay_type": "linear"}),
        ("warmup_stable_decay", {"num_decay_steps": 9, "min_lr_ratio": 0.2}),
    ],
)
def test_numbers_of_schedules_are_those_of_transformers(word, own):
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    for warmup in (0, 4):
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=1e-3)
        theirs = transformers.get_scheduler(word, optimizer, warmup, 20, scheduler_specific_kwargs=own)
        values = {"learning_rate": 1e-3, "warmup_steps": warmup, "lr_scheduler": word}
        found = axolotl.translate({**values, "lr_scheduler_kwargs": json.dumps(own)}, Path("x.yaml"))
        assert not found.problems
        names = [field.name for field in dataclasses.fields(Schedule) if field.name in Train.model_fields]
        train = {name: found.settings[f"train.{name}"] for name in names if f"train.{name}" in found.settings}
        train |= {"schedule": found.get("train.schedule"), "learning_rate": 1e-3, "steps": 20}
        ours = Schedule.from_settings(Train(**train), 20)
        for step in range(20):
            assert ours(step) == pytest.approx(theirs.get_last_lr()[0], rel=1e-9)
            optimizer.step(), theirs.step()


@pytest.mark.parametrize(
    ("given", "every", "warmup", "decay", "prune"),
    [
        ({"relora_steps": 150, "relora_warmup_steps": 20, "relora_cpu_offload": False}, 150, 20, 1, None),
        ({"relora_steps": 150, "relora_anneal_steps": 5, "relora_prune_ratio": 0.8}, 150, 10, 5, 0.8),
        ({"relora": True, "jagged_restart_steps": 90, "jagged_restart_anneal_steps": False}, 90, 10, 1, None),
        ({"relora": True, "jagged_restart_steps": 90, "relora_prune_method": "reset"}, 90, 10, 1, 1.0),
        ({"relora": False, "relora_prune_ratio": 0.5}, None, None, None, None),
    ],
)
def test_axolotls_relora(tmp_path, given, every, warmup, decay, prune):
    t = axolotl.translate({**JOBS["axolotl"], **given}, tmp_path / "job.yaml")
    names = [f"train.restart_{name}" for name in ("every", "warmup", "decay", "prune")]
    assert [t.get(name) for name in names] == [every, warmup, decay, prune] and not t.problems
    assert t.get("output.merged") == (True if every else None)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"jagged_restart_steps": 90}, "jagged_restart_steps: without relora; see train.schedule: cosine_restarts"),
        ({"relora": True}, "relora: jagged_restart_steps says when an adapter begins anew"),
        ({"relora_steps": 9, "relora_prune_method": "random"}, "relora_prune_method: 'random': the smallest"),
        ({"relora_steps": "often"}, "relora_steps: 'often' is not a value that it takes"),
    ],
)
def test_axolotls_relora_that_is_refused(tmp_path, given, problem):
    t = axolotl.translate({**JOBS["axolotl"], **given}, tmp_path / "job.yaml")
    assert len(t.problems) == 1 and f"job.yaml: {problem}" in t.problems[0]


def test_axolotls_warm_up_order_and_system_text(tmp_path):
    for given, expected in (
        ({"default_system_message": "S"}, {"data.system": None}),
        ({"default_system_message": "S", "datasets": [{"path": "a", "type": "sharegpt"}]}, {"data.system": "S"}),
        ({}, {"train.warmup": 0.03, "train.warmup_like": "axolotl", "train.warmup_most": 100}),
        ({"warmup_ratio": 0.2}, {"train.warmup": 0.2, "train.warmup_most": None}),
        ({"warmup_steps": 1}, {"train.warmup": 1, "train.warmup_like": "axolotl", "train.warmup_most": None}),
        ({"lr_scheduler": "constant"}, {"train.warmup": 0, "train.warmup_most": None}),
        ({"shuffle_merged_datasets": False}, {"data.shuffle": None}),  # every epoch is shuffled there all the same
        ({"shuffle_merged_datasets": False, "streaming": True}, {"data.shuffle": False}),
    ):
        t = axolotl.translate({**JOBS["axolotl"], **given}, tmp_path / "job.yaml")
        assert {name: t.get(name) for name in expected} == expected and not t.problems
    t = axolotl.translate({**JOBS["axolotl"], "warmup_ratio": 1.0}, tmp_path / "job.yaml")
    assert t.problems == ["job.yaml: warmup_ratio: 1.0: a share of the steps below 1"]


TOLD = {"val_size": 0.2, "num_train_epochs": 4}, {"val_set_size": 0.2, "num_epochs": 4}


@pytest.mark.parametrize(
    ("system", "given", "steps", "epochs"),
    [
        ("llama_factory", {"eval_strategy": "steps", "logging_steps": 7}, 7, None),
        ("llama_factory", {"eval_strategy": "steps"}, 500, None),
        ("llama_factory", {"eval_strategy": "steps", "eval_steps": 3, "logging_steps": 7}, 3, None),
        ("llama_factory", {"eval_strategy": "epoch", "eval_steps": 3}, None, 1.0),
        ("llama_factory", {"eval_steps": 0.05, "evaluation_strategy": "steps"}, 0.05, None),
        ("llama_factory", {"eval_steps": 3}, None, None),
        ("axolotl", {"eval_strategy": "epoch"}, None, 1.0),
        ("axolotl", {"eval_strategy": "steps", "logging_steps": 2}, 2, None),
        ("axolotl", {"eval_strategy": "epoch", "evals_per_epoch": 4}, 1 / 16, None),
        ("axolotl", {"evals_per_epoch": 4, "num_epochs": 0.1}, None, 0.25),
        ("axolotl", {"evaluation_strategy": "no"}, None, None),
        ("axolotl", {"eval_steps": 0.25}, 0.25, None),
    ],
    ids=str,
)
def test_how_often_is_evaluated(tmp_path, system, given, steps, epochs):
    module, told = (llama_factory, TOLD[0]) if system == "llama_factory" else (axolotl, TOLD[1])
    t = module.translate({"adapter": "lora", **told, **given}, tmp_path / "job.yaml")
    assert (t.get("eval.every_steps"), t.get("eval.every_epochs")) == (steps, pytest.approx(epochs))


@pytest.mark.parametrize(
    ("given", "metrics", "best"),
    [
        ({"compute_accuracy": True, "metric_for_best_model": "eval_accuracy"}, ["accuracy"], "accuracy"),
        ({"compute_accuracy": True, "stage": "dpo"}, None, None),
        (
            {"predict_with_generate": True, "metric_for_best_model": "eval_rouge-l"},
            ["rouge_1", "rouge_2", "rouge_l", "bleu"],
            "rouge_l",
        ),
        ({"metric_for_best_model": "eval_loss"}, None, "loss"),
        ({"stage": "dpo", "metric_for_best_model": "eval_rewards/accuracies"}, None, "reward_accuracy"),
    ],
)
def test_what_llama_factory_measures(tmp_path, given, metrics, best):
    t = llama_factory.translate({**JOBS["llama_factory"], "val_size": 0.1, **given}, tmp_path / "job.yaml")
    assert t.get("eval.metrics") == (metrics and ["loss", "perplexity", *metrics])
    assert t.get("eval.best_metric") == best and not t.problems


@pytest.mark.parametrize(
    ("system", "given", "every"),
    [
        ("llama_factory", {}, 500),
        ("llama_factory", {"save_steps": 0.1}, 0.1),
        ("llama_factory", {"save_strategy": "epoch"}, 0.25),
        ("llama_factory", {"save_strategy": "epoch", "save_steps": 7}, 0.25),
        ("llama_factory", {"save_strategy": "epoch", "max_steps": 7}, None),
        ("llama_factory", {"save_strategy": "no", "save_steps": 7}, None),
        ("axolotl", {}, 0.25),
        ("axolotl", {"num_epochs": 1}, None),
        ("axolotl", {"max_steps": 7}, None),
        ("axolotl", {"saves_per_epoch": 2}, 1 / 8),
        ("axolotl", {"saves_per_epoch": 2, "max_steps": 7}, 1 / 8),
        ("axolotl", {"save_steps": 0.2}, 0.2),
        ("axolotl", {"save_strategy": "steps"}, 500),
        ("axolotl", {"save_strategy": "no"}, None),
    ],
    ids=str,
)
def test_how_often_is_saved(tmp_path, system, given, every):
    module, told = (llama_factory, TOLD[0]) if system == "llama_factory" else (axolotl, TOLD[1])
    t = module.translate({**told, **given}, tmp_path / "job.yaml")
    assert t.get("train.save_every") == every and not t.problems


@pytest.mark.parametrize(
    ("given", "best"),
    [
        ({"save_steps": 20, "eval_steps": 10}, True),
        ({"saves_per_epoch": 1, "evals_per_epoch": 2}, True),
        ({"save_steps": 15, "eval_steps": 10}, None),
        ({"eval_steps": 10}, None),
    ],
    ids=str,
)
def test_axolotls_early_stopping_keeps_the_best_where_each_checkpoint_was_measured(tmp_path, given, best):
    told = {"adapter": "lora", "early_stopping_patience": 3, "val_set_size": 0.2, **given}
    assert axolotl.translate(told, tmp_path / "job.yaml").get("eval.load_best_model_at_end") is best


def test_a_run_is_resumed_from_the_checkpoint_that_a_file_names(job, base, tmp_path):
    """Not from the output directory's last one, nor from the beginning where it is somewhere else."""
    path = job(resume_from_checkpoint=str(tmp_path / "other/checkpoint-10"))
    own = [f"model.path={base}", f"data.train={base / 'data.jsonl'}"]
    with pytest.raises(InputError, match="other/checkpoint-10 holds no whole checkpoint"):
        load_any(path, own)
    assert "copy the run's checkpoint" in convert(path)[0]
    there = tmp_path / "other/checkpoints/step-000010"
    there.mkdir(parents=True)
    (there / "state.json").write_text("{}")
    path = job(resume_from_checkpoint=str(there))
    recipe = load_any(path, [*own, f"output.dir={tmp_path / 'mine'}"])
    assert recipe.train.resume and (tmp_path / "mine/checkpoints/step-000010/state.json").is_file()
    (tmp_path / "other/checkpoints/step-000020").mkdir()
    with pytest.raises(
        InputError, match="step-000010 is not the last checkpoint of its run, which goes on from step-000020"
    ):
        load_any(path, [*own, f"output.dir={tmp_path / 'other'}"])
    assert load_any(job(resume_from_checkpoint=True), own).train.resume


@pytest.mark.parametrize(
    ("given", "decay", "problem"),
    [
        ({}, 12, None),  # of 18 steps after the warm-up 6 are stable
        ({"warmup_ratio": 0.2}, 11, None),
        (
            {"lr_scheduler_kwargs": {"num_stable_steps": 10}},
            12,
            "num_stable_steps: 10, but the descent ends with the run",
        ),
        ({"lr_scheduler_kwargs": {"num_stable_steps": 10, "num_decay_steps": 8}}, 8, None),
        (
            {"lr_scheduler_kwargs": '{"num_decay_steps": 5}'},
            5,
            "num_stable_steps: 6, but the descent ends with the run",
        ),
    ],
    ids=str,
)
def test_llama_factorys_stable_decay(tmp_path, given, decay, problem):
    told = {"lr_scheduler_type": "warmup_stable_decay", "max_steps": 20}
    told |= {} if "warmup_ratio" in given else {"warmup_steps": 2}
    t = llama_factory.translate({**told, **given}, tmp_path / "job.yaml")
    assert t.get("train.decay") == decay
    assert not t.problems if problem is None else problem in t.problems[0]
