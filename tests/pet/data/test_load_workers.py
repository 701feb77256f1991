"""Processes that tokenise together."""

import importlib
import importlib.util
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from letter_samples import some_rows

from model_zoo import progress
from model_zoo.errors import InputError
from model_zoo.tokenizers import AutoTokenizer
from pet.data import (
    load_dataset,
)
from pet.data.encode import Encoder, start_workers
from pet.data.workers import NoWorkers, Workers
from pet.launching import heartbeat


def test_several_processes_give_what_one_gives(write, fixtures, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(fixtures / "tok_chatglm1")
    path = write("rows.jsonl", some_rows(5000))
    alone, shared = (
        load_dataset(path, tokenizer, settings={"workers": workers, "cache_dir": str(tmp_path / str(workers))})
        for workers in (0, 2)
    )
    assert len(alone) == 5000 and alone.counts == shared.counts
    for name in ("tokens", "trained", "starts", "lengths", "origin"):
        assert np.array_equal(getattr(alone, name), getattr(shared, name))


def test_an_error_in_a_worker_is_the_callers():
    with Workers(json.loads, 2) as workers:
        assert list(workers.map(["1", "[2]", "3"] * 9)) == [1, [2], 3] * 9
        with pytest.raises(json.JSONDecodeError):
            list(workers.map(["1", "x"]))


def test_a_process_of_a_job_may_wait_for_its_workers_for_any_time(tmp_path, monkeypatch):
    """Where each of two machines tokenised for more than ten seconds, the job ended as one that hangs."""
    monkeypatch.setenv(heartbeat.BEAT_FILE, str(tmp_path / "beat"))
    answer, result, states = Workers._answer, Future.result, []

    def noted(wait):
        def waited(*words):
            if threading.current_thread() is threading.main_thread():
                states.append(heartbeat._now[0])
            return wait(*words)

        return waited

    monkeypatch.setattr(Workers, "_answer", staticmethod(noted(answer)))
    monkeypatch.setattr(Future, "result", noted(result))
    with heartbeat.watched():
        progress.tick()
        with Workers(json.loads, 1) as workers:
            assert list(workers.map(["[1]"] * 4)) == [[1]] * 4
    assert states == [heartbeat.PAUSING] * 5


@pytest.mark.parametrize(
    ("end", "given", "words"),
    [(os._exit, 7, "ended with exit code 7; data.workers: 0"), (signal.raise_signal, 9, "SIGKILL.*lack of memory")],
)
def test_a_worker_that_dies_is_reported(end, given, words):
    with Workers(end, 1) as workers, pytest.raises(InputError, match=words):
        list(workers.map([given]))


USERS = """
import sys
print("printed when it is imported")
class Odd(Exception):
    def __init__(self, one, two):
        super().__init__(one + two)
class Tokenizer:
    def __init__(self):
        self.state = 1
    def __call__(self, chunk):
        if chunk == "x":
            raise Odd("an ", "error")
        return chunk * 2
class Ends(Tokenizer):
    def __setstate__(self, state):
        sys.exit(3)
class Raises(Tokenizer):
    def __getstate__(self):
        raise RuntimeError("it has no state")
"""


@pytest.fixture
def users(tmp_path, monkeypatch):
    """A module of the user's, beside a Python that prints at its start and in a directory that is gone."""
    gone, begins, beside = tmp_path / "gone", tmp_path / "begins", tmp_path / "named:so"
    for directory in (gone, begins, beside):
        directory.mkdir()
    (begins / "sitecustomize.py").write_text("print('the start', end='')")
    (beside / "modules_of_a_user.py").write_text(USERS)
    monkeypatch.setenv("PYTHONPATH", str(begins))
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.syspath_prepend("")
    monkeypatch.syspath_prepend(str(beside))
    yield importlib.import_module("modules_of_a_user")
    del sys.modules["modules_of_a_user"]


def test_workers_find_what_this_process_finds(users):
    with Workers(users.Tokenizer(), 2) as workers:
        assert list(workers.map(["a", "b", "c"])) == ["aa", "bb", "cc"]
        with pytest.raises(RuntimeError, match=r"^Odd: an error$"):
            list(workers.map(["x"]))


@pytest.mark.parametrize(
    ("kind", "words"), [("Ends", r"other processes \(.*exit code 3"), ("Raises", r"\(it has no state\)")]
)
def test_a_tokenizer_that_no_worker_can_have(users, kind, words):
    with pytest.raises(NoWorkers, match=words):
        Workers(getattr(users, kind)(), 1)


def test_a_process_that_can_start_no_other_works_alone(monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(NoWorkers, match="other processes cannot be started"):
        Workers(json.loads, 1)


def test_a_worker_has_no_workers(monkeypatch, letters, settings):
    monkeypatch.setattr(Workers, "within", True)
    assert start_workers(Encoder(letters, settings(workers=2))) is None


def test_a_tokenizer_that_cannot_be_sent_is_used_here(write, new_letters, settings, caplog):
    class Local(new_letters):
        pass

    path = write("rows.jsonl", [{"text": "abc"}] * 5000)
    with caplog.at_level(logging.WARNING):
        assert len(load_dataset(path, Local(), settings=settings(workers=2))) == 5000
    assert "cannot be sent to other processes" in caplog.text


@pytest.mark.parametrize("rows", [{"streaming": True, "stream_window": 5000}, {}])
def test_a_tokenizer_of_the_users_own_script_is_used_here(write, rows, tmp_path):
    """A worker could not import the script's classes: it ended, and the run with it."""
    conftest = Path(__file__).with_name("conftest.py").read_text()
    loading = (
        f"load_dataset({str(write('rows.jsonl', [{'text': 'abc'}] * 10000))!r}, LetterTokenizer(), settings=settings)"
    )
    script = write(
        "own.py",
        f"""{conftest}
from pet.data import load_dataset, make_loader
settings = {{"workers": 2, "max_length": 20, "packing": "none", "cache_dir": {str(tmp_path / "cache")!r}, **{rows}}}
print(sum(len(batch["sample_ids"]) for batch in make_loader({loading}, 2, settings).batches(0)))
""",
    )
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert ran.stdout == "10000\n" and ran.stderr.count("cannot be sent to other processes") == 1, ran.stderr
    assert "Traceback" not in ran.stderr
