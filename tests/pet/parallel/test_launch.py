"""The launcher: environment, logs, and above all that a failing worker ends everything, soon, with its traceback."""

import fcntl
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import psutil
import pytest
from sets import some
from waiting import HANGING

import pet
from model_zoo import progress
from model_zoo.errors import InputError
from pet.cli.launch import main
from pet.data.workers import Workers
from pet.launching import heartbeat, launcher
from pet.launching.addresses import free_address
from pet.launching.environment import Job, read_job, report_success, split_address
from pet.launching.heartbeat import CALLING, JOINED, JOINING, LEAVING, PAUSING, SILENT, WAITING, WORKING
from pet.launching.launcher import launch, parse_devices
from pet.launching.output import Output
from pet.launching.relaunch import relaunch
from pet.launching.stacks import Stack
from pet.launching.watch import Clock, Watch, asks, find_awaited, find_hanging

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith(("RANK_", "MS_", "OMPI_", "PET_"))}
STARTER = """
import argparse, sys
from model_zoo.errors import InputError
from pet.launching import launcher as launch
launch.IDLE_LIMIT = {idle_limit}
parser = argparse.ArgumentParser()
launch.add_arguments(parser)
try:
    sys.exit(launch.run(parser.parse_args()))
except InputError as error:
    sys.exit(f"input error: {{error}}")
"""


def start(tmp_path, options, code, idle_limit=launcher.IDLE_LIMIT, **more):
    """`pet launch OPTIONS -- python -c CODE`, as a process; the launcher's own output is piped. ``idle_limit``: what
    holds without an option; ``more``: of ``Popen``."""
    return subprocess.Popen(
        [sys.executable, "-c", STARTER.format(idle_limit=idle_limit), *options, "--", sys.executable, "-c", code],
        cwd=tmp_path,
        env={**ENVIRONMENT, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def start_faults(directory, words):
    """`faults.py`, as a process: whole runs with a fault."""
    quick = str(ROOT / "tests" / "support" / "quick_runs")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [quick, os.environ.get("PYTHONPATH")]))}
    what, *settings = words.split()
    command = [sys.executable, str(Path(__file__).with_name("faults.py")), what, str(directory / "jobs")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*command, "--limit", "inf", *settings], env=environment, **pipes)


def finish(process):
    """(exit code, standard output, standard error); the workers that the launcher must end would never end."""
    out, err = process.communicate(timeout=HANGING)
    return process.returncode, out, err


@pytest.fixture
def assert_gone(until):
    """No process that wrote its id there lives on."""

    def lives(pid):
        try:
            return psutil.Process(pid).status() != "zombie"
        except psutil.NoSuchProcess:
            return False

    def check(pid_directory, count):
        pids = [int(path.name) for path in pid_directory.iterdir()]
        assert len(pids) == count
        until(lambda: not any(map(lives, pids)))

    return check


# What each worker begins with: it notes its id. `forever` ends with the worker alone, `noted(n)` when n ids are there.
NOTE_PID = """
import os, pathlib, signal, subprocess, sys, time
r = int(os.environ['RANK_ID'])
pathlib.Path('pids').mkdir(exist_ok=True)
pathlib.Path('pids', str(os.getpid())).touch()
def forever():
    while True: signal.pause()
def noted(count):
    while len(list(pathlib.Path().glob('pids/*'))) < count: time.sleep(0.02)
def work():
    while True:
        sum(range(10**6))
        time.sleep(0.03)
"""
STUCK = NOTE_PID + (
    "from pet.launching.heartbeat import beat, waiting\ndef stuck():\n    {}\nstuck() if r == 1 else work()"
)
LIMIT = ["-n", "2", "--hang-timeout", "2"]
JOBS = {  # options, and what workers run; or what `faults.py` is to do
    # the others ignore SIGTERM and have children: both must go all the same
    "raising": (
        ["-n", "3"],
        NOTE_PID + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        "pathlib.Path('pids', str(child.pid)).touch()\n"
        "noted(6) if r == 2 else forever()\n"
        "raise RuntimeError('the third one fails')",
    ),
    "sleep": (LIMIT, STUCK.format("forever()")),
    "stopped": (LIMIT, STUCK.format("with waiting(): os.kill(os.getpid(), 19)")),
    # endless work is only seen by a promise that was not kept
    "loop": (LIMIT, STUCK.format("beat(1.0); [0 for _ in iter(int, 1)]")),
    # one that is gone, as it were well, is no culprit, but the reason
    "left": (LIMIT, NOTE_PID + "from pet.launching.heartbeat import waiting\nwith waiting(): r == 1 or forever()"),
    "loop while importing": "run --count 1 --place importing --fault loop --hang 4",
    "stopped while compiling": "run --count 1 --place compiling --fault stop --nodes 2 --hang 4",
    "saves": "saves --half 0",
    "other saves": "saves --half 1",
}


@pytest.fixture(scope="module", autouse=True)
def running(request, tmp_path_factory, all_cores):
    """The directories and the processes of those of `JOBS` that are asked for. They wait most of their time: all of
    them run at once, and beside the other tests."""
    items = [item for item in request.session.items if item.path == request.path and "job" in item.fixturenames]
    found = {}
    for name in (item.callspec.params["job"] for item in items):
        directory, what = tmp_path_factory.mktemp("job"), JOBS[name]
        process = start_faults(directory, what) if isinstance(what, str) else start(directory, *what)
        found[name] = directory, process
    yield found
    for _, process in found.values():
        process.kill()


@pytest.fixture
def job(request, running):
    """What became of one of them: its directory, exit code, standard output, standard error."""
    directory, process = running[request.param]
    return directory, *finish(process)


def of_jobs(*names):
    """A test of the ends of these."""
    return pytest.mark.parametrize("job", names, indirect=True)


