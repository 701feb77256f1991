"""How launchers of several machines find each other: only those that know the secret, whoever else connects."""

import json
import re
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest
from waiting import HANGING

from model_zoo.errors import InputError
from pet.launching import addresses, control
from pet.launching.addresses import free_address, listen, only_here, reserve, resolve
from pet.launching.control import Control, job_secret
from pet.launching.heartbeat import CALLING, WAITING
from pet.launching.link import LONGEST_LINE, SILENCE, Link
from pet.launching.watch import View

SECRET = b"0123456789abcdef-of-this-job"
STRANGERS = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "bytes": b"\xff\xfe\x00\n",
    "a list": b"[1, 2]\n",
    "deep": b"[" * 50_000 + b"\n",
    "endless": b"x" * (3 * LONGEST_LINE),
    "no proof": b'{"nodes": 2, "node": 1, "workers": 1, "challenge": "c"}\n',
    "odd proof": b'{"nodes": 2, "node": 1, "workers": 1, "challenge": [1], "proof": "\xc3\xa9"}\n',
}


@pytest.fixture
def threads():
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    """A machine that waits in vain fails before the test's patience ends."""
    monkeypatch.setattr(control, "JOIN_LIMIT", 15.0)


@pytest.fixture
def port():
    return free_address()[1]


@pytest.fixture
def machine():
    """Makes a machine's control, which is closed at the end of the test."""
    with ExitStack() as stack:

        def enter(node, port, nodes=2, secret=SECRET, limit=None):
            made = Control(nodes, node, ("127.0.0.1", port), node + 1, secret, limit).__enter__()
            stack.push(made)
            return made

        yield enter


@pytest.fixture
def connect(until):
    """A connection, once somebody listens."""

    def attempt(port):
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=20)
        except ConnectionError:
            return None

    return lambda port: until(lambda: attempt(port))


def test_machines_that_share_a_secret_agree(machine, threads, port, until):
    first, second, third = threads.map(lambda node: machine(node, port, 3), range(3))
    assert [each.first_rank for each in (first, second, third)] == [0, 1, 3]
    assert {each.size for each in (first, second, third)} == {6}
    assert first.store == second.store == third.store
    second.fail(7, "gone")
    assert until(lambda: (first.exchange(False), third.exchange(False))[1]) == (7, "machine 1: gone")


IDLE, WAITS = View(CALLING, True, False, False, 12.0), View(WAITING, True, False, True, 20.0)


@pytest.mark.parametrize(
    ("workers", "culprit"),
    [
        ([[WAITS], [WAITS, IDLE]], (1, 1)),
        ([[IDLE], [WAITS, WAITS]], (0, 0)),
        ([[IDLE._replace(age=11.0)], [IDLE, WAITS]], (1, 0)),
        ([[IDLE], []], (0, 0)),  # all others are through
        ([[WAITS], [WAITS, IDLE._replace(idle=False)]], None),  # it compiles
    ],
)
def test_an_idle_worker_is_found_on_whatever_machine(machine, threads, port, until, workers, culprit):
    machines = [*threads.map(lambda node: machine(node, port), range(2))]
    views = [dict(enumerate(each)) for each in workers]

    def judge():
        for each, seen in zip(machines, views, strict=True):
            each.awaited(seen)
            assert each.exchange(False) is None
        found = [each.awaited(seen) for each, seen in zip(machines, views, strict=True)]
        return next(((node, local) for node, local in enumerate(found) if local is not None), None)

    if culprit is None:
        until(lambda: (judge(), len(machines[0].views))[1] == 2)
        assert judge() is None
    else:
        assert until(judge) == culprit


