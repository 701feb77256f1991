"""How the launchers of several machines agree: where the workers meet, who is through, who has failed.

Machine 0 listens on the master address; the others connect to it. Messages are lines of JSON. A launcher that is not
heard from for `SILENCE` seconds counts as lost, and the job ends everywhere.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time

from model_zoo.errors import InputError

JOIN_LIMIT = 120.0
"""Seconds that the machines have to find each other."""
SILENCE = 10.0
"""Seconds without a message after which a launcher counts as lost; the job must end within 20 s of a failure."""


class Alone:
    """The control of a job on one machine.

    Attributes:
        first_rank: the rank of this machine's first worker.
        size: workers of the whole job.
        store: host and port where the workers meet.
    """

    def __init__(self, workers: int):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.store = probe.getsockname()
        self.first_rank, self.size = 0, workers

    def __enter__(self) -> Alone:
        return self

    def __exit__(self, *error) -> None:
        """There is nothing to close."""

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

    Raises:
        InputError: machine 0 is not there, its port is taken, or the machines do not fit together.
    """

    def __init__(self, nodes: int, node: int, address: tuple[str, int], workers: int):
        self.nodes, self.node, self.address, self.workers = nodes, node, address, workers
        self.links: dict[int, _Link] = {}
        self.done: set[int] = set()
        self.sent = 0.0

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
        limit = time.monotonic() + JOIN_LIMIT
        counts = {0: self.workers}
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                server.bind((host, port))
            except OSError as error:
                raise InputError(f"pet launch: cannot listen on --master {host}:{port}: {error.strerror}") from None
            server.listen()
            while len(counts) < self.nodes:
                server.settimeout(max(0.01, limit - time.monotonic()))
                try:
                    link = _Link(server.accept()[0])
                except TimeoutError:
                    missing = sorted(set(range(self.nodes)) - set(counts))
                    raise InputError(f"pet launch: machines {missing} did not join within {JOIN_LIMIT:.0f} s") from None
                hello = link.wait(limit)
                if hello.get("nodes") != self.nodes or hello.get("node") in counts:
                    link.send({"fail": 2, "message": f"machine 0 expects {self.nodes} different machines"})
                    link.close()
                    continue
                counts[hello["node"]], self.links[hello["node"]] = hello["workers"], link
        with socket.socket() as probe:
            probe.bind((host, 0))
            self.store = (host, probe.getsockname()[1])
        self.first_rank, self.size = 0, sum(counts.values())
        for node, link in self.links.items():
            first = sum(counts[other] for other in range(node))
            link.send({"first_rank": first, "size": self.size, "port": self.store[1]})

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
        link.send({"nodes": self.nodes, "node": self.node, "workers": self.workers})
        answer = link.wait(limit + 5.0)
        if "first_rank" not in answer:
            raise InputError(f"pet launch: machine 0 refused: {answer.get('message', 'it closed the connection')}")
        self.first_rank, self.size, self.store = answer["first_rank"], answer["size"], (host, answer["port"])

    def exchange(self, done: bool) -> tuple[int, str] | None:
        """As `Alone.exchange`; to be called a few times per second."""
        now = time.monotonic()
        if done:
            self.done.add(self.node)
        if now - self.sent > 1.0:
            self.sent = now
            self._broadcast({"done": done})
        for node, link in self.links.items():
            for message in link.receive():
                if "fail" in message:
                    self._broadcast(message, but=node)
                    return message["fail"], message["message"]
                if message.get("finish"):
                    return 0, ""
                if message.get("done"):
                    self.done.add(node)
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
    """Lines of JSON over a socket."""

    def __init__(self, connection: socket.socket):
        self.connection, self.buffer, self.closed = connection, b"", False
        self.heard = time.monotonic()
        connection.setblocking(True)

    def send(self, message: dict) -> None:
        with contextlib.suppress(OSError):
            self.connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[dict]:
        """What has come in by now."""
        while not self.closed and select.select([self.connection], [], [], 0)[0]:
            try:
                chunk = self.connection.recv(65536)
            except OSError:
                chunk = b""
            self.closed = not chunk
            self.buffer += chunk
            self.heard = time.monotonic()
        *lines, self.buffer = self.buffer.split(b"\n")
        return [json.loads(line) for line in lines]

    def wait(self, limit: float) -> dict:
        """The next message, or {} when none comes by then."""
        while time.monotonic() < limit and not self.closed:
            if messages := self.receive():
                return messages[0]
            time.sleep(0.05)
        return {}

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.close()