def test_workers_get_their_place_and_their_own_log(tmp_path):
    code = (
        "import os, json;"
        "keys = ['RANK_ID', 'RANK_SIZE', 'LOCAL_RANK', 'DEVICE_ID', 'MASTER_ADDR', 'MASTER_PORT', 'OMP_NUM_THREADS'];"
        "print(json.dumps({key: os.environ[key] for key in keys}))"
    )
    result, out, err = finish(start(tmp_path, ["--devices", "4,6,7"], code))
    assert (result, err) == (0, "")
    logs = [(tmp_path / f"output/log/rank_{rank}/worker.log").read_text() for rank in range(3)]
    places = [json.loads(log) for log in logs]
    assert [place["RANK_ID"] for place in places] == ["0", "1", "2"]
    assert [place["DEVICE_ID"] for place in places] == ["4", "6", "7"]
    assert {place["RANK_SIZE"] for place in places} == {"3"}
    assert len({place["MASTER_PORT"] for place in places}) == 1
    assert out == logs[0]  # rank 0 alone is on the terminal


@of_jobs("raising")
def test_raising_worker_ends_the_job_with_its_traceback(job, assert_gone):
    directory, result, _, err = job
    assert result == 1
    assert "rank 2 ended with exit code 1" in err
    assert "[rank 2] RuntimeError: the third one fails" in err and "Traceback" in err
    assert_gone(directory / "pids", 6)


def test_killed_worker_and_exit_code(tmp_path, assert_gone):
    code = NOTE_PID + "noted(2)\nos.kill(os.getpid(), 9) if r == 1 else forever()"
    result, _, err = finish(start(tmp_path, ["-n", "2"], code))
    assert result == 128 + 9 and "rank 1 was killed by SIGKILL (as the system does where memory runs out" in err
    assert_gone(tmp_path / "pids", 2)
    assert finish(start(tmp_path, ["-n", "2"], "import os; os._exit(7 * int(os.environ['RANK_ID']))"))[0] == 7


def test_how_a_worker_ended_is_known_where_the_parent_ignores_it(tmp_path):
    """The kernel keeps no exit code for who ignores SIGCHLD, and real-time signals have no names."""
    command = [sys.executable, "-m", "pet", "launch", "-n", "1", "--", "sh", "-c", "kill -40 $$"]
    environment = {**ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    ignore = functools.partial(signal.signal, signal.SIGCHLD, signal.SIG_IGN)
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, preexec_fn=ignore)
    assert (done.returncode, done.stderr.splitlines()[0]) == (168, "pet launch: rank 0 was killed by signal 40")


@of_jobs("sleep", "stopped", "loop")
def test_hanging_worker_is_ended_with_its_stack(job, assert_gone):
    directory, result, _, err = job
    assert result == 124 and "rank 1 hangs" in err
    assert "in stuck" in err
    assert_gone(directory / "pids", 2)


@of_jobs("left")
def test_whom_a_hanging_worker_may_wait_for_is_said(job):
    assert job[1] == 124
    ended = "it may wait for rank 1, which had ended with exit code 0"
    assert re.search(f"rank 0 hangs: it did nothing for [0-9]+ s; {ended}\n", job[3])


WAYS = "with waiting(): noted(3)", "while not os.path.exists('pids/done'): time.sleep(0.3)"


@pytest.mark.parametrize("wait", some(WAYS, WAYS[1:]))
def test_waiting_for_a_slow_peer_is_no_hang(tmp_path, wait):
    """Where it says so, or asks for a file now and then."""
    # the slow one works three times as long as a hang may last
    code = NOTE_PID + "from pet.launching.heartbeat import waiting\n"
    code += "if r == 0:\n    while time.process_time() < 3: pass\n    pathlib.Path('pids', 'done').touch()\n"
    code += f"else:\n    {wait}"
    assert finish(start(tmp_path, ["-n", "2", "--hang-timeout", "1"], code))[0] == 0


SLEEPS = {  # what a script of somebody's sleeps in, and whether another process may wake it
    "fcntl.flock(open('lock'), fcntl.LOCK_EX)": True,
    "pair = socket.socketpair(); pair[0].recv(1)": True,
    "os.read(os.pipe()[0], 1)": True,
    "threading.Thread(target=input).start()": True,
    "subprocess.run(['cat'])": True,
    "time.sleep(1000)": False,
    "threading.Event().wait()": False,
    "subprocess.run(['sleep', '10'])": False,
}


@pytest.mark.skipif(not Path("/proc/1/wchan").exists(), reason="the kernel does not say where a thread sleeps")
def test_who_may_be_woken_by_a_peer_is_seen(tmp_path, until):
    """One that waited for a lock in which a peer tokenised was ended after ten seconds."""
    begin = "import fcntl, os, socket, subprocess, sys, threading, time\nprint(flush=True)\n"
    (tmp_path / "lock").touch()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "cwd": tmp_path}
    with open(tmp_path / "lock") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        started = [subprocess.Popen([sys.executable, "-c", begin + code], **pipes) for code in SLEEPS]
        try:
            for process in started:
                process.stdout.readline()
            # one that just begins may wait for the disk, or for nothing
            until(lambda: [asks(psutil.Process(process.pid)) for process in started] == [*SLEEPS.values()], 20.0)
        finally:
            for process in started:
                process.communicate() if process.poll() is not None else process.kill()


@pytest.mark.full
def test_a_script_may_wait_for_a_slow_peer_within_mindspore(tmp_path):
    """Where it joined the job, but has a loop of its own, of which nothing is known."""
    code = (
        NOTE_PID
        + """
from pet.parallel.join import join, world_group
join()
import numpy as np
from mindspore import Tensor, ops
began = time.process_time()
while r == 0 and time.process_time() < began + 7: pass
print(ops.AllReduce(group=world_group())(Tensor(np.ones(1, np.float32))).asnumpy())
"""
    )
    result, out, err = finish(start(tmp_path, ["-n", "2", "--hang-timeout", "5"], code))
    assert result == 0 and "[2.]" in out, err