def test_strangers_are_dropped_and_the_job_begins(machine, threads, port, connect, monkeypatch, capsys):
    monkeypatch.setattr(control, "HELLO_LIMIT", 0.2)
    first = threads.submit(machine, 0, port)
    silent = [connect(port) for _ in range(3)]
    for words in STRANGERS.values():
        with connect(port) as stranger:
            stranger.sendall(words)
            answers = b""
            while chunk := receive(stranger):
                answers += chunk
            assert b"first_rank" not in answers
    for each in silent:  # they are not waited for either
        with each:
            while receive(each):
                pass
    second = machine(1, port)
    assert (second.first_rank, second.size, first.result(HANGING).size) == (1, 3, 3)
    assert capsys.readouterr().err.count("did not prove to be a machine of this job") == 1


def receive(connection):
    """What comes, or nothing where the connection has ended, however that was."""
    try:
        return connection.recv(1 << 16)
    except ConnectionError:
        return b""


def test_more_silent_connections_than_are_kept_waiting(machine, threads, port, connect, monkeypatch):
    monkeypatch.setattr(control, "MOST_WAITING", 4)
    first = threads.submit(machine, 0, port)
    silent = [connect(port) for _ in range(12)]
    assert machine(1, port).size == first.result(HANGING).size == 3
    for each in silent:
        each.close()


def test_another_secret_is_refused_and_the_right_one_still_comes_in(machine, threads, port):
    first = threads.submit(machine, 0, port)
    with pytest.raises(InputError, match="machine 0 refused: the secret is another one"):
        machine(1, port, secret=SECRET + b"!")
    with pytest.raises(InputError, match="expects 2 different machines"):
        machine(1, port, nodes=3)
    assert machine(1, port).size == first.result(HANGING).size == 3


def test_a_machine_that_came_early_is_not_taken_for_a_silent_one(machine, threads, port, until):
    first = Control(3, 0, ("127.0.0.1", port), 1, SECRET)
    gathered, second = threads.submit(first.__enter__), threads.submit(machine, 1, port, 3)
    until(lambda: 1 in first.links)
    before = time.monotonic()
    third = threads.submit(machine, 2, port, 3)
    assert second.result(HANGING).size == third.result(HANGING).size == 6
    gathered.result(HANGING).__exit__()
    assert all(link.heard >= before for link in first.links.values())


def test_a_launcher_that_was_stopped_does_not_take_the_others_for_silent(machine, threads, port, monkeypatch):
    gathered, other = threads.submit(machine, 0, port), machine(1, port)
    first, now = gathered.result(HANGING), time.monotonic()
    monkeypatch.setattr(control.time, "monotonic", lambda: now)
    assert first.exchange(False) is None
    now += 60.0  # both are stopped and go on
    assert first.exchange(False) is None
    other.exchange(False)
    for _ in range(int(SILENCE)):
        assert first.exchange(False) is None
        now += 1.0
    now += 1.0
    code, why = first.exchange(False)
    pattern = r"the launcher of machine 1 is gone \(127.0.0.1: nothing was heard for 1\d s\)"
    assert code == 1 and re.fullmatch(pattern, why)


def test_a_launcher_that_has_ended_is_told_from_one_that_is_silent(machine, threads, port, until):
    gathered, other = threads.submit(machine, 0, port), machine(1, port)
    other.__exit__()
    first = gathered.result(HANGING)
    assert until(lambda: first.exchange(False)) == (
        1,
        "the launcher of machine 1 is gone (127.0.0.1: it closed the connection)",
    )


UNPLUGGED = """
import array, fcntl, os, socket, struct, sys, time
from pet.launching import link
for name in link.KEEPALIVE:  # a fifth of the time
    link.KEEPALIVE[name] = max(1, link.KEEPALIVE[name] // 5)
def loopback(flags):
    with socket.socket() as any:
        fcntl.ioctl(any, 0x8914, struct.pack("16sH14x", b"lo", flags))  # SIOCSIFFLAGS
loopback(1)
server = socket.create_server(("127.0.0.1", 0))
near = link.Link(socket.create_connection(server.getsockname()))
far = link.Link(server.accept()[0])
near.send({"here": 1})
assert far.wait(time.monotonic() + 5) == {"here": 1}
loopback(0)  # packets are lost from here on, and nobody is told
begin = time.monotonic()
while not near.closed and time.monotonic() - begin < 20:
    SENDS and near.send({"here": 2})
    near.next()
    time.sleep(0.2)
print(near.closed, near.loss)
"""
UNSHARED = ("unshare", "--user", "--map-root-user", "--net")


