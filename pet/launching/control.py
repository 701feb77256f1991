"""How the launchers of several machines agree: where the workers meet, who is through, who has failed.

Machine 0 listens on the master address until all have joined; the others connect to it. Messages are lines of JSON. A
launcher that is not heard from for `SILENCE` seconds counts as lost, and the job ends everywhere.

Both sides prove that they know the job's secret, which itself is never sent: each gives the other a random challenge,
and signs both challenges with what it says (HMAC-SHA256)::

    machine 0                                       machine k
        challenge a                       ─────►
                                          ◄─────    nodes, node, workers, challenge b, proof("join", a, b, …)
        first_rank, size, port, proof("answer", a, b, …)  ─────►

Whoever else connects (a port scan, a browser) is dropped: at its first wrong line, or after `HELLO_LIMIT` seconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import math
import os
import secrets
import select
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

from model_zoo.errors import InputError
from pet.launching.addresses import PATIENCE, Notice, listen, only_here, reserve
from pet.launching.link import SILENCE, Link
from pet.launching.watch import View, find_awaited

SECRET = "PET_LAUNCH_SECRET"
"""Environment variable with the secret that the machines of a job share."""
SHORTEST_SECRET = 16
"""Characters; a proof can be listened to, and the secret that fits it be searched for."""
JOIN_LIMIT = 120.0
"""Seconds that the machines have to find each other, where nobody says so."""
HELLO_LIMIT = 10.0
"""Seconds that a connection has to prove that it is a machine of the job."""
MOST_WAITING = 64
"""Connections at once that have not proved anything; the oldest of more are dropped."""


def job_secret(given: str | None) -> bytes:
    """The secret of a job on several machines: the one given, or that of the environment.

    Raises:
        InputError: there is none, or it is short.
    """
    secret = given or os.environ.get(SECRET, "")
    if len(secret) < SHORTEST_SECRET:
        raise InputError(
            f"pet launch: --nnodes needs a secret of at least {SHORTEST_SECRET} characters, the same on all machines: "
            f"set {SECRET}, or give --secret; `openssl rand -hex 16` makes one"
        )
    return secret.encode()


class Alone:
    """The control of a job on one machine.

    Attributes:
        held: the socket that holds the port where the workers meet, on the machine where that is.
        first_rank: the rank of this machine's first worker.
        size: workers of the whole job.
        store: host and port where the workers meet.
    """

    def __init__(self, workers: int):
        self.held = reserve()
        self.store = self.held.getsockname()
        self.first_rank, self.size = 0, workers

    def __enter__(self) -> Alone:
        return self

    def __exit__(self, *error) -> None:
        if self.held is not None:
            self.held.close()

    def awaited(self, views: Mapping[int, View]) -> int | None:
        """Which of this machine's workers all others of the job wait for, where nobody works."""
        index = find_awaited([*views.values()])
        return None if index is None else [*views][index]

    def exchange(self, done: bool) -> tuple[int, str] | None:
        """None while the job runs, (0, "") when all are through, (exit code, why) when it has failed elsewhere."""
        return (0, "") if done else None

    def fail(self, code: int, message: str) -> None:
        """Tells the others that this machine has failed; there are none."""