def test_a_hang_is_one_without_an_option_too(tmp_path, assert_gone):
    """By the launcher's own account within twenty seconds: the limit, and a look at the clock now and then."""
    code = NOTE_PID + "work() if r == 0 else forever()"
    result, _, err = finish(start(tmp_path, ["-n", "2"], code, idle_limit=2.0))
    found = re.search(r"rank 1 hangs: it did nothing for (\d+) s .*--hang-timeout SECONDS", err)
    assert result == 124 and found and 2 <= int(found[1]) <= 20, err
    assert_gone(tmp_path / "pids", 2)
    assert launcher.IDLE_LIMIT + launcher.GRACE < 20


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


def line(terminal) -> bytes:
    """The next line that a terminal shows: a read may give a part of it, without its end."""
    said = b""
    while not said.endswith(b"\n"):
        said += terminal.read(4096)
    return said


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


def test_an_address_that_is_none_of_this_machine_is_named():
    """IPv4 may have none at all, not even 127.0.0.1."""
    with pytest.raises(InputError, match=r"workers cannot meet at 198\.51\.100\.9: Cannot assign requested address"):
        free_address("198.51.100.9")


@pytest.mark.slow
@of_jobs(
    "loop while importing",
    "stopped while compiling",
    "saves",
    pytest.param("other saves", marks=pytest.mark.full),
)
def test_faults_of_a_whole_job(job):
    assert job[1] == 0, job


def test_what_is_ignored_stays_so(tmp_path):
    """nohup: the terminal may be closed."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert launch(["sh", "-c", f"kill -HUP {os.getpid()}; sleep 0.3"], 1, log_directory=tmp_path) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def two_machines(tmp_path, codes):
    master = f"127.0.0.1:{free_address()[1]}"
    processes = []
    for node, code in enumerate(codes):
        directory = tmp_path / f"machine_{node}"
        directory.mkdir(exist_ok=True)
        options = ["-n", str(node + 1), "--nnodes", "2", "--node-rank", str(node), "--master", master]
        options += ["--secret", "the same on all machines"]
        processes.append(start(directory, options, code))
    return [finish(process) for process in processes]


def test_two_machines(tmp_path, assert_gone):
    show = "import os; print(*(os.environ[key] for key in ('RANK_ID', 'RANK_SIZE', 'LOCAL_RANK', 'MASTER_PORT')))"
    results = two_machines(tmp_path, [show, show])
    assert [result[0] for result in results] == [0, 0]
    logs = [
        (tmp_path / f"machine_{node}/output/log/rank_{rank}/worker.log").read_text().split()
        for node, rank in ((0, 0), (1, 1), (1, 2))
    ]
    assert [log[:3] for log in logs] == [["0", "3", "0"], ["1", "3", "0"], ["2", "3", "1"]]
    assert len({log[3] for log in logs}) == 1
    assert results[1][1] == ""  # nothing but rank 0's machine shows output

    wait = NOTE_PID + "forever()"
    # both workers of a machine that fails have noted their ids, and the other machine's has
    fail = NOTE_PID + "noted(2)\nos.chdir('../machine_0')\nnoted(1)\nraise ValueError('far away')"
    results = two_machines(tmp_path, [wait, fail])
    assert [result[0] for result in results] == [1, 1]
    assert "machine 1: rank" in results[0][2] and "far away" in results[1][2]
    for node in (0, 1):
        assert_gone(tmp_path / f"machine_{node}/pids", node + 1)


def test_joins_a_job_that_is_there(tmp_path):
    environment = {**ENVIRONMENT, "PYTHONPATH": str(ROOT), "RANK_ID": "3", "RANK_SIZE": "4"}
    show = "import os; print(os.environ['RANK_ID'], 'PET_LAUNCH' in os.environ)"
    starter = STARTER.format(idle_limit=launcher.IDLE_LIMIT)
    command = [sys.executable, "-c", starter, "-n", "2", "--", sys.executable, "-c", show]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=HANGING)
    assert (done.returncode, done.stdout) == (0, "3 False\n")
    assert not (tmp_path / "output").exists()


def test_a_job_of_fewer_than_are_to_be_started_is_refused(tmp_path):
    """A machine's RANK_SIZE=1 would leave -n without effect."""
    environment = {**ENVIRONMENT, "PYTHONPATH": str(ROOT), "RANK_ID": "0", "RANK_SIZE": "1"}
    command = [sys.executable, "-m", "pet", "launch", "-n", "2", "--", "true"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=HANGING)
    assert done.returncode == 2 and "-n 2, but the environment says" in done.stderr and "RANK_SIZE" in done.stderr


