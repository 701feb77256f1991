"""The progress line: what 80 columns show, what a log gets, and that the clock runs while the model is measured."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import select
import struct
import sys
import termios
import threading
import time

import pytest
from waiting import HANGING

from model_zoo.progress import takes_a_line
from pet.train.callbacks import progress as progress_module
from pet.train.callbacks.progress import Progress


class Run:
    """What the progress line asks of a trainer."""

    def __init__(self, total=12000):
        self.total_steps, self.history, self.phase = total, [], ""
        self.position = type("Position", (), {"step": 1234})()


def record(step, **more):
    return {
        "step": step,
        "loss": 1.23456,
        "learning_rate": 1e-4,
        "useful_tokens_per_second": 1234.0,
        "memory_mb": 12345.0,
        **more,
    }


class Screen(io.StringIO):
    """Notes when something of the expected kind is written."""

    def __init__(self, terminal):
        super().__init__()
        self.terminal, self.expected, self.seen = terminal, "", threading.Event()

    def isatty(self):
        return self.terminal

    def write(self, text):
        if self.expected and self.expected in text:
            self.seen.set()
        return super().write(text)


@pytest.fixture
def screen(monkeypatch):
    def make(terminal):
        made = Screen(terminal)
        monkeypatch.setattr(sys, "stderr", made)
        return made

    return make


@pytest.mark.parametrize(
    ("columns", "last_whole"), [(80, " | elapsed 2:00:00"), (100, " | elapsed 2:00:00, 1.2k tok/s")]
)
def test_eighty_columns_show_loss_evaluation_and_time_left(screen, columns, last_whole):
    """And no number is cut in two: half of one is another."""
    shown, run = screen(True), Run()
    run.position.step = 0
    progress = Progress()
    progress.start(run)
    progress.bar.dynamic_ncols, progress.bar.ncols = None, columns
    progress.bar.start_t -= 7200
    progress.step(run, record(5999, eval_loss=2.34567))
    progress.step(run, record(6000))
    progress.end(run, {})
    last = shown.getvalue().rstrip("\n").split("\r")[-1]
    assert len(last) <= columns and last.startswith("step 6000/12000 ")
    assert "loss 1.2346 | eval 2.3457 | " in last, "the last evaluation stays"
    assert " | ETA 2:00:00 | elapsed 2:00:00" in last and last.endswith(last_whole)


def test_a_notebook_has_its_own_line_behind_the_losses(screen, monkeypatch):
    shell = type("Shell", (), {"kernel": None})()
    monkeypatch.setitem(sys.modules, "IPython", type("IPython", (), {"get_ipython": staticmethod(lambda: shell)}))
    shown, run, progress = screen(True), Run(), Progress()
    progress.start(run)
    progress.step(run, record(6000, eval_loss=2.34567))
    progress.end(run, {})
    last = shown.getvalue().rstrip("\n").split("\r")[-1]
    assert last.startswith("loss 1.2346 | eval 2.3457:  50%|"), "no bar stands between a loss and tqdm's colon"


def test_the_clock_runs_while_the_model_is_measured(screen):
    shown, run = screen(True), Run()
    progress = Progress()
    progress.start(run)
    run.phase = shown.expected = "measuring"
    assert shown.seen.wait(HANGING), "drawn although no step ends"
    progress.end(run, {})
    assert not progress.clock.is_alive()


def test_without_a_terminal_every_line_has_its_newline(screen):
    shown, run = screen(False), Run()
    progress = Progress(every_seconds=0.01)
    progress.start(run)
    shown.expected = "step 1235/12000"
    progress.step(run, record(1235))
    assert shown.seen.wait(HANGING)
    progress.end(run, {})
    lines = shown.getvalue().splitlines()
    assert "\r" not in shown.getvalue() and shown.getvalue().endswith("\n")
    assert all(line.startswith("step ") for line in lines)
    assert "loss 1.2346" in lines[-1] and "1.2k tok/s, lr 1.00e-04, 12345 MB" in lines[-1]


@pytest.mark.parametrize(("columns", "newline"), [(0, True), (80, False)])
def test_a_terminal_without_a_width_gets_lines(monkeypatch, columns, newline):
    """As a container's or a job's often has none."""
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    with open(terminal, "w") as shown, open(screen, "rb") as read:
        monkeypatch.setattr(sys, "stderr", shown)
        progress, run = Progress(), Run()
        progress.start(run)
        progress.step(run, record(1235))
        progress.end(run, {})
        text = b""
        # A terminal passes on what was written in pieces, and later.
        while b"step 1235/12000" not in text and select.select([read], [], [], 60)[0]:
            text += os.read(read.fileno(), 1 << 16)
    assert b"step 1235/12000" in text and text.startswith(b"step ") == newline


def test_without_a_terminal_a_fast_run_is_one_line(screen):
    shown, run = screen(False), Run()
    progress = Progress()
    progress.start(run)
    for step in range(1235, 1335):
        progress.step(run, record(step))
    progress.end(run, {})
    assert len(shown.getvalue().splitlines()) == 1


def test_a_log_that_cannot_be_written_ends_no_run(screen, monkeypatch):
    shown, run = screen(False), Run()
    progress = Progress()
    progress.start(run)
    progress.step(run, record(5))

    def write(text):
        raise BrokenPipeError

    monkeypatch.setattr(shown, "write", write)
    progress.end(run, {})
    assert progress.bar is None


def test_a_clock_that_is_set_back_changes_no_elapsed_time(screen, monkeypatch):
    shown, run, back = screen(False), Run(), [0]
    monkeypatch.setattr("tqdm.std.time", lambda: time.time() - back[-1])
    progress = Progress()
    progress.start(run)
    back.append(86400)
    progress.step(run, record(1235))
    progress.end(run, {})
    assert "elapsed 00:0" in shown.getvalue()


def test_a_pipe_that_nobody_reads_holds_no_run_up(monkeypatch):
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, bytes(1000))
    os.set_blocking(writing, True)
    with open(reading, "rb"), open(writing, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(progress_module, "print", lambda *_, **__: pytest.fail("it would wait"), raising=False)
        progress, run = Progress(), Run()
        progress.start(run)
        progress.step(run, record(1235))
        progress.end(run, {})
        assert progress.bar is None
        assert not takes_a_line(stream)
    assert takes_a_line(io.StringIO())
