"""Workers that nobody launched are watched by processes of their own, which judge together."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import HANGING

from model_zoo.errors import InputError
from pet.launching import msrun, sentinel
from pet.launching.addresses import free_address
from pet.launching.environment import Job
from pet.launching.heartbeat import BEAT_FILE
from pet.launching.link import Link

WORKER = """
import contextlib, json, os, shutil, signal, sys, threading, time
import psutil
from pet.launching import heartbeat, sentinel
from pet.launching.environment import Job
rank, port, address = int(os.environ["RANK_ID"]), int(os.environ["PORT"]), os.environ["ADDRESS"]
scheduled = "MS_SCHED_PORT" in os.environ
if scheduled:
    sentinel.scheduler, sentinel.waiting_launcher = lambda: "127.0.0.1:" + os.environ["MS_SCHED_PORT"], lambda: None
def listen():  # as pet.parallel.peers, which needs MindSpore
    while not link.closed:
        told = link.wait(time.monotonic() + 1.0).get("end")
        if told and DEAF not in os.environ:
            print(told + ": told so", file=sys.stderr, flush=True)
            os._exit(1)
def sentinels():
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            mine = all(process.environ().get(name) == os.environ[name] for name in ("PORT", "RANK_ID"))
            if mine and process.pid != os.getpid():
                yield process
def has_joined():
    with contextlib.suppress(psutil.Error):
        found = [each for process in sentinels() for each in process.net_connections("tcp")]
        return any(each.status == "ESTABLISHED" and each.raddr.port == port for each in found)
def lose():  # as where its machine is gone, after the sentinels have met
    while not has_joined():
        time.sleep(0.05)
    time.sleep(0.5)  # for what they say to each other first
    for process in sentinels():
        process.kill()
    shutil.rmtree(os.path.dirname(os.environ[heartbeat.BEAT_FILE]))
    os.kill(os.getpid(), 9)
with heartbeat.watched():
    heartbeat.tick()
    link = sentinel.start(Job(rank, 2, launcher="msrun" if scheduled else "environment"), (address, port), "the same")
    threading.Thread(target=listen, daemon=True).start()
    print(os.environ[heartbeat.BEAT_FILE], flush=True)
    if rank == 0:
        with heartbeat.waiting():
            sys.stdin.read()
    else:
        {}
    link.send({{"leaving": True}})