def test_environments_are_recognised():
    assert read_job({}) == Job()
    msrun = {"MS_ROLE": "MS_WORKER", "MS_WORKER_NUM": "8", "MS_NODE_ID": "5", "DEVICE_ID": "1"}
    assert read_job(msrun) == Job(5, 8, 1, "msrun", "")
    assert read_job({"MS_ROLE": "MS_SCHED", "MS_WORKER_NUM": "8"}).launcher == "msrun"
    model_arts = {"RANK_ID": "9", "RANK_SIZE": "16", "RANK_TABLE_FILE": "/t", "VC_WORKER_HOSTS": "a,b"}
    assert read_job(model_arts) == Job(9, 16, 9, "rank_table", "a:8118")
    mpi = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    assert read_job(mpi) == Job(2, 4, 0, "environment", "127.0.0.1:8118")
    assert read_job({**mpi, "RANK_SIZE": "4"}) == Job(2, 4, 0, "environment", "127.0.0.1:8118")
    assert read_job({"PMI_SIZE": "2", "PMI_RANK": "1", "MPI_LOCALRANKID": "1"}).rank == 1  # MPICH, Intel MPI
    torchrun = {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
    assert read_job(torchrun) == Job(3, 4, 1, "environment", "a:29500")
    assert read_job({**torchrun, "TORCHELASTIC_USE_AGENT_STORE": "True"}).master == "a:29501"
    slurm = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_NODES": "2"}
    assert read_job({**slurm, "SLURM_STEP_NODELIST": "n[03-07,12]x,m"}) == Job(2, 4, 0, "environment", "n03x:8118")
    assert read_job({**slurm, "SLURM_STEP_NODELIST": "a,b", "MASTER_PORT": "9"}).master == "a:9"
    # what a script of Slurm's has in which nothing was started by srun, and one process alone, which may start others
    for alone in (
        {"SLURM_NTASKS": "4", "SLURM_PROCID": "0"},
        {**slurm, "SLURM_STEP_NUM_TASKS": "1"},
        {"WORLD_SIZE": "4"},
    ):
        assert read_job(alone) == Job()
    with pytest.raises(InputError, match="rank 4 of 4"):
        read_job({"RANK_ID": "4", "RANK_SIZE": "4"})
    with pytest.raises(InputError, match="RANK_SIZE must be a whole number"):
        read_job({"RANK_ID": "0", "RANK_SIZE": "four"})


def test_what_srun_starts_may_be_the_launcher_of_a_machine(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    monkeypatch.setenv("SLURM_PROCID", "0")
    with pytest.raises(InputError, match=r"of 2 \(SLURM_STEP_NUM_TASKS\)"):
        launch(["true"], 3)
    with pytest.raises(InputError, match="PET_LAUNCH_SECRET"):
        launch(["true"], 3, nodes=2, master="127.0.0.1:8118")


def test_machines_that_meet_by_ipv6_are_refused_before_they_wait(monkeypatch):
    monkeypatch.setenv("PET_LAUNCH_SECRET", "0123456789abcdef")
    for name in ("RANK_SIZE", "MS_ROLE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match="fd00::1: has no IPv4 address"):
        launch(["true"], 1, nodes=2, master="[fd00::1]:8118", join_limit=0.1)


def devices(*ranks: int) -> list[dict]:
    return [{"device_id": str(place), "rank_id": str(rank)} for place, rank in enumerate(ranks)]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"server_list": [{"server_id": "a", "device": devices(0)}]}, "has 1 devices, but RANK_SIZE says 2 workers"),
        ({"server_list": [{"server_id": "a", "device": devices(0, 0)}]}, "ranks 0, 0; .* each from 0 to 1 once"),
        ({"server_list": [{"server_id": "a", "device": devices(0, 2)}]}, "ranks 0, 2; .* each from 0 to 1 once"),
        ({"server_list": [{"server_id": "a", "device": 2 * devices(0)}]}, "a device of a to two ranks|each from 0"),
        (
            {"server_list": [{"server_id": "a", "device": [*devices(0), {"device_id": 0, "rank_id": 1}]}]},
            "gives a device of a to two ranks",
        ),
        (
            {"server_count": "2", "server_list": [{"server_id": "a", "device": devices(0, 1)}]},
            "says server_count 2, but lists 1 servers",
        ),
        ({"server_list": {}}, "has no devices"),
        ({"server_list": 3}, "cannot be read"),
        ("{oops", "table.json, line 1, column 2: not valid JSON"),
        (None, "table.json: not found, a rank table was expected"),
    ],
)
def test_a_rank_table_that_does_not_fit_is_refused_before_anybody_waits(tmp_path, monkeypatch, table, message):
    from pet.parallel import join

    path = tmp_path / "table.json"
    if table is not None:
        path.write_text(table if isinstance(table, str) else json.dumps(table))
    for name, value in {"RANK_SIZE": "2", "RANK_ID": "1", "RANK_TABLE_FILE": str(path), "MASTER_ADDR": "a"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(join, "_connect", lambda job, limit: pytest.fail("waits"))
    with pytest.raises(InputError, match=message):
        join.join()


def test_wrong_arguments_are_refused_before_anything_starts(monkeypatch):
    assert parse_devices("[0,4]") == [0, 1, 2, 3] and parse_devices("2,0") == [2, 0]
    monkeypatch.setattr(subprocess, "Popen", None)
    for arguments, message in (
        (([], 2), "no command"),
        ((["no_such_program"], 1), "there is no program 'no_such_program'"),
        ((["train.py"], 1), "did you mean python train.py"),
        ((["true"], 1, 1, 0, None, None, "log", float("nan")), "--hang-timeout"),
        ((["true"], 1, 1, 0, None, None, "log", 1.0, None, "log", 0.0), "--join-timeout"),
        ((["x"], 0), "-n must be 1 or more"),
        ((["x"], 3, 1, 0, None, [0, 1]), "--devices names 2"),
        ((["x"], 1, 2, 2, "h:1"), "--node-rank must be 0 … 1"),
        ((["x"], 1, 2, 0), "--master"),
    ):
        with pytest.raises(InputError, match=message):
            launch(*arguments)
    with pytest.raises(InputError, match="how many workers"):
        main(["--", "true"])
    for text in ("0,0", "a", "[3,3]"):
        with pytest.raises(InputError, match="--devices"):
            parse_devices(text)
    with pytest.raises(InputError, match="host:port"):
        split_address("here")
    assert split_address("[fd00::1]:8118") == ("fd00::1", 8118)
    monkeypatch.delattr(os, "waitid")  # macOS has none
    with pytest.raises(InputError, match="on Linux alone"):
        launch(["true"], 2)


def test_logs_that_cannot_be_made_are_named(tmp_path):
    place = tmp_path / "file"
    place.write_text("")
    with pytest.raises(InputError, match=f"pet launch: {place}/rank_0: Not a directory"):
        launch(["true"], 1, log_directory=place)
    with pytest.raises(InputError, match=f"{place}/log: Not a directory"):
        relaunch(2, [], place / "log")


@pytest.fixture
def shadows(tmp_path, monkeypatch):
    """The current directory, with modules in it that must not be imported: they leave a file `shadowed` and end."""
    (tmp_path / "pet").mkdir()
    trap = f"import os; open({str(tmp_path / 'shadowed')!r}, 'w').close(); os._exit(0)"
    for name in ("pet/__init__", "pet/__main__", "model_zoo", "adapters", "signal", "pickle", "yaml", "contextlib"):
        (tmp_path / f"{name}.py").write_text(trap)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_modules_in_the_current_directory_shadow_nothing(shadows, monkeypatch, capfd):
    assert launch([sys.executable, "-I", "-c", "print('well')"], 1) == 0  # with its guard
    monkeypatch.setattr(launcher, "launch", lambda command, *_, **__: subprocess.run(command, check=True).returncode)
    assert relaunch(2, ["--version"], "output/log") == 0
    assert capfd.readouterr().out == f"well\npet {pet.__version__}\n"
    with Workers(json.loads, 1) as workers:
        assert list(workers.map(["[1]"])) == [[1]]
    assert not (shadows / "shadowed").exists()


def test_success_is_what_rank_0_wrote(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pet, "__file__", str(tmp_path / "__init__.py"))
    (tmp_path / "__main__.py").write_text("import sys; sys.exit(int(sys.argv[1]))")
    logs = tmp_path / "run" / "log"
    assert relaunch(2, ["2"], logs) == 2
    assert not (tmp_path / "run").exists()  # wrong input leaves nothing behind
    assert relaunch(2, ["0"], logs) == 1
    assert "rank 0 did not write" in capsys.readouterr().err
    assert (logs / "rank_1/worker.log").exists()


def test_a_job_keeps_its_logs_when_another_one_is_refused(tmp_path, monkeypatch, until):
    """Two that start at once in one new directory: the second neither starts workers nor removes anything."""
    logs, refused = tmp_path / "run" / "log", []

    def launch(*_, **__):
        (logs / "rank_0").mkdir()
        code = (
            "import sys\nfrom model_zoo.errors import InputError\nfrom pet.launching import relaunch\n"
            "relaunch.launcher.launch = None\n"
            "try:\n    relaunch.relaunch(2, [], sys.argv[1])\nexcept InputError as error:\n    print(error)"
        )
        command = [sys.executable, "-c", code, str(logs)]
        environment = {**ENVIRONMENT, "PYTHONPATH": str(ROOT)}
        refused.append(subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout)
        assert (logs / "rank_0").exists()
        monkeypatch.setenv("RANK_ID", "0")
        monkeypatch.setenv("RANK_SIZE", "2")
        shutil.rmtree(logs)  # and whoever does so does not make a failure of it
        report_success()
        monkeypatch.undo()
        return 0

    monkeypatch.setattr(launcher, "launch", launch)
    assert relaunch(2, [], logs) == 0
    assert refused == [
        f"another job is running, with its logs in {logs}; wait until it has ended, or give another output.dir\n"
    ]


def test_what_another_job_has_in_the_directory_of_the_logs_stays(tmp_path, monkeypatch):
    logs = tmp_path / "run" / "log"

    def launch(*_, **__):
        for name in ("rank_0", "evaluate/rank_0"):
            (logs / name).mkdir(parents=True)
        return 2

    monkeypatch.setattr(launcher, "launch", launch)
    assert relaunch(2, [], logs) == 2
    assert [str(path.relative_to(logs)) for path in sorted(logs.rglob("*"))] == ["evaluate", "evaluate/rank_0"]
    refuse = Mock(side_effect=InputError("no"))
    monkeypatch.setattr(launcher, "launch", refuse)
    with pytest.raises(InputError):
        relaunch(2, [], tmp_path / "other" / "log")
    assert refuse.called and not (tmp_path / "other").exists()


def stack(*frames):
    """An answer, from the innermost frame on."""
    return Stack([(str(file), name) for file, name in frames])


def seen(
    state,
    heard=1.0,
    due=None,
    active=10.0,
    busy=0.0,
    calm=9.5,
    awake=10.0,
    stack=None,
    outside=0,
    looked=10.0,
    woke=1.0,
):
    """A worker as the launcher sees it after ten seconds of a limit of three, without a process."""
    watch = object.__new__(Watch)
    watch.woke = woke
    watch.limit, watch.use_idle, watch.running, watch.look = 3.0, True, True, lambda: None
    watch.state, watch.heard, watch.active, watch.awake, watch.seen = state, heard, active, awake, looked
    watch.due = due or (5.0 if state == WORKING else float("inf"))
    watch.calm, watch.stack, watch.outside = calm, stack, outside
    watch.clock = SimpleNamespace(wall=10.0, fair=10.0, busy=busy)
    return watch


LIBRARY = f"{sysconfig.get_path('purelib')}/mindspore"
IN_LIBRARY, IN_OURS = (stack((f"{root}/a.py", "f")) for root in (LIBRARY, ROOT / "pet"))
LOOP, NAP = {"busy": 0.9, "calm": 1.0}, {"heard": 0.5}
IDLE = {"active": 1.0}


@pytest.mark.parametrize(
    ("workers", "culprit"),
    [
        # whatever it was at, a stopped one
        ([seen(WAITING, **IDLE), seen(WAITING, awake=2.0)], 1),
        ([seen(CALLING), seen(PAUSING, awake=2.0)], 1),
        # a loop, though the others sleep in a graph or are overdue too
        ([seen(WORKING, **IDLE), seen(WORKING, **LOOP)], 1),
        ([seen(WORKING), seen(WAITING), seen(WORKING, **LOOP)], 2),
        ([seen(CALLING), seen(WORKING, **LOOP)], 1),
        # also in the first run of a graph, and where it says that it waits, but for what only beats by itself
        ([seen(CALLING), seen(CALLING, **LOOP, stack=IN_OURS)], 1),
        ([seen(WAITING), seen(WAITING, **LOOP, stack=IN_OURS)], 1),
        ([seen(WORKING, due=20.0, heard=0.1, **IDLE), seen(WORKING, **NAP)], 1),
        ([seen(WAITING, heard=0.1), seen(WORKING, **NAP)], 1),
        # sleeping: whoever was heard from first, and not one that waits
        ([seen(WORKING, heard=2.0, due=20.0, **IDLE), seen(WORKING, due=20.0, **IDLE)], 1),
        ([seen(WAITING, heard=0.5, **IDLE), seen(CALLING, **IDLE)], 1),
        ([seen(WAITING, heard=2.0, **IDLE), seen(WAITING, **IDLE)], 1),
        ([seen(SILENT), seen(SILENT, **IDLE)], 1),
        ([seen(SILENT, woke=9.5, **IDLE), seen(SILENT, **IDLE)], 1),
        ([seen(SILENT, woke=9.5, **IDLE)], 0),
        ([seen(JOINED, heard=2.0, **IDLE), seen(JOINED, heard=1.0, **IDLE)], 1),
        ([seen(WAITING), seen(JOINED, **IDLE)], 1),
        # but one of a script that has joined may wait for another one
        ([seen(JOINED), seen(JOINED, **IDLE)], None),
        # or ask for a file of its, now and then
        ([seen(SILENT), seen(SILENT, woke=9.5, **IDLE)], None),
        # what it has done since it was last looked at is not known
        ([seen(SILENT), seen(SILENT, active=6.9, looked=9.5)], None),
        ([seen(WAITING), seen(WAITING, awake=6.9, looked=9.5)], None),
        # one that says it waits, and sleeps elsewhere, though another one still asks for it
        ([seen(WAITING), seen(WAITING, **IDLE, stack=IN_OURS, outside=2)], 1),
        ([seen(WAITING), seen(WAITING, **IDLE, stack=IN_OURS, outside=1)], None),
        ([seen(WAITING), seen(WAITING, stack=IN_OURS, outside=2)], None),
        ([seen(WAITING), seen(LEAVING, **IDLE, stack=IN_OURS, outside=2)], None),
        ([seen(JOINING), seen(JOINING, **IDLE, stack=IN_OURS, outside=2)], 1),
        ([seen(JOINING, **IDLE), seen(WORKING, **NAP)], 1),
        ([seen(JOINING, **IDLE), seen(CALLING)], None),
        # what is through waits for the others, and ends by itself where they have ended already
        ([seen(LEAVING, heard=0.5, **IDLE), seen(WAITING, **IDLE)], 1),
        ([seen(LEAVING, **IDLE), seen(WORKING, **NAP)], 1),
        ([seen(LEAVING, **IDLE), seen(LEAVING, heard=0.5, **IDLE)], None),
        ([seen(LEAVING, **IDLE)], None),
        ([seen(LEAVING, **IDLE), seen(CALLING, busy=0.9)], None),
        # and not one that sleeps within MindSpore, where it waits for the others
        ([seen(CALLING, **IDLE, stack=IN_LIBRARY), seen(CALLING, heard=2.0, **IDLE, stack=IN_OURS)], 1),
        ([seen(CALLING, due=5.0), seen(WORKING, heard=2.0, **IDLE, stack=IN_OURS)], 1),
        # nobody: one works, or compiles, or waits for something outside, or the limit is not reached
        ([seen(WORKING, **IDLE), seen(CALLING)], None),
        ([seen(WAITING, **IDLE), seen(CALLING, busy=0.9, stack=IN_OURS)], None),
        ([seen(WORKING, **IDLE), seen(WORKING, busy=0.9, due=20.0, calm=1.0)], None),
        ([seen(WAITING, **IDLE), seen(CALLING, busy=0.9)], None),
        ([seen(WORKING), seen(CALLING)], None),
        ([seen(WAITING, **IDLE), seen(PAUSING, **IDLE)], None),
        ([seen(WAITING, **IDLE), seen(WORKING, due=20.0, busy=0.9)], None),
        ([seen(WAITING), seen(WAITING, **IDLE)], None),
        ([seen(WAITING, **IDLE), seen(SILENT)], None),
        ([seen(SILENT), seen(SILENT)], None),
    ],
)
def test_the_worker_that_hangs_is_told_from_those_that_wait_for_it(workers, culprit):
    found = find_hanging(workers)
    index = find_awaited([worker.view() for worker in workers]) if found is None else workers.index(found)
    assert index == culprit


@pytest.mark.parametrize(
    ("states", "seconds"),
    [
        ([CALLING, WAITING], launcher.NOTICE),
        ([WAITING, None], launcher.NOTICE),  # the last step's, of which the other one has its part
        ([JOINING, WORKING], launcher.NOTICE),
        ([JOINING, JOINING], launcher.GRACE),
        ([JOINING, None], launcher.GRACE),  # MindSpore keeps it from receiving a signal
        ([None, None], 0.0),
    ],
)
def test_who_only_waits_for_others_to_join_has_little_time_when_the_job_is_to_end(monkeypatch, states, seconds):
    monkeypatch.setattr(launcher, "exit_code", lambda process: process)
    workers = object.__new__(launcher._Workers)
    workers.watches = [seen(SILENT if state is None else state) for state in states]
    workers.processes, workers.grace = [143 if state is None else None for state in states], launcher.NOTICE
    assert not workers._may_go_on(seconds, launcher.NOTICE)
    assert not seconds or workers._may_go_on(seconds - 0.1, launcher.NOTICE)
    workers.grace = 0.0  # a second signal
    assert not workers._may_go_on(0.0, launcher.NOTICE)


def test_who_waited_for_one_that_has_ended_has_its_time_from_there_on(monkeypatch):
    now, found = [0.0], []

    def pass_seconds(seconds):
        now[0] += seconds

    def awaited(views):
        found.append(find_awaited([*views.values()]))

    monkeypatch.setattr(launcher, "exit_code", lambda process: process)
    monkeypatch.setattr(launcher, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda _: pass_seconds(2.0)))
    workers = object.__new__(launcher._Workers)
    workers.failure, workers.idle_limit, workers.count = None, 3.0, 2
    workers.processes, workers.watches = [0, None], [seen(WAITING), seen(SILENT, **IDLE)]
    exchange = Mock(side_effect=[None, None, (0, "")])
    workers.control = SimpleNamespace(first_rank=0, awaited=awaited, exchange=exchange)
    workers._poll()
    assert found == [None, None, 0]


