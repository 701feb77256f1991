"""How a worker shows that it gets on. The launcher's side is `watch`.

A worker writes one line to a file of its own whenever a piece of work begins, with what may be expected of it:

* `WORKING`: the next line comes within the launcher's limit, or within the seconds that the line names.
* `CALLING`: another library works: it runs a graph. The next line comes within the seconds that the line names; 0 where
  nobody knows, as for the first time, when the graph is compiled.
* `WAITING`: it waits for a peer, and may sleep.
* `JOINING`: the same, before anything has begun that could be saved. A signal may not reach it: MindSpore waits there
  without letting any Python code run.
* `PAUSING`: nobody knows when, and it may sleep: code of the user's own runs, such as a callback, or it waits for
  something outside of the job.
* `LEAVING`: it is through, waits for the others, and ends by itself if they do not come.
* `SILENT`: nothing is promised, as before the first line.
* `JOINED`: nothing is promised, but it has joined the job, and may wait for a peer at any time: a script's own loop.

The library's own loops write these lines (`tick`, through `model_zoo.progress`) while a run or a command is `watched`.
A script that works for longer than the limit between two of them promises its next sign of life itself: `beat(600)`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Hashable, Iterator

from model_zoo import progress
from model_zoo.errors import InputError
from pet.launching.environment import read_job
from pet.launching.stacks import answering

BEAT_FILE = "PET_BEAT_FILE"
SILENT, WORKING, CALLING, WAITING, PAUSING, LEAVING, JOINING, JOINED = range(8)
QUIET = (SILENT, JOINED)
"""States that promise nothing."""
FACTOR = 5.0
"""How many times as long as lately a graph may run. Batches of one shape take the same time but for other work."""
OFTEN = 0.5
"""Seconds within which a second line of short work would say nothing new: writing one takes 10 µs."""
RECENT = 3
"""Runs of a graph whose shortest counts: in the others it may have waited for a peer that compiled."""

_watched = _joined = False
_now: tuple[int, float] = (SILENT, 0.0)  # what was written last: state, seconds
_place: Hashable | None = None
_begun = 0.0
_took: dict[Hashable, list[float]] = {}  # the first run's seconds, then those of the recent ones


def beat(within: float = 0.0) -> None:
    """Promises the launcher another sign of life. Nothing happens without a launcher.

    Args:
        within: so many seconds, or the launcher's limit if that is longer.
    """
    _write(WORKING, within)


def rest() -> None:
    """Takes the last promise back: what comes now may take any time."""
    _write(JOINED if _joined else SILENT)


def repeat() -> None:
    """Writes the last line once more: it still holds, or the file is named only now."""
    _write(*_now)


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Within, the library's own work is watched; it counts from the first `tick` on."""
    global _watched
    if _watched or not (BEAT_FILE in os.environ or _has_peers()):
        yield
        return
    with answering(lambda: os.environ.get(BEAT_FILE)):
        _watched, progress.watcher = True, sys.modules[__name__]
        try:
            yield
        finally:
            _watched, progress.watcher = False, None
            rest()


def _has_peers() -> bool:
    """Whether a sentinel will watch this process, as soon as the job has come together."""
    with contextlib.suppress(InputError):
        return read_job().distributed
    return False


def tick(place: Hashable | None = None) -> None:
    """See `model_zoo.progress.tick`."""
    global _place, _begun
    now = time.monotonic()
    short = place is _place is None and _now == (WORKING, 0.0)
    if not _watched or _now[0] == PAUSING or (short and now - _begun < OFTEN):
        return
    if _place is not None:
        first, *recent = [*_took.get(_place, []), now - _begun]
        _took[_place] = [first, *recent[-RECENT:]]
    _place, _begun = place, now
    known = _took.get(place, [])
    # the first run was compilation for the greater part
    _write(WORKING if place is None else CALLING, FACTOR * min(known[1:]) if known[1:] else sum(known))


def waiting() -> contextlib.AbstractContextManager:
    """Within, this process may sleep: it waits for a peer, and if that one hangs, that one is the culprit."""
    return _asleep(WAITING)


def joining() -> contextlib.AbstractContextManager:
    """Within, this process waits for its peers to join, and has nothing to save."""
    return _asleep(JOINING)


def joined() -> None:
    """Says that this process has joined the job."""
    global _joined
    _joined = True
    if _now[0] == SILENT:
        rest()


def leaving() -> contextlib.AbstractContextManager:
    """Within, this process is through and waits for its peers, for a time that it sees to itself."""
    return _asleep(LEAVING)


def pausing() -> contextlib.AbstractContextManager:
    """See `model_zoo.progress.pausing`."""
    tick()  # the graph that ran last took no longer than until now
    return _asleep(PAUSING)


@contextlib.contextmanager
def _asleep(state: int) -> Iterator[None]:
    before = _now
    _write(state)
    try:
        yield
    finally:
        _write(*before)
        tick()


def _write(state: int, within: float = 0.0) -> None:
    global _now
    _now = state, within
    path = os.environ.get(BEAT_FILE)
    if path:
        # one short write: a reader sees the old line or the new one
        with contextlib.suppress(OSError), open(path, "r+b" if os.path.exists(path) else "wb", buffering=0) as file:
            file.write(b"%020.6f %d %012.3f %010d" % (time.monotonic(), state, within, os.getpid()))
