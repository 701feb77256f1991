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

from pet.launching.environment import Job
from pet.parallel import join


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
    monkeypatch.setattr(join, "_print_failures", lambda: None)
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
    limit = timedelta(seconds=join.JOIN_LIMIT)
    assert arguments == ("hccl",)
    assert settings == {"store": "the store", "world_size": 4, "rank": 1, "timeout": limit}


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
