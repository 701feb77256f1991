"""Jobs of msrun that fail end soon: its scheduler, which it waits for, is ended by who has failed, or by a guard."""

import subprocess
import sys

import pytest
from waiting import HANGING

from model_zoo.errors import InputError
from pet.launching.environment import Job
from pet.parallel import join, together

MSRUN = """
import os, subprocess, sys, time
def start(role, code, number=None):
    environment = {"MS_ROLE": role, "MS_WORKER_NUM": "2", "MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": "1"}
    environment |= {} if number is None else {"MS_NODE_ID": str(number)}
    code = "from pet.launching import msrun\\n" + code
    command = [sys.executable, "-c", code, str(os.getpid())]
    return subprocess.Popen(command, env={**os.environ, **environment}, stdin=subprocess.PIPE)
"""
WAIT = "import sys; sys.stdin.read()"
# A guard looks every second: here more often, and it says so. `looked` waits until it has a few times.
GUARD = """
import os, sys, time
from pet.launching import msrun
sleep, log = time.sleep, open(os.environ["LOOKS"], "a", buffering=1)
time.sleep = lambda _: log.write("a look\\n") and sleep(0.05)
{}
msrun.guard(int(sys.argv[1]))
"""
MSRUN += """
def looked(scheduler, times=6):
    while scheduler.poll() is None and len(open(os.environ["LOOKS"]).readlines()) < times:
        time.sleep(0.02)
    if scheduler.poll() is None:
        print("serves")
"""


@pytest.fixture(autouse=True)
def looks(tmp_path, monkeypatch):
    """Where a guard writes."""
    (tmp_path / "looks").touch()
    monkeypatch.setenv("LOOKS", str(tmp_path / "looks"))


def guarded(settings: str) -> str:
    """A scheduler with a guard."""
    guard = GUARD.format(settings)
    return f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {guard!r}, sys.argv[1]]).wait()"


def said(code: str) -> str:
    """By a program that starts processes as msrun does."""
    done = subprocess.run(
        [sys.executable, "-c", MSRUN + code], capture_output=True, text=True, timeout=HANGING, check=True
    )
    return done.stdout


def test_who_fails_ends_the_scheduler_of_its_own_job():
    code = f"""
schedulers = [start("MS_SCHED", "{WAIT}")]
os.environ["MS_OTHER"] = "1"
start("MS_WORKER", "print(msrun.all_here())", 0).wait()
other = start("MS_WORKER", "{WAIT}", 1)
start("MS_WORKER", "print(msrun.all_here()); msrun.end_scheduler()", 0).wait()
print(schedulers[0].wait(), other.poll())
other.kill()
"""
    assert said(code).splitlines() == ["False", "True", "-9 None"]


def test_a_worker_knows_an_msrun_that_waits_for_it(tmp_path):
    script = tmp_path / "msrun"
    script.write_text(MSRUN + "start('MS_WORKER', 'print(msrun.waiting_launcher())').wait()\nprint(os.getpid())\n")
    for words, waits in (["--join=True"], True), (["--join", "True"], True), (["--join=False"], False), ([], False):
        done = subprocess.run(
            [sys.executable, script, *words], capture_output=True, text=True, timeout=HANGING, check=True
        )
        found, pid = done.stdout.split()
        assert found == (pid if waits else "None")


@pytest.mark.parametrize(("limit", "end"), [(0.0, "worker.kill(), worker.wait()"), (1e9, "worker.kill()")])
def test_a_guard_ends_the_scheduler_when_all_its_workers_are_gone(limit, end):
    """Some time after, or at once where one is known to have failed: msrun has killed it, and does not ask."""
    code = f"""
scheduler = start("MS_SCHED", {guarded(f"msrun.GONE = {limit}")!r})
workers = [start("MS_WORKER", "{WAIT}", number) for number in (0, 1)]
looked(scheduler)
for worker in workers:
    {end}
print(scheduler.wait())
"""
    assert said(code).splitlines() == ["serves", "-9"]


