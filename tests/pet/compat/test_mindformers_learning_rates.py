"""MindFormers' learning rates as objects of a script."""

from __future__ import annotations

import mindspore as ms
import pytest
from pet.compat.mindformers.core import lr

from model_zoo.errors import InputError

STEPS = {"learning_rate": 0.005, "warmup_steps": 10}
ENDS = {**STEPS, "total_steps": 20}


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE])
@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [  # what MindFormers' own tests expect, and the first and the last step
        ("ConstantWarmUpLR", STEPS, {0: 0.0, 1: 0.0005, 10: 0.005, 19: 0.005, 100: 0.005}),
        ("LinearWithWarmUpLR", ENDS, {0: 0.0, 1: 0.0005, 10: 0.005, 19: 0.0005, 20: 0.0, 30: 0.0}),
        ("CosineWithWarmUpLR", ENDS, {1: 0.0005, 10: 0.005, 19: 0.00012236, 30: 0.0}),
        (
            "CosineWithWarmUpLR",
            {**ENDS, "warmup_steps": None, "warmup_ratio": 0.5, "lr_end": 1e-3},
            {1: 0.0005, 20: 1e-3},
        ),
        ("CosineWithWarmUpLR", {**ENDS, "num_cycles": 1.0}, {1: 0.0005, 15: 0.0, 19: 0.00452254, 20: 0.0}),
        ("ConstantWarmUpLR", {**STEPS, "warmup_lr_init": 1e-3}, {0: 0.001, 1: 0.0014, 10: 0.005}),
        ("CosineWithRestartsAndWarmUpLR", ENDS, {1: 0.0005, 10: 0.005, 19: 0.00012236}),
        ("CosineWithRestartsAndWarmUpLR", {**ENDS, "num_cycles": 0.5}, {19: 0.00289109}),  # up to release 1.0
        ("PolynomialWithWarmUpLR", {**ENDS, "lr_end": 1e-7}, {1: 0.0005, 10: 0.005, 19: 0.00050009, 30: 1e-7}),
        ("WarmUpStableDecayLR", {**ENDS, "decay_start_steps": 15}, {1: 0.0005, 10: 0.005, 19: 0.00100008, 30: 1e-7}),
        (
            "ConstantWithCoolDownLR",
            {**STEPS, "keep_steps": 10, "decay_steps": 10, "final_steps": 10, "lr_end1": 2e-7, "lr_end2": 1e-7},
            {1: 0.0005, 15: 0.005, 29: 0.00012255, 35: 2e-7, 45: 1e-7},
        ),
        ("ConstantWithCoolDownLR", {**ENDS, "lr_end1": 1e-4}, {1: 0.0005, 10: 0.005, 20: 0.00255, 30: 1e-4}),
        (
            "CosineAnnealingLR",
            {"base_lr": 0.005, "t_max": 10, "eta_min": 1e-7},
            {1: 0.00487764, 10: 1e-7, 19: 0.00487764},
        ),
        (
            "CosineAnnealingWarmRestarts",
            {"base_lr": 0.005, "t_0": 10, "t_mult": 2, "eta_min": 1e-7},
            {1: 0.00487764, 10: 0.005, 19: 0.00289113},
        ),
    ],
)
def test_learning_rates(mode, name, settings, expected):
    before = ms.get_context("mode")
    ms.set_context(mode=mode)
    try:
        schedule = getattr(lr, name)(**settings)
        found = {step: float(schedule(ms.Tensor(step, ms.int32))) for step in expected}
    finally:
        ms.set_context(mode=before)
    assert found == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize(
    ("name", "placed", "settings", "message"),
    [
        ("LinearWithWarmUpLR", (0.005, 10, 20), {}, "give what follows the rate by name"),
        ("CosineWithWarmUpLR", (0.005,), {}, "total_steps is None"),
        ("ConstantWarmUpLR", (0.005,), {"warmup_step": 1}, "has no 'warmup_step' (did you mean 'warmup_steps'"),
        (
            "PolynomialWithWarmUpLR",
            (1e-3,),
            {"total_steps": 9, "warmup_steps": 0, "lr_end": 1e-2},
            "less than the rate",
        ),
        ("CosineWithWarmUpLR", (0.005,), {"total_steps": 9, "decay_steps": 5}, "has no 'decay_steps'"),
    ],
)
def test_a_learning_rate_that_cannot_be_had_says_why(name, placed, settings, message):
    with pytest.raises(InputError) as error:
        getattr(lr, name)(*placed, **settings)
    assert message in str(error.value) and name in str(error.value)