@pytest.mark.full
@pytest.mark.parametrize("sends", [True, False], ids=["with something under way", "silent"])
def test_a_network_that_loses_everything_is_noticed_also_by_who_goes_on_sending(sends):
    """Nothing is probed while a receipt is awaited: the system would send again for a quarter of an hour."""
    try:
        subprocess.run([*UNSHARED, "true"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this machine lets nobody make a network of its own")
    program = [sys.executable, "-c", UNPLUGGED.replace("SENDS", str(sends))]
    done = subprocess.run([*UNSHARED, *program], capture_output=True, text=True, check=False)
    assert done.stdout == "True 127.0.0.1: Connection timed out\n", done.stderr


def relay(listener, connect, port, heard):
    """Passes one connection on, and keeps what goes either way."""
    near, far = listener.accept()[0], connect(port)
    with near, far, ThreadPoolExecutor(1) as back:

        def pass_on(source, target):
            while chunk := receive(source):
                heard.append(chunk)
                target.sendall(chunk)

        other = back.submit(pass_on, far, near)
        pass_on(near, far)
        far.shutdown(socket.SHUT_RDWR)
        other.result(HANGING)


def test_who_listens_learns_neither_the_secret_nor_how_to_come_in(machine, threads, port, connect):
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        relaying = threads.submit(relay, listener, connect, port, heard)
        first = threads.submit(machine, 0, port)
        machine(1, listener.getsockname()[1]).__exit__()
        first.result(HANGING).__exit__()
        relaying.result(HANGING)
    said = b"".join(heard)
    assert SECRET not in said and b"first_rank" in said
    hello = next(line for line in said.splitlines() if b'"nodes"' in line)
    first = threads.submit(machine, 0, port)
    with connect(port) as stranger:  # the same words once more, to another challenge
        stranger.sendall(hello + b"\n")
        answers = b""
        while chunk := receive(stranger):
            answers += chunk
    assert b"the secret is another one" in answers
    assert machine(1, port).size == first.result(HANGING).size == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is no machine 0"),
        (
            b'{"challenge": "a"}\n{"first_rank": 1, "size": 2, "port": 1, "proof": ""}\n',
            "does not know the job's secret",
        ),
    ],
)
def test_whoever_is_in_the_place_of_machine_0_must_know_the_secret(machine, threads, words, message):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        joining = threads.submit(machine, 1, listener.getsockname()[1])
        with listener.accept()[0] as other:
            other.sendall(words)
            with pytest.raises(InputError, match=message):
                joining.result(HANGING)


def test_messages_that_come_together_are_all_read():
    near, far = socket.socketpair()
    link = Link(near)
    with near, far:
        far.sendall(b"".join(json.dumps({"n": n}).encode() + b"\n" for n in range(3)))
        limit = time.monotonic() + 20
        assert [link.wait(limit) for _ in range(3)] == [{"n": 0}, {"n": 1}, {"n": 2}]
        assert link.next() is None and not link.closed
        far.close()
        assert link.wait(limit) == {} and link.closed


def test_several_machines_need_a_secret(monkeypatch):
    monkeypatch.delenv(control.SECRET, raising=False)
    assert job_secret(SECRET.decode()) == SECRET
    for given in (None, "", "too short"):
        with pytest.raises(InputError, match=r"needs a secret of at least 16 characters.*PET_LAUNCH_SECRET"):
            job_secret(given)
    monkeypatch.setenv(control.SECRET, SECRET.decode())
    assert job_secret(None) == SECRET


@pytest.fixture
def soon_said(monkeypatch):
    """What is waited for is said after a moment."""
    monkeypatch.setattr(addresses, "PATIENCE", 0.1)
    monkeypatch.setattr(control, "PATIENCE", 0.1)


