"""Processes that nobody watches notice the end of one another, and end."""

import contextlib
import socket
import time
from types import SimpleNamespace

import pytest

from pet.launching.environment import Job
from pet.parallel import collectives, peers
from pet.parallel.peers import HELLO, Peers, own_address
from pet.train.stop import Signals

HOST = socket.gethostname()
PLACES = ("127.0.0.1:9", "::1:9")


@pytest.fixture(params=PLACES[:1])
def job(monkeypatch, request):
    """Three processes of a job, and what each ended with: (rank, text)."""
    known, ended = [], []

    def gather(value, group):
        known.append(value)
        return known

    monkeypatch.setattr(collectives, "world", lambda: None)
    monkeypatch.setattr(collectives, "all_gather_object", gather)
    monkeypatch.setattr(peers, "GRACE", 0.0)
    monkeypatch.setattr(peers, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: time.sleep(0.01)))
    monkeypatch.setattr(peers.os, "_exit", lambda code: ended.append(code))
    return [Peers(Job(rank, 3, launcher="environment"), request.param) for rank in range(3)], ended


@pytest.fixture
def together(job, until):
    members, ended = job
    until(lambda: len(members[0].links) == 2)
    yield members, ended
    for member in members:
        member.leave()
        for link in [*member.links.values()]:
            with contextlib.suppress(OSError):  # its thread, which still listens, closes them
                link.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("job", PLACES, indirect=True)
def test_the_end_of_one_is_the_end_of_all(together, until, capsys):
    members, ended = together
    members[1].links[0].shutdown(socket.SHUT_RDWR)  # as the kernel does for a process that is killed
    said = [""]
    until(lambda: said.append(said[-1] + capsys.readouterr().err) or ("rank 0 is gone" in said[-1] and len(ended) >= 3))
    assert set(ended) == {1}
    assert said[-1].count(f"rank 1 on {HOST} is gone: this process ends, too") == 2  # rank 0 and, told by it, rank 2
    assert said[-1].count("rank 0 is gone") == 1


@pytest.mark.parametrize(
    ("checkpoint", "said"),
    [("step-000004", "; --resume goes on\n"), (None, "; there is no checkpoint yet to go on from\n")],
)
def test_a_run_is_said_to_go_on_where_it_can(job, capsys, checkpoint, said):
    members, ended = job
    with Signals(last_checkpoint=lambda: checkpoint).watch():
        members[1].end("rank 0 is gone")
    members[1].end("rank 0 is gone")  # of what is no run there is nothing to say
    first, last = capsys.readouterr().err.strip("\n").split("\n\n")
    assert f"{first}\n" == f"rank 0 is gone: this process ends, too{said}" and last + said != first
    assert last == "rank 0 is gone: this process ends, too" and ended == [1, 1]


def test_the_end_of_msruns_scheduler_is_the_end_of_all(together, monkeypatch, until, capsys):
    """It ends where a process hangs, whose connection stays; msrun does not look at it."""
    (member, *_), ended = together
    monkeypatch.setattr(peers, "TRIES", 1)
    with socket.create_server(("127.0.0.1", 0)) as scheduler:
        monkeypatch.setenv("MS_SCHED_HOST", "127.0.0.1")
        monkeypatch.setenv("MS_SCHED_PORT", str(scheduler.getsockname()[1]))
        member.scheduler = peers.to_scheduler()
        link = scheduler.accept()[0]
        link.close()  # it may close a connection that it does not know, and be there
        again = scheduler.accept()[0]
        assert ended == []
    again.close()
    until(lambda: len(ended) >= 3)
    assert "msrun's scheduler is gone" in capsys.readouterr().err


def test_the_end_of_an_msrun_that_waits_is_the_end_of_all(together, until, capsys):
    (member, *_), ended = together
    member.launcher = -1  # no parent of this process
    until(lambda: len(ended) >= 3)
    assert "msrun, which waited for it, is gone" in capsys.readouterr().err


def test_who_is_through_may_go(together, until):
    members, ended = together
    members[1].leave()
    until(lambda: 1 in members[0].left)
    members[1].links[0].shutdown(socket.SHUT_RDWR)
    until(lambda: 1 not in members[0].links)
    assert ended == [] and 2 in members[0].links


def test_strangers_take_nobodys_place(together, until):
    members, ended = together
    before = dict(members[0].links)
    with socket.create_connection(members[0].server.getsockname()) as stranger:
        stranger.sendall(b"0123456789abcdef 1 here".ljust(HELLO))
        stranger.settimeout(20)
        assert stranger.recv(1) == b""
    assert members[0].links == before and ended == []


def test_a_step_that_a_signal_does_not_end(together, monkeypatch):
    member, now = together[0][0], [100.0]
    monkeypatch.setattr(peers.time, "monotonic", lambda: now[0])
    signals = [False]
    monkeypatch.setattr(peers, "signalled", lambda: signals[0])
    member.step_began = 90.0
    assert not member.overdue()
    signals[0] = True
    assert not member.overdue()
    now[0] += peers.NOTICE
    assert not member.overdue()
    now[0] += 1.0
    assert member.overdue()
    member.step_began = None  # it has ended: what is saved now may take long
    assert not member.overdue()
    member.leave()


def test_the_address_is_that_of_the_network_in_which_the_others_are():
    assert own_address("127.0.0.1:8118") == "127.0.0.1"
    assert own_address("127.0.0.2:8118") in ("127.0.0.1", "127.0.0.2")
    assert own_address("::1:8118") == own_address("[::1]:8118") == "::1"
    assert own_address("nonsense")  # this machine's, whatever that is
