from __future__ import annotations

import copy
import csv
import gc
import json
import math
import os
import pickle
import signal
import sys
import types

import numpy as np
import pytest
from mindspore import Parameter, Tensor, ops

import pet
from adapters.apply import add_adapter, apply_lora, apply_prefix, delete_adapter, disable_adapters, set_adapter
from adapters.lora import LoRAConfig
from adapters.merge import merge
from model_zoo.auto import AutoModel
from model_zoo.engine import available
from model_zoo.errors import InputError
from model_zoo.unwritable import CannotWrite
from pet.data import DataSettings, Loader, TokenDataset, make_loader
from pet.files import lock
from pet.names import bundled_models
from pet.recipe.training import Eval, Train
from pet.train.callbacks import Callback, make_callback
from pet.train.callbacks.records import read_metrics
from pet.train.checkpoint import checkpoints, load
from pet.train.distributed import DistributedContext
from pet.train.evaluate import LossEvaluation
from pet.train.feed import BatchList, as_feed
from pet.train.memory import present_memory
from pet.train.noise import key_setter
from pet.train.objectives.causal import CausalLM
from pet.train.origins import origins_of_objects
from pet.train.stop import Interrupted, LossWatch, RunFailed, check_signals
from pet.train.trainer import Trainer


def make(model, data, *arguments, **settings):
    """A trainer that runs operator by operator: the loop is the same, and compiling takes longer than these steps."""
    chosen = {"learning_rate": 0.01, "schedule": "constant", "warmup": 0, "steps": 6, "batch_size": 4}
    return Trainer(model, data, *arguments, **{**chosen, "compiled": False, **settings})


def test_it_learns_and_tells_what_it_did(toy, batch):
    trainer = make(toy(), [batch(4, seed=0), batch(4, seed=1)], steps=40, learning_rate=0.03, compiled=True)
    outcome = trainer.train()
    assert trainer.history[-1]["loss"] < 0.3 * trainer.history[0]["loss"]
    assert [line["step"] for line in trainer.history] == list(range(1, 41))
    assert outcome["steps"] == 40 and outcome["epochs"] == 20.0
    assert outcome["compile_seconds"] > 0 and outcome["padding"] == 0
    assert not trainer.model.training


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": -1}, r"batch 1: labels holds -1; expected an id of the vocabulary \(0 … 30\), or -100"),
        ({"labels": 31}, "batch 1: labels holds 31"),
        ({"input_ids": -100}, "batch 1: input_ids holds -100; expected an id of the vocabulary"),
        ({"input_ids": 31}, "batch 1: input_ids holds 31"),
        ({"position_ids": 8}, "batch 1: position_ids holds 8; the model's context has positions 0 … 7"),
    ],
)
def test_numbers_that_are_no_ids_are_refused_in_every_feed(toy, batch, change, message):
    model = toy()
    model.config = types.SimpleNamespace(dims=types.SimpleNamespace(vocab=31, context=8))
    good, bad = batch(2, seed=0), batch(2, seed=1)
    for name, value in change.items():
        bad[name] = bad[name].copy()
        bad[name][1, -1] = value
    with pytest.raises(InputError, match=message):
        make(model, [good, bad])

    class Stream:
        """A feed of the user's own."""

        def steps_per_epoch(self, epoch=0):
            return 2

        def batches(self, epoch=0, start=0):
            yield from [good, bad][start:]

    before = model.embed.asnumpy().copy()
    trainer = make(model, Stream(), steps=2)
    with pytest.raises(InputError, match=r"sample 1\.0, sample 1\.1: " + message.removeprefix("batch 1: ")):
        trainer.train()
    assert trainer.position.step == 1 and not np.array_equal(before, model.embed.asnumpy())


def test_a_row_beyond_the_context_is_refused(fixtures):
    model = AutoModel.from_pretrained(fixtures / "gpt2")
    ids = np.ones((1, model.room + 1), np.int32)
    with pytest.raises(
        InputError, match=f"batch 0: a row of {model.room + 1} tokens is longer .* context of {model.room}"
    ):
        make(model, [{"input_ids": ids}])
    mask = np.ones_like(ids)
    mask[0, 0] = 0  # padding is no token
    make(model, [{"input_ids": ids, "attention_mask": mask}])


@pytest.mark.parametrize("accumulation", [1, None], ids=["training", "evaluation"])
def test_a_loader_lays_documents_out_as_the_model_has_them(fixtures, accumulation):
    model = AutoModel.from_pretrained(fixtures / "gpt2")
    apply_prefix(model, length=3)
    data = TokenDataset.from_samples([([5, 6, 7], [0, 1, 1]), ([8, 9], [0, 1])])
    feed = as_feed(Loader(data, 1, DataSettings(shuffle=False)), accumulation, model)
    assert next(iter(feed.batches()))["position_ids"][0, :5].tolist() == [3, 4, 5, 3, 4]
    own = Loader(
        data, 1, DataSettings(shuffle=False), layout=lambda ids: (np.arange(len(ids)) + 7, np.arange(len(ids)))
    )
    assert next(iter(as_feed(own, accumulation, model).batches()))["position_ids"][0, 0] == 7


def test_epochs_give_the_number_of_steps(toy, batch):
    data = [batch(2, seed=seed) for seed in range(6)]
    assert make(toy(), data, steps=None, epochs=2.5, accumulation=2).total_steps == 8
    assert make(toy(), data, steps=None, epochs=None, accumulation=2).total_steps == 9
    assert make(toy(), data, steps=None, epochs=0.1).total_steps == 1
    # transformers' own numbers: a part of an epoch is rounded up, though 1.1 - 1 is more than 0.1
    for epochs, steps in ((0.21, 3), (1.1, 11), (2.1, 21), (2.71, 28), (3.0, 30)):
        assert make(toy(), [data[0]] * 10, steps=None, epochs=epochs).total_steps == steps


