"""Signals: what the launcher and its workers do when they are stopped, interrupted or killed."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from launches import ENVIRONMENT, NOTE_PID, ROOT, finish, line, start
from sets import some
from waiting import HANGING

from pet.launching.addresses import free_address
from pet.launching.launcher import launch


def test_ctrl_z_stops_the_workers_until_the_launcher_goes_on(tmp_path, until):
    """They have sessions of their own, and worked on."""
    # a group of its own beside this one, as a shell makes it: the system stops none that nobody could continue
    launcher = start(tmp_path, ["-n", "2", "--hang-timeout", "0"], NOTE_PID + "work()", preexec_fn=os.setpgrp)
    until(lambda: len([*tmp_path.glob("pids/*")]) == 2)
    every = [psutil.Process(pid) for pid in (launcher.pid, *(int(path.name) for path in tmp_path.glob("pids/*")))]
    try:
        for _ in range(2):
            launcher.send_signal(signal.SIGTSTP)
            until(lambda: all(each.status() == psutil.STATUS_STOPPED for each in every))
            launcher.send_signal(signal.SIGCONT)
            until(lambda: all(each.status() != psutil.STATUS_STOPPED for each in every))
    finally:
        launcher.terminate()
    assert finish(launcher)[0] == 128 + signal.SIGTERM


def test_no_orphans_when_the_launcher_is_killed_or_interrupted(tmp_path, until, assert_gone):
    expected = {signal.SIGKILL: -9, signal.SIGTERM: 128 + 15, signal.SIGINT: 128 + 2}
    processes = {}
    for number in expected:
        (tmp_path / number.name).mkdir()
        processes[number] = start(tmp_path / number.name, ["-n", "2"], NOTE_PID + "forever()")
    for number, process in processes.items():
        pids = tmp_path / number.name / "pids"
        until(lambda there=pids: there.exists() and len(list(there.iterdir())) == 2)
        process.send_signal(number)
    for number, process in processes.items():
        assert process.wait(HANGING) == expected[number]
        assert_gone(tmp_path / number.name / "pids", 2)


def test_what_is_sent_to_every_process_of_a_job_leaves_it_time_to_save(tmp_path, until):
    """And more than once, as batch systems and `timeout` do: the second SIGTERM had the launcher kill its workers, and
    SIGINT ended its guard with a traceback."""
    code = NOTE_PID + (
        "def save(*_):\n    time.sleep(2)\n    pathlib.Path(f'saved {r}').touch()\n    os._exit(143)\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\nsignal.signal(signal.SIGTERM, save)\n"
        "pathlib.Path(f'ready {r}').touch()\nforever()"
    )
    process = start(tmp_path, ["-n", "2"], code)
    until(lambda: len(list(tmp_path.glob("ready *"))) == 2)
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
        for each in (*psutil.Process(process.pid).children(), process):
            each.send_signal(number)
        time.sleep(0.1)
    result, _, err = finish(process)
    assert result == 143 and err == "pet launch: ended by SIGTERM\n"
    assert len(list(tmp_path.glob("saved *"))) == 2


# the command, which says after a tenth of a second, and not after five, that it waits
IMPATIENT = """
import sys
from pet.launching import addresses
addresses.PATIENCE = 0.1
from pet.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("number", some([signal.SIGTERM, signal.SIGHUP], [signal.SIGTERM]))
def test_a_signal_ends_a_command_that_waits_for_another_machine(tmp_path, number):
    """Process 1 of a container has no other way to end: a signal without a handler does not reach it. With SIGHUP the
    terminal is gone."""
    options = ["-n", "1", "--nnodes", "2", "--master", f"127.0.0.1:{free_address()[1]}", "--secret", 32 * "x"]
    command = [sys.executable, "-c", IMPATIENT, "launch", *options, "--", "true"]
    environment = {**ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    ours, theirs = os.openpty()
    with open(ours, "rb", 0) as ours, open(theirs, "wb", 0) as theirs:
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=theirs)
        theirs.close()
        assert line(ours).startswith(b"pet launch: waiting at")
        if number == signal.SIGHUP:
            ours.close()
        process.send_signal(number)
        assert process.wait(HANGING) == 128 + number
        if number == signal.SIGTERM:
            assert line(ours) == b"pet launch: interrupted\r\n"


def test_a_job_keeps_its_exit_code_where_nothing_can_be_shown(tmp_path):
    """A closed terminal or a full disk made it 1, and so did SIGHUP, for which it should be 129."""
    command = [sys.executable, "-m", "pet", "launch", "-n", "1", "--", "sh", "-c", "echo words; exit 7"]
    environment = {**ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    with open("/dev/full", "w") as full:
        assert subprocess.run(command, cwd=tmp_path, env=environment, stdout=full, stderr=full).returncode == 7


def test_what_is_ignored_stays_so(tmp_path):
    """nohup: the terminal may be closed."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert launch(["sh", "-c", f"kill -HUP {os.getpid()}; sleep 0.3"], 1, log_directory=tmp_path) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
