"""Runs of a trainer that go on, and what they refuse to go on with."""

from __future__ import annotations

import os

import numpy as np
import pytest
from mindspore import Parameter, Tensor
from toy_trainer import make

import pet
from adapters.apply import apply_lora
from model_zoo.auto import AutoModel
from model_zoo.errors import InputError
from pet.data import TokenDataset, make_loader
from pet.files import lock
from pet.names import bundled_models
from pet.train.callbacks import Callback
from pet.train.checkpoint import checkpoints
from pet.train.noise import key_setter
from pet.train.origins import origins_of_objects


def test_resume_in_one_process_and_other_models_are_refused(toy, batch, tmp_path, weights, caplog, monkeypatch):
    data = [batch(4, seed=seed) for seed in range(3)]
    whole = make(toy(), data, steps=7)
    whole.train()
    half = make(toy(), data, steps=7, directory=tmp_path)
    half.total_steps = 4
    half.train()
    rest = make(toy(seed=5), data, steps=7, directory=tmp_path)
    rest.train(resume=True)
    for name, value in weights(whole.model).items():
        assert np.array_equal(weights(rest.model)[name], value), name
    assert [line["step"] for line in half.history] == [1, 2, 3, 4]
    half.resume()
    assert [line["step"] for line in half.history] == [1, 2, 3, 4], "no file holds them"
    other = toy()
    other.bias.requires_grad = False
    with pytest.raises(InputError, match="'bias' is not trained here"):
        make(other, data, directory=tmp_path).train(resume=True)
    wider, size = toy(), half.model.bias.size
    wider.bias = Parameter(Tensor(np.zeros(2 * size, np.float32)), name="bias")
    with pytest.raises(InputError, match=rf"'bias' has shape \({size},\), expected \({2 * size},\)"):
        make(wider, data, directory=tmp_path).resume()
    assert "total_steps" in caplog.text and "optimizer" not in caplog.text
    make(toy(), data, steps=7, directory=tmp_path, optimizer="adam").resume()
    assert "written with optimizer adamw, this run has adam" in caplog.text and "written with minds" not in caplog.text
    version = pet.__version__
    monkeypatch.setattr(pet, "__version__", f"{version}.1")
    make(toy(), data, steps=7, directory=tmp_path).resume()
    assert f"step-000007 was written with mindspore-pet {version}, this run has {version}.1: " in caplog.text
    last = tmp_path / "checkpoints" / "step-000007"
    for wrong in (tmp_path, last.parent):
        with pytest.raises(InputError, match=f"is no checkpoint; the last one in it is {last}$"):
            half.resume(wrong)
    with pytest.raises(InputError, match=r"gone: no checkpoint is there"):
        half.resume(tmp_path / "gone")
    (last / "optimizer.safetensors").unlink()
    with pytest.raises(InputError, match=r"step-000007: damaged: optimizer\.safetensors cannot be read .*No such file"):
        half.resume(last)


def test_a_run_that_goes_on_with_another_setting_says_so(toy, batch, tmp_path, caplog):
    """Whichever changes the numbers that follow, and no other."""
    trainer = make(toy(), [batch(4)], directory=tmp_path)
    trainer.save()
    given, free = trainer.settings, {"keep_last": 9, "save_prefix": "a", "log_every": 7}
    trainer.settings = given.model_copy(update=free)
    trainer.resume()
    assert "written with" not in caplog.text
    changes = {"warmup": 3.0, "betas": [0.5, 0.5], "weight_decay": 0.1, "clip_norm": None, "objective": "dft"}
    for name, value in changes.items():
        caplog.clear()
        trainer.settings = given.model_copy(update={name: value})
        trainer.resume()
        said = f"was written with {name} {getattr(given, name)}, this run has {value}: it continues"
        assert said in caplog.text and caplog.text.count("written with") == 1


