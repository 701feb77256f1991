"""Workers that nobody launched are watched by processes of their own, which judge together."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from model_zoo.errors import InputError
from pet.launching import sentinel
from pet.launching.addresses import free_address
from pet.launching.environment import Job
from pet.launching.heartbeat import BEAT_FILE

WORKER = """
import json, os, sys, time
from pet.launching import heartbeat, sentinel
from pet.launching.environment import Job
rank, port = int(os.environ["RANK_ID"]), int(os.environ["PORT"])
with heartbeat.watched():
    heartbeat.tick()
    sentinel.start(Job(rank, 2, launcher="environment"), ("127.0.0.1", port), "the same in all")
    print(os.environ[heartbeat.BEAT_FILE], flush=True)
    if rank == 0:
        with heartbeat.waiting():
            sys.stdin.read()
    else:
        {}
"""


HANGS = {"loop": "while True: pass", "sleep": "time.sleep(1000)", "stop": "os.kill(os.getpid(), 19)"}
FINE = {"short": "pass", "silent": "heartbeat.rest(); time.sleep(5)", "user": "with heartbeat.pausing(): time.sleep(5)"}


def start(fault: str) -> list[subprocess.Popen]:
    """Two workers, of which the first waits for the second."""
    environment = {**os.environ, "RANK_SIZE": "2", "PORT": str(free_address()[1]), sentinel.VARIABLE: "2"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", WORKER.format(fault)]
    return [subprocess.Popen(command, env={**environment, "RANK_ID": str(rank)}, **pipes) for rank in range(2)]


@pytest.fixture(scope="module")
def pairs() -> dict[str, list[subprocess.Popen]]:
    """All of them at once: they wait most of their time."""
    return {name: start(code) for name, code in (HANGS | FINE).items()}


@pytest.fixture
def ended(pairs, request, until) -> tuple[list[int], list[str]]:
    """The exit codes of two workers, and what stands in their logs."""
    first, second = pairs[request.param]
    said = [second.communicate(timeout=300), first.communicate(timeout=300)][::-1]
    until(lambda: not any(Path(out.strip()).parent.exists() for out, _ in said))  # the sentinels have ended, too
    return [first.returncode, second.returncode], [log for _, log in said]


@pytest.mark.parametrize("ended", HANGS, indirect=True)
def test_who_hangs_is_ended_and_all_say_why(ended):
    codes, logs = ended
    assert codes[0] == 0 and codes[1] in (-6, -9)
    assert all("rank 1 hangs: it" in log for log in logs) and "this process ends" in logs[1]


@pytest.mark.parametrize("ended", FINE, indirect=True)
def test_who_works_or_says_nothing_does_not_hang(ended):
    assert ended == ([0, 0], ["", ""])


def test_what_killed_sentinels_have_left_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(sentinel.tempfile, "gettempdir", lambda: str(tmp_path))
    ended = subprocess.Popen(["true"])
    ended.wait()
    for pid in (ended.pid, os.getpid(), "mine"):
        (tmp_path / f"{sentinel.DIRECTORY}{pid}-x").mkdir()
    sentinel.remove_left()
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(
        f"{sentinel.DIRECTORY}{pid}-x" for pid in (os.getpid(), "mine")
    )


def test_a_launcher_watches_by_itself_and_nobody_need_be_watched(monkeypatch):
    monkeypatch.setattr(subprocess, "run", None)
    monkeypatch.setenv(BEAT_FILE, "that of a launcher")
    sentinel.start(Job(1, 2), ("127.0.0.1", 1), "secret")
    monkeypatch.delenv(BEAT_FILE)
    monkeypatch.setenv(sentinel.VARIABLE, "0")
    sentinel.start(Job(1, 2), ("127.0.0.1", 1), "secret")
    assert BEAT_FILE not in os.environ
    monkeypatch.setenv(sentinel.VARIABLE, "never")
    with pytest.raises(InputError, match="PET_HANG_TIMEOUT must be seconds, 0 for never, not 'never'"):
        sentinel.limit()
