"""The launcher: environment, logs, and above all that a failing worker ends everything, soon, with its traceback."""

import fcntl
import functools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from launches import ENVIRONMENT, NOTE_PID, ROOT, STARTER, finish, start
from sets import some
from waiting import HANGING

from pet.launching import launcher
from pet.launching.addresses import free_address
from pet.launching.output import Output
from pet.launching.watch import asks


def start_faults(directory, words):
    """`faults.py`, as a process: whole runs with a fault."""
    quick = str(ROOT / "tests" / "support" / "quick_runs")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [quick, os.environ.get("PYTHONPATH")]))}
    what, *settings = words.split()
    command = [sys.executable, str(Path(__file__).with_name("faults.py")), what, str(directory / "jobs")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*command, "--limit", "inf", *settings], env=environment, **pipes)


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


@pytest.mark.slow
@of_jobs(
    "loop while importing",
    "stopped while compiling",
    "saves",
    pytest.param("other saves", marks=pytest.mark.full),
)
def test_faults_of_a_whole_job(job):
    assert job[1] == 0, job


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
