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
from pet.launching.watch import View, find_awaited

SECRET = "PET_LAUNCH_SECRET"
"""Environment variable with the secret that the machines of a job share."""
SHORTEST_SECRET = 16
"""Characters; a proof can be listened to, and the secret that fits it be searched for."""
JOIN_LIMIT = 120.0
"""Seconds that the machines have to find each other."""
HELLO_LIMIT = 10.0
"""Seconds that a connection has to prove that it is a machine of the job."""
LONGEST_LINE = 1 << 16
"""Bytes of a message; the longest holds an error's text."""
MOST_WAITING = 64
"""Connections at once that have not proved anything; the oldest of more are dropped."""
SILENCE = 10.0
"""Seconds without a message after which a launcher counts as lost; the job must end within 20 s of a failure."""


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


def free_address(host: str = "127.0.0.1") -> tuple[str, int]:
    """An address of this machine whose port nobody listens at."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return host, probe.getsockname()[1]


class Alone:
    """The control of a job on one machine.

    Attributes:
        first_rank: the rank of this machine's first worker.
        size: workers of the whole job.
        store: host and port where the workers meet.
    """

    def __init__(self, workers: int):
        self.store = free_address()
        self.first_rank, self.size = 0, workers

    def __enter__(self) -> Alone:
        return self

    def __exit__(self, *error) -> None:
        """There is nothing to close."""

    def awaited(self, views: Mapping[int, View]) -> int | None:
        """Which of this machine's workers all others of the job wait for, where nobody works.

        Args:
            views: of this machine's workers that run.
        """
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

    Raises:
        InputError: machine 0 is not there, its port is taken, or the machines do not fit together.
    """

    def __init__(self, nodes: int, node: int, address: tuple[str, int], workers: int, secret: bytes):
        self.nodes, self.node, self.address, self.workers, self.secret = nodes, node, address, workers, secret
        self.links: dict[int, _Link] = {}
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
        for link in self.links.values():
            link.close()

    def _gather(self) -> None:
        """Machine 0: waits for the others, then tells each its ranks and where the workers meet."""
        host, port = self.address
        counts = {0: self.workers}
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                server.bind((host, port))
            except OSError as error:
                raise InputError(f"pet launch: cannot listen on --master {host}:{port}: {error.strerror}") from None
            server.listen()
            self._admit_all(server, counts)
        self.store = free_address(host)
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
        limit = time.monotonic() + JOIN_LIMIT
        waiting: list[_Link] = []
        strangers = 0
        try:
            while len(counts) < self.nodes:
                now = time.monotonic()
                if now > limit:
                    missing = sorted(set(range(self.nodes)) - set(counts))
                    raise InputError(f"pet launch: machines {missing} did not join within {JOIN_LIMIT:.0f} s")
                ready = select.select([server, *(link.connection for link in waiting)], [], [], 0.5)[0]
                if server in ready:
                    with contextlib.suppress(OSError):  # it may be gone again
                        waiting.append(_Link(server.accept()[0]))
                        waiting[-1].challenges[0] = secrets.token_hex(16)
                        waiting[-1].send({"challenge": waiting[-1].challenges[0]})
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
                                f"pet launch: dropped a connection to {self.address[0]}:{self.address[1]} that did not "
                                "prove to be a machine of this job; more will be dropped without a word",
                                file=sys.stderr,
                            )
        finally:
            for link in waiting:
                link.close()

    def _admit(self, link: _Link, hello: dict[str, Any], counts: dict[int, int]) -> bool:
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
        limit = time.monotonic() + JOIN_LIMIT
        while True:
            try:
                link = _Link(socket.create_connection((host, port), timeout=2.0))
                break
            except OSError as error:
                if time.monotonic() > limit:
                    raise InputError(f"pet launch: no machine 0 at --master {host}:{port}: {error}") from None
                time.sleep(0.2)
        self.links[0] = link
        challenge = link.wait(limit).get("challenge")
        if not isinstance(challenge, str):
            raise InputError(f"pet launch: what answers at --master {host}:{port} is no machine 0")
        link.challenges = [challenge, secrets.token_hex(16)]
        hello = {"nodes": self.nodes, "node": self.node, "workers": self.workers, "challenge": link.challenges[1]}
        link.send(self._signed("join", link, hello))
        answer = link.wait(limit + 5.0)
        if "first_rank" not in answer:
            raise InputError(f"pet launch: machine 0 refused: {answer.get('message', 'it closed the connection')}")
        if not self._is_signed("answer", link, answer):
            raise InputError(f"pet launch: what answers at --master {host}:{port} does not know the job's secret")
        self.first_rank, self.size, self.store = answer["first_rank"], answer["size"], (host, answer["port"])

    def _proof(self, role: str, link: _Link, message: dict[str, Any]) -> str:
        """The secret's signature under a message, for this connection and this side of it alone."""
        said = {key: value for key, value in message.items() if key != "proof"}
        text = json.dumps([role, link.challenges, said], sort_keys=True)
        return hmac.new(self.secret, text.encode(), hashlib.sha256).hexdigest()

    def _signed(self, role: str, link: _Link, message: dict[str, Any]) -> dict[str, Any]:
        return {**message, "proof": self._proof(role, link, message)}

    def _is_signed(self, role: str, link: _Link, message: dict[str, Any]) -> bool:
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
            if link.closed or now - link.heard > SILENCE:
                self.fail(1, f"the launcher of machine {node} is gone")
                return 1, f"the launcher of machine {node} is gone"
        if self.node == 0 and len(self.done) == self.nodes:
            self._broadcast({"finish": True})
            return 0, ""
        return None

    def fail(self, code: int, message: str) -> None:
        """Tells the others that this machine has failed."""
        self._broadcast({"fail": code, "message": f"machine {self.node}: {message}"})

    def _broadcast(self, message: dict, but: int = -1) -> None:
        for node, link in self.links.items():
            if node != but:
                link.send(message)


class _Link:
    """Lines of JSON over a socket.

    Attributes:
        challenges: machine 0's and the other side's.
        closed: the other side is gone, or what it says is no message.
        heard_first, heard: when the connection was made, and when something last came.
    """

    def __init__(self, connection: socket.socket):
        self.connection, self.buffer, self.closed = connection, b"", False
        self.challenges = ["", ""]
        self.heard = self.heard_first = time.monotonic()
        connection.settimeout(SILENCE)  # of sending; what is received is there already

    def send(self, message: dict) -> None:
        with contextlib.suppress(OSError):
            self.connection.sendall(json.dumps(message).encode() + b"\n")

    def next(self) -> dict[str, Any] | None:
        """The next message that has come in by now."""
        while b"\n" not in self.buffer:
            if self.closed or not select.select([self.connection], [], [], 0)[0]:
                return None
            try:
                chunk = self.connection.recv(LONGEST_LINE)
            except OSError:
                chunk = b""
            self.buffer += chunk
            self.heard = time.monotonic()
            self.closed = not chunk or (b"\n" not in self.buffer and len(self.buffer) > LONGEST_LINE)
        line, _, self.buffer = self.buffer.partition(b"\n")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            self.closed, self.buffer, message = True, b"", None
        return message

    def wait(self, limit: float) -> dict[str, Any]:
        """The next message, or {} when none comes by then."""
        while (message := self.next()) is None:
            rest = limit - time.monotonic()
            if self.closed or rest <= 0:
                return {}
            select.select([self.connection], [], [], rest)
        return message

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.close()
