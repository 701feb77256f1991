"""How a worker leaves a job."""

import os
import subprocess
import sys
from threading import Event

import pytest

from pet.launching.environment import Job
from pet.parallel import join


def test_who_parts_tells_the_others_and_waits_for_them(monkeypatch, capsys):
    done = []
    monkeypatch.setattr(join, "_job", Job(0, 2, launcher="environment"))
    monkeypatch.setattr(join, "_told", [done.append])
    monkeypatch.setattr(join, "_meet_all", lambda: done.append("met"))
    join.part()
    assert done == ["", "met"]
    monkeypatch.setattr(join, "PART_LIMIT", 0.01)
    monkeypatch.setattr(join, "_meet_all", Event().wait)  # who is gone does not come
    join.part()

    def fail():
        raise RuntimeError("Launch kernel failed")

    monkeypatch.setattr(join, "PART_LIMIT", None)
    monkeypatch.setattr(join, "_meet_all", fail)  # as where others are in the middle of something else
    join.part()
    assert capsys.readouterr().err == ""  # the last words of who ends say why


def test_a_script_that_ends_waits_for_the_others():
    """In what is registered to run at exit Python 3.12 starts no thread."""
    code = (
        "from pet.parallel import join\n"
        "join._connect, join._meet_all = lambda job, limit: job, lambda: print('met')\n"
        "join.join()\nprint('done')\n"
    )
    environment = os.environ | {"RANK_ID": "1", "RANK_SIZE": "2"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("done\nmet\n", "", 0)


@pytest.mark.parametrize(
    ("code", "failed", "expected"),
    [
        (143, "", ["", "met", "ended 143"]),  # all end after the same step, and who is quick waits for who writes
        (2, "", ["ended with exit code 2", "ended 2"]),
        (0, "failed: ValueError: bad", ["failed: ValueError: bad", "ended 1"]),
    ],
)
def test_who_leaves_early_says_why(monkeypatch, code, failed, expected):
    done = []

    def end(code):
        done.append(f"ended {code}")
        raise SystemExit

    monkeypatch.setattr(join, "_job", Job(0, 2, launcher="environment"))
    monkeypatch.setattr(join, "_failed", failed)
    monkeypatch.setattr(join, "_left", False)
    monkeypatch.setattr(join, "_told", [done.append])
    monkeypatch.setattr(join, "_meet_all", lambda: done.append("met"))
    monkeypatch.setattr(join.os, "_exit", end)
    with pytest.raises(SystemExit):
        join.leave(code)
    assert done == expected
