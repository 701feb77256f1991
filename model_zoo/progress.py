"""Signs of progress: for users, and for whoever watches this process for hangs. Nobody does unless `watcher` is set."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Hashable, Iterator
from typing import Protocol, TextIO


def redrawn(stream: TextIO) -> bool:
    """Whether a line is drawn over and over: on a terminal. One without a width (a container's, a job's) is none, since
    tqdm would cut the line off to nothing."""
    width = None
    with contextlib.suppress(OSError, ValueError):
        width = os.get_terminal_size(stream.fileno()).columns
    return stream.isatty() and width != 0


def takes_a_line(stream: TextIO | int) -> bool:
    """Whether a line is written at once: a pipe that nobody reads becomes full, and who writes to it waits for ever."""
    try:
        return bool(select.select([], [stream], [], 0)[1])
    except (OSError, ValueError, TypeError):  # no file of the system's, or one that cannot be asked
        return True


class Watcher(Protocol):
    """What a watcher takes. `pet.launching.heartbeat` is one."""

    def tick(self, place: Hashable | None = None) -> None: ...

    def pausing(self) -> contextlib.AbstractContextManager: ...


watcher: Watcher | None = None


def tick(place: Hashable | None = None) -> None:
    """A piece of work is done and the next begins: a tensor to read, a graph to run.

    Args:
        place: names work whose length repeats, such as a graph with its shapes; it may take any time the first time.
            None: short work.
    """
    if watcher is not None:
        watcher.tick(place)


@contextlib.contextmanager
def pausing() -> Iterator[None]:
    """Within, nobody knows for how long, this process runs code of the user's own, or sleeps until something outside of
    the job lets it go on, such as a lock. A `tick` says nothing there."""
    with watcher.pausing() if watcher is not None else contextlib.nullcontext():
        yield
