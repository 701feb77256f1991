"""A connection between two launchers: what keeps a stranger that reached the port from stopping a job, by silence or by
lines without an end. What is said over it is in control.py."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from typing import Any

LONGEST_LINE = 1 << 16
"""Bytes of a message; the longest holds an error's text."""
SILENCE = 10.0
"""Seconds without a message after which a launcher counts as lost; the job must end within 20 s of a failure."""
KEEPALIVE = {"SO_KEEPALIVE": 1, "TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 13_000}
"""Options of a connection: seconds until a silent one is probed, between two probes, and probes without an answer after
which it ends; and milliseconds that something sent may go without a receipt: nothing is probed then, and the system's
own limit is a quarter of an hour. The kernels do so by themselves, where the program on the other side is only busy, or
stopped."""


class Link:
    """Lines of JSON over a socket.

    Attributes:
        challenges: machine 0's and the other side's.
        closed: the other side is gone, or what it says is no message.
        garbled: what it says is no message.
        heard_first, heard: when the connection was made, and when something last came.
        place: the address of the other side.
        error: why the connection broke, where the other side has not ended it.
    """

    def __init__(self, connection: socket.socket):
        self.connection, self.buffer, self.closed, self.garbled = connection, b"", False, False
        self.challenges, self.error, self.place = ["", ""], "", ""
        self.heard = self.heard_first = time.monotonic()
        with contextlib.suppress(OSError):  # it may be gone again
            self.place = (connection.getpeername() or [""])[0]
        connection.settimeout(SILENCE)  # of sending; what is received is there already
        for name, value in KEEPALIVE.items() if connection.family != socket.AF_UNIX else ():
            if hasattr(socket, name):
                level = socket.SOL_SOCKET if name.startswith("SO_") else socket.IPPROTO_TCP
                connection.setsockopt(level, getattr(socket, name), value)

    def send(self, message: dict) -> None:
        try:
            self.connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            self.note(error)

    def next(self) -> dict[str, Any] | None:
        """The next message that has come in by now."""
        while b"\n" not in self.buffer:
            if self.closed or not select.select([self.connection], [], [], 0)[0]:
                return None
            try:
                chunk = self.connection.recv(LONGEST_LINE)
            except OSError as error:
                chunk = b""
                self.note(error)
            self.buffer += chunk
            self.heard = time.monotonic()
            self.garbled = b"\n" not in self.buffer and len(self.buffer) > LONGEST_LINE
            self.closed = not chunk or self.garbled
        line, _, self.buffer = self.buffer.partition(b"\n")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            self.closed, self.garbled, self.buffer, message = True, True, b"", None
        return message

    def wait(self, limit: float) -> dict[str, Any]:
        """The next message, or {} when none comes by then."""
        while (message := self.next()) is None:
            rest = limit - time.monotonic()
            if self.closed or rest <= 0:
                return {}
            select.select([self.connection], [], [], rest)
        return message

    def note(self, error: OSError) -> None:
        """Remembers why the connection broke, where the other side has not ended it."""
        if not isinstance(error, ConnectionError):
            self.error = str(error.strerror or error)

    @property
    def loss(self) -> str:
        """Whom it led to, and why that one counts as gone: a program that ends closes it, a machine or a network that
        is gone leaves it silent."""
        silence = f"nothing was heard for {time.monotonic() - self.heard:.0f} s"
        return f"{self.place}: {self.error or ('it closed the connection' if self.closed else silence)}"

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.close()
