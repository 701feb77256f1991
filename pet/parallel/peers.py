"""Who watches the processes of a job that `pet launch` did not start: they do so themselves.

A collective of MindSpore waits for a process that is gone, as it does for one that compiles. So each process keeps a
connection to rank 0. It ends when a process does, however that was, and soon after its machine or its network is gone,
which the kernels find out by themselves: Python may be busy. Then rank 0 tells the others, and all end.

A process that hangs is ended by its sentinel (`pet.launching.sentinel`). One that is stopped is missed by msrun's
scheduler, too, which ends. msrun looks at the workers alone, and would wait for ever; so each of them keeps a
connection to the scheduler. Where a cluster's system sends SIGTERM, they end after the step, and where that does not
end either, after `NOTICE` seconds.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import sys
import threading
import time

from model_zoo.errors import InputError
from pet.launching import sentinel
from pet.launching.addresses import reserve
from pet.launching.environment import Job, split_address
from pet.launching.msrun import end_scheduler, waiting_launcher
from pet.parallel import collectives, join
from pet.train.stop import remainder, signalled

NOTICE = 60.0
"""Seconds that a step may go on after a signal that is to end it, as the launcher's."""
GRACE = 3.0
"""Seconds between the end of one process and that of the others: they may have the same error to tell."""
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 4}
"""Seconds until a silent connection is probed, between two probes, and probes without an answer after which it ends."""
TRIES = 3
"""Times that msrun's scheduler is asked again, a second apart, before it is taken for gone."""
HELLO = 256
"""Bytes of a message."""

_peers: Peers | None = None


def watch() -> None:
    """From now on this process ends when another one of the job is gone. All must call this."""
    global _peers
    job = join.join()
    if _peers is not None or not job.distributed or job.launcher == "pet":
        return
    _peers = Peers(job, job.master or join.scheduler())
    sentinel.start(job, _peers.sentinels, _peers.token)
    join.on_leaving(_peers.leave)


class Peers(threading.Thread):
    """The connections of one process: of rank 0 those to all others.

    Args:
        place: host and port where the job met; what leads there leads to the other machines, too.

    Attributes:
        links: connections by rank.
        hosts: names of the machines, as far as rank 0 knows them.
        sentinels: where that of rank 0 listens.
        launcher: id of the msrun that waits for this process.
        left: ranks that said that they are through.
        leaving: whether this process is.
        step_began, signalled: when the step began that runs, and when a signal was first seen; else None.
    """

    def __init__(self, job: Job, place: str):
        super().__init__(name="peers", daemon=True)
        self.job, self.host, self.links, self.left, self.leaving = job, socket.gethostname(), {}, set(), False
        self.hosts: dict[int, str] = {}
        self.step_began = self.signalled = None
        self.scheduler = to_scheduler() if job.launcher == "msrun" else None
        self.launcher = waiting_launcher() if job.launcher == "msrun" else None
        self.server = serve(own_address(place)) if job.rank == 0 else None
        own = None
        if self.server is not None:
            address = self.server.getsockname()[:2]
            self.held = reserve(address[0])  # for rank 0's sentinel
            own = (*address, self.held.getsockname()[1], secrets.token_hex(16))
        *address, port, self.token = collectives.all_gather_object(own, collectives.world())[0]
        self.sentinels = address[0], port
        if self.server is None:
            try:
                link = socket.create_connection(tuple(address), timeout=10.0)
                link.sendall(f"{self.token} {job.rank} {self.host}".encode().ljust(HELLO))
                self.add(0, link)
            except OSError as error:
                where = f"{address[0]}:{address[1]} ({error})"
                print(f"rank {job.rank} cannot reach rank 0 at {where}: it will not notice its end", file=sys.stderr)
        self.start()

    def add(self, rank: int, link: socket.socket) -> None:
        link.settimeout(10.0)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):
                link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self.links[rank] = link

    def run(self) -> None:
        while True:
            sources = {link: rank for rank, link in self.links.items()}
            others = {self.server: self.admit, self.scheduler: self.look_for_scheduler}
            listened = [*sources, *(one for one in others if one is not None)]
            for ready in select.select(listened, [], [], 1.0)[0]:
                self.hear(sources[ready]) if ready in sources else others[ready]()
            if self.launcher is not None and os.getppid() != self.launcher:
                self.launcher = None
                self.end(f"rank {self.job.rank}: msrun, which waited for it, is gone")
            if self.overdue():
                self.end(f"rank {self.job.rank}: the step did not end within {NOTICE:.0f} s of the signal")

    def admit(self) -> None:
        """Whoever connects to rank 0 and knows the job's token."""
        with contextlib.suppress(OSError, ValueError):
            link = self.server.accept()[0]
            link.settimeout(2.0)
            token, rank, host = link.recv(HELLO, socket.MSG_WAITALL).decode().split()
            if secrets.compare_digest(token, self.token):
                self.hosts[int(rank)] = host
                self.add(int(rank), link)

    def hear(self, rank: int) -> None:
        try:
            said = self.links[rank].recv(HELLO, socket.MSG_WAITALL).decode(errors="replace").strip()
        except OSError:
            said = ""
        if said == "leaving":
            self.left.add(rank)
            return
        self.links.pop(rank).close()
        if rank not in self.left:
            self.end(said or f"rank {rank}{self.place_of(rank)} is gone")

    def look_for_scheduler(self) -> None:
        """It has sent something, or is gone."""
        with contextlib.suppress(OSError):
            if self.scheduler.recv(HELLO):
                return
        self.scheduler.close()
        for _ in range(TRIES):
            time.sleep(1.0)
            if (link := to_scheduler()) is not None:
                self.scheduler = link
                return
        self.scheduler = None
        self.end("msrun's scheduler is gone, as it is where a process hangs; see scheduler.log")

    def place_of(self, rank: int) -> str:
        return f" on {self.hosts[rank]}" if rank in self.hosts else ""

    def overdue(self) -> bool:
        """Whether the step that was to be the last does not end."""
        if not signalled():
            self.signalled = None
        elif self.signalled is None:
            self.signalled = time.monotonic()
        began = self.step_began
        return None not in (self.signalled, began) and time.monotonic() - max(self.signalled, began) > NOTICE

    def end(self, text: str) -> None:
        """Ends this process, unless it is about to end by itself; tells the others why."""
        if self.job.rank == 0:
            self.say(text)
        time.sleep(GRACE)
        if not self.leaving:
            with contextlib.suppress(Exception):
                told = "; ".join(filter(None, (f"\n{text}: this process ends, too", remainder())))
                print(told, file=sys.stderr, flush=True)
            end_scheduler()
            os._exit(1)

    def leave(self) -> None:
        """Says that the end of this process is no reason for the others to end."""
        self.leaving = True
        self.say("leaving")

    def say(self, text: str) -> None:
        for link in [*self.links.values()]:
            with contextlib.suppress(OSError):
                link.sendall(text.encode()[:HELLO].ljust(HELLO))


def to_scheduler() -> socket.socket | None:
    """A connection to msrun's scheduler; None where it cannot be had."""
    with contextlib.suppress(OSError, InputError):
        host, port = split_address(join.scheduler())
        return socket.create_connection((host, port), timeout=10.0)
    return None


def serve(address: str) -> socket.socket:
    """Listens at an address of this machine, of IPv4 or IPv6, at a port that is free."""
    return socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)


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
    if _peers is not None:
        _peers.step_began = time.monotonic()


def step_ends() -> None:
    """It has ended."""
    if _peers is not None:
        _peers.step_began = None
