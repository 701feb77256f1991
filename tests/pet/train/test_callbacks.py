"""Callbacks that lean on other programs: TensorBoard's writer and MindSpore's profiler."""

from __future__ import annotations

import json
import sys
import types

import numpy as np
import pytest

from model_zoo import progress
from model_zoo.errors import InputError
from pet.data.wrap import CollateLoader, from_mindspore
from pet.launching import heartbeat
from pet.train.callbacks import Callback, make_callback, make_callbacks
from pet.train.callbacks.plot import draw, picture, smoothed
from pet.train.callbacks.progress import short
from pet.train.trainer import Trainer


def run(model, batch, directory, callback):
    settings = {"learning_rate": 0.01, "steps": 4, "batch_size": 4, "warmup": 0}
    trainer = Trainer(model, [batch], directory=directory, callbacks=[callback], **settings)
    trainer.train()
    return trainer


def test_code_of_the_users_own_may_take_any_time(toy, batch, tmp_path, monkeypatch):
    """Its length is not known, and it may sleep: the launcher must not take it for a hang."""
    monkeypatch.setenv(heartbeat.BEAT_FILE, str(tmp_path / "beat"))
    told = set()

    def tell(name):
        progress.tick()  # what it calls of the library promises nothing in its place
        told.add((name, int((tmp_path / "beat").read_bytes().split()[1])))

    class Own(Callback):
        def start(self, trainer):
            tell("start")

        def step(self, trainer, record):
            tell("step")

        def save(self, trainer, path):
            tell("save")

        def end(self, trainer, summary):
            tell("end")

    class Rows(list):
        def __getitem__(self, index):
            tell("row")
            return super().__getitem__(index)

    def collate(samples):
        tell("collate")
        return batch(len(samples))

    class Dataset:
        def get_col_names(self):
            return ["input_ids"]

        def create_dict_iterator(self, **settings):
            tell("dataset")
            yield {"input_ids": np.arange(4)}

    feed = CollateLoader(Rows([{}] * 4), 4, collate_fn=collate)
    with heartbeat.watched():
        from_mindspore(Dataset())
        Trainer(toy(), feed, directory=tmp_path / "run", callbacks=[Own()], steps=2, warmup=0).train()
    moments = ("start", "step", "save", "end", "row", "collate", "dataset")
    assert told == {(moment, heartbeat.PAUSING) for moment in moments}


def test_tensorboard_gets_every_number(toy, batch, tmp_path, monkeypatch):
    written = {}

    class SummaryWriter:
        def __init__(self, directory, purge_step):
            written["directory"], written["purge"] = directory, purge_step

        def add_scalar(self, name, value, step):
            written[name, step] = value

        def close(self):
            written["closed"] = True

    monkeypatch.setitem(sys.modules, "tensorboardX", types.SimpleNamespace(SummaryWriter=SummaryWriter))
    run(toy(), batch(4), tmp_path, "tensorboard")
    assert written["directory"] == str(tmp_path / "tensorboard") and written["purge"] == 1 and written["closed"]
    assert [written["train/loss", step] for step in (1, 2, 3, 4)] == sorted(
        (written["train/loss", step] for step in (1, 2, 3, 4)), reverse=True
    )


@pytest.fixture
def recorded(toy, batch, tmp_path):
    """Runs four steps with a tracker, in a run directory with a recipe; gives the losses."""

    def train(tracker):
        (tmp_path / "recipe.yaml").write_text("train: {steps: 4}\n")
        trainer = run(toy(), batch(4), tmp_path, tracker)
        return [line["loss"] for line in trainer.history]

    return train


def test_wandb_offline(recorded, tmp_path):
    wandb = pytest.importorskip("wandb")
    losses = recorded(make_callback("wandb", {"mode": "offline", "project": "tests"}))
    wandb.teardown()  # its own process writes the file, and has done so when it has ended
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    blocks = range(0, file.stat().st_size, 1 << 15)  # each but the first begins with 7 bytes of its own
    data = b"".join(file.read_bytes()[start + 7 * bool(start) : start + (1 << 15)] for start in blocks)
    texts = (b"train/loss", b"steps", *(json.dumps(loss).encode() for loss in losses))
    assert [text for text in texts if text not in data] == []


def test_swanlab_offline(recorded, tmp_path, capfd):
    pytest.importorskip("swanlab")
    recorded(make_callback("swanlab", {"mode": "offline", "project": "tests"}))
    files = [path for path in (tmp_path / "swanlog").rglob("*") if path.is_file()]
    assert any("steps" in path.read_text() for path in files if path.name == "config.yaml")
    assert any(b"train/loss" in path.read_bytes() for path in files if path.suffix in (".swanlab", ".log"))


