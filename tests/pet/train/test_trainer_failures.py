"""What ends a trainer's run before its time, and what is saved then."""

from __future__ import annotations

import math
import signal
import sys

import numpy as np
import pytest
from mindspore import ops
from toy_trainer import make

from model_zoo.errors import InputError
from model_zoo.unwritable import CannotWrite
from pet.recipe.training import Eval
from pet.train.callbacks import Callback
from pet.train.callbacks.records import read_metrics
from pet.train.checkpoint import checkpoints
from pet.train.distributed import DistributedContext
from pet.train.feed import BatchList
from pet.train.stop import Interrupted, LossWatch, RunFailed


def test_a_broken_loss_stops_the_run_and_names_samples_and_checkpoint(toy, batch, tmp_path, weights):
    def breaks(data, model):
        # the marked batch divides by zero
        return {"logits": model(data["input_ids"]) / (data["input_ids"][0, 0] != 30).astype("float32")}

    good, bad = batch(4, seed=1), batch(4, seed=2)
    good["input_ids"][0, 0], bad["input_ids"][0, 0] = 5, 30
    data = [good, good, good, bad]
    trainer = make(toy(), data, forward_step=breaks, directory=tmp_path, callbacks=["metrics"], compiled=True)
    with pytest.raises(RunFailed) as caught:
        trainer.train()
    message = str(caught.value)
    assert "step 4: the loss is nan" in message
    assert "sample 2.0" in message and "sample 1.0" not in message
    assert "step-000003" in message
    assert all(np.isfinite(value).all() for value in weights(trainer.model).values())
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 3
    every_two = make(toy(), data, forward_step=breaks, directory=tmp_path / "two", save_every=2, keep_last=1)
    with pytest.raises(RunFailed, match=r"the last good checkpoint is .*step-000002"):
        every_two.train()
    kept = [path.name for path in checkpoints(tmp_path / "two" / "checkpoints")]
    assert kept == ["step-000002"], "the third step may be the reason"


def test_weights_that_are_no_numbers_are_not_saved(toy, batch, tmp_path, caplog):
    """A step may have made them so, whose own loss was right."""

    class Breaks(Callback):
        def step(self, trainer, record):
            if record["step"] == 2:
                trained = trainer.model.trainable_params()[0]
                trained.set_data(trained * float("inf"))

    trainer = make(toy(), [batch(4, seed=seed) for seed in range(4)], directory=tmp_path, callbacks=[Breaks()])
    with pytest.raises(RunFailed, match=r"step 3: the loss is nan.*no checkpoint had been written yet"):
        trainer.train()
    assert "step 2 is not saved: its weights are not finite" in caplog.text
    assert not checkpoints(tmp_path / "checkpoints")


def test_an_exploding_loss_stops_the_run(toy, batch):
    def jumps(data, model):
        factor = 1.0 + 1000.0 * (data["input_ids"][0, 0] == 30).astype("float32")
        return {"logits": model(data["input_ids"]) * factor}

    good, bad = batch(4, seed=1), batch(4, seed=2)
    good["input_ids"][0, 0], bad["input_ids"][0, 0] = 5, 30
    data = [good] * 10 + [bad]
    said = r"step 11: the loss is .* over 10 times its recent median; .*sample 2\.0.*train\.max_loss_ratio: null"
    with pytest.raises(RunFailed, match=said):
        make(toy(), data, forward_step=jumps, steps=12).train()
    make(toy(), data, forward_step=jumps, steps=12, max_loss_ratio=None).train()


def test_gradients_that_are_no_numbers_stop_the_run(toy, batch, weights):
    """The loss is right: the slope of a root at zero is not."""

    def root(data, model):
        logits = model(data["input_ids"])
        return {"logits": logits + ops.sqrt(logits * 0.0)}

    trainer = make(toy(), [batch(2, seed=0)], forward_step=root)
    before = weights(trainer.model)
    with pytest.raises(RunFailed, match=r"step 1: the gradients are not finite; samples of this step: sample 0\.0"):
        trainer.train()
    assert all(np.array_equal(value, before[name]) for name, value in weights(trainer.model).items())


