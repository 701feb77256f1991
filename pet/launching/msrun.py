"""The processes that one msrun has started on this machine, as one of them finds them.

When a worker has failed, msrun ends the others, and then waits for its scheduler, which misses them after half a
minute, or after ten where they had not joined. So whoever fails ends the scheduler, too. For workers that are killed
before they join, a guard does so: this file as a program, which the scheduler starts, since none of its own Python code
runs while it serves.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from model_zoo.errors import InputError
from model_zoo.programs import file_program
from pet.launching.environment import split_address

JOB = ("MS_WORKER_NUM", "MS_SCHED_HOST", "MS_SCHED_PORT")
"""Variables that all processes of a job have alike."""
WORKER, SCHEDULER = "MS_WORKER", "MS_SCHED"
"""Values of MS_ROLE."""
GONE = 30.0
"""Seconds after the end of all workers in which their scheduler ends by itself, where all is well."""
STARTED = 3.0
"""Seconds that msrun may take to start the workers after the scheduler serves."""
TRIES = 3
"""Times that the scheduler is asked again, a second apart, before it is taken for gone."""


def scheduler() -> str:
    """Where msrun's scheduler listens."""
    return f"{os.environ.get('MS_SCHED_HOST', '')}:{os.environ.get('MS_SCHED_PORT', '')}"


class Scheduler:
    """The scheduler, as whoever keeps a connection to it finds it.

    Args:
        place: where it listens; one that is not there from the start is not missed.
    """

    def __init__(self, place: str):
        self.place, self.failures, self.next = place, 0, 0.0
        self.link = self.connect()
        self.known = self.link is not None

    def connect(self) -> socket.socket | None:
        with contextlib.suppress(OSError, InputError):
            return socket.create_connection(split_address(self.place), timeout=2.0)
        return None

    def gone(self) -> bool:
        """To be called a few times per second. It may close a connection that it does not know, and be there."""
        if self.link is not None and select.select([self.link], [], [], 0)[0]:
            with contextlib.suppress(OSError):
                if self.link.recv(256):
                    return False
            self.link.close()
            self.link, self.failures, self.next = None, 0, time.monotonic() + 1.0
        elif self.known and self.link is None and time.monotonic() > self.next:
            self.link, self.next = self.connect(), time.monotonic() + 1.0
            self.failures += self.link is None
        return self.failures >= TRIES


def of_job(role: str, parent: int | None = None) -> Iterator[tuple[psutil.Process, str | None]]:
    """Each process of this job's in a role that was started beside this one, and its number among the job's workers. A
    program that shows a worker's log counts as that worker.

    Args:
        role: `WORKER` or `SCHEDULER`.
        parent: msrun's id; by default that of this process's parent.
    """
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(parent or os.getppid()).children():
            with contextlib.suppress(psutil.Error):
                found = process.environ()
                if found.get("MS_ROLE") == role and all(found.get(name) == os.environ.get(name) for name in JOB):
                    yield process, found.get("MS_NODE_ID")


def all_here(parent: int | None = None) -> bool:
    """Whether all workers of this job run beside this process, so that msrun ends them where one fails."""
    found = {number for _, number in of_job(WORKER, parent)} - {None}
    return str(len(found)) == os.environ.get("MS_WORKER_NUM")


def waiting_launcher() -> int | None:
    """The id of the msrun that has started this process and waits for it; None where it does not wait (``--join``)."""
    parent = os.getppid()
    return parent if option(parent, "--join") == "True" else None


def option(launcher: int, name: str) -> str | None:
    """What msrun was given for an option; None where it was not, or where this is no msrun."""
    with contextlib.suppress(psutil.Error):
        words = psutil.Process(launcher).cmdline()
        given = next((words[index:] for index, word in enumerate(words) if word.partition("=")[0] == name), None)
        if given and "msrun" in " ".join(words[:2]):
            return given[0].partition("=")[2] or "".join(given[1:2])
    return None


