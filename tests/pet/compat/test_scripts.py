"""Scripts of the user's own that go wrong."""

from __future__ import annotations

import os
import subprocess
import sys

UNKNOWN = "Trainer: task 'translation' is not known; supported: text_generation, text_classification"


def run(tmp_path, line):
    script = tmp_path / "job.py"
    script.write_text(f"from pet.compat.mindformers import Trainer\n{line}\n")
    return subprocess.run([sys.executable, script], capture_output=True, text=True)


def test_a_wrong_argument_is_one_line_with_the_scripts_own(tmp_path):
    ran = run(tmp_path, "Trainer(model='llama_tiny', task='translation')")
    assert ran.returncode == 2
    assert ran.stderr == f"job.py:2: {UNKNOWN}\n"


def test_a_script_among_processes_says_at_once_what_is_wrong(tmp_path):
    """It would tell the others, and they may never come."""
    script = tmp_path / "job.py"
    script.write_text("from pet.compat.mindformers import Trainer\nTrainer(model='llama_tiny', task='translation')\n")
    place = {"RANK_ID": "0", "RANK_SIZE": "2", "MASTER_PORT": "1"}
    with subprocess.Popen(
        [sys.executable, script], stderr=subprocess.PIPE, text=True, env={**os.environ, **place}
    ) as one:
        try:
            said = one.stderr.readline()
        finally:
            one.kill()
    assert said == f"rank 0: job.py:2: {UNKNOWN}\n"


def test_a_scripts_own_error_stays_what_it_is(tmp_path):
    ran = run(tmp_path, "1 / 0")
    assert ran.returncode == 1
    assert "Traceback" in ran.stderr and "ZeroDivisionError" in ran.stderr
