"""kill -9 at any step, or a signal; resume, and every later number is that of the uninterrupted run, bit for bit."""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from waiting import HANGING

from pet.train.callbacks.records import read_metrics
from pet.train.checkpoint import checkpoints

JOB = Path(__file__).with_name("resume_job.py")


def run(directory: Path, base: Path, *options: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "GLOG_v": "3"}
    command = [sys.executable, str(JOB), str(directory), str(base), *options]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=HANGING)


def numbers(directory: Path) -> list[tuple]:
    keys = ("step", "loss", "learning_rate", "gradient_norm", "eval_loss", "epoch", "loss_scale", "skipped")
    return [tuple(line.get(key) for key in keys) for line in read_metrics(directory / "metrics.jsonl")]


def same_weights(first: Path, second: Path) -> bool:
    left, right = np.load(first / "final.npz"), np.load(second / "final.npz")
    assert set(left.files) == set(right.files) and left.files
    return all(np.array_equal(left[name], right[name]) for name in left.files)


@pytest.fixture(scope="module")
def one_layer(shortened):
    return shortened("gpt2")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, one_layer):
    """The run that nobody interrupts, with these options."""

    @functools.cache
    def made(*options: str) -> Path:
        directory = tmp_path_factory.mktemp("whole")
        done = run(directory, one_layer, *options)
        assert done.returncode == 0, done.stderr[-2000:]
        lines = numbers(directory)
        assert len(lines) == 8
        scales, skipped = ({line[column] for line in lines} for column in (-2, -1))
        assert len(scales) > 2 and skipped == {True, False}, "the scale moves"
        return directory

    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "options"), [([3, 4, 5, 6], ()), pytest.param([1, 2], ("--compiled",), marks=pytest.mark.full)]
)
def test_killed_at_random_steps_and_resumed(whole, tmp_path, one_layer, quick_runs, steps, options):
    """One run, ended three times: killed (in `full` where nothing is saved yet), told to end by a cluster, and found
    with its last checkpoint damaged."""
    step = random.Random(os.environ.get("PYTEST_RANDOM", "5")).choice(steps)
    done = run(tmp_path, one_layer, *options, "--die-at", str(step))
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    done = run(tmp_path, one_layer, *options, "--resume", "--signal-at", "7")
    assert done.returncode == 143, done.stderr[-2000:]
    last = checkpoints(tmp_path / "checkpoints")[-1]
    assert last.name == "step-000007" and json.loads((last / "state.json").read_text())["step"] == 7
    with open(last / "weights.safetensors", "r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"\x00\x01\x02\x03\x04\x05\x06\x07")
    done = run(tmp_path, one_layer, *options, "--resume")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "step-000007 is damaged: weights.safetensors has changed" in done.stderr
    assert numbers(tmp_path) == numbers(whole(*options))
    assert same_weights(tmp_path, whole(*options))
