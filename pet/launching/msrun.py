"""The processes that one msrun has started on this machine, as one of them finds them.

When a worker has failed, msrun ends the others, and then waits for its scheduler, which misses them after half a
minute, or after ten where they had not joined. So whoever fails ends the scheduler, too. For workers that are killed
before they join, a guard does so: this file as a program, which the scheduler starts, since none of its own Python code
runs while it serves.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

JOB = ("MS_WORKER_NUM", "MS_SCHED_HOST", "MS_SCHED_PORT")
"""Variables that all processes of a job have alike."""
WORKER, SCHEDULER = "MS_WORKER", "MS_SCHED"
"""Values of MS_ROLE."""
GONE = 30.0
"""Seconds after the end of all workers in which their scheduler ends by itself, where all is well."""


def of_job(role: str, parent: int | None = None) -> Iterator[tuple[int, str | None]]:
    """(id, number among the job's workers) of each process of this job's in a role that was started beside this one. A
    program that shows a worker's log counts as that worker.

    Args:
        role: `WORKER` or `SCHEDULER`.
        parent: msrun's id; by default that of this process's parent.
    """
    import psutil

    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(parent or os.getppid()).children():
            with contextlib.suppress(psutil.Error):
                found = process.environ()
                if found.get("MS_ROLE") == role and all(found.get(name) == os.environ.get(name) for name in JOB):
                    yield process.pid, found.get("MS_NODE_ID")


def all_here(parent: int | None = None) -> bool:
    """Whether all workers of this job run beside this process, so that msrun ends them where one fails."""
    found = {number for _, number in of_job(WORKER, parent)} - {None}
    return str(len(found)) == os.environ.get("MS_WORKER_NUM")


def end_scheduler() -> None:
    """Ends the scheduler of this worker's job, where it is on this machine: the job has failed."""
    if os.environ.get("MS_ROLE") == WORKER:
        for pid, _ in of_job(SCHEDULER):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def start_guard() -> None:
    """To be called by the scheduler before it serves."""
    subprocess.Popen([sys.executable, "-I", __file__, str(os.getppid())], stdin=subprocess.DEVNULL)


def guard(launcher: int) -> None:
    """Ends the scheduler, this process's parent, when all its workers were here and are gone.

    Args:
        launcher: id of msrun.
    """
    scheduler, seen, last = os.getppid(), False, time.monotonic()
    while os.getppid() == scheduler:
        seen = seen or all_here(launcher)
        if not seen or [*of_job(WORKER, launcher)]:
            last = time.monotonic()
        elif time.monotonic() - last > GONE:
            print("all workers are gone, and did not say that they are through: the scheduler ends", file=sys.stderr)
            os.kill(scheduler, signal.SIGKILL)
        time.sleep(1.0)


if __name__ == "__main__":
    guard(int(sys.argv[1]))
