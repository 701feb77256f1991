"""When a trainer measures, what it takes for the best, and when it stops early."""

from __future__ import annotations

import math
import signal

import numpy as np
import pytest
from toy_trainer import make

from model_zoo.errors import InputError
from pet.recipe.training import Eval
from pet.train.callbacks import Callback
from pet.train.callbacks.records import read_metrics
from pet.train.checkpoint import checkpoints, load
from pet.train.evaluate import LossEvaluation
from pet.train.feed import BatchList
from pet.train.stop import Interrupted, check_signals


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