class Control(Alone):
    """The control of a job on several machines.

    Args:
        nodes, node: how many machines, and which of them this is.
        address: host and port of machine 0.
        workers: how many this machine starts.
        secret: what all machines of the job know (`job_secret`).
        limit: seconds that the machines have to find each other; default `JOIN_LIMIT`.

    Attributes:
        silence: seconds after which one that says nothing is lost.

    Raises:
        InputError: machine 0 is not there, its port is taken, or the machines do not fit together.
    """

    silence = SILENCE

    def __init__(
        self,
        nodes: int,
        node: int,
        address: tuple[str, int],
        workers: int,
        secret: bytes,
        limit: float | None = None,
    ):
        self.nodes, self.node, self.address, self.workers, self.secret = nodes, node, address, workers, secret
        self.limit = JOIN_LIMIT if limit is None else limit
        self.held, self.links = None, dict[int, Link]()
        self.done: set[int] = set()
        self.views: dict[int, Mapping[int, View]] = {}  # of each machine
        self.hanging: int | None = None
        self.sent, self.asked = 0.0, math.inf

    def __enter__(self) -> Control:
        try:
            self._gather() if self.node == 0 else self._join()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error) -> None:
        super().__exit__(*error)
        for link in self.links.values():
            link.close()

    def _gather(self) -> None:
        """Machine 0: waits for the others, then tells each its ranks and where the workers meet."""
        host, port = self.address
        counts = {0: self.workers}
        with listen(host, port) as server:
            self._admit_all(server, counts)
        self.held = reserve(host)
        self.store = host, self.held.getsockname()[1]
        self.first_rank, self.size = 0, sum(counts.values())
        for node, link in self.links.items():
            first = sum(counts[other] for other in range(node))
            link.send(self._signed("answer", link, {"first_rank": first, "size": self.size, "port": self.store[1]}))
            link.heard = time.monotonic()  # who came early had nothing to say until now

    def _admit_all(self, server: socket.socket, counts: dict[int, int]) -> None:
        """Takes in every machine of the job, whoever else connects meanwhile.

        Raises:
            InputError: some did not come in time.
        """
        limit, notice, place = time.monotonic() + self.limit, Notice(), f"{self.address[0]}:{self.address[1]}"
        warning = only_here(place)
        waiting: list[Link] = []
        strangers = 0
        try:
            while len(counts) < self.nodes:
                now = time.monotonic()
                missing = f"machines {sorted(set(range(self.nodes)) - set(counts))}"
                notice(f"pet launch: waiting at {place} for {missing}, for up to {self.limit:.0f} s{warning}")
                if now > limit:
                    late = f"{missing} did not join at {place} within {self.limit:.0f} s"
                    self._broadcast({"fail": 2, "message": late})
                    raise InputError(f"pet launch: {late}")
                ready = select.select([server, *(link.connection for link in waiting)], [], [], 0.5)[0]
                if server in ready:
                    with contextlib.suppress(OSError):  # it may be gone again
                        waiting.append(Link(server.accept()[0]))
                        waiting[-1].challenges[0] = secrets.token_hex(16)
                        waiting[-1].send({"challenge": waiting[-1].challenges[0]})
                for node, link in [*self.links.items()]:
                    if link.next() is None and link.closed:  # that machine gave up, and may come again
                        del self.links[node], counts[node]
                for link in [*waiting]:
                    hello = link.next()
                    late = now - link.heard_first > HELLO_LIMIT or waiting.index(link) < len(waiting) - MOST_WAITING
                    if hello is None and not link.closed and not late:
                        continue
                    waiting.remove(link)
                    if hello is None or not self._admit(link, hello, counts):
                        link.close()
                        strangers += 1
                        if strangers == 1:
                            print(
                                f"pet launch: dropped a connection to {place} that did not prove to be a machine of "
                                "this job; more will be dropped without a word",
                                file=sys.stderr,
                            )
        finally:
            for link in waiting:
                link.close()

    def _admit(self, link: Link, hello: dict[str, Any], counts: dict[int, int]) -> bool:
        """Whether this is a machine of the job; one that knows the secret but does not fit is told so."""
        link.challenges[1] = str(hello.get("challenge"))
        if not self._is_signed("join", link, hello):
            link.send({"fail": 2, "message": "the secret is another one"})
            return False
        node, workers = hello.get("node"), hello.get("workers")
        if hello.get("nodes") != self.nodes or node in counts or node not in range(self.nodes):
            link.send({"fail": 2, "message": f"machine 0 expects {self.nodes} different machines"})
            return False
        counts[node], self.links[node] = workers, link
        return True

    def _join(self) -> None:
        """Another machine: says how many workers it brings, and waits to be told their ranks."""
        host, port = self.address
        limit, notice = time.monotonic() + self.limit, Notice()
        self.links[0] = link = self._reach(limit, notice)
        hello = {"nodes": self.nodes, "node": self.node, "workers": self.workers, "challenge": link.challenges[1]}
        link.send(self._signed("join", link, hello))
        answer, last = {}, limit + HELLO_LIMIT  # machine 0 may have begun to wait later
        while not answer and not link.closed and (now := time.monotonic()) < last:
            answer = link.wait(min(last, now + PATIENCE))
            notice(f"pet launch: machine 0 at {host}:{port} is there; waiting until all {self.nodes} machines are")
        if "first_rank" not in answer:
            what = "closed the connection" if link.closed else f"did not answer within {self.limit:.0f} s"
            raise InputError(f"pet launch: machine 0 refused: {answer.get('message', f'it {what}')}")
        if not self._is_signed("answer", link, answer):
            raise InputError(f"pet launch: what answers at --master {host}:{port} does not know the job's secret")
        self.first_rank, self.size, self.store = answer["first_rank"], answer["size"], (host, answer["port"])

    def _reach(self, limit: float, notice: Notice) -> Link:
        """The connection to machine 0, with both challenges. It may come later than this one, and so may what passes
        connections on to it."""
        host, port = self.address
        while True:
            why, link = "is silent, and may be another program", None
            try:
                link = Link(socket.create_connection((host, port), timeout=2.0))
            except OSError as error:
                why = f"cannot be reached ({error.strerror or error})"
            challenge = link and link.wait(time.monotonic() + PATIENCE).get("challenge")
            if isinstance(challenge, str):
                link.challenges = [challenge, secrets.token_hex(16)]
                return link
            if link is not None:
                link.close()
                if challenge is not None or link.garbled:
                    raise InputError(f"pet launch: what answers at --master {host}:{port} is no machine 0")
                why = "closes the connection, and may be another program" if link.closed else why
            if time.monotonic() > limit:
                raise InputError(f"pet launch: no machine 0 at --master {host}:{port}: it {why}")
            notice(f"pet launch: waiting for machine 0 at {host}:{port}, which {why}, for up to {self.limit:.0f} s")
            time.sleep(0.2)

    def _proof(self, role: str, link: Link, message: dict[str, Any]) -> str:
        """The secret's signature under a message, for this connection and this side of it alone."""
        said = {key: value for key, value in message.items() if key != "proof"}
        text = json.dumps([role, link.challenges, said], sort_keys=True)
        return hmac.new(self.secret, text.encode(), hashlib.sha256).hexdigest()

    def _signed(self, role: str, link: Link, message: dict[str, Any]) -> dict[str, Any]:
        return {**message, "proof": self._proof(role, link, message)}

    def _is_signed(self, role: str, link: Link, message: dict[str, Any]) -> bool:
        proof = str(message.get("proof")).encode()
        return hmac.compare_digest(proof, self._proof(role, link, message).encode())

    def awaited(self, views: Mapping[int, View]) -> int | None:
        """As `Alone.awaited`. Machine 0 judges, by what all have said within the last second."""
        self.views[self.node] = views
        if len(self.views) == self.nodes:
            places = [(node, local) for node, known in self.views.items() for local in known]
            index = find_awaited([self.views[node][local] for node, local in places])
            if index is not None:
                node, local = places[index]
                if node == self.node:
                    return local
                self.links[node].send({"hanging": local})
                del self.views[node]  # until it is heard from again
        return self.hanging

    def exchange(self, done: bool) -> tuple[int, str] | None:
        """As `Alone.exchange`; to be called a few times per second."""
        now = time.monotonic()
        if now - self.asked > SILENCE / 2:  # this process was stopped (Ctrl-Z), perhaps the others with it
            for link in self.links.values():
                link.heard += now - self.asked
        self.asked = now
        if done:
            self.done.add(self.node)
        if now - self.sent > 1.0:
            self.sent = now
            self._broadcast({"done": done, "views": self.views.get(self.node)})
        for node, link in self.links.items():
            while (message := link.next()) is not None:
                if "fail" in message:
                    self._broadcast(message, but=node)
                    return message["fail"], message["message"]
                if message.get("finish"):
                    return 0, ""
                if message.get("done"):
                    self.done.add(node)
                if message.get("views") is not None and self.node == 0:
                    self.views[node] = {int(local): View(*view) for local, view in message["views"].items()}
                self.hanging = message.get("hanging", self.hanging)
            if link.closed or now - link.heard > self.silence:
                self.fail(1, self.loss(node))
                return 1, self.loss(node)
        if self.node == 0 and len(self.done) == self.nodes:
            self._broadcast({"finish": True})
            return 0, ""
        return None

    def loss(self, node: int) -> str:
        """What is said of a machine that is not heard from any more."""
        return f"the launcher of machine {node} is gone ({self.links[node].loss})"

    def fail(self, code: int, message: str) -> None:
        """Tells the others that this machine has failed."""
        self._broadcast({"fail": code, "message": f"machine {self.node}: {message}"})

    def _broadcast(self, message: dict, but: int = -1) -> None:
        for node, link in self.links.items():
            if node != but:
                link.send(message)