@pytest.mark.parametrize(("local", "ends"), [(2, True), (1, False)])
def test_a_guard_ends_the_scheduler_of_workers_that_were_gone_before_it_looked(tmp_path, local, ends):
    """Of a job whose workers are all of this msrun; those of other machines may come later."""
    code = f"""
scheduler = start("MS_SCHED", {guarded("msrun.STARTED = 0.2")!r})
start("MS_WORKER", "{WAIT}", 1)
{"print(scheduler.wait())" if ends else "looked(scheduler, 12)"}
for process in psutil.Process().children(recursive=True):
    process.kill()
"""
    script = tmp_path / "msrun"
    script.write_text("import psutil\n" + MSRUN + code)
    command = [sys.executable, script, "--worker_num=2", "--local_worker_num", str(local)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGING, check=True)
    assert done.stdout == ("-9\n" if ends else "serves\n")
    assert ("a worker has ended before it joined" in done.stderr) == ends


@pytest.mark.skipif(sys.platform != "linux", reason="logs are found in /proc")
def test_a_scheduler_whose_port_is_taken_ends_the_workers_that_would_wait_for_it(tmp_path):
    """With a word in their logs; a port that is free, or that it does not know, changes nothing."""
    code = f"""
import socket
taken = socket.create_server(("127.0.0.1", 0))
start_so = start
def start(*given, port=taken.getsockname()[1]):
    os.environ["PORT"] = str(port)
    return start_so(*given)
worker = start("MS_WORKER", "{WAIT}", 0)
other = start("MS_WORKER", "{WAIT}", 1, port=1)
check = "try: msrun.check_port()\\nexcept ValueError as error: print(error, flush=True)"
start("MS_SCHED", check, port="none").wait()
print(worker.poll())
start("MS_SCHED", check).wait()
print(worker.wait(), other.poll())
other.kill()
"""
    program = (MSRUN + code).replace('"MS_SCHED_PORT": "1"', '"MS_SCHED_PORT": os.environ["PORT"]')
    with open(tmp_path / "log", "w") as log:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=log, text=True, timeout=HANGING, check=True
        )
    first, text, last = done.stdout.splitlines()
    assert (first, last) == ("None", "-9 None")
    assert text.startswith("another program listens at 127.0.0.1:") and text.endswith("give another --master_port")
    assert (tmp_path / "log").read_text().splitlines() == [text]


def test_the_guard_names_the_worker_that_ended_first():
    code = f"""
scheduler = start("MS_SCHED", {guarded("sys.stderr = sys.stdout")!r})
workers = [start("MS_WORKER", "{WAIT}", number) for number in (0, 1)]
looked(scheduler)
workers[1].kill(), workers[1].wait(), workers[0].kill()
scheduler.wait()
print(workers[1].pid)
"""
    *_, told, pid = said(code).splitlines()
    assert told == f"all workers are gone (rank 1 ({pid}) ended first), and not all were through: the scheduler ends"


@pytest.mark.parametrize("here", [True, False])
def test_what_is_wrong_where_all_workers_are_is_said_without_joining(monkeypatch, capsys, here):
    ended = []
    monkeypatch.setattr(together, "_came", False)
    monkeypatch.setattr(together, "read_job", lambda: Job(1, 2, 0, "msrun"))
    monkeypatch.setattr(together, "all_here", lambda: here)
    monkeypatch.setattr(together, "end_scheduler", lambda: ended.append("scheduler"))
    monkeypatch.setattr(join, "join", lambda limit: ended.append("joined") or join_fails())

    def join_fails():
        raise InputError("nobody came")

    with pytest.raises(InputError, match="no such key") as error:
        together.come_together(InputError("train.stepz: no such key"))
    assert ended == (["scheduler"] if here else ["joined"])
    assert error.value.said and capsys.readouterr().err == "rank 1: train.stepz: no such key\n"