def test_near_zero_a_hard_batch_is_no_explosion():
    watch = LossWatch(10.0)
    for loss in [3.0, 1.0, *[0.01] * 30]:
        watch.add(loss)
    assert watch.limit == 3.0
    assert LossWatch(None).limit == math.inf


def test_one_text_with_a_wrong_label_is_no_explosion(toy, batch):
    """Where a step counts few it alone makes the loss many times the median: the others are learnt by heart."""

    def forward_step(data, model):
        worst = (data["input_ids"][0, 0] == 30).astype("float32")
        return {"loss": 0.7 * (model.mix * model.mix).sum() / (model.mix * model.mix).sum() + 12.0 * worst}

    def trainer(labels):
        good, bad = batch(1, seed=1), batch(1, seed=2)
        for one, first in ((good, 5), (bad, 30)):
            one["labels"] = np.where(np.arange(8) < 8 - labels, -100, one["input_ids"])
            one["input_ids"][0, 0] = first
        return make(toy(), [good] * 10 + [bad], forward_step=forward_step, steps=12, batch_size=1)

    assert trainer(labels=2).train()["steps"] == 12
    with pytest.raises(RunFailed, match=r"step 11: the loss is 12\.7"):
        trainer(labels=7).train()


def test_an_overflow_lowers_the_scale_and_the_run_goes_on(toy, batch, weights):
    model, plain = toy(), toy()
    trainer = make(model, [batch(4)], steps=5)
    trainer.loss_scale.enabled, trainer.loss_scale.scale, trainer.loss_scale.factor = True, 1e39, 1e30
    outcome = trainer.train()
    assert [line["skipped"] for line in trainer.history] == [True, False, False, False, False]
    assert outcome["steps"] == 5 and outcome["updates"] == 4
    assert trainer.history[1]["loss"] == trainer.history[0]["loss"]
    assert math.isnan(trainer.history[0]["gradient_norm"]) and trainer.history[1]["gradient_norm"] > 0
    make(plain, [batch(4)], steps=4).train()
    for name, expected in weights(plain).items():  # AdamW's corrections count updates
        np.testing.assert_allclose(weights(model)[name], expected, atol=1e-6)
    assert trainer.history[2]["loss"] < trainer.history[1]["loss"]


def test_max_seconds_ends_with_everything_saved(toy, batch, tmp_path):
    outcome = make(toy(), [batch(4)], steps=10**6, max_seconds=0.3, directory=tmp_path).train()
    assert 0 < outcome["steps"] < 10**6 and "max_seconds" in outcome["stopped"]
    assert checkpoints(tmp_path / "checkpoints")[-1].name == f"step-{outcome['steps']:06d}"


@pytest.mark.parametrize("moment", ["a callback", "an evaluation", "a batch", "a full disk"])
def test_an_error_between_two_steps_loses_none_of_them(toy, batch, tmp_path, weights, caplog, moment):
    """Of a run that has no checkpoint yet. The resumed run ends as one without the error."""
    data = [batch(4, seed=seed) for seed in range(6)]

    def trainer(directory, wrong):
        class Fails(Callback):
            def step(self, trainer, record):
                if wrong and record["step"] == 4 and moment in ("a callback", "a full disk"):
                    raise CannotWrite(28, "mine") if moment == "a full disk" else KeyError("mine")

        def evaluation():
            if wrong and made.position.step == 4:
                raise RuntimeError("mine")
            return {"loss": float(made.position.step)}

        class Feed(BatchList):
            def batches(self, epoch=0, start=0):
                for index, one in enumerate(self.list[start:], start):
                    if wrong and index == 4 and moment == "a batch":
                        raise OSError("mine")
                    yield one

        how = {"evaluation": evaluation, "eval": Eval(every_steps=4)} if moment == "an evaluation" else {}
        made = make(toy(), Feed(data), directory=tmp_path / directory, callbacks=["metrics", Fails()], **how)
        return made

    def lines(directory):
        found = read_metrics(tmp_path / directory / "metrics.jsonl")
        return [(line["step"], line["loss"], line.get("eval_loss")) for line in found]

    whole, resumed = trainer("whole", False), trainer("failed", False)
    whole.train()
    with pytest.raises(Exception, match="mine"):
        trainer("failed", True).train()
    saved = [path.name for path in checkpoints(tmp_path / "failed" / "checkpoints")]
    assert saved == ([] if moment == "a full disk" else ["step-000004"])
    assert ("step 4 is saved: a resumed run goes on from there" in caplog.text) == bool(saved)
    resumed.train(resume=True)
    for name, value in weights(whole.model).items():
        assert np.array_equal(weights(resumed.model)[name], value), name
    assert lines("failed") == lines("whole")


