"""The picture of a run's losses."""

from __future__ import annotations

import errno
import math

import pytest

from model_zoo.unwritable import CannotWrite
from pet.recipe.training import Eval
from pet.train.callbacks import Callback
from pet.train.callbacks.plot import draw, picture, smoothed
from pet.train.callbacks.progress import short
from pet.train.trainer import Trainer


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
    odd = [*same[:9], {**same[9], "eval_loss": math.inf}, {**same[10], "eval_loss": math.nan}, same[11]]
    draw(odd, tmp_path / "odd.png", "some evaluations are no numbers", before=math.nan)
    assert (tmp_path / "one.png").stat().st_size > 5000 and (tmp_path / "same.png").stat().st_size > 5000


def test_a_picture_that_cannot_be_written_does_not_end_the_run(toy, batch, tmp_path, monkeypatch, pictures, caplog):
    """It is said once, and the next one is tried."""
    drawn = []

    def full(lines, path, *_):
        drawn.append(len(lines))
        if len(lines) < 4:
            raise CannotWrite(errno.ENOSPC, f"{path}: cannot be written: the disk is full")
        path.write_text("drawn")

    monkeypatch.setattr("pet.train.callbacks.plot.draw", full)
    settings = {"learning_rate": 0.01, "steps": 4, "batch_size": 4, "warmup": 0, "eval": Eval(every_steps=1)}
    with pictures():
        Trainer(toy(), [batch(4)], [batch(4)], directory=tmp_path, callbacks=["plot"], **settings).train()
    assert drawn == [1, 2, 3, 4] and (tmp_path / "loss.png").read_text() == "drawn"
    assert [record.getMessage() for record in caplog.records if "loss.png" in record.getMessage()] == [
        f"loss.png is not drawn: {tmp_path}/loss.png: cannot be written: the disk is full; the run goes on"
    ]


def test_rewards_have_a_panel_of_their_own():
    rewards = {"reward_chosen": 1.0, "reward_rejected": -2.0, "reward_accuracy": 0.75, "reward_margin": 3.0, "pairs": 2}
    plain = [{"step": step, "loss": 1.0, "learning_rate": 0.1} for step in (1, 2)]
    assert [axis.get_ylabel() for axis in picture(plain, "").axes] == ["loss per label token", "learning rate"]
    assert picture([{**line, "texts": 4} for line in plain], "").axes[0].get_ylabel() == "loss per text"
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


def test_a_run_directory_that_was_moved_is_not_made_anew_for_a_picture(toy, batch, tmp_path, pictures):
    """It would be in the way of the one that comes back."""
    place, moved = tmp_path / "run", tmp_path / "moved"

    class Moves(Callback):
        def step(self, trainer, record):
            if record["step"] == 2:
                place.rename(moved)

    settings = {"learning_rate": 0.01, "steps": 4, "batch_size": 4, "warmup": 0}
    with pictures(), pytest.raises(CannotWrite, match="its directory is gone"):
        Trainer(toy(), [batch(4)], directory=place, callbacks=["metrics", "plot", Moves()], **settings).train()
    assert moved.is_dir() and not place.exists()
