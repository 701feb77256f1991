"""How a worker shows that it gets on, and how the launcher sees that it does not.

Two signs of a hang are watched, since neither sees everything:

* A worker that uses no processor time and moves no bytes for a while sleeps or is stopped. Its peers, which wait in a
  collective, spin on a CPU, so the idle one is the culprit; those that wait for a message sleep, and say so
  (`waiting`). On an accelerator a host rests while the device works: there this sign is not used.
* A worker that says "you will hear from me within t seconds" (`beat`) and is not heard from. That sees an endless loop
  too, and works everywhere. The one who beats chooses t, and takes the promise back (`rest`) before work whose length
  nobody knows, such as compiling. One that waits for a peer at rest cannot keep its promise, and need not.

A busy machine is no hang. The seconds of a promise are those in which the workers could have worked (`Clock`): while
they stand in line for a core, or the whole machine stands still, time hardly passes.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

BEAT_FILE = "PET_BEAT_FILE"
IDLE_SHARE = 0.002
"""A worker that uses less than this share of one core is idle; MindSpore's own threads use 0.0001."""

LONGEST_TICK = 1.0
"""Seconds between two looks at the workers that count at most: where it was longer, the launcher itself was held up."""
SMALLEST_SHARE = 0.05
"""However busy the machine is, a second counts as so much of one: in the end a hang is a hang."""

_deadline = _within = 0.0


def beat(within: float, idle: bool = False) -> None:
    """Promises the launcher another `beat` or `rest` within that many seconds. Nothing happens without a launcher.

    Args:
        within: seconds.
        idle: whether this process may sleep until then, as it does while it waits for others to join.
    """
    _write(time.monotonic() + within, idle, within)


def rest() -> None:
    """Takes the last promise back: what comes now may take any time."""
    _write(0.0)


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Within, this process may sleep: it waits for a peer, and if that one hangs, that one is the culprit."""
    _write(_deadline, True, _within)
    try:
        yield
    finally:
        _write(_deadline, False, _within)


def _write(deadline: float, idle: bool = False, within: float = 0.0) -> None:
    global _deadline, _within
    _deadline, _within = deadline, within
    path = os.environ.get(BEAT_FILE)
    if path:
        # one short write: a reader sees the old line or the new one
        with open(path, "r+b" if os.path.exists(path) else "wb", buffering=0) as file:
            file.write(b"%020.3f %d %012.3f" % (deadline, idle, within))


class Pace:
    """Promises, at the beginning of every step, to end it within a generous multiple of the longest step so far.

    Between steps, and in the first one, nothing is promised: compiling, evaluating and saving take what they take.

    Args:
        least: the shortest promise, in seconds.
        factor: how many times the longest step the next one may take.
    """

    def __init__(self, least: float = 12.0, factor: float = 20.0):
        self.least, self.factor = least, factor
        self.longest = 0.0
        self.began = None

    def begin(self) -> None:
        """A step begins."""
        self.began = time.monotonic()
        if self.longest:
            beat(max(self.least, self.factor * self.longest))

    def end(self) -> None:
        """It is done."""
        if self.began is not None:
            self.longest = max(self.longest, time.monotonic() - self.began)
            self.began = None
            rest()


class Clock:
    """Time as the workers have it.

    Args:
        pids: of the workers.

    Attributes:
        wall: seconds since the start, without those in which the launcher itself was held up.
        fair: the same, each weighted with the share of the cores that the workers got of what they asked for.
    """

    def __init__(self, pids: Iterable[int] = ()):
        self.pids = list(pids)
        self.wall = self.fair = 0.0
        self.share = 1.0
        self.last = self.sampled = time.monotonic()
        self.before = self._demand()

    def tick(self) -> None:
        """To be called several times a second."""
        now = time.monotonic()
        passed, self.last = min(now - self.last, LONGEST_TICK), now
        if now - self.sampled >= LONGEST_TICK:
            found = self._demand()
            ran, waited = (new - old for new, old in zip(found, self.before, strict=True))
            self.share = max(SMALLEST_SHARE, ran / (ran + waited)) if ran > 0 and waited > 0 else 1.0
            self.before, self.sampled = found, now
        self.wall += passed
        self.fair += passed * self.share

    def _demand(self) -> tuple[int, int]:
        """Nanoseconds that the workers' threads have run, and have stood in line for a core; zeros where unknown."""
        ran = waited = 0
        for pid in self.pids:
            for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                with contextlib.suppress(OSError, ValueError):
                    running, waiting, _ = file.read_text().split()
                    ran, waited = ran + int(running), waited + int(waiting)
        return ran, waited