def starts_all(launcher: int) -> bool:
    """Whether an msrun has started all workers of the job itself. It starts its scheduler before them, but that takes
    longer to serve."""
    return os.environ.get("MS_WORKER_NUM") == option(launcher, "--local_worker_num")


def end_scheduler() -> None:
    """Ends the scheduler of this worker's job, where it is on this machine: the job has failed."""
    if os.environ.get("MS_ROLE") == WORKER:
        for process, _ in of_job(SCHEDULER):
            with contextlib.suppress(psutil.Error):
                process.kill()


def check_port() -> None:
    """To be called by the scheduler before it serves. Where another program has its port the workers here, which would
    wait for that one, are ended with a word in their logs: msrun shows those.

    Raises:
        InputError: another program listens there.
    """
    host, port = os.environ.get("MS_SCHED_HOST", ""), os.environ.get("MS_SCHED_PORT", "")
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind((host, int(port)))  # without listening: a worker might join what is gone a moment later
            return
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) != errno.EADDRINUSE:
            return  # MindSpore says it
    text = f"another program listens at {host}:{port}, msrun's scheduler cannot; give another --master_port"
    for process, _ in of_job(WORKER):
        with contextlib.suppress(OSError, psutil.Error):
            if not named(process, "tail"):
                with open(f"/proc/{process.pid}/fd/2", "a") as log:
                    log.write(f"{text}\n")
            process.kill()
    raise InputError(text)


def start_guard() -> None:
    """To be called by the scheduler before it serves."""
    subprocess.Popen(file_program(__file__, str(os.getppid())), stdin=subprocess.DEVNULL)


def guard(launcher: int) -> None:
    """Ends the scheduler, this process's parent, when all its workers were here and are gone; and what shows their logs
    where msrun, which would, is gone as well."""
    scheduler, begin, last, workers, shown = os.getppid(), time.monotonic(), time.monotonic(), {}, []
    while os.getppid() == scheduler:
        if not workers and all_here(launcher):
            here = dict(of_job(WORKER, launcher))
            shown = [process for process in here if named(process, "tail")]
            workers = {process: rank for process, rank in here.items() if process not in shown}
        if not workers and time.monotonic() - begin > STARTED and starts_all(launcher):
            print("a worker has ended before it joined: the scheduler ends", file=sys.stderr)
            os.kill(scheduler, signal.SIGKILL)
            break
        if not workers or any(map(runs, workers)):
            last = time.monotonic()
        elif any(zombie_exit_code(process.pid) for process in workers) or time.monotonic() - last > GONE:
            # whom msrun has asked for the exit code: it does not ask those that it kills thereupon
            first = [
                f"rank {rank} ({process.pid})"
                for process, rank in workers.items()
                if not psutil.pid_exists(process.pid)
            ]
            named_first = f" ({', '.join(first)} ended first)" if 0 < len(first) < len(workers) else ""
            print(f"all workers are gone{named_first}, and not all were through: the scheduler ends", file=sys.stderr)
            os.kill(scheduler, signal.SIGKILL)
            break
        time.sleep(1.0)
    if not psutil.pid_exists(launcher):
        for process in shown:
            with contextlib.suppress(psutil.Error):
                process.kill()


def named(process: psutil.Process, name: str) -> bool:
    """Whether a process runs that program."""
    with contextlib.suppress(psutil.Error):
        return process.name() == name
    return False


def zombie_exit_code(pid: int) -> int | None:
    """With what a process has ended, or minus the signal that killed it; None where it has not, or nobody knows. That
    is known until its parent asks. msrun does not for those that it has killed itself."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        # behind the name, which may have spaces: the state, and 49 fields on the exit code
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return os.waitstatus_to_exitcode(int(fields[49])) if fields[0] == "Z" else None
    return None


def runs(process: psutil.Process) -> bool:
    """Whether a process has not ended."""
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


if __name__ == "__main__":
    guard(int(sys.argv[1]))
