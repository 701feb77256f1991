"""Processes that nobody watches notice the end of one another, by their sentinels, and end."""

import contextlib
import dataclasses
import socket

import pytest

from pet.launching.environment import Job
from pet.launching.link import Link
from pet.parallel import peers
from pet.parallel.peers import Peer, own_address
from pet.train.stop import Signals


@pytest.fixture
def peer(monkeypatch):
    """A process of a job, its sentinel's side of the connection, and what it ended with."""
    ended = []
    monkeypatch.setattr(peers, "GRACE", 0.0)

    def end(code):
        ended.append(code)
        member.leaving = True  # its thread ends

    monkeypatch.setattr(peers.os, "_exit", end)
    ours, theirs = socket.socketpair()
    with contextlib.closing(Link(theirs)) as sentinel:
        member = Peer(Job(1, 3, launcher="environment"), Link(ours))
        yield member, sentinel, ended
        member.leave()
    member.join()
    ours.close()


@pytest.mark.parametrize(
    ("rank", "checkpoint", "said"),
    [
        (1, "step-000004", "; --resume goes on\n"),
        (0, None, "; there is no checkpoint yet to go on from\n"),
        (1, None, "\n"),  # the main process's machine may have one
        (0, "", "\n"),
    ],
)
def test_who_is_told_so_ends_and_says_whether_the_run_goes_on(peer, capsys, rank, checkpoint, said):
    member, sentinel, ended = peer
    member.job = dataclasses.replace(member.job, rank=rank)
    run = Signals(last_checkpoint=lambda: checkpoint).watch() if checkpoint != "" else contextlib.nullcontext()
    with run:  # of what is no run there is nothing to say
        sentinel.send({"end": "rank 0 is gone"})
        member.join()
    assert capsys.readouterr().err == f"\nrank 0 is gone: this process ends, too{said}" and ended == [1]


def test_the_end_of_the_sentinel_is_the_end_of_its_process(peer, capsys):
    member, sentinel, ended = peer
    sentinel.close()
    member.join()
    assert capsys.readouterr().err == "\nrank 1: its sentinel is gone: this process ends, too\n" and ended == [1]


def test_who_is_through_may_go(peer, until):
    member, sentinel, ended = peer
    member.leave()
    sentinel.send({"end": "rank 0 is gone"})
    member.join()
    assert ended == [] and sentinel.wait(float("inf")) == {"leaving": True}


def test_who_fails_says_why(peer):
    member, sentinel, ended = peer
    member.leave("failed: ArithmeticError: a fault")
    why = {"end": f"rank 1 on {socket.gethostname()} failed: ArithmeticError: a fault"}
    assert sentinel.wait(float("inf")) == why and ended == []


def test_a_step_that_a_signal_does_not_end(peer, monkeypatch):
    member, now = peer[0], [100.0]
    member.leave()  # the thread looks, too
    member.join()
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


def test_the_others_are_told_of_a_step_that_a_signal_does_not_end(peer, monkeypatch, capsys):
    member, sentinel, ended = peer
    monkeypatch.setattr(member, "overdue", lambda: True)
    member.join()
    assert sentinel.next() == {"end": "rank 1: the step did not end within 60 s of the signal"} and ended == [1]


def test_the_address_is_that_of_the_network_in_which_the_others_are():
    assert own_address("127.0.0.1:8118") == "127.0.0.1"
    assert own_address("127.0.0.2:8118") in ("127.0.0.1", "127.0.0.2")
    assert own_address("::1:8118") == own_address("[::1]:8118") == "::1"
    assert own_address("nonsense")  # this machine's, whatever that is
