"""How a worker joins on each device: MindSpore's functions are stood in for, since no accelerator is here."""

import contextlib
import inspect
import os
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from threading import Event, Thread, Timer
from types import SimpleNamespace
from unittest.mock import Mock

import mindspore as ms
import pytest
from mindspore import communication
from mindspore.communication import management
from mindspore.mint import distributed
from waiting import HANGING

from model_zoo.errors import InputError
from pet.launching import heartbeat
from pet.launching.addresses import free_address, reserve
from pet.launching.environment import OF_A_JOB, Job
from pet.parallel import collectives, join, meeting, peers, together

CONNECT = socket.create_connection


class Store:
    """MindSpore's store, with what others have counted in it."""

    def __init__(self, **counts: int):
        self.counts = Counter({"rank 0": 1, "rank 2": 1, "rank 3": 1, "of 4": 3, "processes": 3} | counts)

    def add(self, key: str, more: int) -> int:
        self.counts[key] += more
        return self.counts[key]


@pytest.fixture
def calls(monkeypatch) -> list[tuple]:
    """What MindSpore is asked for, in order, with the limits as they are in the environment then."""
    found: list[tuple] = []

    def note(name, result=None):
        def call(*arguments, **settings):
            found.append((name, arguments, settings))
            found.extend((key, os.environ.get(key), None) for key in join.WAIT_LIMITS if "init" in name)
            return result

        return call

    for key in join.WAIT_LIMITS:
        monkeypatch.setenv(key, "")  # so that what joining sets is taken back
        monkeypatch.delenv(key)
    monkeypatch.setenv("RANK_ID", "1")
    monkeypatch.setattr(join, "_job", None)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # joining puts another one there
    monkeypatch.setattr(join.atexit, "register", lambda function, **settings: None)
    monkeypatch.setattr(ms, "set_device", note("set_device"))
    monkeypatch.setattr(communication, "init", note("init"))
    monkeypatch.setattr(communication, "create_group", note("create_group"))
    monkeypatch.setattr(communication, "get_rank", lambda: 1)
    monkeypatch.setattr(communication, "get_group_size", lambda: 4)
    monkeypatch.setattr(communication, "GlobalComm", SimpleNamespace(INITED=False))
    monkeypatch.setattr(distributed, "TCPStore", lambda *arguments, **settings: note("store", Store())())
    monkeypatch.setattr(meeting.socket, "create_connection", lambda *arguments, **settings: contextlib.nullcontext())
    monkeypatch.setattr(distributed, "init_process_group", note("init_process_group"))
    for name in ("_init_with_store", "_init_without_sched"):
        if hasattr(management, name):
            monkeypatch.setattr(management, name, note("private init"))
    return found


def join_on(monkeypatch, target: str, launcher: str) -> Job:
    monkeypatch.setattr(ms, "get_context", lambda name: target)
    monkeypatch.setattr(join, "read_job", lambda: Job(1, 4, 5, launcher, "127.0.0.1:9999"))
    return join.join()


def names(calls) -> list[str]:
    return [name for name, *_ in calls if name not in join.WAIT_LIMITS]


@pytest.mark.parametrize("launcher", ["msrun", "rank_table"])
def test_on_ascend_mindspore_knows_msrun_and_rank_tables(monkeypatch, calls, launcher):
    assert join_on(monkeypatch, "Ascend", launcher).size == 4
    assert names(calls) == ["set_device", "init"]
    assert calls[0][1] == ("Ascend", 5)


@pytest.mark.parametrize("launcher", ["pet", "environment"])
def test_on_ascend_others_join_by_the_public_function(monkeypatch, calls, launcher):
    join_on(monkeypatch, "Ascend", launcher)
    assert names(calls) == ["set_device", "store", "init_process_group"]
    _, arguments, settings = calls[2]
    limit = timedelta(seconds={"pet": join.JOIN_LIMIT}.get(launcher, join.START_LIMIT))
    assert arguments == ("hccl",)
    assert isinstance(settings.pop("store"), Store)
    assert settings == {"world_size": 4, "rank": 1, "timeout": limit}


def test_who_shows_errors_still_does_so_when_mindspore_has_joined(monkeypatch, calls):
    """It puts the hook there that it found when it was imported, and a script may import it first."""
    shown = []
    monkeypatch.setattr(join, "_failed", False)
    monkeypatch.setattr(sys, "excepthook", lambda *error: shown.append(error))
    monkeypatch.setattr(communication, "init", lambda: monkeypatch.setattr(sys, "excepthook", None))
    join_on(monkeypatch, "CPU", "msrun")
    sys.excepthook(ValueError, ValueError("no"), None)
    assert len(shown) == 1 and join._failed