REASONS = [
    # C++, which does not answer, and other libraries, in a call and in a wait; a compilation and imports always
    (CALLING, [None], True),
    (WAITING, [None], True),
    (CALLING, [stack((f"{LIBRARY}/a.py", "f"))], True),
    (WAITING, [stack((f"{LIBRARY}/a.py", "f"))], True),
    (WORKING, [stack((f"{LIBRARY}/a.py", "f"))], False),
    (WORKING, [stack(("/usr/x.py", "f"), (f"{LIBRARY}/a.py", "_compile"))], False),
    (WORKING, [stack((os.__file__, "f"), (f"{LIBRARY}/a.py", "f"), (f"{LIBRARY}/b.py", "compile"))], True),
    (WORKING, [stack(("<frozen importlib._bootstrap>", "_load"), (file, "<module>")) for file in ("a", "b")], True),
    (WORKING, [stack(("<frozen importlib._bootstrap>", "_load"), ("a", "<module>"))] * 2, False),
    # ours, that of a user, also where MindSpore called it or the standard library is at work; C++ that promised an end
    (CALLING, [stack((ROOT / "pet/a.py", "f"), (f"{LIBRARY}/a.py", "compile"))], False),
    (CALLING, [stack(("<string>", "f"))], False),
    (CALLING, [stack((os.__file__, "f"), ("/home/me/train.py", "f"))], False),
    (WORKING, [None], False),
]


