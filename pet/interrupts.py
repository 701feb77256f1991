"""SIGINT, SIGTERM and SIGHUP on the command line: received by a thread of their own.

A handler is not enough: compiling a graph, MindSpore puts its own over SIGINT, which turns it into SIGTERM, and
Python's handlers wait until the main thread comes back from C++. So `listen` blocks the signals in every thread that is
started later, and one thread waits for them. It gets each at once, whatever handlers there are.

By default a signal ends the process at once, with one line, and 128 + the signal's number as the exit code. While a
command runs (`raising`), ``KeyboardInterrupt`` is raised in the main thread instead, so that unfinished files are
removed. `handled_by` gives the signals to somebody else for a while. Programs that import this library keep their own
handling: there `handled_by` installs ordinary handlers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator

from model_zoo.progress import takes_a_line

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
LIMIT = 3.0
"""Seconds that the main thread has to end the command. It may be within C++, where an exception may also get lost."""
TOGETHER = 0.5
"""Seconds within which signals are one: `timeout` sends two, a batch system one to each process of a job."""

Receiver = Callable[[int], None]

_receivers: list[tuple[Collection[int], Receiver]] = []
_listener: threading.Thread | None = None
_ending: int | None = None
_since = 0.0


def ending() -> int | None:
    """The exit code, where a signal is ending the command."""
    return None if _ending is None else 128 + _ending


def pressed_again(number: int, since: float) -> bool:
    """Whether a signal is another Ctrl-C, after what came at that time (``time.monotonic``)."""
    return number == signal.SIGINT and time.monotonic() - since > TOGETHER


def say(text: str) -> None:
    """Writes a line to stderr, from any thread, at once or not at all."""
    with contextlib.suppress(OSError):
        if takes_a_line(2):
            os.write(2, f"\n{text}\n".encode())


def listen() -> None:
    """Receives the signals in a thread from now on. To be called by the main thread before there are others.

    A signal that is ignored (nohup; a script's background commands) stays so: it is blocked, and nobody waits for it,
    as it would otherwise come to the handler that MindSpore puts in the place of ignoring it.
    """
    global _listener
    if _listener is not None or not hasattr(signal, "sigwait"):  # Windows has none of this
        return
    heard = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whose parent ignores it cannot ask how its own children ended
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    # wakes the main thread from a read or a sleep, and raises there
    signal.signal(signal.SIGURG, _raise)
    listener = threading.Thread(target=_wait, args=(heard,), name="signals", daemon=True)
    try:
        listener.start()
        _listener = listener
    except RuntimeError:  # no thread is to be had: Python's own handlers are left, and whatever needs one more says so
        signal.pthread_sigmask(signal.SIG_UNBLOCK, heard)


def listening() -> bool:
    """Whether signals are received in a thread of their own: on the command line."""
    return _listener is not None


@contextlib.contextmanager
def unblocked() -> Iterator[None]:
    """Within, what this thread, the main one, starts inherits no blocked signal, but those that are ignored. One that
    comes to this process goes where it would."""
    if _listener is None:
        yield
        return
    for number in SIGNALS:  # MindSpore may have put its handler in their place
        ignored = signal.getsignal(number) == signal.SIG_IGN
        signal.signal(number, signal.SIG_IGN if ignored else _receive)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


@contextlib.contextmanager
def raising() -> Iterator[None]:
    """Within, a signal that nobody handles raises ``KeyboardInterrupt`` in the main thread; Ctrl-C again ends at once.

    Elsewhere than on the command line Python does so by itself.
    """
    if _listener is None:
        yield
        return
    _receivers.append((SIGNALS, _end_command))
    try:
        yield
    finally:
        _receivers.pop()


@contextlib.contextmanager
def handled_by(receive: Receiver, numbers: Collection[int] = SIGNALS) -> Iterator[Callable[[], None]]:
    """Gives these signals to ``receive`` within the block.

    On the command line it is called in another thread. Elsewhere it is an ordinary handler, where this is the main
    thread; otherwise the signals are left alone.

    Yields:
        A function that puts the handlers back where MindSpore has replaced them; with `listen` there is no need.
    """
    if _listener is not None:
        _receivers.append((numbers, receive))
        try:
            yield lambda: None
        finally:
            _receivers.pop()
        return
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    before = {number: signal.getsignal(number) for number in numbers}

    def renew() -> None:
        for number, handler in before.items():
            # what is ignored stays so: MindSpore's own handler, set while it compiles, makes a SIGTERM of it
            ignored = handler == signal.SIG_IGN
            signal.signal(number, handler if ignored else lambda number, frame: receive(number))

    try:
        renew()
        yield renew
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_at_once(number: int) -> None:
    """Ends the process without another word; in a program that only imports this library, raises KeyboardInterrupt."""
    if _listener is None:
        raise KeyboardInterrupt
    os._exit(128 + number)


def _wait(heard: Collection[int]) -> None:
    while True:
        _receive(signal.sigwait(heard))


def _receive(number: int, frame=None) -> None:
    receivers = [receive for numbers, receive in _receivers if number in numbers]
    (receivers[-1] if receivers else _end)(number)


def _end_command(number: int) -> None:
    global _ending, _since
    if _ending is not None:
        if pressed_again(number, _since):
            os._exit(128 + number)
        return
    _ending, _since = number, time.monotonic()
    sys.unraisablehook = _raise_again
    _later(LIMIT, _exit)
    _wake()


def _wake() -> None:
    signal.pthread_kill(threading.main_thread().ident, signal.SIGURG)


def _later(seconds: float, call: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()


def _raise_again(lost) -> None:
    """Python drops what is raised within a callback of its own (a weak reference's, a ``__del__``): once more, later.

    Not from here, as the signal would be handled within this function.
    """
    if lost.exc_type is KeyboardInterrupt:
        _later(0.01, _wake)
    else:
        sys.__unraisablehook__(lost)


def _raise(number: int, frame) -> None:
    """Raises in the main thread; but an exception within a compilation has MindSpore write a dump to ``rank_0/``."""
    if _ending is None:
        return
    if all(receive is not _end_command for _, receive in _receivers):  # the command has ended meanwhile
        _exit()
    while frame is not None:
        if "compile" in frame.f_code.co_name and frame.f_globals.get("__name__", "").startswith("mindspore"):
            _exit()
        frame = frame.f_back
    raise KeyboardInterrupt


def _end(number: int) -> None:
    global _ending
    if _ending is None:
        _ending = number
        _exit()
    os._exit(ending())


def _exit() -> None:
    say("pet: interrupted")
    os._exit(ending())