@pytest.mark.parametrize("launcher", ["pet", "environment", "rank_table"])
def test_on_a_cpu_the_private_function_is_called(monkeypatch, calls, launcher):
    """The public one refuses a CPU, and a rank table names addresses of accelerators."""
    join_on(monkeypatch, "CPU", launcher)
    assert names(calls) == ["store", "private init", "create_group"]


@pytest.mark.parametrize("launcher", ["pet", "msrun"])
def test_the_launcher_knows_that_a_process_is_still_joining(monkeypatch, calls, beats, launcher):
    """While MindSpore waits no signal is received, and nothing is there yet that could be saved."""
    seen = []
    for owner, *names in ((communication, "init"), (management, "_init_with_store", "_init_without_sched")):
        for name in names:
            monkeypatch.setattr(owner, name, lambda *_, **__: seen.append(beats()[1]), raising=False)
    join_on(monkeypatch, "CPU", launcher)
    assert seen == [heartbeat.JOINING] and beats()[1] != heartbeat.JOINING


@pytest.mark.parametrize("connecting", [None, join.MINDSPORES_LIMITS["HCCL_CONNECT_TIMEOUT"]])
def test_limits_are_set_before_joining_and_a_users_own_stay(monkeypatch, calls, connecting):
    if connecting:
        monkeypatch.setenv("HCCL_CONNECT_TIMEOUT", connecting)
    monkeypatch.setenv("HCCL_EXEC_TIMEOUT", "600")
    join_on(monkeypatch, "Ascend", "pet")
    limits = {name: value for name, value, _ in calls if name in join.WAIT_LIMITS}
    assert limits == {**join.WAIT_LIMITS, "HCCL_EXEC_TIMEOUT": "600"}
    assert 120 <= int(limits["HCCL_CONNECT_TIMEOUT"]) <= 7200  # what HCCL takes
    assert 68 <= int(join.WAIT_LIMITS["HCCL_EXEC_TIMEOUT"]) <= 17340


def test_importing_mindspore_sets_a_limit_of_its_own():
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HCCL_")}
    code = "import os, mindspore; print({k: v for k, v in os.environ.items() if k.startswith('HCCL_')})"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(join.MINDSPORES_LIMITS)


def test_arguments_of_the_stand_ins_are_those_of_mindspore():
    """The stand-ins above would hide it where a version has other ones."""
    place = {"store": None, "world_size": 4, "rank": 1, "timeout": None}
    inspect.signature(distributed.init_process_group).bind("hccl", **place)
    name = next(name for name in ("_init_with_store", "_init_without_sched") if hasattr(management, name))
    inspect.signature(getattr(management, name)).bind("mccl", **place)


@pytest.mark.parametrize("host", ["fd00::1", "no.such.host.invalid"])
def test_an_address_without_ipv4_is_refused(monkeypatch, calls, host):
    monkeypatch.setattr(ms, "get_context", lambda name: "CPU")
    monkeypatch.setattr(join, "read_job", lambda: Job(1, 4, 1, "environment", f"{host}:9999"))
    with pytest.raises(InputError, match=f"{host}: (has no IPv4 address|no such host)"):
        join.join()


@pytest.fixture
def beats(monkeypatch, tmp_path) -> Callable[[], list[float]]:
    """The last line that the launcher reads of this process: when it was written, the state, the seconds promised."""
    monkeypatch.setenv(heartbeat.BEAT_FILE, str(tmp_path / "beat"))
    return lambda: [float(part) for part in (tmp_path / "beat").read_bytes().split()[:3]]


