"""Whose turn it is: a model runs in one thread at a time, and in the process in which the first one ran.

MindSpore's operators and the engine's programs share state between threads: two forwards at once give wrong numbers or
end the process. A process that was forked later lacks MindSpore's own threads, and its first operator waits for them
without end.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from model_zoo.errors import InputError

P, R = ParamSpec("P"), TypeVar("R")
Function = TypeVar("Function", bound=Callable)


class Turn:
    """Held while a model runs. A thread that has it may take it again: streamers and callbacks call models, too."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.process: int | None = None

    def __enter__(self) -> None:
        process = os.getpid()
        if self.process not in (None, process):
            raise InputError(
                "a model has run before this process was forked, so none can run in it; start processes by "
                "multiprocessing.get_context('spawn'), or fork before the first model runs"
            )
        self.lock.acquire()
        self.process = process

    def __exit__(self, *_) -> None:
        self.lock.release()


turn = Turn()


def in_turn(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which waits while a model runs in another thread."""

    @functools.wraps(function)
    def waiting(*arguments: P.args, **settings: P.kwargs) -> R:
        with turn:
            return function(*arguments, **settings)

    return waiting


def between_turns(function: Callable[P, R]) -> Callable[P, R]:
    """A function that changes what models compute, which waits while one runs in another thread; it runs none."""

    @functools.wraps(function)
    def waiting(*arguments: P.args, **settings: P.kwargs) -> R:
        with turn.lock:
            return function(*arguments, **settings)

    return waiting


@contextlib.contextmanager
def undivided() -> Iterator[None]:
    """A short block, or function, that Ctrl-C does not leave half done: KeyboardInterrupt comes behind it.
    A handler that a program has installed itself stays."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:  # also in the place of the block's own error, which a program may go on from
            raise KeyboardInterrupt


@contextlib.contextmanager
def changed(change: Callable[[], object], back: Callable[[], object]) -> Iterator[None]:
    """Within, what `change` did is so; `back` undoes it, however the block ends. Ctrl-C leaves neither half done."""
    try:
        with undivided():
            change()
        yield
    finally:
        with undivided():
            back()


def telling(function: Function) -> Function:
    """The function, which tells a streamer among its arguments of an error: its reader, in another thread, would wait
    for ever."""

    @functools.wraps(function)
    def running(*arguments, **settings):
        try:
            return function(*arguments, **settings)
        except BaseException as error:
            for one in (*arguments, *settings.values()):
                if hasattr(one, "fail"):
                    one.fail(error)
            raise

    return running
