"""What a trainer tells callbacks, and what the built-in ones write."""

from __future__ import annotations

import csv
import json
import math

import pytest
from toy_trainer import make

from model_zoo.errors import InputError
from pet.recipe.training import Eval
from pet.train.callbacks import Callback, make_callback


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