def test_the_schedule_and_log_every(toy, batch):
    trainer = make(toy(), [batch(4)], schedule="linear", warmup=2, steps=6, log_every=2)
    trainer.train()
    assert [line["step"] for line in trainer.history] == [2, 4, 6]
    assert [line["learning_rate"] for line in trainer.history] == pytest.approx([0.01, 0.0075, 0.0025])
    measured = make(toy(), [batch(4)], [batch(4)], steps=7, log_every=5, eval={"every_steps": 2})
    measured.train()
    lines = {line["step"]: "eval_loss" in line for line in measured.history}
    assert lines == {2: True, 4: True, 5: False, 6: True, 7: True}
    own = {"evaluation": lambda: {"score": 1.0}, "eval": {"every_steps": 2}}
    scored = make(toy(), [batch(4)], steps=7, log_every=5, **own)
    scored.train()
    assert [line["step"] for line in scored.history if "eval_score" in line] == [2, 4, 6, 7]


def test_intervals_may_be_shares_of_the_run_and_are_rounded_up_as_in_transformers(toy, batch, tmp_path):
    how = {"save_every": 0.4, "keep_last": 9, "eval": {"every_steps": 0.15, "before": False}}
    trainer = make(toy(), [batch(4)], [batch(4)], steps=7, directory=tmp_path, **how)
    trainer.train()
    saved = {int(path.name.removeprefix("step-")) for path in (tmp_path / "checkpoints").iterdir()}
    assert {3, 6, 7} <= saved and [line["step"] for line in trainer.history if "eval_loss" in line] == [2, 4, 6, 7]


def test_a_callback_may_ask_for_every_step(toy, batch):
    seen = {True: [], False: []}

    class Sees(Callback):
        def __init__(self, every_step):
            self.every_step = every_step

        def step(self, trainer, record):
            seen[self.every_step].append(record["step"])

    make(toy(), [batch(4)], steps=6, log_every=4, callbacks=[Sees(True), Sees(False)]).train()
    assert seen == {True: [1, 2, 3, 4, 5, 6], False: [4, 6]}


def test_evaluation_best_checkpoint_and_early_stop(toy, batch, tmp_path):
    """Training on one batch and measuring on another: the measure gets better, then worse."""
    measured = iter([3.0, 2.0, 1.5, 1.6, 1.492, 9.9])

    def evaluation():
        return {"loss": next(measured), "perplexity": 1.0}

    trainer = make(
        toy(),
        [batch(4)],
        eval=Eval(every_steps=2, patience=2, min_delta=0.01),
        evaluation=evaluation,
        directory=tmp_path,
        callbacks=["metrics"],
        steps=20,
        save_every=2,
        keep_last=1,
    )
    outcome = trainer.train()
    assert trainer.before["loss"] == 3.0
    assert outcome["steps"] == 8 and "not better than 1.5" in outcome["stopped"]
    assert outcome["best"] == {"step": 4, "loss": 1.5}
    assert [path.name for path in checkpoints(tmp_path / "checkpoints")] == ["step-000004", "step-000008"]
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [line.get("eval_loss") for line in lines] == [None, 2.0, None, 1.5, None, 1.6, None, 1.492]


def of(losses):
    """An evaluation that gives these, one by one."""
    given = iter(losses)
    return lambda: {"loss": next(given)}


def test_a_run_that_ended_for_want_of_patience_is_not_gone_on_with(toy, batch, tmp_path, caplog):
    """Unless more is asked for; what is measured as NaN is no better, either."""

    def trainer(losses, patience=2):
        how = {"directory": tmp_path, "steps": 20, "eval": Eval(every_steps=2, patience=patience, before=False)}
        return make(toy(), [batch(4)], evaluation=of(losses), **how)

    said = "loss was not better than 2 for 2 evaluations"
    first = trainer([2.0, 2.5, math.nan, 1.0])
    assert first.train()["stopped"] == said and first.train()["steps"] == 6
    outcome = trainer([1.0] * 9).train(resume=True)
    assert (outcome["steps"], outcome["stopped"], outcome["best"]["step"]) == (6, said, 2)
    assert caplog.text.count(f"{said}: nothing is trained") == 2
    outcome = trainer([1.0, 3.0, 3.0, 3.0, 3.0], patience=3).train(resume=True)
    assert (outcome["steps"], outcome["best"]["step"]) == (14, 8)


@pytest.mark.parametrize("losses", [[5.0, 4.0, 3.0], [5.0, 6.0, 3.0]])
def test_an_evaluation_that_is_made_again_counts_once(losses, toy, batch, tmp_path):
    """A callback that failed there left it, better or not, to the resumed run."""

    class Fails(Callback):
        def evaluation(self, trainer, record):
            if record["step"] == 2:
                raise KeyError("mine")

    def trainer(losses, callbacks=()):
        wanted = Eval(every_steps=1, patience=2 if losses[1] > 5 else 1, before=False)
        how = {"directory": tmp_path, "steps": 3, "callbacks": callbacks, "evaluation": of(losses)}
        return make(toy(), [batch(4)], eval=wanted, **how)

    with pytest.raises(KeyError, match="mine"):
        trainer(losses, [Fails()]).train()
    resumed = trainer([*losses])
    resumed.evaluation = of(losses[1:])
    assert resumed.train(resume=True)["best"] == {"step": 3, "loss": 3.0}