class Watch:
    """The launcher's view of one worker.

    Args:
        pid: the worker's process.
        beat_file: where it writes its promises.
        idle_limit: seconds without a sign of life that count as a hang; 0 never.
        use_idle: whether an idle process counts as hanging at all.
        clock: the time of all workers; ticked by whoever owns it.
    """

    def __init__(self, pid: int, beat_file: Path, idle_limit: float, use_idle: bool = True, clock: Clock | None = None):
        import psutil

        self.beat_file, self.idle_limit, self.use_idle = beat_file, idle_limit, use_idle
        self.clock = clock or Clock([pid])
        self.process = psutil.Process(pid)
        self.promise, self.due, self.may_idle, self.has_promised = 0.0, 0.0, False, False
        self.running = True  # until the launcher sees that it has ended
        self.sample_time = time.monotonic()
        self.active = self.clock.wall
        self.sample = self._work()

    def _work(self) -> tuple[float, int]:
        """Processor seconds and bytes moved so far, by the worker and its children.

        One that is ready to run counts as running, though a busy machine may not have let it.
        """
        import psutil

        seconds, moved = 0.0, 0
        with contextlib.suppress(psutil.Error):
            for process in [self.process, *self.process.children(recursive=True)]:
                with contextlib.suppress(psutil.Error, AttributeError):
                    if process.status() in (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP):
                        self.active = self.clock.wall
                    times = process.cpu_times()
                    seconds += times.user + times.system
                    counters = process.io_counters()
                    moved += getattr(counters, "read_chars", 0) + getattr(counters, "write_chars", 0)
        return seconds, moved

    @property
    def rests(self) -> bool:
        """Whether it has taken its last promise back, so that its peers may have to wait for it."""
        return self.has_promised and not self.promise

    def _listen(self) -> None:
        """Takes note of the worker's last line. A new promise runs from here on, by the workers' clock."""
        try:
            deadline, may_idle, within = (float(part) for part in self.beat_file.read_bytes().split())
        except (OSError, ValueError):
            deadline, may_idle, within = 0.0, 0.0, 0.0
        if deadline != self.promise:
            self.promise, self.due = deadline, self.clock.fair + within
            self.has_promised = self.has_promised or within > 0
        self.may_idle = bool(may_idle)

    def hanging(self, peers: Iterable[Watch] = ()) -> str | None:
        """Why this worker counts as hanging, or None.

        Args:
            peers: the other workers' watches.
        """
        if self.idle_limit <= 0:
            return None
        self._listen()
        now = time.monotonic()
        if self.promise and self.clock.fair > self.due and not any(peer.rests for peer in peers):
            return "did not finish its step in the time that it had promised"
        seconds, moved = self._work()
        spent = now - self.sample_time
        if spent < 1.0:
            return None
        # the launcher's own dump of beats is no work: 4 KB per second of file traffic is nothing
        if self.may_idle or seconds - self.sample[0] > IDLE_SHARE * spent or moved - self.sample[1] > 4096 * spent:
            self.active = self.clock.wall
        self.sample, self.sample_time = (seconds, moved), now
        if self.use_idle and self.clock.wall - self.active > self.idle_limit:
            return f"did nothing for {self.clock.wall - self.active:.0f} s"
        return None


def accelerators_present() -> bool:
    """Whether this machine has Ascend devices."""
    return any(Path("/dev").glob("davinci[0-9]*"))
