"""How the launcher sees that a worker does not get on, and which one.

Each rule sees what the others do not:

* A stopped worker (SIGSTOP) does not run, whatever it was doing.
* A worker whose main thread runs without a new line hangs in an endless loop, since it sleeps while a graph runs. But
  compiling and importing take any time, and so may another library in a call or a wait: where the main thread is, its
  stack says (stacks.py).
* A worker that says it waits for a peer sleeps within a library's call. One that sleeps in code of ours does not wait.
* Others that are overdue, or use no processor time and move no bytes, may wait within a graph for a peer that compiles.
  So they hang only where nobody works: all workers of the job are overdue, idle or say that they wait (heartbeat.py).
  Then it is one that does not wait within another library, and of these the one that was heard from first.
  Of workers that neither write a line nor join the job, one that is idle hangs; but one whose main thread wakes now
  and then may ask for a file that another one writes, and one that sleeps at a lock, a pipe or a socket may be woken by
  another one (`asks`). On an accelerator a host rests while the device works: there idleness says nothing.

A busy machine is no hang: the seconds in which a worker stood in line for a core hardly count (`Clock`). But those of
Python code that takes no memory, which work does, count for more.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pet.launching.heartbeat import CALLING, JOINING, LEAVING, PAUSING, QUIET, SILENT, WAITING, WORKING
from pet.launching.stacks import QUESTION, Stack, file_of

IDLE_SHARE = 0.002
"""A worker that uses less than this share of one core is idle; MindSpore's own threads use 0.0001."""
BUSY_SHARE = 0.5
"""A main thread that runs, or waits to run, for more than this share of the time is in a loop of its own."""
SAMPLE = 1.0
"""Seconds between two looks at what a worker uses."""
LONGEST_TICK = 1.0
"""Seconds between two looks at the clock at most: where it was longer, the launcher itself was held up."""
SMALLEST_SHARE = 0.05
"""However busy the machine is, a second counts as so much of one: in the end a hang is a hang."""
PAGES = 64
"""Pages of memory that Python code in an endless loop takes in a second at most: it answers where it is."""
BARE = 2.0
"""Seconds that count for one that such code ran, up to those that passed: it is found as soon with a third of a core as
other code with two thirds."""


ALONE = ("pause", "nanosleep", "futex", "sigsuspend", "sigtimedwait")
"""Parts of the kernel's names for where a thread sleeps that nobody outside of its process wakes, but by a signal."""

WAITS = (WAITING, JOINING, LEAVING)
"""States of a worker that waits for its peers."""


class Clock:
    """Time as one worker has it.

    Attributes:
        wall: seconds since the start, without those in which the launcher itself was held up.
        fair: the same, each weighted with the share of the cores that the worker got of what it asked for.
        busy: share of the last second in which the main thread ran or waited to run.
        answers: whether it said that it was in Python code, and in no other library's, when it was last asked.
    """

    def __init__(self, pid: int):
        self.pid = pid
        self.wall = self.fair = self.busy = 0.0
        self.share, self.answers = 1.0, False
        self.last = self.sampled = time.monotonic()
        self.before = self._demand()

    def tick(self) -> None:
        """To be called several times a second."""
        now = time.monotonic()
        passed, self.last = min(now - self.last, LONGEST_TICK), now
        if now - self.sampled >= SAMPLE:
            found, seconds = self._demand(), now - self.sampled
            used = [max(0.0, new - old) / seconds for new, old in zip(found, self.before, strict=True)]
            self.busy = used[0] + used[1]
            # the main thread where it runs, else all together; what they slept they did not want to work
            ran, waited = used[:2] if self.busy > BUSY_SHARE else used[2:4]
            self.share = max(SMALLEST_SHARE, 1.0 - waited / max(1.0, ran + waited))
            if self.busy > BUSY_SHARE and self.answers and used[4] < PAGES:
                self.share = min(1.0, BARE * self.share)
            self.before, self.sampled = found, now
        self.wall += passed
        self.fair += passed * self.share

    def _demand(self) -> list[float]:
        """Seconds that the main thread ran, and stood in line for a core; the same of all threads; pages of memory that
        it took. 0 where unknown."""
        found, tasks = [0.0] * 5, Path(f"/proc/{self.pid}/task")
        for file in tasks.glob("*/schedstat"):
            with contextlib.suppress(OSError, ValueError):
                ran, waited = (int(part) / 1e9 for part in file.read_text().split()[:2])
                found[2:4] = found[2] + ran, found[3] + waited
                if file.parent.name == str(self.pid):
                    found[:2] = ran, waited
        with contextlib.suppress(OSError, ValueError, IndexError):
            # the name, in front, may have spaces
            found[4] = float((tasks / str(self.pid) / "stat").read_text().rpartition(")")[2].split()[7])
        return found