def test_a_training_goes_on_from_its_last_step_and_not_from_the_best(toy, batch, tmp_path, weights):
    class Once(Callback):
        def step(self, trainer, record):
            if record["step"] == 3:
                trainer.stop("enough for now")

    wanted = Eval(every_steps=1, before=False, load_best_model_at_end=True)
    how = {"eval": wanted, "evaluation": of([1.0, 2.0, 3.0, 0.5, 2.0, 0.1]), "callbacks": [Once()]}
    trainer = make(toy(), [batch(4)], directory=tmp_path, **how)
    assert (trainer.train()["weights_step"], trainer.position.step) == (1, 3)
    assert (trainer.train()["weights_step"], trainer.position.step) == (6, 6)
    whole = make(toy(), [batch(4)])
    whole.train()
    for name, value in weights(whole.model).items():
        assert np.array_equal(weights(trainer.model)[name], value), name


def test_the_best_of_another_metric_does_not_count(toy, batch, tmp_path):
    losses, accuracies = iter(range(9, 0, -1)), iter([0.5, 0.3, 0.2, 0.4])

    def trainer(**settings):
        def evaluation():
            return {"loss": float(next(losses)), "accuracy": next(accuracies)}

        how = {"metrics": ["loss", "accuracy"], "every_steps": 1, "before": False, **settings}
        return make(toy(), [batch(4)], directory=tmp_path, evaluation=evaluation, eval=how, steps=4 if settings else 2)

    assert trainer().train()["best"] == {"step": 2, "loss": 8.0}
    assert trainer(best_metric="accuracy").train(resume=True)["best"] == {"step": 4, "accuracy": 0.4}


def test_nothing_is_measured_before_the_first_step_of_a_run_that_has_made_it(toy, batch, tmp_path):
    make(toy(), [batch(4)], directory=tmp_path, steps=2).train()
    trainer = make(toy(), [batch(4)], [batch(4)], directory=tmp_path, steps=4)
    trainer.train(resume=True)
    assert trainer.before is None and "eval_loss" in trainer.history[-1]


def test_a_model_is_measured_as_it_is(toy, batch, tmp_path):
    """Not as it was at the last step, where a program has exchanged its weights since."""
    data, other = [batch(4)], tmp_path / "other"
    make(toy(3), data, steps=2, directory=other).train()
    trainer = make(toy(), data, data, steps=2)
    trainer.train()
    assert trainer.evaluate() == trainer.evaluate(anew=False)
    trainer.resume(other / "checkpoints" / "step-000002")
    found = trainer.evaluate(anew=False)
    assert found["loss"] == LossEvaluation(trainer.model, BatchList(data), trainer.objective)()["loss"]
    trainer.model.mix.set_data(trainer.model.mix * 0)
    assert trainer.evaluate()["loss"] != found["loss"]


