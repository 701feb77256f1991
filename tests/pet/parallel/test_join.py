"""How a worker joins on each device: MindSpore's functions are stood in for, since no accelerator is here."""

import inspect
import os
import subprocess
import sys
from datetime import timedelta
from types import SimpleNamespace

import mindspore as ms
import pytest
from mindspore import communication
from mindspore.communication import management
from mindspore.mint import distributed

from model_zoo.errors import InputError
from pet.launching.environment import Job
from pet.parallel import collectives, join, peers, together


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
    monkeypatch.setattr(join.atexit, "register", lambda function: None)
    monkeypatch.setattr(ms, "set_device", note("set_device"))
    monkeypatch.setattr(communication, "init", note("init"))
    monkeypatch.setattr(communication, "create_group", note("create_group"))
    monkeypatch.setattr(communication, "get_rank", lambda: 1)
    monkeypatch.setattr(communication, "get_group_size", lambda: 4)
    monkeypatch.setattr(communication, "GlobalComm", SimpleNamespace(INITED=False))
    monkeypatch.setattr(distributed, "TCPStore", note("store", "the store"))
    monkeypatch.setattr(distributed, "init_process_group", note("init_process_group"))
    for name in ("_init_with_store", "_init_without_sched"):
        if hasattr(management, name):
            monkeypatch.setattr(management, name, note("private init"))
    return found


def join_on(monkeypatch, target: str, launcher: str) -> Job:
    monkeypatch.setattr(ms, "get_context", lambda name: target)
    monkeypatch.setattr(join, "read_job", lambda: Job(1, 4, 1, 5, launcher, "127.0.0.1:9999"))
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
    assert settings == {"store": "the store", "world_size": 4, "rank": 1, "timeout": limit}


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
    monkeypatch.setattr(join, "read_job", lambda: Job(1, 4, 1, 1, "environment", f"{host}:9999"))
    with pytest.raises(InputError, match=f"{host}: (has no IPv4 address|no such host)"):
        join.join()


def test_processes_that_never_come_are_not_waited_for_for_ever(monkeypatch, calls):
    """MindSpore's store comes back at its limit, though not all are there."""
    now = [0.0]

    def store(*arguments, **settings):
        now[0] += join.START_LIMIT

    monkeypatch.setattr(join.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(distributed, "TCPStore", store)
    with pytest.raises(InputError, match=r"not all 4 processes joined at 127\.0\.0\.1:9999 within 600 s"):
        join_on(monkeypatch, "CPU", "environment")


def test_a_worker_says_what_it_waits_for(monkeypatch, calls, until, capsys):
    def init():
        until(lambda: "msrun" in said or said.append(capsys.readouterr().err) or "waiting" in said[-1])

    said: list[str] = []
    monkeypatch.setattr(join, "PATIENCE", 0.05)
    monkeypatch.setattr(communication, "init", init)
    monkeypatch.setenv("MS_SCHED_HOST", "10.0.0.1")
    monkeypatch.setenv("MS_SCHED_PORT", "8118")
    join_on(monkeypatch, "CPU", "msrun")
    assert said[-1] == "rank 1: waiting at 10.0.0.1:8118 for all 4 processes of the job\n"


@pytest.mark.parametrize("launcher", ["pet", "msrun"])
@pytest.mark.parametrize("mine", [None, "train.steps: must be positive"])
def test_what_is_wrong_on_one_machine_is_said_on_all(monkeypatch, capsys, launcher, mine):
    """``pet launch`` ends the others by itself; nobody else does before they have joined. It is said here at once: the
    others may never come."""
    joined = []
    monkeypatch.setattr(together, "_came", False)
    monkeypatch.setattr(together, "read_job", lambda: Job(1, 2, 0, 0, launcher))
    monkeypatch.setattr(join, "join", lambda limit: joined.append(capsys.readouterr().err))
    monkeypatch.setattr(peers, "watch", lambda: None)
    monkeypatch.setattr(collectives, "world", lambda: None)
    monkeypatch.setattr(
        collectives, "all_gather_object", lambda value, group: [("data.train: no such file", "a"), value]
    )
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
    assert joined == ([] if launcher == "pet" else [f"rank 1: {mine}\n" if mine else ""])
