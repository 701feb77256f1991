"""A few random kills and interrupts; `interruptions.py` makes as many as wanted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("interruptions.py")
SEED = os.environ.get("PYTEST_RANDOM", "327")  # its first moment is late in a run, its second early in what is left


@pytest.mark.slow
@pytest.mark.parametrize(
    "each",
    [
        # beside the same run that nobody disturbs
        pytest.param(("interrupts --count 2", "kills --count 2"), marks=pytest.mark.full),
        # of a job, parallel/test_launch.py kills a worker while it writes a checkpoint
        pytest.param(("kills --count 1 parallel.data=2",), marks=pytest.mark.full),
        ("starts --count 2",),
    ],
    ids=", ".join,
)
def test_at_random_moments(each, tmp_path, all_cores, quick_runs):
    for words in each:
        what, *settings = words.split()
        command = [sys.executable, str(SCRIPT), what, str(tmp_path / "runs"), "--seed", SEED, *settings]
        done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
        assert done.returncode == 0, done.stdout + done.stderr
