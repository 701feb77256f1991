"""A few random kills and interrupts; `interruptions.py` makes as many as wanted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("interruptions.py")
SEED = os.environ.get("PYTEST_RANDOM", "5")


@pytest.mark.slow
@pytest.mark.parametrize("words", ["kills", "kills parallel.data=2", "interrupts", "starts"])
def test_at_random_moments(words, tmp_path, all_cores):
    what, *settings = words.split()
    command = [sys.executable, str(SCRIPT), what, str(tmp_path / "runs"), "--count", "2", "--seed", SEED, *settings]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr
