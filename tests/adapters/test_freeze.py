"""Freezing by name as MindPet's users know it, without its faults."""

from __future__ import annotations

import numpy as np
import pytest
from mindspore import Tensor, nn
from mindspore.train import CheckpointConfig, Model
from safetensors.numpy import load_file

import pet
from model_zoo.errors import InputError
from pet.train.trainer import Trainer


class Own(nn.Cell):
    """A user's own cell."""

    def __init__(self):
        super().__init__()
        self.first = nn.Dense(6, 5)
        self.second = nn.Dense(5, 4)

    def construct(self, x):
        return self.second(self.first(x))


def trained(cell) -> list[str]:
    return [parameter.name for parameter in cell.get_parameters() if parameter.requires_grad]


def test_include_freezes_exclude_trains_both_leave():
    own = Own()
    pet.freeze_modules(own, include=["first.*"])
    assert trained(own) == ["second.weight", "second.bias"]
    pet.freeze_modules(own, include="*", exclude=["*bias"])  # the biases are in both: as they were
    assert trained(own) == ["second.bias"]
    pet.freeze_modules(own, exclude=["first.weight"])
    assert trained(own) == ["first.weight", "second.bias"]


def test_patterns_that_match_nothing_change_nothing():
    own = Own()
    with pytest.raises(InputError, match=r"'frist\.\*' matches no parameter"):
        pet.freeze_modules(own, include=["second.*", "frist.*"])
    with pytest.raises(InputError, match="neither include nor exclude"):
        pet.freeze_modules(own)
    assert len(trained(own)) == 4


def test_what_is_no_weight_is_not_trained():
    """Dropout's key and DoRA's norms, which a pattern for all of a layer matches."""
    own = pet.apply_lora(Own(), rank=2, targets=["first"], dropout=0.1, use_dora=True)
    kept = [one for one in own.get_parameters() if getattr(one, "buffer", False)]
    assert [one.name for one in kept] == ["first.dropout.key", "first.magnitude.norm"]
    pet.freeze_modules(own, exclude="first.*")
    weights = {"weight", "bias", "lora_A.weight", "lora_B.weight", "lora_magnitude_vector"}
    assert {name.removeprefix("first.") for name in trained(own)} == weights
    for one in kept:
        one.requires_grad = True
    assert not {one.name for one in kept}.intersection(one.name for one in pet.trainable_parameters(own))


@pytest.mark.parametrize("mode", ("lora", "LoRA"))
def test_freeze_delta_leaves_the_method_alone(mode):
    own = pet.apply_lora(Own(), rank=2, targets=["first"])
    for parameter in own.get_parameters():
        parameter.requires_grad = True
    pet.freeze_delta(own, mode, exclude=["second.bias"])
    assert trained(own) == ["first.lora_A.weight", "first.lora_B.weight", "second.bias"]
    assert [parameter.name for parameter in pet.trainable_parameters(own)] == trained(own)


def test_freeze_delta_refuses_what_it_does_not_know():
    own = Own()
    with pytest.raises(InputError, match=r"mode 'lorra' is not known.*lora"):
        pet.freeze_delta(own, "lorra")
    with pytest.raises(InputError, match="has no lora parameters"):
        pet.freeze_delta(own, "lora")
    assert len(trained(own)) == 4
    pet.freeze_delta(own, "bitfit")
    assert trained(own) == ["first.bias", "second.bias"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("freeze:\n  include: ['first.*']\n", ["second.weight", "second.bias"]),
        ("freeze:\n  include: ['*weight']\n  exclude: ['*bias']\n", ["first.bias", "second.bias"]),
    ],
)
def test_freeze_from_config(tmp_path, text, expected):
    own, path = Own(), tmp_path / "freeze.yaml"
    path.write_text(text)
    pet.freeze_from_config(own, path)
    assert trained(own) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("freeze:\n  inclde: ['*']\n", "freeze.inclde is not known.*include"),
        ("include: ['*']\n", "section 'freeze'"),
        ("freeze: [", "no YAML"),
        ("freeze: 2024-99-99", "freeze.yaml: is no YAML: month"),
        ("freeze: " + "[" * 100_000, "freeze.yaml: is no YAML"),
        (None, "not found, a YAML file was expected"),
    ],
)
def test_bad_configurations(tmp_path, text, problem):
    path = tmp_path / "freeze.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=problem):
        pet.freeze_from_config(Own(), path)


