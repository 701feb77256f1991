from __future__ import annotations

import types

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from adapters.apply import apply, apply_lora, delete_adapter
from adapters.lora import LoRAConfig
from adapters.registry import registry
from model_zoo.auto import AutoModel
from model_zoo.errors import InputError
from model_zoo.layers import Embedding
from pet.train.noise import Noise, attach_noise, key_setter
from pet.train.trainer import Trainer


def noise_of(alpha, key, shape=(2, 16, 32)):
    noise = Noise(alpha)
    ms.ops.assign(noise.key, Tensor([key, 0], ms.int32))
    return noise(Tensor(np.zeros(shape, np.float32)), shape[1]).asnumpy()


def test_noise_is_uniform_within_its_reach_and_a_function_of_the_key():
    found = noise_of(5.0, 7, (4, 64, 64))
    reach = 5.0 / np.sqrt(64 * 64)
    assert np.abs(found).max() <= reach and np.abs(found).max() > 0.99 * reach
    assert abs(found.mean()) < 0.02 * reach
    assert found.std() == pytest.approx(reach / np.sqrt(3), rel=0.02)
    # neighbours in the tensor and in the keys have nothing to do with each other
    flat = found.reshape(-1) / reach
    assert abs((flat[1:] * flat[:-1]).mean()) < 0.02
    other = noise_of(5.0, 8, (4, 64, 64)).reshape(-1) / reach
    assert abs((flat * other).mean()) < 0.02
    assert np.array_equal(found, noise_of(5.0, 7, (4, 64, 64)))


class Model(nn.Cell):
    family = types.SimpleNamespace(embedding="inner.embed")

    def __init__(self):
        super().__init__()
        self.inner = nn.Cell()
        self.inner.embed = Embedding(9, 4)

    def construct(self, ids):
        return self.inner.embed(ids)


def test_only_training_is_noisy_and_names_stay():
    model = Model()
    names = [name for name, _ in model.parameters_and_names()]
    set_key = key_setter(model, neftune_alpha=5.0)
    ids = Tensor(np.zeros((1, 3), np.int32))
    assert "inner.embed.weight" in names
    assert names == [name for name, value in model.parameters_and_names() if "neftune" not in value.name]
    model.set_train(False)
    set_key(1)
    assert not model(ids).asnumpy().any()
    model.set_train(True)
    first = model(ids).asnumpy()
    set_key(2)
    second = model(ids).asnumpy()
    set_key(1)
    assert first.any() and not np.array_equal(first, second)
    assert np.array_equal(first, model(ids).asnumpy())


def test_an_adapted_embedding_is_compiled_with_noise_on_it(fixtures):
    """Two classes stand over the embedding's own then; a step that cannot be compiled takes many times as long."""
    model = AutoModel.from_pretrained(fixtures / "gpt2")
    apply(model, LoRAConfig(rank=2, targets=["wte"]))
    ids = np.load(fixtures / "gpt2" / "ref.npz")["input_ids"]
    trainer = Trainer(model, [{"input_ids": ids}], steps=1, batch_size=2, warmup=0, neftune_alpha=5.0)
    trainer.train()
    assert trainer.train_step.gradient.compiled


def test_a_later_run_without_noise_has_none(fixtures):
    ids = np.load(fixtures / "gpt2" / "ref.npz")["input_ids"]

    def loss(model, **settings):
        how = {"steps": 1, "batch_size": 2, "warmup": 0, "learning_rate": 1e-12, "compiled": False}
        trainer = Trainer(model, [{"input_ids": ids}], **how, **settings)
        trainer.train()
        return trainer.history[0]["loss"]

    first, second = (apply(AutoModel.from_pretrained(fixtures / "gpt2"), LoRAConfig(rank=2)) for _ in range(2))
    plain, noisy = loss(second), loss(first, neftune_alpha=50.0)
    assert loss(first) == pytest.approx(plain, abs=1e-5) != pytest.approx(noisy, abs=1e-3)


@pytest.mark.parametrize("compiled", (False, True))
def test_a_loop_of_the_users_own_after_a_run(fixtures, compiled):
    """There dropout draws anew in each step, and no noise is added; a run that goes on has both as before."""
    ids = np.load(fixtures / "gpt2" / "ref.npz")["input_ids"]
    how = {"batch_size": 2, "warmup": 0, "learning_rate": 1e-12, "schedule": "constant", "compiled": compiled}

    def outputs(model):
        model.set_train(True)
        found = [model(Tensor(ids, ms.int32)).asnumpy() for _ in range(6)]
        model.set_train(False)
        return np.ptp(found, axis=0).max()

    model = apply(AutoModel.from_pretrained(fixtures / "gpt2"), LoRAConfig(rank=2, dropout=0.5))
    for parameter in registry(model).get("default").parameters():
        ops.assign(parameter, ops.ones_like(parameter))
    trainer = Trainer(model, [{"input_ids": ids}], steps=1, neftune_alpha=50.0, **how)
    trainer.train()
    assert outputs(model) > 1e-3
    trainer.total_steps = 2
    trainer.train()
    again = Trainer(model, [{"input_ids": ids}], steps=2, neftune_alpha=50.0, **how)
    again.train()
    for first, second in zip(trainer.history, again.history, strict=True):
        assert first["loss"] == pytest.approx(second["loss"], rel=1e-5)
    delete_adapter(model, "default")
    assert outputs(model) == 0


def test_nothing_random_needs_no_key(fixtures):
    assert key_setter(Model()) is None
    plain = nn.Dense(4, 4)
    with pytest.raises(InputError, match="does not say which cell embeds"):
        attach_noise(plain, 5.0)
    dropping = nn.SequentialCell(nn.Dense(4, 4))
    apply_lora(dropping, rank=2, dropout=0.5, targets="re:.*")
    assert key_setter(dropping) is not None