def test_a_run_does_not_go_on_over_another_base(toy, batch, tmp_path, caplog):
    def trainer(seed, **settings):
        model = toy(seed)
        model.embed.requires_grad = False
        return make(model, [batch(4)], steps=1, directory=tmp_path, **settings)

    trainer(0).train()
    trainer(0).resume()
    with pytest.raises(InputError, match="model: base has another content since this run began"):
        trainer(1).resume()
    trainer(1, accept_changes=True).resume()
    assert "base has another content" in caplog.text


def test_other_data_in_a_script_are_said_when_its_run_goes_on(toy, batch, tmp_path, caplog):
    """Of a list of batches, of samples in memory, and of a dataset of the user's, whose rows alone are counted."""
    samples = [([1, 2 + row % 7, 3, 4], [0, 1, 1, 1]) for row in range(70)]
    data = {
        "1 batches": lambda changed: [batch(4, seed=changed)],
        "70 samples": lambda changed: make_loader(TokenDataset.from_samples(samples[::-1] if changed else samples), 4),
        "5 rows": lambda changed: make_loader([{"input_ids": [1, 2, 3]}] * (5 + changed), 4),
    }
    for number, (said, given) in enumerate(data.items()):

        def trainer(changed, given=given, directory=tmp_path / str(number)):
            return make(toy(), given(changed), steps=1, directory=directory)

        trainer(False).train()
        trainer(False).resume()
        assert "training data" not in caplog.text
        trainer(True).resume()
        assert f"was written with training data {said}" in caplog.text
        caplog.clear()


def test_a_base_is_the_same_however_it_is_stored():
    found = []
    for dtype in ("float32", "auto"):
        model = AutoModel.from_pretrained(bundled_models()["gpt_tiny"], dtype=dtype)
        apply_lora(model, rank=1)
        found.append(origins_of_objects(model, divided=False))
        key_setter(model, neftune_alpha=5.0)  # the noise's key is none of its weights
        assert origins_of_objects(model, divided=False) == found[-1]
    assert found[0] == found[1] != origins_of_objects(model, divided=True) == {}


def test_resuming_without_a_checkpoint_is_a_new_run(toy, batch, tmp_path, caplog):
    caplog.set_level("INFO", "pet")
    trainer = make(toy(), [batch(4)], directory=tmp_path, steps=2)
    trainer.train(resume=True)
    assert f"no checkpoint in {tmp_path}/checkpoints: starting at the first step" in caplog.messages
    assert [line["step"] for line in trainer.history] == [1, 2]


def test_steps_that_a_kill_has_lost_are_said_when_the_run_begins_anew(toy, batch, tmp_path, caplog):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0}\n')
    make(toy(), [batch(4)], directory=tmp_path, steps=2).resume()
    assert "starting at the first step; 2 that had been made are lost, see train.save_every" in caplog.text


def test_a_script_keeps_others_from_its_directory(toy, batch, tmp_path):
    """Two at once wrote their lines into one metrics.jsonl, and each deleted the other's checkpoints."""
    directory = tmp_path / "run"
    locked = []

    class Looks(Callback):
        def start(self, trainer):
            with pytest.raises(BlockingIOError):
                lock(directory)
            locked.append(True)

    trainer = make(toy(), [batch(4)], directory=directory, steps=1, callbacks=[Looks()])
    trainer.train()
    other = lock(directory)  # as another process has it
    before = sorted(tmp_path.rglob("*"))
    for begin in (trainer.train, trainer.resume):
        with pytest.raises(InputError, match="directory: another job is running in"):
            begin()
    assert locked == [True] and sorted(tmp_path.rglob("*")) == before
    os.close(other)
    trainer.resume()


def test_checkpoints_of_another_run_do_not_take_the_place_of_a_new_ones(toy, batch, tmp_path):
    data = [batch(2, seed=0)]
    make(toy(), data, directory=tmp_path, steps=6, save_every=2).train()
    new = make(toy(), data, directory=tmp_path, steps=3)
    with pytest.raises(InputError, match=r"step-000006: a checkpoint of another run.*train\(resume=True\)"):
        new.train()
    assert [path.name for path in checkpoints(tmp_path / "checkpoints")] == ["step-000004", "step-000006"]
    assert make(toy(), data, directory=tmp_path, steps=6).train(resume=True)["steps"] == 6