def test_checkpoints_hold_what_is_trained(tmp_path):
    """As a callback of MindSpore's own training loop."""
    from mindspore.dataset import GeneratorDataset

    own = pet.apply_lora(Own(), rank=2, targets=["first"])
    rows = [(np.ones(6, np.float32), np.zeros(4, np.float32))] * 4
    data = GeneratorDataset(rows, ["x", "y"], shuffle=False).batch(2)
    optimizer = nn.Adam(pet.trainable_parameters(own), 1e-2)
    model = Model(own, nn.MSELoss(), optimizer, metrics={"loss"})
    config = CheckpointConfig(save_checkpoint_steps=2, keep_checkpoint_max=2)
    callback = pet.TrainableParamsCheckPoint(str(tmp_path), "mine", config)
    model.fit(3, data, data, callbacks=[callback], dataset_sink_mode=False)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["mine-2_4.safetensors", "mine-3_6.safetensors"]
    found = load_file(tmp_path / "mine-3_6.safetensors")
    assert sorted(found) == ["first.lora_A.weight", "first.lora_B.weight"]
    for parameter in pet.trainable_parameters(own):
        assert np.array_equal(found[parameter.name], parameter.asnumpy())


def test_checkpoints_from_this_librarys_trainer(tmp_path, fixtures):
    model = pet.apply_bitfit(pet.AutoModel.from_pretrained(str(fixtures / "gpt2")))
    rows = np.random.default_rng(0).integers(3, 120, (2, 8)).astype(np.int32)
    callback = pet.TrainableParamsCheckPoint(tmp_path, "bias", {"save_checkpoint_steps": 2})
    trainer = Trainer(
        model, [{"input_ids": rows}], steps=3, batch_size=2, learning_rate=0.01, callbacks=[callback], compiled=False
    )
    trainer.train()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "bias-step-000002.safetensors",
        "bias-step-000003.safetensors",
    ]
    last = load_file(tmp_path / "bias-step-000003.safetensors")
    for parameter in pet.trainable_parameters(model):
        assert parameter.name.endswith("bias") and np.array_equal(last[parameter.name], parameter.asnumpy())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"save_checkpoint_steps": 0}, "whole number"),
        ({"keep_checkpoint_max": "five"}, "whole number"),
        ({"save_steps": 2}, "config has 'save_steps'.*save_checkpoint_steps"),
        (5, "config is of the type int; a CheckpointConfig or a dictionary"),
    ],
)
def test_checkpoint_settings(tmp_path, settings, message):
    with pytest.raises(InputError, match=message):
        pet.TrainableParamsCheckPoint(tmp_path, "mine", settings)
    with pytest.raises(InputError, match="no file can have this name"):
        pet.TrainableParamsCheckPoint(tmp_path, "a\0b")


def test_r_drop_against_its_formula():
    generator = np.random.default_rng(0)
    logits = generator.standard_normal((4, 5)).astype(np.float32)
    labels = np.repeat([1, 3], 2).astype(np.int32)
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    cross_entropy = -np.log(p[np.arange(4), labels]).mean()
    first, second = p[0::2], p[1::2]
    divergence = ((first - second) * (np.log(first) - np.log(second))).sum(1).mean()
    found = pet.RDropLoss(alpha=4.0)(Tensor(logits), Tensor(labels)).asnumpy()
    assert found == pytest.approx(cross_entropy + divergence, rel=1e-5)
    assert np.array_equal(pet.rdrop_repeat(np.array([[1], [2]])), [[1], [1], [2], [2]])
    assert np.array_equal(pet.rdrop_repeat(Tensor([1, 2])).asnumpy(), [1, 1, 2, 2])