@pytest.mark.parametrize(("state", "answers", "expected"), REASONS)
def test_a_stack_tells_work_that_takes_long_from_a_loop(state, answers, expected):
    watch = seen(state, due=5.0)
    before = None
    found = False
    for watch.stack in answers:
        watch.due = 5.0
        found, before = watch._has_reason(before), watch.stack
    assert found == expected
    assert watch.due == (13.0 if expected and state == WORKING else 5.0)  # the promise is put off


@pytest.fixture
def times(tmp_path, monkeypatch):
    """A time to set, and the file of a worker's lines, of which the last is read by calling it: state, seconds."""
    now = [1000.0]
    monkeypatch.setenv("PET_BEAT_FILE", str(tmp_path / "beat"))
    monkeypatch.setattr("pet.launching.heartbeat.time.monotonic", lambda: now[0])
    for name, value in (("_now", (SILENT, 0.0)), ("_joined", False), ("_place", None), ("_took", {})):
        monkeypatch.setattr(heartbeat, name, value)

    def line():
        heard, state, within, pid = map(float, (tmp_path / "beat").read_bytes().split())
        assert (heard, pid) == (now[0], os.getpid())
        return int(state), within

    return now, line


def test_a_graph_may_take_a_multiple_of_its_last_runs(times):
    now, line = times
    progress.tick("graph")  # nobody watches
    with heartbeat.watched():
        expected = [
            (40.0, (CALLING, 0.0)),  # the first run, compiled: it takes 40 s
            (2.0, (CALLING, 40.0)),
            (3.0, (CALLING, 5 * 2.0)),
            (90.0, (CALLING, 5 * 2.0)),  # it waits for a peer that compiles
            (3.0, (CALLING, 5 * 2.0)),
            (3.0, (CALLING, 5 * 3.0)),  # the last three count
        ]
        for seconds, wanted in expected:
            progress.tick("graph")
            assert line() == wanted
            now[0] += seconds
        progress.tick()
        assert line() == (WORKING, 0.0)
        now[0] += 1.0
        with heartbeat.waiting():
            assert line() == (WAITING, 0.0)
        assert line() == (WORKING, 0.0)
        with progress.pausing():
            assert line() == (PAUSING, 0.0)
            now[0] += 1.0
            with progress.pausing():
                progress.tick("graph")
            progress.tick()
            assert heartbeat._now == (PAUSING, 0.0)
        assert line() == (WORKING, 0.0)
        heartbeat.beat(600.0)
        assert line() == (WORKING, 600.0)
    assert line() == (SILENT, 0.0)
    heartbeat.joined()
    assert line() == (JOINED, 0.0)
    with heartbeat.watched():
        progress.tick()
        heartbeat.joined()
        assert line() == (WORKING, 0.0)
    assert line() == (JOINED, 0.0)
    with heartbeat.waiting():
        assert line() == (WAITING, 0.0)
    assert line() == (JOINED, 0.0)