class Watch:
    """The launcher's view of one worker.

    Args:
        beat_file: where it writes its lines.
        limit: seconds without a sign of life that count as a hang.
        use_idle: whether an idle process counts as hanging at all.

    Attributes:
        running: until the launcher sees that it has ended.
        state, heard: of its last line: what it is at, and when it was written.
        due: when the next should have come, by its clock.
        seen: when it was last looked at, by its clock: what it does meanwhile is not known.
        woke: when its main thread, or that of a child, was last seen to have woken, or to sleep where a peer may
            wake it.
        calm: when its main thread last slept, or had a reason to run for long.
        stack: where it was a second ago, once there was reason to ask; None within C++.
        outside: how many answers in a row were from outside of other libraries.
    """

    def __init__(self, pid: int, beat_file: Path, limit: float, use_idle: bool = True):
        import psutil

        self.beat_file, self.limit, self.use_idle = beat_file, limit, use_idle
        self.clock, self.process = Clock(pid), psutil.Process(pid)
        self.running, self.state, self.heard, self.due, self.calm = True, SILENT, 0.0, 0.0, 0.0
        self.stack: Stack | None = None
        self.outside = 0
        self.sampled = time.monotonic()
        self.seen = self.active = self.awake = self.woke = self.clock.wall
        self.work = self._work()

    def look(self) -> None:
        """Takes note of the worker's last line, and once a second of what it uses."""
        self.clock.tick()
        self._listen()
        spent = time.monotonic() - self.sampled
        if spent < SAMPLE:
            return
        before, self.work = self.work, self._work()
        seconds, moved, woken = (now - earlier for now, earlier in zip(self.work, before, strict=True))
        # the beats are no work: 4 KB per second of file traffic is nothing
        if seconds > IDLE_SHARE * spent or moved > 4096 * spent:
            self.active = self.clock.wall
        if woken or asks(self.process):
            self.woke = self.clock.wall
        self.sampled, self.seen = time.monotonic(), self.clock.wall
        self._ask()

    def _ask(self) -> None:
        """Reads the answer to the last question. Asks again where the main thread runs, or a verdict is near."""
        file, before, self.stack = file_of(self.beat_file), self.stack, None
        with contextlib.suppress(OSError, ValueError):
            self.stack = Stack(json.loads(file.read_bytes()))
            file.unlink()
        self.clock.answers = self.stack is not None and not self.stack.in_library
        self.outside = self.outside + 1 if self.clock.answers else 0
        busy, soon = self.clock.busy > BUSY_SHARE, 2 * SAMPLE
        if not busy or self._has_reason(before):
            self.calm = self.clock.fair
        near = self.clock.fair > self.due - soon or self.clock.wall - self.active > self.limit - soon
        if self.state not in QUIET and QUESTION is not None and (busy or near):
            with contextlib.suppress(OSError):
                os.kill(self.clock.pid, QUESTION)

    def _has_reason(self, before: Stack | None) -> bool:
        """Whether the main thread may run for long where it is."""
        if self.stack is not None:
            moved = self.stack.importing != (before.importing if before else [])
            if self.stack.compiling or moved:
                self.due = max(self.due, self.clock.fair + self.limit)
                return True
        return self.state in (CALLING, *WAITS) and (self.stack is None or self.stack.in_library)

    def _listen(self) -> None:
        """A new line runs from here on, by the worker's clock."""
        try:
            heard, state, within, pid = (float(part) for part in self.beat_file.read_bytes().split())
        except (OSError, ValueError):
            return
        if heard != self.heard:
            self.heard, self.state = heard, int(state)
            if int(pid) != self.clock.pid:  # the worker is a shell, and this its child
                wall, self.clock = self.clock.wall, Clock(int(pid))
                self.clock.wall = wall
            endless = self.state != WORKING and not within
            self.due = float("inf") if endless else self.clock.fair + max(within, self.limit)
            self.active, self.calm = self.clock.wall, self.clock.fair

    def _work(self) -> tuple[float, int, int]:
        """Processor seconds, bytes moved, and how often main threads went to sleep so far, by the worker and its
        children.

        One that is ready to run counts as running, though a busy machine may not have let it.
        """
        import psutil

        seconds, moved, woken, stopped = 0.0, 0, 0, False
        with contextlib.suppress(psutil.Error):
            for process in [self.process, *self.process.children(recursive=True)]:
                with contextlib.suppress(psutil.Error, AttributeError):
                    status = process.status()
                    if status in (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP):
                        self.active = self.clock.wall
                    stopped |= status == psutil.STATUS_STOPPED and process.pid in (self.process.pid, self.clock.pid)
                    times = process.cpu_times()
                    seconds += times.user + times.system
                    woken += process.num_ctx_switches().voluntary
                    counters = process.io_counters()
                    moved += getattr(counters, "read_chars", 0) + getattr(counters, "write_chars", 0)
        if not stopped:
            self.awake = self.clock.wall
        return seconds, moved, woken

    @property
    def idle(self) -> bool:
        """Whether it has done nothing for longer than the limit, though nothing outside of the job keeps it."""
        return self.use_idle and self.state != PAUSING and self.seen - self.active > self.limit

    @property
    def overdue(self) -> bool:
        """Whether its next line should have come."""
        return self.state in (WORKING, CALLING) and self.clock.fair > self.due

    @property
    def looping(self) -> bool:
        """Whether its main thread has run for longer than the limit without a reason."""
        runs = self.clock.busy > BUSY_SHARE and self.clock.fair - self.calm > self.limit
        return runs and (self.overdue or self.state in (CALLING, *WAITS))

    @property
    def asleep(self) -> bool:
        """Whether it says that it waits for a peer, but sleeps elsewhere: twice, since what returns from C++ answers
        late."""
        return self.state in (WAITING, JOINING) and self.idle and self.outside > 1

    @property
    def stopped(self) -> bool:
        """Whether somebody has stopped it, and for longer than the limit."""
        return self.seen - self.awake > self.limit

    @property
    def reason(self) -> str:
        """Why it hangs, where it does."""
        if self.stopped:
            return f"has been stopped for {self.seen - self.awake:.0f} s"
        if self.overdue or self.looping:
            return f"made no progress for {time.monotonic() - self.heard:.0f} s"
        longer = " (a script of your own may, for longer: --hang-timeout SECONDS, 0 never)"
        return f"did nothing for {self.seen - self.active:.0f} s{longer if self.state in QUIET else ''}"

    def view(self) -> View:
        """What counts where nobody works."""
        inside = self.stack is None or self.stack.in_library
        if self.state == SILENT:
            inside = self.seen - self.woke <= self.limit
        return View(self.state, self.idle, self.overdue, inside, time.monotonic() - self.heard)


