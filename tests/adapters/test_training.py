"""Methods in the trainer: compiled steps equal plain ones, and a run that was cut in two ends as one that was not."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import pet
from adapters.bitfit import BitFitConfig
from adapters.bottleneck import BottleneckConfig
from adapters.prefix import PrefixConfig
from adapters.prompt import PromptConfig, PTuningConfig
from adapters.ptuning import PTuningV2Config
from pet.train.trainer import Trainer

CASES = {
    "prefix_projection-llama_gqa": PrefixConfig(length=3, projection=True, projection_hidden=8),
    "ptuning2-chatglm1": PTuningV2Config(length=3),
    "prompt-llama_gqa": PromptConfig(length=3),
    "p_tuning-chatglm1": PTuningConfig(length=3, projection_hidden=8),
    "parallel-glm4_0414": BottleneckConfig(size=4, placement="parallel", dropout=0.3),
    "bitfit-chatglm2": BitFitConfig(),
}


def batches(fixtures, family):
    """Rows of real prompts with right padding, as the data package pads them."""
    ids = np.load(fixtures / family / "ref.npz")["input_ids"]
    mask = np.ones_like(ids)
    mask[0, -3:] = 0
    return [
        {"input_ids": ids, "attention_mask": mask},
        {"input_ids": ids[::-1].copy(), "attention_mask": mask[::-1].copy()},
    ]


def run(fixtures, family, config, **settings):
    model = pet.AutoModel.from_pretrained(str(fixtures / family))
    pet.apply(model, copy.deepcopy(config))
    chosen = {"steps": 4, "batch_size": 2, "learning_rate": 0.01, "schedule": "constant", "warmup": 0, **settings}
    return Trainer(model, batches(fixtures, family), **chosen)


def weights(trainer) -> dict[str, np.ndarray]:
    return {parameter.name: parameter.asnumpy() for parameter in pet.trainable_parameters(trainer.model)}


@pytest.mark.parametrize("case", CASES)
def test_compiled_training_is_plain_training(fixtures, case):
    family, config = case.partition("-")[2], CASES[case]
    compiled, plain = (run(fixtures, family, config, compiled=compiled) for compiled in (True, False))
    for trainer in (compiled, plain):
        trainer.train()
    for ours, reference in zip(compiled.history, plain.history, strict=True):
        assert ours["loss"] == pytest.approx(reference["loss"], abs=1e-4)
        assert ours["gradient_norm"] == pytest.approx(reference["gradient_norm"], rel=1e-3)
    assert compiled.history[-1]["loss"] < compiled.history[0]["loss"]


def test_a_projected_prefix_is_resumed_bit_for_bit(fixtures, tmp_path):
    """The checkpoint holds the network, not only what it comes to."""
    family, config = "llama_gqa", CASES["prefix_projection-llama_gqa"]
    how = {"compiled": False}  # compiled, it takes as long as a hundred steps; tests/pet/train/test_resume.py is that
    whole = run(fixtures, family, config, **how)
    whole.train()
    half = run(fixtures, family, config, directory=tmp_path, **how)
    half.total_steps = 2
    half.train()
    other = PrefixConfig(length=3, projection=True, projection_hidden=8, seed=5)
    rest = run(fixtures, family, other, directory=tmp_path, **how)
    rest.train(resume=True)
    expected, found = weights(whole), weights(rest)
    assert expected.keys() == found.keys() and any("prefix_encoder" in name for name in expected)
    for name, value in expected.items():
        assert np.array_equal(found[name], value), name