def test_every_graph_says_when_it_runs_and_that_its_first_run_may_take_long(times):
    from mindspore import Tensor

    from model_zoo.graph import Graph

    def following(x):
        return x + 1

    graph, lines = Graph(following), []
    with heartbeat.watched():
        for size in (2, 2, 3):
            graph(Tensor(np.zeros(size, np.float32)))
            lines.append(times[1]())
            times[0][0] += 7.0
    assert lines == [(CALLING, 0.0), (CALLING, 7.0), (CALLING, 0.0)]


def test_what_takes_long_of_large_models_and_data_says_that_it_gets_on(tmp_path, monkeypatch):
    """The others wait meanwhile: a base of 7 B takes half a minute to be hashed, after which the job had ended."""
    from model_zoo.checkpoint.digests import digest_file
    from model_zoo.checkpoint.fingerprint import digest
    from pet.data import TokenDataset

    config = json.loads((ROOT / "recipes/bases/llama_tiny/config.json").read_text())
    (tmp_path / "file").write_bytes(bytes(5 << 19))
    for work in (
        lambda: digest(config, dict.fromkeys("abc", ("float32", (1,))), lambda name: [np.zeros(1, np.float32)]),
        lambda: digest_file(tmp_path / "file"),
        lambda: TokenDataset.from_samples([([1, 2], [0, 1])] * 3).without_repeated(),
    ):
        monkeypatch.setattr(progress, "watcher", Mock())
        work()
        assert progress.watcher.tick.call_count == 3


