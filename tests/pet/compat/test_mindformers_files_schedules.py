"""Optimizers and schedules of MindFormers' job files."""

from __future__ import annotations

import logging

import pytest
from mindformers_jobs import notes
from mindspore import nn

from model_zoo.errors import InputError
from pet.compat.mindformers import AutoModel, Trainer, TrainingArguments
from pet.compat.yaml_files import load_any
from pet.train.schedules import Schedule


@pytest.mark.parametrize(
    ("kind", "eps", "corrects"),
    [
        ("AdamW", 1e-8, True),
        ("adamw", 1e-6, False),  # its alias for MindSpore's AdamWeightDecay
        ("FusedAdamWeightDecay", 1e-6, False),
        ("FP32StateAdamWeightDecay", 1e-6, False),
        ("AdamWeightDecayX", 1e-6, True),
        ("Adam", 1e-8, True),
    ],
)
def test_an_optimizer_is_that_of_its_name(published, kind, eps, corrects):
    train = load_any(published(optimizer={"type": kind}), check_files=False).train
    assert (train.eps, train.bias_correction) == (eps, corrects)


def test_adafactor_of_a_file_is_that_without_a_first_moment(published):
    """MindSpore's has one unless ``beta1`` is 0, and scales by the weights where the rate is no schedule."""
    plain = {"type": "AdaFactor", "beta1": 0.0, "relative_step": False}
    assert load_any(published(optimizer=plain), check_files=False).train.optimizer == "adafactor"
    with pytest.raises(InputError, match=r"optimizer\.beta1: 0\.9"):
        load_any(published(optimizer={"type": "adafactor"}), check_files=False)
    with pytest.raises(InputError, match=r"optimizer\.scale_parameter: True"):
        load_any(published(optimizer={**plain, "learning_rate": 1e-3}, lr_schedule=None), check_files=False)
    model = AutoModel.from_pretrained("llama_tiny")
    theirs = nn.AdaFactor(model.trainable_params(), learning_rate=1e-3, relative_step=False)
    with pytest.raises(InputError, match=r"use_first_moment: (?s:.*)scale_parameter: adafactor"):
        Trainer(model=model, optimizers=theirs).recipe("train")
    settings = {"relative_step": False, "scale_parameter": False, "beta1": 0.0}
    alike = nn.AdaFactor(model.trainable_params(), learning_rate=1e-3, **settings)
    assert Trainer(model=model, optimizers=alike).recipe("train").train.optimizer == "adafactor"


@pytest.mark.parametrize("kind", ["SGD", "sgd", "Momentum"])
def test_momentum_of_a_file_counts(published, kind):
    train = load_any(published(optimizer={"type": kind, "momentum": 0.8}), check_files=False).train
    assert (train.optimizer, train.momentum) == ("momentum", 0.8)


def test_a_schedule_without_an_end_has_none(published, caplog):
    caplog.set_level(logging.WARNING, "pet")
    given = {"type": "linear", "learning_rate": 1e-4, "lr_end": 1e-5}
    assert load_any(published(lr_schedule=given), check_files=False).train.final_ratio == 0
    assert "lr_schedule.lr_end: the schedule linear has none, in MindFormers either" in notes(caplog)
    rounds = {"type": "CosineWithRestartsAndWarmUpLR", "learning_rate": 1e-3, "num_cycles": 2.0}
    assert load_any(published(lr_schedule=rounds), check_files=False).train.cycles == 2
    load_any(published(lr_schedule={**rounds, "type": "cosine", "num_cycles": 0.5}), check_files=False)
    with pytest.raises(InputError, match=r"num_cycles: 2\.0: only CosineWithRestartsAndWarmUpLR has several"):
        load_any(published(lr_schedule={**rounds, "type": "cosine"}), check_files=False)
    arguments = TrainingArguments(lr_scheduler_type="linear", lr_end=1e-5)
    assert Trainer(model="llama_tiny", args=arguments).recipe("train").train.final_ratio == 0
    with pytest.raises(InputError, match="lr_end: give learning_rate beside it"):
        Trainer(model="llama_tiny", args={"lr_end": 1e-5}).recipe("train")
    trainer = Trainer(model="llama_tiny", args={})
    trainer.config.lr_schedule.update({"type": "polynomial", "warmup_ratio": 0.1})
    train = trainer.recipe("train").train
    assert (train.power, train.warmup_like) == (1.0, "mindformers")


def test_warm_up_stable_decay_has_mindformers_rates(published):
    """Those that WarmUpStableDecayLR of 1.6 gives for 33 steps; it rounds where the descent begins."""
    given = {"learning_rate": 0.01, "lr_end": 1e-4, "warmup_ratio": 0.2, "decay_start_ratio": 0.7}
    train = load_any(published(lr_schedule={"type": "WarmUpStableDecayLR", **given}), check_files=False).train
    expected = [1667, 3333, 5000, 6667, 8333, *[10000] * 18, 9010, 8020, 7030, 6040, 5050, 4060, 3070, 2080, 1090]
    assert [round(Schedule.from_settings(train, 33)(step) * 1e6) for step in range(1, 33)] == expected
    with pytest.raises(InputError, match=r"lr_schedule.decay_start_steps: .*give decay_start_ratio"):
        load_any(
            published(lr_schedule={"type": "WarmUpStableDecayLR", **given, "decay_start_steps": 9}), check_files=False
        )


FELL = {"type": "ConstantWithCoolDownLR", "keep_steps": 3, "decay_steps": 4, "lr_end1": 1e-4}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"type": "cosine", "warmup_lr_init": 1e-4}, [100, 400, 700, 1000, 970, 883, 750, 587, 413, 250, 117, 30]),
        ({"type": "linear", "total_steps": 8}, [0, 333, 667, 1000, 800, 600, 400, 200, 0, 0, 0, 0]),
        (
            {"type": "linear", "warmup_ratio": 0.25, "total_steps": 20},
            [0, 200, 400, 600, 800, 1000, 933, 867, 800, 733, 667, 600],
        ),
        (
            {"type": "WarmUpStableDecayLR", "decay_start_steps": 6, "total_steps": 12, "lr_end": 0},
            [0, 333, 667, 1000, 1000, 1000, 1000, 833, 667, 500, 333, 167],
        ),
        (FELL, [0, 333, 667, 1000, 1000, 1000, 1000, 868, 550, 232, 100, 100]),
        (
            {**FELL, "decay_steps": None, "decay_ratio": 0.5, "total_steps": 12, "warmup_lr_init": 1e-4},
            [100, 400, 700, 1000, 1000, 1000, 1000, 940, 775, 550, 325, 160],
        ),
    ],
)
def test_a_schedule_of_its_own_length_and_start(published, given, expected):
    """Rates of the first 12 steps, as the classes of release 1.7 give them."""
    section = {"learning_rate": 1e-3, "warmup_steps": 3, **given}
    train = load_any(published(lr_schedule=section), check_files=False).train
    schedule = Schedule.from_settings(train, 12)
    assert [round(schedule(step) * 1e6) for step in range(12)] == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"decay_steps": None, "decay_ratio": 0.5}, "decay_steps: is missing"),
        ({"lr_end2": 1e-5}, "the rate falls once"),
    ],
)
def test_a_cool_down_that_is_not_here_says_why(published, given, message):
    with pytest.raises(InputError, match=message):
        load_any(published(lr_schedule={"learning_rate": 1e-3, "warmup_steps": 3, **FELL, **given}), check_files=False)