""".replace("DEAF", '"DEAF"')


HANGS = {"loop": "while True: pass", "sleep": "time.sleep(1000)", "stop": "os.kill(os.getpid(), 19)"}
FINE = {"short": "pass", "silent": "heartbeat.rest(); time.sleep(5)", "user": "with heartbeat.pausing(): time.sleep(5)"}
GONE = {"killed": "os.kill(os.getpid(), 9)", "six": "os._exit(3)", "deaf": "os._exit(3)"}
GONE |= {"lost": "lose()", "says": "link.send(dict(end='rank 1 failed: a fault')); os._exit(3)"}


def start(name: str, fault: str, **more: str) -> list[subprocess.Popen]:
    """Two workers, of which the first waits for the second, and where that is fine until it has ended."""
    environment = {**os.environ, "RANK_SIZE": "2", sentinel.VARIABLE: "2", **more}
    environment |= {"PORT": str(free_address()[1]), "ADDRESS": "::1" if name == "six" else "127.0.0.1"}
    environment |= {"DEAF": "1"} if name == "deaf" else {}  # no Python code of the first runs when it is told
    command = [sys.executable, "-c", WORKER.format(fault)]
    source, end = os.pipe()
    pair = []
    for rank, inherits in ((0, ()), (1, (end,) if name in FINE else ())):
        given = {"stdin": source, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "pass_fds": inherits}
        pair.append(subprocess.Popen(command, env={**environment, "RANK_ID": str(rank)}, text=True, **given))
    os.close(source)
    if name in FINE:
        os.close(end)
    return pair


@pytest.fixture(scope="module")
def pairs() -> dict[str, list[subprocess.Popen]]:
    """All of them at once: they wait most of their time."""
    return {name: start(name, code) for name, code in (HANGS | FINE | GONE).items()}


@pytest.fixture
def ended(pairs, request, until) -> tuple[list[int], list[str]]:
    """The exit codes of two workers, and what stands in their logs."""
    return finish(pairs[request.param], until)


def finish(pair, until) -> tuple[list[int], list[str]]:
    said = [each.communicate(timeout=HANGING) for each in pair]
    until(lambda: not any(Path(out.strip()).parent.exists() for out, _ in said))  # the sentinels have ended, too
    return [each.returncode for each in pair], [log for _, log in said]


@pytest.mark.parametrize("ended", HANGS, indirect=True)
def test_who_hangs_is_ended_and_all_say_why(ended):
    codes, logs = ended
    assert codes[0] == 1 and codes[1] in (-6, -9)
    assert all("rank 1 hangs: it" in log for log in logs) and "this process ends" in logs[1]
    assert "rank 1 hangs" in logs[0] and logs[0].endswith(": told so\n")


@pytest.mark.parametrize("ended", FINE, indirect=True)
def test_who_works_or_says_nothing_does_not_hang(ended):
    assert ended == ([0, 0], ["", ""])


@pytest.mark.parametrize("ended", GONE, indirect=True)
def test_the_end_of_one_is_the_end_of_all(ended, request):
    codes, logs = ended
    kind = request.node.callspec.id
    assert codes == [-9 if kind == "deaf" else 1, -9 if kind in ("killed", "lost") else 3]
    end = "this process, which does not end by itself, is killed" if kind == "deaf" else "told so"
    place = f"rank 1 on {socket.gethostname()}"
    memory = "as the system does where memory runs out, the machine's or the container's"
    why = {"killed": f"{place} was killed by SIGKILL ({memory})", "says": "rank 1 failed: a fault"}
    why |= {"lost": "rank 1 is gone, with its sentinel (127.0.0.1: it closed the connection)"}
    assert logs[0].strip() == f"{why.get(kind, f'{place} ended with exit code 3')}: {end}" and logs[1] == ""


@pytest.mark.full
def test_the_end_of_msruns_scheduler_is_the_end_of_all(until):
    """It ends where a process hangs, whose connection stays; msrun does not look at it. It may close a connection that
    it does not know, and be there."""
    with socket.create_server(("127.0.0.1", 0)) as scheduler:
        scheduler.settimeout(300)
        pair = start(
            "", "time.sleep(1000)", MS_SCHED_PORT=str(scheduler.getsockname()[1]), **{sentinel.VARIABLE: "300"}
        )
        links = [scheduler.accept()[0] for _ in pair]
        links.pop().close()
        links.append(scheduler.accept()[0])
        assert [each.poll() for each in pair] == [None, None]
    for link in links:
        link.close()
    codes, logs = finish(pair, until)
    assert codes == [1, 1] and all("msrun's scheduler is gone" in log for log in logs)


def test_an_msrun_that_is_gone_is_missed():
    said = {"pid": os.getpid(), "rank": 1, "directory": ""}
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for launcher, expected in ((-1, "rank 1: msrun, which waited for it, is gone"), (os.getppid(), None)):
            assert sentinel.Sentinel({**said, "launcher": launcher}, Link(ours), 2).starter_is_gone() == expected


def test_who_has_ended_the_scheduler_is_named_before_it(monkeypatch):
    """A worker that fails ends it; the sentinels hear of that meanwhile, and go on."""
    now = [100.0]
    monkeypatch.setattr(msrun.time, "monotonic", lambda: now[0])
    with socket.create_server(("127.0.0.1", 0)) as server:
        scheduler = msrun.Scheduler(f"127.0.0.1:{server.getsockname()[1]}")
        server.accept()[0].close()
    found = []
    for _ in range(msrun.TRIES + 2):
        found.append(scheduler.gone())
        assert scheduler.gone() == found[-1]  # asked at once, it answers at once, and no try has passed
        now[0] += 1.1
    assert found == [False] * msrun.TRIES + [True, True]


def test_who_cannot_reach_the_others_says_so_and_looks_after_its_worker(monkeypatch):
    def nobody(circle):
        raise InputError("no machine 0")

    monkeypatch.setattr(sentinel.Circle, "__enter__", nobody)
    worker = subprocess.Popen(["sleep", "1000"])
    ours, theirs = socket.socketpair()
    source, log = os.pipe()
    with ours, theirs, open(source) as said:
        facts = {"pid": worker.pid, "rank": 1, "size": 2, "directory": "", "address": ("a", 1), "secret": "s" * 16}
        watcher = sentinel.Sentinel({**facts, "launcher": -1}, Link(ours), log)
        monkeypatch.setattr(sentinel, "PARTING", 0.0)
        watcher.keep_watch()
        os.close(log)
        assert worker.wait(HANGING) == -9 and Link(theirs).next() == {
            "end": "rank 1: msrun, which waited for it, is gone"
        }
        assert said.read().split("\n")[1] == "rank 1 will not notice if another one hangs or is gone: no machine 0"


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


def test_a_launcher_watches_by_itself_and_nobody_need_be_watched(monkeypatch, capsys):
    monkeypatch.setenv(BEAT_FILE, "that of a launcher")
    assert sentinel.beat_directory(Job(1, 2)) == ""
    monkeypatch.delenv(BEAT_FILE)
    monkeypatch.setattr(sentinel.tempfile, "tempdir", "/dev/null/full")
    assert sentinel.beat_directory(Job(1, 2)) == ""
    assert capsys.readouterr().err == "rank 1: nobody will notice if it hangs: Not a directory: /dev/null/full\n"
    monkeypatch.setenv(sentinel.VARIABLE, "0")
    assert sentinel.beat_directory(Job(1, 2)) == ""
    assert BEAT_FILE not in os.environ
    monkeypatch.setenv(sentinel.VARIABLE, "never")
    with pytest.raises(InputError, match="PET_HANG_TIMEOUT must be seconds, 0 for never, not 'never'"):
        sentinel.limit()
