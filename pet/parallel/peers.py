"""A process of a job that `pet launch` did not start, as its sentinel sees it (`pet.launching.sentinel`).

A collective of MindSpore waits for a process that is gone, as it does for one that compiles. So each process has a
sentinel beside it, and the sentinels of a job tell each other who is gone, or hangs. Each tells its own process, which
ends. Where a cluster's system sends SIGTERM, they end after the step, and where that does not end either, after
`NOTICE` seconds.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
import threading
import time

from pet.launching import sentinel
from pet.launching.addresses import reserve
from pet.launching.environment import Job, split_address
from pet.launching.link import Link
from pet.launching.msrun import end_scheduler, scheduler
from pet.parallel import collectives, join
from pet.train.stop import remainder, signalled

NOTICE = 60.0
"""Seconds that a step may go on after a signal that is to end it, as the launcher's."""
GRACE = 3.0
"""Seconds between the end of one process and that of the others: they may have the same error to tell."""

_peer: Peer | None = None


def watch() -> None:
    """From now on this process ends when another one of the job is gone. All must call this."""
    global _peer
    job = join.join()
    if _peer is not None or not job.distributed or job.launcher == "pet":
        return
    held = reserve(own_address(job.master or scheduler())) if job.rank == 0 else None  # for the sentinel of rank 0
    place = held and (*held.getsockname()[:2], secrets.token_hex(16))
    host, port, token = collectives.all_gather_object(place, collectives.world())[0]
    _peer = Peer(job, sentinel.start(job, (host, port), token), held)
    join.on_leaving(_peer.leave)


class Peer(threading.Thread):
    """Listens to this process's sentinel.

    Args:
        link: the connection to it.
        held: what keeps the port of rank 0's sentinel free.

    Attributes:
        leaving: whether this process is through.
        step_began, signalled: when the step began that runs, and when a signal was first seen; else None.
    """

    def __init__(self, job: Job, link: Link, held: socket.socket | None = None):
        super().__init__(name="peers", daemon=True)
        self.job, self.link, self.held, self.leaving = job, link, held, False
        self.step_began = self.signalled = None
        self.start()

    def run(self) -> None:
        while not self.leaving:
            told = self.link.wait(time.monotonic() + 1.0).get("end")
            if told is None and self.link.closed:
                told = f"rank {self.job.rank}: its sentinel is gone"
            if told is None and self.overdue():
                told = f"rank {self.job.rank}: the step did not end within {NOTICE:.0f} s of the signal"
                self.link.send({"end": told})
            if told is not None:
                self.end(told)

    def overdue(self) -> bool:
        """Whether the step that was to be the last does not end."""
        if not signalled():
            self.signalled = None
        elif self.signalled is None:
            self.signalled = time.monotonic()
        began = self.step_began
        return None not in (self.signalled, began) and time.monotonic() - max(self.signalled, began) > NOTICE

    def end(self, text: str) -> None:
        """Ends this process, unless it is about to end by itself."""
        time.sleep(GRACE)
        if not self.leaving:
            with contextlib.suppress(Exception):
                told = "; ".join(filter(None, (f"\n{text}: this process ends, too", remainder(self.job.rank == 0))))
                print(told, file=sys.stderr, flush=True)
            end_scheduler()
            os._exit(1)

    def leave(self, why: str = "") -> None:
        """Says that the end of this process is no reason for the others to end; or why it is one."""
        self.leaving = True
        self.link.send({"end": f"rank {self.job.rank} on {socket.gethostname()} {why}"} if why else {"leaving": True})


def own_address(place: str) -> str:
    """This machine's address in the network in which another one lies."""
    with contextlib.suppress(Exception):
        family, *_, address = socket.getaddrinfo(*split_address(place), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing
            return probe.getsockname()[0]
    return socket.gethostbyname(socket.gethostname())


def step_begins() -> None:
    """A step begins, which others take part in."""
    if _peer is not None:
        _peer.step_began = time.monotonic()


def step_ends() -> None:
    """It has ended."""
    if _peer is not None:
        _peer.step_began = None
