"""Where processes of several machines meet: addresses, and what is said of them while somebody waits there."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
import sys
import time

from model_zoo.errors import InputError

PATIENCE = 5.0
"""Seconds after which one who waits says for what."""
WHY = {
    errno.EADDRNOTAVAIL: "it is no address of this machine; {setting} is that of {first}",
    errno.EADDRINUSE: "another program has this port; give another one",
    errno.ENETUNREACH: "no network interface leads there; this machine's own may be down (ip link set lo up)",
}
"""What the system says of an address where nobody can listen, or where none leads."""


class Notice:
    """Says what is waited for, each text once, when it has taken a while.

    Args:
        patience: seconds that are a while; by default `PATIENCE`.
    """

    def __init__(self, patience: float | None = None):
        self.begin, self.said = time.monotonic(), set()
        self.patience = PATIENCE if patience is None else patience

    @property
    def due(self) -> bool:
        """Whether it has taken a while."""
        return time.monotonic() - self.begin >= self.patience

    def __call__(self, text: str) -> None:
        if self.due and text not in self.said:
            self.said.add(text)
            print(text, file=sys.stderr, flush=True)


def resolve(host: str) -> str:
    """The IPv4 address of a host: this machine's own where it is called so by IPv6 (``::1``, a `localhost` of that).

    Raises:
        InputError: no such host, or it has none: MindSpore's stores meet by IPv4 alone.
    """
    try:
        return socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
    except OSError as error:
        why = error.strerror or str(error)
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET6, socket.SOCK_STREAM)
    except OSError:
        raise InputError(f"{host}: no such host ({why})") from None
    if ipaddress.ip_address(found[0][4][0].partition("%")[0]).is_loopback:
        return "127.0.0.1"
    raise InputError(
        f"{host}: has no IPv4 address, and MindSpore's store takes no other; processes that msrun starts meet by IPv6"
    )


def only_here(place: str) -> str:
    """What is wrong with a host (or ``host:port``) whose name stands for this machine alone, as its own name does in
    many an /etc/hosts: processes of other machines cannot find it. Nothing where it does not."""
    host = place.rpartition(":")[0] or place
    with contextlib.suppress(OSError):
        address = socket.gethostbyname(host)
        if address != host and host != "localhost" and ipaddress.ip_address(address).is_loopback:
            return (
                f"; {host} is {address} on this machine, which no other one can reach: give the address of its network "
                "interface, or correct /etc/hosts"
            )
    return ""


def reserve(host: str = "127.0.0.1") -> socket.socket:
    """Holds a free port of this machine until the socket is closed: nobody gets it by chance, but who is told its
    number may listen there, as MindSpore's store does. Raises InputError where the address is none of this machine's.
    """
    six = ":" in host
    held = socket.socket(socket.AF_INET6 if six else socket.AF_INET)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind((host if six else resolve(host), 0))
    except OSError as error:
        held.close()
        raise InputError(f"workers cannot meet at {host}: {error.strerror} (ip addr shows what there is)") from None
    return held


def free_address(host: str = "127.0.0.1") -> tuple[str, int]:
    """An address of this machine whose port nobody listens at."""
    with reserve(host) as held:
        return host, held.getsockname()[1]


def await_listener(host: str, port: str, seconds: float) -> None:
    """Returns when somebody listens there, or after so many seconds; at once where that is no address."""
    limit = time.monotonic() + seconds
    while (left := limit - time.monotonic()) > 0:
        try:
            with socket.create_connection((host, port), timeout=left):
                return
        except socket.gaierror:
            return
        except OSError:
            time.sleep(0.1)


def listen(host: str, port: int) -> socket.socket:
    """Listens at this machine's address.

    Raises:
        InputError: it is not this machine's, or another program has the port.
    """
    try:
        return _server(host, port)
    except OSError as error:
        why = _refusal(error, "--master", "machine 0")
        raise InputError(f"pet launch: cannot listen on --master {host}:{port}: {why}") from None


def refusal(host: str, port: int, setting: str, first: str) -> str:
    """Why nobody can listen there; empty where one can.

    Args:
        setting: what the host was given by.
        first: whose it must be.
    """
    try:
        _server(host, port).close()
    except OSError as error:
        return _refusal(error, setting, first)
    return ""


def unreachable(address: str) -> str:
    """Why nothing can be sent to an IPv4 address, by the system's routes; empty where it can."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # which sends nothing
    except OSError as error:
        return _refusal(error, "", "")
    return ""


def _server(host: str, port: int) -> socket.socket:
    six = ":" in host
    address = host if six else resolve(host)
    return socket.create_server((address, port), family=socket.AF_INET6 if six else socket.AF_INET, backlog=128)


def _refusal(error: OSError, setting: str, first: str) -> str:
    return WHY.get(error.errno, str(error.strerror or error)).format(setting=setting, first=first)