def test_an_error_within_a_step_saves_nothing(toy, batch, tmp_path, monkeypatch):
    """Weights may lie between two states."""
    trainer = make(toy(), [batch(4)], directory=tmp_path)
    step = trainer.train_step

    def failing(*arguments, **more):
        if trainer.position.step == 3:
            raise MemoryError("mine")
        return step(*arguments, **more)

    trainer.train_step = failing
    with pytest.raises(RunFailed):
        trainer.train()
    assert not checkpoints(tmp_path / "checkpoints")


def test_an_epoch_without_a_step_ends_the_run(toy, batch):
    class Runs(list):
        """Batches of the first epoch alone."""

        def steps_per_epoch(self, epoch=0):
            return len(self)

        def batches(self, epoch=0, start=0):
            yield from self[start:] if epoch == 0 else ()

    trainer = make(toy(), Runs([batch(4), batch(4, seed=1)]), steps=3)
    with pytest.raises(InputError, match="epoch 2 of the training data holds no step"):
        trainer.train()
    assert [line["step"] for line in trainer.history] == [1, 2]


@pytest.mark.parametrize("prompt", (False, True))
def test_what_ended_one_call_does_not_end_the_next(toy, batch, monkeypatch, prompt):
    """Ctrl-C is a program's KeyboardInterrupt, and nothing else at a prompt, which SystemExit would end."""
    if prompt:
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)

    class Once(Callback):
        def step(self, trainer, record):
            if record["step"] == 2:
                signal.raise_signal(signal.SIGINT)

    trainer = make(toy(), [batch(4, seed=0)], callbacks=[Once()])
    with pytest.raises(KeyboardInterrupt) as caught:
        trainer.train()
    assert trainer.position.step == 2
    assert str(caught.value) == "after step 2; train() goes on" if prompt else caught.value.code == 130
    assert isinstance(caught.value, Interrupted) is not prompt
    assert trainer.train()["steps"] == 6 and [line["step"] for line in trainer.history] == [1, 2, 3, 4, 5, 6]


def test_a_signal_that_another_process_received_ends_all_with_its_exit_code(toy, batch):
    class Member(DistributedContext):
        def any(self, flag):
            return True

        def objects(self, value):
            return [value, value if isinstance(value, list) else signal.SIGTERM]

    trainer = make(toy(), [batch(4, seed=0)], distributed=Member())
    with pytest.raises(Interrupted) as caught:
        trainer.train()
    assert caught.value.code == 143


def test_a_process_of_several_does_not_train_by_itself(toy, batch, monkeypatch):
    """Each would do the whole work and write to the same files; msrun's scheduler, too."""
    monkeypatch.setenv("RANK_ID", "1")
    monkeypatch.setenv("RANK_SIZE", "2")
    with pytest.raises(InputError, match=r"process 1 of 2 would train by itself .* use_parallel=True"):
        make(toy(), [batch(4, seed=0)])
    assert make(toy(), [batch(4, seed=0)], distributed=DistributedContext()).train()["steps"] == 6