def test_an_evaluation_that_was_left_twice_has_one_line(toy, batch, tmp_path):
    """Its checkpoint is gone on from again where the run was killed before the next one."""

    def trainer(signal_at=None, die_at=None):
        def evaluation():
            if made.position.step == signal_at:
                signal.raise_signal(signal.SIGTERM)
            check_signals()
            return {"loss": 1.0 + made.position.step}

        class Dies(Callback):
            def step(self, trainer, record):
                if record["step"] == die_at:
                    raise RuntimeError("killed")

        how = {"directory": tmp_path, "evaluation": evaluation, "eval": Eval(every_steps=2, before=False)}
        made = make(toy(), [batch(4)], callbacks=["metrics", "csv", Dies()], **how)
        return made

    with pytest.raises(Interrupted):
        trainer(signal_at=4).train()
    with pytest.raises(RuntimeError, match="killed"):
        trainer(die_at=5).train(resume=True)
    with pytest.raises(Interrupted):
        trainer(signal_at=6).train(resume=True)  # the last step's
    last = trainer()
    assert last.train(resume=True)["best"] == {"step": 2, "loss": 3.0} and last.evaluate() == {"loss": 7.0}
    expected = [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in last.history] == expected
    assert [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl")] == expected
    assert [line.split(",")[0] for line in (tmp_path / "metrics.csv").read_text().split()[1:]] == list("123456")


def test_a_model_whose_evaluation_was_left_is_not_in_training(toy, batch):
    def evaluation():
        signal.raise_signal(signal.SIGINT)
        check_signals()

    trainer = make(toy(), [batch(4)], evaluation=evaluation, eval=Eval(every_steps=2, before=False))
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert not trainer.model.training and trainer.position.step == 2


def test_evaluating_every_half_epoch(toy, batch):
    measured = []
    data = [batch(2, seed=seed) for seed in range(4)]
    trainer = make(
        toy(), data, eval=Eval(every_epochs=0.5, before=False), evaluation=lambda: measured.append(1) or {"loss": 1.0}
    )
    trainer.train()
    assert [line["step"] for line in trainer.history if "eval_loss" in line] == [2, 4, 6]


def test_nothing_goes_by_epochs_of_a_stream(toy, batch):
    """Evaluations by epochs were silently left out."""

    class Stream:
        def steps_per_epoch(self, epoch=0):
            return None

        def batches(self, epoch=0, start=0):
            yield from [batch(2, seed=0)] * 3

        def part_of_epoch(self, epoch, steps):
            return steps / 3

    for asked, message in (
        ({"steps": None}, r"train\.steps: needed where the data streams"),
        ({"evaluation": lambda: {"loss": 1.0}, "eval": {"every_epochs": 1}}, r"eval\.every_epochs: how long an epoch"),
    ):
        with pytest.raises(InputError, match=message):
            make(toy(), Stream(), **asked)
    trainer = make(toy(), Stream())
    assert trainer.train()["epochs"] == 2.0
    assert [line["epoch"] for line in trainer.history] == pytest.approx([1 / 3, 2 / 3, 1, 4 / 3, 5 / 3, 2])


def test_held_out_loss_is_the_mean_over_label_tokens(toy, batch):
    model, rows = toy(), batch(4, seed=2)
    trainer = make(model, [rows], [rows], steps=1)
    trainer.train()
    assert trainer.before["loss"] == pytest.approx(trainer.history[0]["loss"], abs=1e-6)
    assert trainer.before["perplexity"] == pytest.approx(math.exp(trainer.before["loss"]))


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


def test_the_best_weights_are_the_result_where_that_is_asked_for(toy, batch, tmp_path, weights, caplog):
    measured = iter([2.0, 1.0, 1.5, 7.0, 7.0])
    told = []

    class Last(Callback):
        def end(self, trainer, summary):
            told.append((summary["weights_step"], weights(trainer.model)))

    settings = {"steps": 3, "directory": tmp_path, "save_every": 1, "callbacks": [Last()]}
    wanted = Eval(every_steps=1, before=False, load_best_model_at_end=True)
    trainer = make(toy(), [batch(4)], eval=wanted, evaluation=lambda: {"loss": next(measured)}, **settings)
    outcome = trainer.train()
    best = load(tmp_path / "checkpoints" / "step-000002").weights
    assert (outcome["steps"], outcome["weights_step"], outcome["best"]["step"]) == (3, 2, 2)
    assert told[0][0] == 2, "callbacks see the best weights at the end"
    for name, value in weights(trainer.model).items():
        assert np.array_equal(value, best[name]) and np.array_equal(told[0][1][name], best[name])
    assert trainer.evaluate() == {"loss": 7.0}, "other weights are measured anew"
    last = load(tmp_path / "checkpoints" / "step-000003").weights
    assert not np.array_equal(last["mix"], best["mix"])
    # a damaged one is not loaded
    (tmp_path / "checkpoints" / "step-000002" / "weights.safetensors").write_bytes(b"")
    trainer.resume()
    trainer.load_best()
    assert np.array_equal(weights(trainer.model)["mix"], last["mix"])
    assert "the best checkpoint" in caplog.text and "cannot be used: " in caplog.text
    with pytest.raises(InputError, match="load_best_model_at_end: needs a directory"):
        make(toy(), [batch(4)], eval=wanted)


def test_what_is_to_be_written_is_written_before_the_end_is_told(toy, batch):
    moments = []

    class Ends(Callback):
        def end(self, trainer, summary):
            moments.append(summary)
            raise ValueError("the upload failed")

    class Also(Callback):
        def end(self, trainer, summary):
            moments.append(summary)

    def finish(outcome):
        moments.append("written")
        return {"all": outcome["steps"]}

    with pytest.raises(ValueError, match="the upload failed"):
        make(toy(), [batch(4)], steps=1, callbacks=[Ends(), Also()], finish=finish).train()
    assert moments == ["written", {"all": 1}, {"all": 1}]

    def fails(outcome):
        raise OSError("no space left")

    moments.clear()
    with pytest.raises(OSError, match="no space left"):
        make(toy(), [batch(4)], steps=1, callbacks=[Ends(), Also()], finish=fails).train()
    assert [told["error"] for told in moments] == ["no space left"] * 2


class Recorder(Callback):
    def __init__(self, stop_at: int = 0):
        self.moments, self.stop_at = [], stop_at

    def start(self, trainer):
        self.moments.append("start")

    def step(self, trainer, record):
        self.moments.append(record["step"])
        if record["step"] == self.stop_at:
            trainer.stop("the callback said so")

    def evaluation(self, trainer, record):
        self.moments.append(("evaluation", record["step"], record["loss"]))

    def save(self, trainer, path):
        self.moments.append(path.name)

    def end(self, trainer, summary):
        self.moments.append(("end", summary["steps"], summary.get("error")))


def test_callbacks_see_the_moments_in_order_and_may_stop(toy, batch, tmp_path):
    recorder = Recorder(stop_at=2)
    make(
        toy(),
        [batch(4)],
        eval=Eval(every_steps=2),
        evaluation=lambda: {"loss": 1.0},
        directory=tmp_path,
        callbacks=[recorder],
    ).train()
    assert recorder.moments == ["start", 1, ("evaluation", 2, 1.0), 2, "step-000002", ("end", 2, None)]


def test_callbacks_by_name(tmp_path, monkeypatch):
    (tmp_path / "my_callbacks.py").write_text(
        "from pet.train.callbacks import Callback\n\n\nclass Mine(Callback):\n    def __init__(self, size=1):\n"
        "        self.size = size\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert make_callback("my_callbacks:Mine", {"size": 3}).size == 3
    for name, arguments, message in (
        ("csvv", None, "did you mean 'csv'"),
        ("my_callbacks:Mime", None, "did you mean 'Mine'"),
        ("no_such_module:Mine", None, "no_such_module"),
        ("my_callbacks:Mine", {"length": 3}, "length"),
    ):
        with pytest.raises(InputError, match=message):
            make_callback(name, arguments)


def test_files_of_the_built_in_callbacks(toy, batch, tmp_path, pictures):
    how = {"directory": tmp_path, "callbacks": ["metrics", "csv", "plot", "progress"], "eval": Eval(every_steps=3)}
    with pictures():
        make(toy(), [batch(4)], [batch(4)], **how).train()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    table = (tmp_path / "metrics.csv").read_text().splitlines()
    assert table[0].startswith("step,epoch,loss,learning_rate") and len(table) == 7
    assert float(table[3].split(",")[2]) == lines[2]["loss"]
    picture = (tmp_path / "loss.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 10_000


def strictly(text):
    """JSON as a browser, a database or jq reads it: Python's NaN and Infinity are none."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_numbers_that_json_has_not_are_null_in_files_and_nan_in_a_resumed_run(toy, batch, tmp_path):
    measures = iter([math.nan, math.inf, 2.0, math.nan, math.nan])
    how = {"directory": tmp_path, "callbacks": ["metrics", "csv"], "evaluation": lambda: {"loss": next(measures)}}
    eval = Eval(every_steps=2)
    first = make(toy(), [batch(4)], **how, eval=eval)
    assert first.train()["best"] == {"step": 4, "loss": 2.0}, "what is infinite is no better than nothing"
    lines = list(map(strictly, (tmp_path / "metrics.jsonl").read_text().splitlines()))
    assert [line["eval_loss"] for line in lines if "eval_loss" in line] == [None, 2.0, None]
    table = csv.DictReader((tmp_path / "metrics.csv").open())
    assert [row["eval_loss"] for row in table] == ["", "", "", "2.0", "", ""]
    state = strictly((tmp_path / "checkpoints" / "step-000006" / "state.json").read_text())["state"]
    assert state["before"] == {"loss": None}
    again = make(toy(), [batch(4)], **how, eval=eval)
    again.resume()
    assert math.isnan(again.before["loss"])
    assert repr([line.get("eval_loss") for line in again.history]) == "[None, nan, None, 2.0, None, nan]"


@pytest.mark.parametrize(("every", "steps"), [(3, [3, 6]), (4, [4, 6]), (None, [6])])
def test_a_picture_is_drawn_once_for_the_lines_that_it_shows(toy, batch, tmp_path, monkeypatch, pictures, every, steps):
    shown = []
    monkeypatch.setattr("pet.train.callbacks.plot.draw", lambda lines, *_: shown.append(lines[-1]["step"]))
    evaluated = [] if every is None else [[batch(4)]]
    how = {"directory": tmp_path, "callbacks": ["plot"], "eval": Eval(every_steps=every)}
    with pictures():
        make(toy(), [batch(4)], *evaluated, **how).train()
    assert shown == steps


def test_bad_settings_and_data_are_input_errors(toy, batch):
    frozen = toy()
    for parameter in frozen.get_parameters():
        parameter.requires_grad = False
    cases = [
        (lambda: make(toy(), [batch(4)], learning_rat=1), "did you mean 'learning_rate'"),
        (lambda: make(toy(), [batch(4)], learning_rate=-1.0), "train.learning_rate"),
        (lambda: make(frozen, [batch(4)]), "nothing to train"),
        (lambda: make(toy(), "data.json"), "has no tokenizer; make batches by"),
        (lambda: make(toy(), 3), "a file, a pet.data.Loader or a list of batches, found int"),
        (lambda: make(toy(), [{"labels": [[1]]}]), "batch 0 has no input_ids; it has labels"),
        (lambda: make(toy(), [{"input_ids": [[1.5]]}]), "integers expected"),
        (lambda: make(toy(), [batch(4)], accumulation=3), "1 batches are too few for a step of 3"),
        (lambda: make(toy(), BatchList([batch(4)] * 2, 2)), "loader with accumulation 2, but train.accum"),
        (lambda: make(toy(), [batch(4)]).train(resume=True), "needs a run directory"),
    ]
    for attempt, message in cases:
        with pytest.raises(InputError, match=message):
            attempt()


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


def test_a_batch_that_replicas_cannot_share_is_refused(tmp_path):
    three = DistributedContext()
    three.data_size = 3
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    how = {"model": AutoModel.from_pretrained(bundled_models()["llama_tiny"]), "distributed": three}
    with pytest.raises(InputError, match="batch_size: 4 rows cannot be shared by 3 replicas"):
        as_feed(tmp_path / "rows.jsonl", settings=Train(batch_size=4), **how)


def test_the_last_step_of_a_list_has_the_batches_that_are_left(toy, batch):
    """And its loss is the mean over their labels: the whole of a list is learnt, by the weights of one batch."""
    parts = [batch(2, seed=seed) for seed in range(3)]
    whole = {key: np.concatenate([part[key] for part in parts[:2]]) for key in parts[0] if key != "sample_ids"}
    apart, together = toy(), toy()
    trainer = make(apart, parts, accumulation=2, steps=None, epochs=2.0, batch_size=2)
    trainer.train()
    assert [line["epoch"] for line in trainer.history] == [0.5, 1.0, 1.5, 2.0]
    make(together, [whole, parts[2]], steps=4).train()
    np.testing.assert_allclose(apart.embed.asnumpy(), together.embed.asnumpy(), atol=1e-6)


def test_a_run_that_is_done_says_that_nothing_is_trained(toy, batch, caplog):
    trainer = make(toy(), [batch(4)], steps=2)
    trainer.train()
    assert "nothing is trained" not in caplog.text
    trainer.train()
    assert "all 2 steps are done: nothing is trained" in caplog.text and len(trainer.history) == 2


def test_why_there_is_nothing_to_train(fixtures):
    model = pet.apply_lora(AutoModel.from_pretrained(fixtures / "llama_gqa"), rank=2, name="mine")

    def refused(words):
        with pytest.raises(InputError, match=f"^nothing to train: no parameter of the model is trainable; {words}"):
            make(model, [{"input_ids": np.array([[5, 6, 7]])}])

    pet.freeze_modules(model, include="*")
    refused(r"what mine has is frozen \(pet.set_adapter thaws it\)$")
    pet.set_adapter(model, "mine")
    pet.merge(model)
    refused(r"mine is merged into the weights \(pet.unmerge\)$")
    pet.unmerge(model)
    pet.set_adapter(model, [])
    refused(r"no adapter is active \(pet.set_adapter; there is: mine\)$")
    pet.set_adapter(model, "mine")
    make(model, [{"input_ids": np.array([[5, 6, 7]])}])


def test_rows_without_a_label_are_said_and_batches_of_nothing_else_refused(toy, batch, caplog):
    unlabelled, half, padded = batch(2, seed=0), batch(2, seed=1), batch(2, seed=2)
    unlabelled["labels"] = np.full_like(unlabelled["input_ids"], -100)
    unlabelled["labels"][:, 0] = unlabelled["input_ids"][:, 0]  # which nothing predicts
    half["labels"] = np.where([[True], [False]], half["input_ids"], -100)
    padded = {name: padded[name] for name in ("input_ids", "labels")}
    padded["attention_mask"] = np.ones_like(padded["input_ids"]) * [[1], [0]]
    padded["labels"] = np.where(padded["attention_mask"], padded["labels"], -100)
    for data in ({"train_data": [unlabelled]}, {"train_data": [half], "eval_data": [unlabelled]}):
        with pytest.raises(InputError, match="none of the 2 rows has a label"):
            make(toy(), data.pop("train_data"), **data)
    for data, more, message in (([{"input_ids": [[1]]}], {}, "label_tokens"), ([half], {"objective": "orpo"}, "pairs")):
        with pytest.raises(InputError, match=f"no batch has {message}: there is nothing to learn"):
            make(toy(), data, **more)
    caplog.clear()
    make(toy(), [padded])
    assert not caplog.records, "a row of padding needs none"
    make(toy(), [padded, half, unlabelled])
    assert [line.getMessage() for line in caplog.records] == [
        "3 of 5 rows are not learnt: they lack a label after the first token (-100 everywhere); the first is batch 1, "
        "row 1"
    ]


def test_data_without_a_pair_is_refused(toy, batch):
    """Two documents are one only in the same row; a loss of nothing would be 0, and the best."""
    data = TokenDataset.from_samples([([1, 2, 3 + number], [0, 1, 1]) for number in range(4)])
    loader = Loader(data, 2, DataSettings(packing="none", max_length=4))
    with pytest.raises(InputError, match=r"training data: pairs are of 2 documents, .* documents = 1; set it to 2"):
        make(toy(), loader, objective="orpo")
    data.documents = 2
    with pytest.raises(InputError, match="evaluation data: no batch has pairs: there is nothing to measure"):
        make(toy(), loader, [batch(2)], objective="orpo")
    make(toy(), loader, loader, objective="orpo")


def test_a_process_among_others_promises_no_more_than_they_keep(toy, batch, tmp_path):
    """Another one may be gone, for which the signal comes: nothing is saved then, since all would have to take part."""
    trainer = make(toy(), [batch(2)], directory=tmp_path)
    assert trainer.announce() == "ending after this step, with everything saved"
    trainer.distributed = types.SimpleNamespace(size=2)
    assert trainer.announce().endswith("with everything saved where no process has failed")


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


def test_what_is_ignored_stays_so_behind_a_graph(toy, batch, request):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))

    class Each(Callback):
        def step(self, trainer, record):
            signal.raise_signal(signal.SIGINT)

    trainer = make(toy(), [batch(4, seed=0)], callbacks=[Each()], compiled=True, steps=2)
    assert trainer.train()["steps"] == 2


CHANGES = {
    "switched": lambda model: (add_adapter(model, LoRAConfig(rank=2), "other"), set_adapter(model, "other")),
    "merged": merge,
    "deleted": lambda model: delete_adapter(model, "default"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_trainer_of_adapters_that_are_not_trained_any_more_is_an_error(change, batch):
    model = apply_lora(AutoModel.from_pretrained(bundled_models()["llama_tiny"]), rank=4)
    trainer = make(model, [batch(2, seed=0)])
    CHANGES[change](model)
    with pytest.raises(InputError, match=r"lora_A\.weight and \d+ more: what the model trains has changed"):
        trainer.train()


def test_no_training_where_adapters_are_disabled(batch):
    model = apply_lora(AutoModel.from_pretrained(bundled_models()["llama_tiny"]), rank=4)
    trainer = make(model, [batch(2, seed=0)])
    with disable_adapters(model), pytest.raises(InputError, match="cannot train within a block of disable_adapters"):
        trainer.train()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"train_data": []}, "training data: .* found an empty list"),
        ({"train_data": ["hi"]}, "training data: .* found a list of str"),
        ({"eval_data": 5}, "evaluation data: .* found int"),
        ({"train_data": types.SimpleNamespace(create_dict_iterator=0, get_batch_size=0)}, "pet.data.make_loader"),
        (
            {"train_data": np.zeros((2, 3))},
            r"found ndarray; pet.data.make_loader\(it, batch_size\) makes a loader of it",
        ),
        ({"train_data": iter([])}, r"found list_iterator; list\(it\) is one if it gives batches and ends"),
        (
            {"packing": "none"},
            r"no setting 'packing' \(pet.data.make_loader\(data, batch_size, settings\) takes",
        ),
        ({"max_length": 9}, r"no setting 'max_length' \(pet.data.make_loader\(data, batch_size, settings\) takes"),
        ({"model": "llama_tiny"}, "model is 'llama_tiny'; an opened model"),
        ({"directory": 5}, "directory is 5; a text or a path was expected"),
        ({"train": 5}, "Trainer: train: expected a recipe's train section, or its fields; found int"),
        ({"eval": {"every": 1}}, r"eval\.every: the section eval has no such key"),
        ({"callbacks": [print]}, r"callbacks: builtin_function_or_method has no start\(\)"),
        ({"callbacks": "plot"}, "callbacks: LossPlot writes a file; give the trainer a directory"),
        ({"callbacks": [Callback]}, r"callbacks: Callback is a class; give an instance, Callback\(\)"),
        ({"callbacks": 3}, r"callbacks: int has no start\(\)"),
        ({"title": 3}, "title is 3; a text"),
        ({"compiled": "no"}, "compiled is 'no'; True or False"),
        ({"objective": 3}, "objective is 3; an objective or a text"),
        ({"distributed": 3}, "distributed is 3; a DistributedContext"),
        ({"evaluation": 3}, "evaluation is 3; a function"),
        ({"rates": 3}, "rates is 3; a function"),
        ({"directory": "a\0b"}, "directory is 'a.x00b': no file can have this name"),
        ({"train_data": "x" * 5000}, "no file can have this name"),
        ({"resume": True}, r"train\.resume: takes no effect here; call train\(resume=True\)"),
        ({"profile": True}, r"train\.profile: takes no effect here; give callbacks="),
        ({"train": {"profile": True}}, r"train\.profile: takes no effect here; give callbacks="),
        ({"steps": None, "epochs": 1e30}, r"train\.epochs: expected at most"),
        ({"eval": {"every_steps": 1}}, r"eval\.every_steps: there is nothing to evaluate on; give eval_data"),
        ({"eval": {"patience": 1}}, r"eval\.patience: needs evaluations along the way"),
        (
            {"eval": {"metrics": ["loss", "rouge_l"]}},
            r"eval\.metrics: is about answers to questions; batches hold none",
        ),
        ({"eval": {"best_metric": "accuracy"}}, r"eval\.best_metric: accuracy is not measured"),
        (
            {"objective": "dpo", "eval": {"metrics": ["loss", "accuracy"]}},
            "with dpo reward_accuracy is always measured",
        ),
        ({"objective": CausalLM(), "eval": {"metrics": ["loss", "f1"]}}, "f1 is measured with train.objective: class"),
        ({"eval": {"batch_size": 2}, "eval_data": [{}]}, r"eval\.batch_size: takes no effect on batches"),
    ],
)
def test_arguments_of_the_wrong_kind_are_named(toy, batch, given, message):
    arguments = {"model": toy(), "train_data": [batch(2, seed=0)], **given}
    with pytest.raises(InputError, match=message):
        make(arguments.pop("model"), arguments.pop("train_data"), **arguments)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"momentum": 0.5}, "momentum has no effect with train.optimizer: adamw"),
        ({"loss_scale": {"initial": 8.0}}, "loss_scale has no effect with train.precision: fp32"),
        ({"epochs": 2}, "steps: 6 count, and not epochs: 2"),
    ],
)
def test_settings_that_take_no_effect_are_warned_of(toy, batch, caplog, given, message):
    trainer = make(toy(), [batch(2)], **given)
    assert message in caplog.text and trainer.settings.steps == 6


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"evaluation": lambda: 3}, "evaluation gave 3; numbers by their names"),
        ({"evaluation": lambda: {"loss": "x"}}, "evaluation gave {'loss': 'x'}; numbers by their names"),
        ({"rates": lambda step: -1.0}, r"rates\(0\) is -1.0; a number of at least 0"),
        ({"rates": lambda step: math.nan}, r"rates\(0\) is nan; a number of at least 0"),
        ({"forward_step": lambda data, model: None}, "forward_step gave neither a loss nor a dictionary"),
        ({"forward_step": lambda data, model: {"loss": None}}, "a loss or logits that are no Tensor"),
        (
            {"forward_step": lambda data, model: model(data["input_ids"])[:, 0, 0]},
            "a loss of several numbers: their mean",
        ),
        ({"forward_step": lambda data, model: {"logits": model(data["input_ids"])[:, :-1]}}, "are not of all tokens"),
        ({"save_extra": lambda stage: 3}, "what save_extra returns is 3; a text or a path"),
    ],
)
def test_what_a_user_s_functions_give_is_checked(toy, batch, tmp_path, given, message):
    with pytest.raises(ValueError, match=message):
        make(toy(), [batch(2, seed=0)], directory=tmp_path, steps=1, **given).train()
    assert not checkpoints(tmp_path / "checkpoints")


def test_arrays_of_a_users_own_are_in_every_batch(toy, batch):
    data = [{**batch(2, seed=0), "weight": np.ones((2, 1), np.float32)}, batch(2, seed=1)]

    class Stream:
        def steps_per_epoch(self, epoch=0):
            return 2

        def batches(self, epoch=0, start=0):
            yield from data

    def forward_step(data, model):
        return {"logits": model(data["input_ids"])}

    with pytest.raises(InputError, match="a batch has no weight, which the first batch has"):
        make(toy(), Stream(), steps=2, forward_step=forward_step).train()


def test_arrays_of_a_users_own_reach_forward_step_out_of_a_list(toy, batch):
    def forward_step(data, model):
        rows = model(data["input_ids"]).mean((1, 2))
        return {"loss": (rows * data["weight"]).sum() + data["weight"].sum()}

    losses = []
    for weight in ([0.0, 0.0], [1.0, 2.0]):
        data = [{**batch(2, seed=0), "weight": weight, "text": ["a", "b"]}]
        trainer = make(toy(), data, steps=1, forward_step=forward_step)
        trainer.train()
        losses.append(trainer.history[0]["loss"])
    assert losses[0] == 0 and 2.5 < losses[1] < 3.5


def test_what_looks_like_a_misspelt_array_is_said(toy, batch, caplog):
    make(toy(), [{"input_ids": batch(2)["input_ids"], "label_ids": batch(2)["labels"], "weight": [1.0, 1.0]}])
    assert caplog.messages == ["batch 0: label_ids is read by a forward_step alone (did you mean 'labels'?)"]


def test_an_evaluation_need_not_have_a_loss_unless_it_is_asked_for(toy, batch):
    def trained(**settings):
        how = {"evaluation": lambda: {"score": 2.0}, "eval": {"every_steps": 1, **settings}}
        return make(toy(), [batch(2)], steps=2, **how).train()

    assert trained()["best"] == {"step": None, "loss": None}
    with pytest.raises(InputError, match=r"eval\.best_metric: loss is not measured here: score"):
        trained(best_metric="loss")


def test_an_evaluation_of_nan_is_never_the_best(toy, batch):
    losses = iter([math.nan, math.nan, 2.0, math.nan, 1.0])
    trainer = make(
        toy(), [batch(2)], evaluation=lambda: {"loss": next(losses)}, eval={"every_steps": 1, "before": False}, steps=5
    )
    assert trainer.train()["best"] == {"step": 5, "loss": 1.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"input_ids": np.full((2, 8), 2**32 + 5)},
            "batch 0: input_ids holds 4294967301, which no token's number can be",
        ),
        ({"labels": np.full((2, 8), 2**32 + 5)}, "batch 0: labels holds 4294967301"),
        ({"input_ids": np.ones((2, 8), bool)}, "batch 0: input_ids holds bool; integers expected"),
        ({"input_ids": [[1, 2], [3]]}, "batch 0: input_ids is no array of integers"),
        ({"input_ids": np.ones((0, 8), int)}, r"batch 0: input_ids has shape \(0, 8\)"),
        ({"input_ids": [1, 2, 3]}, r"has shape \(3,\).*; make_loader of pet.data makes batches of rows"),
        ({"attention_mask": np.full((2, 8), -10000)}, "batch 0: attention_mask holds -10000; 0 or 1 expected"),
        ({"attention_mask": np.full((2, 8), 2)}, "batch 0: attention_mask holds 2; 0 or 1 expected"),
        ({"attention_mask": np.zeros((2, 8), int)}, "batch 0: attention_mask is 0 everywhere"),
        ({"attention_mask": [[1] * 8, [1, 0] * 4]}, "batch 0, row 1: attention_mask has a hole"),
        ({"attention_mask": [[1] * 8, [0] + [1] * 5 + [0, 1]]}, "batch 0, row 1: attention_mask has a hole"),
        ({"start": np.zeros((2, 8), int)}, "batch 0: start takes no effect without position_ids, end"),
        ({"position_ids": np.zeros(8, int)}, r"batch 0: position_ids has shape \(8,\), input_ids \(2, 8\)"),
        ({"labels": np.ones((2, 7), int)}, r"batch 0: labels has shape \(2, 7\), input_ids \(2, 8\)"),
        ({"sample_ids": ["x"]}, r"batch 0: sample_ids is \['x'\]; a list of 2"),
    ],
)
def test_arrays_of_a_batch_that_mean_nothing_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        BatchList([{"input_ids": np.ones((2, 8), int), **change}])
    with pytest.raises(InputError, match="batch 1 is of the type int; a dictionary"):
        BatchList([{"input_ids": np.ones((2, 8), int)}, 3])


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_trainer_that_is_copied_is_an_error(toy, batch, copied):
    with pytest.raises(InputError, match="a trainer cannot be copied or pickled"):
        copied(make(toy(), [batch(2, seed=0)]))


def test_sections_may_be_given_by_their_fields(toy, batch):
    data = [batch(2, seed=0)]
    trainer = Trainer(toy(), data, data, train={"steps": 2, "learning_rate": 0.01}, eval={"every_steps": 1})
    assert trainer.train()["steps"] == 2 and all("eval_loss" in line for line in trainer.history)


def test_checkpoints_of_another_run_do_not_take_the_place_of_a_new_ones(toy, batch, tmp_path):
    data = [batch(2, seed=0)]
    make(toy(), data, directory=tmp_path, steps=6, save_every=2).train()
    new = make(toy(), data, directory=tmp_path, steps=3)
    with pytest.raises(InputError, match=r"step-000006: a checkpoint of another run.*train\(resume=True\)"):
        new.train()
    assert [path.name for path in checkpoints(tmp_path / "checkpoints")] == ["step-000004", "step-000006"]
    assert make(toy(), data, directory=tmp_path, steps=6).train(resume=True)["steps"] == 6


def test_weights_of_a_model_are_freed_after_its_training(batch):
    """38 MB each, which MindSpore kept for every training of a process."""
    config = json.loads((bundled_models()["llama_tiny"] / "config.json").read_text())
    config.update(num_hidden_layers=1, hidden_size=256, intermediate_size=12288)

    def resident():
        model = AutoModel.from_config(config)
        apply_lora(model, rank=2)
        make(model, [batch(2)], steps=1, compiled=True).train()
        del model
        gc.collect()
        return present_memory()

    resident(), resident()
    held = [resident() for _ in range(3)]
    most = 9 if available() else 19  # a training's graphs leave 12 MB where there are no kernels
    assert min(np.diff(held)) < most, held  # the allocator may take some once, in a process that has much
