"""Signals on the command line, in processes of their own, with MindSpore's handler over SIGINT."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from waiting import HANGING

from pet import interrupts
from pet.train import stop

ROOT = Path(__file__).parents[2]
SCRIPT = re.search(r'^pet = "(.+):(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
LISTENING = """
import os, signal, sys, time
from pet import interrupts
from pet.cli.imports import import_quickly
interrupts.listen()
"""
COMPILED = (
    LISTENING
    + """
import_quickly()
import mindspore as ms, numpy as np

@ms.jit
def double(x):
    return x + x

double(ms.Tensor(np.ones(3, np.float32)))  # from here on, SIGINT has MindSpore's handler
"""
)
WAITING = """
try:
    with interrupts.raising():
        print("ready", flush=True)
        sys.stdin.read()
except KeyboardInterrupt:
    sys.exit(interrupts.ending())
"""
UNBLOCKED = """
try:
    with interrupts.raising(), interrupts.unblocked():
        print("ready", flush=True)
        sys.stdin.read()
except KeyboardInterrupt:
    sys.exit(interrupts.ending())
"""
SEVERAL = """
from pet.train import stop
received = stop.Signals()
with received.watch():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
        time.sleep(0.01)
    print(int(received.received), flush=True)
    time.sleep(interrupts.TOGETHER)
    os.kill(os.getpid(), signal.SIGTERM)
    print("ready", flush=True)
    sys.stdin.read()
"""
LOST = """
with interrupts.raising():
    while True:
        try:
            print("ready", flush=True)
            time.sleep(60)
        except KeyboardInterrupt:
            print("swallowed", flush=True)
"""
ENDED = """
try:
    with interrupts.raising():
        print("ready", flush=True)
        time.sleep(60)
except KeyboardInterrupt:
    print("swallowed", flush=True)
    time.sleep(60)
"""
IN_A_COMPILATION = """
names = {"__name__": "mindspore.common.api", "sleep": time.sleep}
exec("def compile_graph():\\n    print('ready', flush=True)\\n    sleep(60)", names)
with interrupts.raising():
    names["compile_graph"]()
"""
DROPPED = """
class Waiting:
    def __del__(self):
        print("ready", flush=True)
        time.sleep(60)

try:
    with interrupts.raising():
        waiting = Waiting()
        del waiting
        sys.stdin.read()
except KeyboardInterrupt:
    print("raised", flush=True)
    sys.exit(interrupts.ending())
"""
HANDLED = """
import queue
received = queue.Queue()
with interrupts.handled_by(received.put):
    with interrupts.handled_by(lambda number: received.put(-number), [signal.SIGINT]):
        print("ready", flush=True)
        print(int(received.get()), flush=True)
    print(int(received.get()), flush=True)
    print(int(received.get()), flush=True)
"""
CHILD = """
import subprocess
child = "import signal; print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), flush=True)"
with interrupts.unblocked():
    subprocess.run([sys.executable, "-c", child])
os.kill(os.getpid(), signal.SIGTERM)
sys.stdin.read()
"""
EARLY = """
import os, runpy, signal, sys

class Finder:
    def find_spec(name, *_):
        if name == "pet.cli":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder)
sys.argv = ["pet", "recipes"]
"""
ENTRIES = {
    "module": "runpy.run_module('pet', run_name='__main__')",
    "script": f"from {SCRIPT[1]} import {SCRIPT[2]}; sys.exit({SCRIPT[2]}())",
}


class Program(subprocess.Popen):
    def __exit__(self, kind, *rest):
        if kind is not None:  # it may wait for what the test no longer sends
            self.kill()
        super().__exit__(kind, *rest)


@pytest.fixture
def start(tmp_path):
    """Starts a program."""

    def run(code: str, before: str = COMPILED, **options) -> Program:
        (tmp_path / "program.py").write_text(before + code)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return Program([sys.executable, "program.py"], text=True, cwd=tmp_path, env=environment, **pipes, **options)

    return run


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    "before, waiting", [(COMPILED, WAITING), (LISTENING, UNBLOCKED)], ids=["listening", "unblocked"]
)
def test_a_signal_wakes_the_main_thread_and_ends_it(start, number, before, waiting):
    """Only the launcher lets a signal come to the main thread, while it starts a process, and it computes nothing:
    threads of MindSpore's set a handler of their own for SIGINT whenever they begin, which may be after ours."""
    with start(waiting, before) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait() == 128 + number
        assert process.stderr.read() == ""


def test_signals_at_once_are_one_and_ctrl_c_later_is_another(start):
    """`timeout` sends two, and a batch system one to each process of a job, whose launcher tells its workers, too."""
    with start(SEVERAL) as process:
        assert process.stdout.readline() == f"{signal.SIGTERM:d}\n"
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130


@pytest.mark.full
def test_it_ends_even_where_the_exception_is_lost(start):
    with start(LOST) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "swallowed\n"
        assert process.wait() == 130
        assert process.stderr.read() == "\npet: interrupted\n"


@pytest.mark.parametrize("code", [LOST, ENDED], ids=["running", "ended"])
def test_ctrl_c_again_ends_at_once(start, code):
    with start(f"interrupts.TOGETHER, interrupts.LIMIT = 0.0, 600.0\n{code}", LISTENING) as process:
        for said in ("ready", "swallowed"):
            assert process.stdout.readline() == f"{said}\n"
            process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert process.stderr.read() == ""