def test_time_passes_as_the_worker_had_it(times, monkeypatch):
    now, demand = times[0], [0.0] * 5
    monkeypatch.setattr(Clock, "_demand", lambda self: list(demand))
    clock = Clock(1)

    def pass_seconds(count, *used, step=1.0, pages=1000.0):
        for _ in range(count):
            now[0] += step
            demand[:] = [before + new for before, new in zip(demand, (*used, pages), strict=True)]
            clock.tick()
        return clock.fair

    assert pass_seconds(4, 0.25, 0.75, 0.5, 5.0) == pytest.approx(1.0)  # the machine is busy: a quarter of a core
    assert clock.busy == pytest.approx(1.0)
    assert pass_seconds(4, 0.0, 0.0, 1.0, 3.0) == pytest.approx(2.0)  # the same within a graph
    assert clock.busy == 0.0
    assert pass_seconds(4, 0.01, 0.0, 0.01, 0.0) == pytest.approx(6.0)  # it sleeps
    assert pass_seconds(1, 0.0, 0.0, 0.0, 0.0, step=3600.0) == pytest.approx(7.0)  # the launcher stood still as well
    # Python code that takes no memory: as many seconds again, but none that has not passed
    for clock.answers, pages, seconds in ((True, 1000.0, 1.0), (False, 0.0, 1.0), (True, 0.0, 2.0)):
        before = clock.fair
        assert pass_seconds(4, 0.25, 0.75, 0.5, 5.0, pages=pages) - before == pytest.approx(seconds)
    before = clock.fair
    assert pass_seconds(4, 0.8, 0.2, 0.8, 0.2, pages=0.0) - before == pytest.approx(4.0)
    clock.answers = False
    assert pass_seconds(100, 0.0, 0.0, 0.0, 1e3) >= 12.0 - 1e-6  # whatever the machine does, a hang is one in the end


def test_a_line_of_the_worker_renews_its_time(times, tmp_path):
    watch = Watch(os.getpid(), tmp_path / "beat", 3.0)
    watch.clock = SimpleNamespace(pid=os.getpid(), tick=lambda: None, wall=0.0, fair=0.0, busy=0.0)
    heartbeat.beat(within=8.0)
    watch.look()
    watch.clock.fair = 8.0
    assert not watch.overdue
    watch.clock.fair = 8.5
    assert watch.overdue and "made no progress" in watch.reason
    times[0][0] += 1.0
    heartbeat.beat(within=1.0)  # the launcher's own limit is longer
    watch.look()
    watch.clock.fair = 11.0
    assert watch.state == WORKING and not watch.overdue


FULL = """
import os
rank = os.environ["RANK_ID"]
for _ in range(20_000):
    print("line of rank " + rank, flush=True)
assert rank == "0" or FINE, "a reason"
"""


@pytest.mark.parametrize("fine", [True, False], ids=["runs on", "fails"])
def test_a_log_that_takes_no_more_is_said_and_ends_no_worker(tmp_path, fine):
    """A worker that nobody reads would wait for ever; one that cannot print would end, and nobody would know why."""
    logs = [tmp_path / "output" / "log" / f"rank_{rank}" / "worker.log" for rank in range(2)]
    for log in logs:
        log.parent.mkdir(parents=True)
        log.symlink_to("/dev/full")
    result, out, err = finish(start(tmp_path, ["-n", "2"], FULL.replace("FINE", str(fine))))
    assert result == (0 if fine else 1) and (not fine or out == "line of rank 0\n" * 20_000)
    for rank in range(2):
        lost = f"worker.log: cannot be written: No space left on device; the job goes on, and what rank {rank} says"
        assert err.count(lost) == 1, err
    assert ("[rank 1] AssertionError: a reason" in err) is not fine


def test_a_character_that_comes_in_parts_is_shown(tmp_path, until, capsys):
    reader, writer = os.pipe()
    with open(reader, "rb") as pipe, open(tmp_path / "log", "wb", buffering=0) as log:
        output, sent = Output(0, SimpleNamespace(stdout=pipe), log, show=True), b""
        for part in (b"a\xe4", b"\xbd", b"\xa0b\n"):
            sent += part
            os.write(writer, part)
            until(lambda: output.end == sent)  # noqa: B023
        os.close(writer)
        output.join()
    assert capsys.readouterr().out == "a\u4f60b\n" and (tmp_path / "log").read_bytes() == sent