def test_mlflow_in_files(recorded, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    losses = recorded(make_callback("mlflow", {"project": "tests"}))
    client = mlflow.MlflowClient((tmp_path / "mlruns").as_uri())
    (found,) = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
    assert (found.info.run_name, found.info.status, found.data.params) == (
        tmp_path.name,
        "FINISHED",
        {"train.steps": "4"},
    )
    history = client.get_metric_history(found.info.run_id, "train/loss")
    assert [(one.step, one.value) for one in history] == list(enumerate(losses, start=1))


@pytest.mark.parametrize("name", ["wandb", "swanlab", "mlflow"])
def test_a_tracker_without_its_package_says_what_to_install(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=rf"callbacks: {name} needs the package {name}: pip install '.*\[{name}\]'"):
        make_callback(name)


def test_without_a_writer_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match="pip install tensorboardX"):
        make_callback("tensorboard")


@pytest.mark.parametrize("settings", [{"first": 2, "steps": 2}, {"first": 9}], ids=["in the run", "beyond its end"])
def test_the_profiler_leaves_its_files(toy, batch, tmp_path, settings):
    run(toy(), batch(4), tmp_path, make_callback("profiler", settings))
    assert list((tmp_path / "profile").rglob("*.csv"))


def test_a_smoothed_line_stays_a_line_and_does_not_lag():
    line = [10.0 - step / 10 for step in range(100)]
    middle = smoothed(line, 0.8)[30:70]
    assert middle == pytest.approx(line[30:70], abs=0.02)
    assert smoothed([1.0, 2.0], 0.0) == [1.0, 2.0]


def test_a_loss_that_falls_far_is_drawn_on_a_logarithmic_scale():
    def lines(last):
        return [{"step": 1 + n, "loss": 4.0 * (last / 4.0) ** (n / 99), "learning_rate": 1e-3} for n in range(100)]

    assert picture(lines(2.0), "near").axes[0].get_yscale() == "linear"
    upper = picture([*lines(0.01), {"step": 101, "loss": 0.01, "learning_rate": 0.0, "eval_loss": 0.02}], "far").axes[0]
    assert upper.get_yscale() == "log"
    curve = next(line for line in upper.lines if line.get_label() == "train, smoothed")
    ratios = [value / line["loss"] for value, line in zip(curve.get_ydata(), lines(0.01), strict=False)]
    assert min(ratios[20:80]) > 0.9 and max(ratios[20:80]) < 1.1, "it stays on the points of a steep fall"
    assert upper.get_ylim()[0] < 0.01


def test_a_picture_of_one_step_and_of_a_constant_loss(tmp_path):
    draw([{"step": 1, "loss": 2.0, "learning_rate": 0.0}], tmp_path / "one.png", "one")
    same = [{"step": step, "loss": 0.0, "learning_rate": 1e-3, "eval_loss": 0.0} for step in range(1, 30)]
    draw(same, tmp_path / "same.png", "same", before=0.0)
    assert (tmp_path / "one.png").stat().st_size > 5000 and (tmp_path / "same.png").stat().st_size > 5000


def test_rewards_have_a_panel_of_their_own():
    rewards = {"reward_chosen": 1.0, "reward_rejected": -2.0, "reward_accuracy": 0.75, "reward_margin": 3.0, "pairs": 2}
    plain = [{"step": step, "loss": 1.0, "learning_rate": 0.1} for step in (1, 2)]
    assert [axis.get_ylabel() for axis in picture(plain, "").axes] == ["loss per label token", "learning rate"]
    axes = picture([{**line, **rewards} for line in plain], "").axes
    assert [axis.get_ylabel() for axis in axes] == ["loss per pair", "reward", "learning rate", "accuracy"]
    assert [line.get_ydata()[-1] for line in (*axes[1].lines, *axes[3].lines)] == [1.0, -2.0, 0.75]


def test_short_numbers():
    assert [short(value) for value in (7.4, 999, 1234, 56_789, 2.5e6, 3e9)] == [
        "7",
        "999",
        "1.2k",
        "56.8k",
        "2.5M",
        "3.0G",
    ]


def test_one_callback_needs_no_list():
    assert [type(one) for one in make_callbacks("csv")] == [type(make_callback("csv"))]