def test_it_is_said_who_is_waited_for(machine, threads, port, soon_said, capsys):
    waiting = [threads.submit(machine, node, port, 3, limit=1.0) for node in (0, 1)]
    for machines in waiting:
        with pytest.raises(InputError, match=rf"machines \[2\] did not join at 127.0.0.1:{port} within 1 s"):
            machines.result(HANGING)
    said = capsys.readouterr().err
    assert f"waiting at 127.0.0.1:{port} for machines [2], for up to 1 s" in said
    assert f"machine 0 at 127.0.0.1:{port} is there; waiting until all 3 machines are" in said


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("none", "cannot be reached .Connection refused."),
        ("silent", "is silent, and may be another program"),
        ("closing", "closes the connection, and may be another program"),
    ],
)
def test_it_is_said_what_is_in_the_place_of_machine_0(machine, threads, port, soon_said, capsys, program, message):
    with ExitStack() as stack:
        if program != "none":
            server = stack.enter_context(socket.create_server(("127.0.0.1", port)))
        joining = threads.submit(machine, 1, port, limit=0.5)
        if program == "closing":
            while not joining.done():
                server.settimeout(0.3)
                with suppress(TimeoutError):
                    server.accept()[0].close()
        with pytest.raises(InputError, match=f"no machine 0 at --master 127.0.0.1:{port}: it {message}"):
            joining.result(HANGING)
    assert f"waiting for machine 0 at 127.0.0.1:{port}, which {message[:10]}" in capsys.readouterr().err


def test_what_passes_connections_on_may_be_there_before_machine_0(machine, threads, port):
    with socket.create_server(("127.0.0.1", port)) as forwarder:
        joining = threads.submit(machine, 1, port)
        forwarder.accept()[0].close()
    assert machine(0, port).size == joining.result(HANGING).size == 3


def test_a_machine_that_gave_up_while_others_are_awaited_may_come_again(machine, threads, port, until):
    first = Control(3, 0, ("127.0.0.1", port), 1, SECRET)
    gathered = threads.submit(first.__enter__)
    leaving = Control(3, 1, ("127.0.0.1", port), 2, SECRET)
    left = threads.submit(leaving.__enter__)
    until(lambda: 1 in first.links)
    leaving.links[0].connection.shutdown(socket.SHUT_RDWR)
    with pytest.raises(InputError, match="closed the connection"):
        left.result(HANGING)
    others = [threads.submit(machine, node, port, 3) for node in (1, 2)]
    assert [each.result(HANGING).first_rank for each in others] == [1, 3]
    gathered.result(HANGING).__exit__()


def test_nobody_gets_a_reserved_port_by_chance():
    with reserve() as held, socket.socket() as other:
        with pytest.raises(OSError):
            other.bind(held.getsockname())
        with socket.create_server(held.getsockname()) as told, socket.create_connection(held.getsockname()):
            assert told.accept()


def test_an_address_at_which_machine_0_cannot_be_found(port, monkeypatch):
    with socket.create_server(("127.0.0.1", port)), pytest.raises(InputError, match="another program has this port"):
        listen("127.0.0.1", port)
    with pytest.raises(InputError, match="no address of this machine; --master is that of machine 0"):
        listen("192.0.2.77", port)
    with pytest.raises(InputError, match="fd00::1: has no IPv4 address"):
        resolve("fd00::1")
    assert resolve("::1") == resolve("localhost") == "127.0.0.1"
    assert [only_here(host) for host in ("127.0.0.1:8118", "localhost", "192.0.2.77", "no.such.host.invalid")] == [
        ""
    ] * 4
    monkeypatch.setattr(addresses.socket, "gethostbyname", lambda host: "127.0.1.1")  # as many an /etc/hosts says
    assert "myhost is 127.0.1.1 on this machine, which no other one can reach" in only_here("myhost:8118")