def test_nothing_is_raised_within_a_compilation(start):
    """MindSpore writes a dump for an exception there."""
    with start(IN_A_COMPILATION, LISTENING) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert process.stderr.read() == "\npet: interrupted\n"


def test_a_thread_of_a_programs_own_leaves_its_signals_alone():
    before = signal.getsignal(signal.SIGTERM)

    def handle() -> bool:
        with interrupts.handled_by(print) as renew:
            renew()
            return signal.getsignal(signal.SIGTERM) is before

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(handle).result()


def test_it_is_raised_again_where_python_drops_the_exception(start):
    with start(DROPPED) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "raised\n"
        assert process.wait() == 130
        assert process.stderr.read() == ""


def test_the_innermost_that_asked_for_a_signal_gets_it(start):
    with start(HANDLED) as process:
        assert process.stdout.readline() == "ready\n"
        for number, expected in ((signal.SIGINT, -2), (signal.SIGTERM, 15), (signal.SIGINT, 2)):
            process.send_signal(number)
            assert process.stdout.readline() == f"{expected}\n"
        process.stdin.close()
        assert process.wait() == 0


def test_what_is_started_unblocked_has_no_signal_blocked(start):
    """And afterwards signals are received again: this one ends the process, as no command runs."""
    with start(CHILD) as process:
        assert process.stdout.read() == "[]\n"
        assert process.wait() == 143
        assert process.stderr.read() == "\npet: interrupted\n"


def test_what_is_ignored_stays_so_where_mindspore_has_put_its_handler(start):
    """nohup has SIGHUP ignored, and a script SIGINT in what it runs in the background."""

    def ignore():
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    code = "for number in (signal.SIGINT, signal.SIGHUP): os.kill(os.getpid(), number)\n"
    with start(code + CHILD, preexec_fn=ignore) as process:
        assert process.stdout.read() == "[]\n"
        assert process.wait() == 143
        assert process.stderr.read() == "\npet: interrupted\n"


@pytest.mark.parametrize("ignored", [(), ("SIGINT",), ("SIGINT", "SIGHUP"), ("SIGINT", "SIGTERM", "SIGHUP")], ids=len)
def test_workers_inherit_the_signals_that_are_ignored_and_none_that_is_blocked(tmp_path, ignored):
    """As by a script's `pet launch … &`, and under nohup."""
    show = (
        "import signal; print(len(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "
        "*(one for one in ('SIGINT', 'SIGTERM', 'SIGHUP') if signal.getsignal(getattr(signal, one)) == signal.SIG_IGN))"
    )
    command = [sys.executable, "-m", "pet", "launch", "-n", "1", "--", sys.executable, "-c", show]

    def ignore():
        for name in ignored:
            signal.signal(getattr(signal, name), signal.SIG_IGN)

    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, preexec_fn=ignore, capture_output=True, text=True, timeout=HANGING
    )
    assert (done.returncode, done.stdout.split()) == (0, ["0", *ignored]), done.stderr


@pytest.mark.parametrize("entry", ENTRIES)
def test_ctrl_c_while_the_command_is_imported(entry, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", EARLY + ENTRIES[entry]], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.strip() in ("pet: interrupted", "pet recipes: interrupted")  # before the command, or in it


IN_A_SESSION = """
import os, signal, sys, threading, time
import pet

def press():
    while "mindspore" not in sys.modules:
        time.sleep(0.005)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=press).start()
try:
    pet.AutoModel
    print("not interrupted")
except KeyboardInterrupt:
    print("interrupted")
print(pet.AutoModel.__name__, signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


def test_ctrl_c_while_a_session_imports_mindspore():
    """A notebook's kernel goes on: MindSpore that was imported in part cannot be imported again."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", IN_A_SESSION], env=environment, capture_output=True, text=True)
    assert done.stdout == "interrupted\nAutoModel True\n", done.stderr


def test_where_no_thread_can_be_had_signals_end_the_program_as_without_this():
    code = """
import os, signal, threading
from pet import interrupts

def none(thread):
    raise RuntimeError("can't start new thread")

threading.Thread.start = none
interrupts.listen()
assert not interrupts.listening()
os.kill(os.getpid(), signal.SIGTERM)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=HANGING).returncode == -signal.SIGTERM


def test_a_full_pipe_keeps_no_signal_waiting():
    """Nobody reads what is said: the process ends all the same, as Popen(stderr=PIPE).wait() expects."""
    script = """
import os, sys
from pet import interrupts
interrupts.listen()
os.set_blocking(2, False)
try:
    while True:
        os.write(2, bytes(1000))
except BlockingIOError:
    os.set_blocking(2, True)
print("ready", flush=True)
sys.stdin.read()
"""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, **pipes) as process:
        try:
            assert process.stdout.readline() == b"ready\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(HANGING) == 128 + signal.SIGTERM
        finally:
            process.kill()


@pytest.mark.parametrize(("launched", "begin"), [("", "SIGTERM: ending"), ("1", "ending")])
def test_a_worker_names_no_signal_that_its_launcher_made_of_another(launched, begin, capfd, monkeypatch):
    """After Ctrl-C the terminal spoke of SIGTERM."""
    for name, value in (("RANK_ID", "0"), ("RANK_SIZE", "2"), ("PET_LAUNCH", launched)):
        if launched:
            monkeypatch.setenv(name, value)
    monkeypatch.setattr(interrupts, "takes_a_line", lambda file: True)
    stop.Signals().receive(signal.SIGTERM)
    assert capfd.readouterr().err == f"\n{begin}; Ctrl-C again ends at once\n"