@pytest.fixture
def meet(monkeypatch, capsys, beats):
    """Rank 1 of four meets the others in a store, a second between two looks: gives what it says and raises."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("time.sleep", lambda seconds: now.__setitem__(0, now[0] + 1.0))
    monkeypatch.setattr(meeting.socket, "create_connection", lambda *arguments, **settings: contextlib.nullcontext())

    def run(store) -> tuple[str, str]:
        monkeypatch.setattr(meeting, "store_at", lambda *arguments: store)
        with pytest.raises(InputError) as error, heartbeat.waiting():
            meeting.meet(Job(1, 4, 1, "environment", "127.0.0.1:9999"), 600, 20.0)
        return capsys.readouterr().err, str(error.value)

    return run


def test_processes_that_never_come_are_named_and_not_waited_for_for_ever(meet):
    said, error = meet(Store(**{"rank 3": 0, "of 4": 2, "processes": 2}))
    assert said == "rank 1: waiting at 127.0.0.1:9999 for ranks 3 of 4\n"
    assert error == "not all 4 processes joined at 127.0.0.1:9999 within 600 s: missing 3"


def test_processes_of_two_jobs_at_one_address_do_not_make_one(meet):
    assert "another process has this rank in a job at 127.0.0.1:9999" in meet(Store(**{"rank 1": 1}))[1]
    assert "RANK_SIZE is 4 here, and another number in others" in meet(Store(**{"of 4": 2}))[1]


@pytest.mark.parametrize("host", ["198.51.100.9", "127.0.0.1"])  # of documents, no machine's own
def test_rank_0_says_why_nobody_can_meet_there(monkeypatch, host):
    """MindSpore's store does not."""
    monkeypatch.setattr(meeting, "store_at", Mock(side_effect=RuntimeError("Failed to initialize the master node.")))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        job = Job(0, 4, 0, "environment", f"{host}:{taken.getsockname()[1]}")
        with pytest.raises(InputError) as error:
            meeting.serve(job)
    why = "another program has this port; give another one"
    if host != "127.0.0.1":
        why = "it is no address of this machine; MASTER_ADDR is that of the machine of rank 0"
    assert str(error.value) == f"the workers cannot meet at {job.master}: {why}"


def test_a_loopback_that_is_down_is_said_at_once():
    """MindSpore's store tried for a minute, in 7,788 lines."""
    code = (
        "from pet.launching.environment import Job\nfrom pet.parallel import meeting\n"
        "try:\n    meeting.serve(Job(0, 2, 0, 'pet', '127.0.0.1:9999'))\n"
        "except ValueError as error:\n    print(error)"
    )
    alone = ["unshare", "--net", "--map-root-user"]
    if not shutil.which("unshare") or subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("this user may make no network of its own")
    found = subprocess.run([*alone, sys.executable, "-c", code], capture_output=True, text=True, timeout=HANGING)
    assert found.stdout.startswith("the workers cannot meet at 127.0.0.1:9999: no network interface leads there"), found


def test_who_waits_for_rank_0_says_so(meet, monkeypatch):
    def refuse(*arguments, **settings):
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(meeting.socket, "create_connection", refuse)
    said, error = meet(None)
    assert said == "rank 1: waiting at 127.0.0.1:9999 for rank 0 (Connection refused)\n"
    assert error == "no rank 0 at 127.0.0.1:9999 within 600 s (Connection refused)"


@pytest.mark.parametrize("rank_0_is_there", [True, False])
def test_who_waits_shows_that_it_is_alive(meet, beats, monkeypatch, rank_0_is_there):
    """It sleeps in code of ours, and asks so rarely that it looks idle: `pet launch` took it for one that hangs."""
    seen: list[list[float]] = []
    monkeypatch.setattr(meeting, "repeat", lambda: (heartbeat.repeat(), seen.append(beats())))
    if not rank_0_is_there:
        monkeypatch.setattr(meeting.socket, "create_connection", Mock(side_effect=ConnectionRefusedError))
    meet(Store(**{"rank 3": 0, "of 4": 2, "processes": 2}))
    assert seen == [[float(second), heartbeat.WAITING, 0.0] for second in range(601)]