def asks(process) -> bool:
    """Whether a process sleeps where another one may wake it. Of a main thread that waits for a child, or for what may
    be another thread, that one counts. The kernel may not say where: then it does not.

    Args:
        process: a ``psutil.Process``.
    """
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        tasks = Path(f"/proc/{process.pid}/task")
        places = [(tasks / str(process.pid) / "wchan").read_text()]
        if places[0] == "do_wait":
            return any(map(asks, process.children()))
        if "futex" in places[0]:
            places = [file.read_text() for file in tasks.glob("*/wchan")]
        return any(place not in ("", "0") and not any(word in place for word in ALONE) for place in places)
    return False


class View(NamedTuple):
    """A worker among all of the job, on whatever machine.

    Attributes:
        state: of its last line.
        idle, overdue: see `Watch`.
        inside: whether it is where it may wait for a peer: within C++ or another library, and one that never wrote a
            line anywhere, if its main thread wakes now and then.
        age: of its last line, in seconds.
    """

    state: int
    idle: bool
    overdue: bool
    inside: bool
    age: float


BUSY = View(PAUSING, False, False, False, 0.0)
"""What is thought of one that is not judged."""


def find_hanging(watches: Sequence[Watch]) -> Watch | None:
    """The worker that hangs by itself, whatever the others do, or None. To be called several times a second."""
    running = [watch for watch in watches if watch.running and watch.limit > 0]
    for watch in running:
        watch.look()
    return next((watch for watch in running if watch.stopped or watch.looping or watch.asleep), None)


def find_awaited(views: Sequence[View]) -> int | None:
    """The index of the worker that all wait for, where nobody works; None where somebody does.

    Args:
        views: of all workers of the job that run.
    """
    asleep = [index for index, view in enumerate(views) if view.idle and not view.inside]
    if asleep and all(view.state == SILENT for view in views):
        return asleep[0]
    if not all(view.overdue or view.idle or view.state in WAITS for view in views):
        return None
    suspects = [index for index, view in enumerate(views) if view.state not in WAITS]
    if not suspects and all(view.idle for view in views):  # all wait for one another, or for one that has left
        suspects = [index for index, view in enumerate(views) if view.state != LEAVING]
    # what still uses the processor hangs in a loop, the others may wait for it
    return min(suspects, key=lambda index: (views[index].inside, views[index].idle, -views[index].age), default=None)