def test_no_python_code_is_kept_from_running_while_others_are_waited_for(tmp_path):
    """MindSpore's store would wait without letting any run, so that no signal was received, for minutes."""
    code = (
        "from pet.cli.imports import import_quickly\nimport_quickly()\nimport threading, time\n"
        "from pet.launching.addresses import free_address\nfrom pet.launching.environment import Job\n"
        "from pet.parallel import meeting\nfrom mindspore.mint import distributed\n"
        "ran = []\n"
        "def run():\n    while True: time.sleep(0.01), ran.append(time.monotonic())\n"
        "threading.Thread(target=run, daemon=True).start()\n"
        "port = free_address()[1]\n"
        "try:\n    meeting.meet(Job(0, 2, master=f'127.0.0.1:{port}'), 3.0, 1.0)\n"
        "except meeting.InputError as error:\n    print(error, len(ran) > 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANGING)
    assert "within 3 s: missing 1 True" in done.stdout, done.stderr
    assert "rank 0: waiting at" in done.stderr


def test_a_worker_of_msrun_has_said_what_it_waits_for(monkeypatch, calls, until, capfd):
    """By another process: while MindSpore waits no Python code of this one runs."""

    def init():
        until(lambda: "waiting" in said[-1] or said.append(said[-1] + capfd.readouterr().err))

    said = [""]
    monkeypatch.setattr(join, "PATIENCE", 0.05)
    monkeypatch.setattr(communication, "init", init)
    monkeypatch.setenv("MS_SCHED_HOST", "10.0.0.1")
    monkeypatch.setenv("MS_SCHED_PORT", "8118")
    join_on(monkeypatch, "CPU", "msrun")
    assert said[-1] == "rank 1: waiting at 10.0.0.1:8118 for all 4 processes of the job\n"
    monkeypatch.setattr(join, "_job", None)
    monkeypatch.setattr(communication, "init", lambda: None)
    join_on(monkeypatch, "CPU", "msrun")
    assert capfd.readouterr().err == ""


def test_a_worker_of_msrun_asks_when_the_scheduler_listens_and_none_of_its_threads_is_faster(monkeypatch, calls):
    """What MindSpore starts meanwhile does not take the core from the thread that asks; later it does as any other."""
    address, served, ended, policies = free_address(), [], Event(), []

    def serve():
        served.append(socket.create_server(address))

    def init():
        thread = Thread(target=ended.wait)
        thread.start()
        policies.append(([*served], thread, os.sched_getscheduler(thread.native_id)))

    monkeypatch.setattr(communication, "init", init)
    monkeypatch.setattr(socket, "create_connection", CONNECT)
    monkeypatch.setenv("MS_SCHED_HOST", address[0])
    monkeypatch.setenv("MS_SCHED_PORT", str(address[1]))
    Timer(0.5, serve).start()
    join_on(monkeypatch, "CPU", "msrun")
    [(listening, thread, policy)] = policies
    assert listening and policy == os.SCHED_BATCH
    assert os.sched_getscheduler(0) == os.sched_getscheduler(thread.native_id) == os.SCHED_OTHER
    ended.set()
    served[0].close()


@pytest.mark.parametrize("launcher", ["pet", "msrun"])
@pytest.mark.parametrize("mine", [None, "train.steps: must be positive"])
def test_what_is_wrong_on_one_machine_is_said_on_all(monkeypatch, capsys, launcher, mine):
    """``pet launch`` ends the others by itself; nobody else does before they have joined. It is said here at once: the
    others may never come."""
    joined = []
    monkeypatch.setattr(together, "_came", False)
    monkeypatch.setattr(together, "read_job", lambda: Job(1, 2, 0, launcher))
    monkeypatch.setattr(join, "join", lambda limit: joined.append(capsys.readouterr().err) or Job(1, 2, 0, launcher))
    monkeypatch.setattr(peers, "watch", lambda: None)
    monkeypatch.setattr(collectives, "world", lambda: None)
    monkeypatch.setattr(
        collectives, "all_gather_object", lambda value, group: [("data.train: no such file", "a"), value]
    )
    monkeypatch.setattr(join, "part", lambda: joined.append("parted"))
    expected = {"pet": mine, "msrun": "rank 0 on a: data.train: no such file"}[launcher]

    def read():
        with together.shared_errors():
            if mine:
                raise InputError(mine)

    if expected is None:
        return read()
    with pytest.raises(InputError) as error:
        read()
    assert expected in str(error.value) and (mine or "") in str(error.value)
    # who ended at once might leave another one without the message
    assert joined == ([] if launcher == "pet" else [f"rank 1: {mine}\n" if mine else "", "parted"])


def test_what_a_single_worker_of_msrun_finds_wrong_ends_it(monkeypatch):
    """Also where the processes that msrun has started cannot be looked at: nobody else is there to say it."""
    alone = Job(0, 1, 0, "msrun")
    monkeypatch.setattr(together, "_came", False)
    monkeypatch.setattr(together, "read_job", lambda: alone)
    monkeypatch.setattr(together, "all_here", lambda: False)
    monkeypatch.setattr(join, "join", lambda limit=None: alone)
    with pytest.raises(InputError, match="no such file"), together.shared_errors():
        raise InputError("data.train: no such file")


@pytest.mark.slow
def test_processes_of_torchrun_meet(tmp_path):
    """Its own port is taken, by itself."""
    pytest.importorskip("torch", reason="torchrun comes with torch")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom pet.parallel.join import barrier, join\njob = join()\nbarrier()\n"
        "sys.stdout.write(f'{job.rank} {job.size} {job.master}\\n')\n"
    )
    environment = {key: value for key, value in os.environ.items() if key not in OF_A_JOB}
    with reserve() as held:  # which is ours; torchrun takes the one before
        port = held.getsockname()[1]
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node=2",
            f"--master-port={port - 1}",
            script,
        ]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANGING)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")) == ["", f"0 2 127.0.0.1:{port}", f"1 2 127.0.0.1:{port}"]
