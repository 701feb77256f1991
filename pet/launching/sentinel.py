"""A process beside each worker of a job that `pet launch` did not start, which finds out whether that hangs or is gone.

It looks at its worker as the launcher does (watch.py), and the sentinels of a job judge together, as launchers of
several machines do (control.py). Where a worker hangs, its sentinel ends it. Where one has ended without a word, is
ended, or its machine is gone, all sentinels tell their workers who and why, and these end (`pet.parallel.peers`); one
that cannot, since no Python code of its runs, is killed. Only workers are judged to hang that say what they are at, as
runs of this library do (heartbeat.py), not a script's own loop.

msrun looks at its workers alone, and a worker that is stopped is missed by msrun's scheduler, which ends. Both would
leave workers that wait for ever; so their sentinels look at them, too.

It is no child of its worker, which would seem to work when it does.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from model_zoo.errors import InputError
from model_zoo.posix import resource
from model_zoo.programs import program
from model_zoo.resources import accelerators_present
from pet.launching.control import Control
from pet.launching.ends import describe_end
from pet.launching.environment import Job
from pet.launching.heartbeat import BEAT_FILE, QUIET, repeat
from pet.launching.link import Link
from pet.launching.msrun import Scheduler, runs, scheduler, waiting_launcher, zombie_exit_code
from pet.launching.watch import BUSY, Watch, find_hanging

VARIABLE = "PET_HANG_TIMEOUT"
"""Names the environment variable with `LIMIT`; 0 where nobody hangs."""
LIMIT = 30.0
"""Seconds without any sign of life after which a worker counts as hanging. Nobody who starts it is asked, so that they
are more than the launcher's."""
DIRECTORY = "pet-sentinel-"
"""How directories begin in which a worker and its sentinel have their files; its id follows."""
PAUSE = 0.2
"""Seconds between two looks."""
PARTING = 10.0
"""Seconds that a worker has to end after it was told to."""
START = "from pet.launching import sentinel; sentinel.main()"


def limit() -> float:
    """The seconds that the environment asks for.

    Raises:
        InputError: they are no number.
    """
    text = os.environ.get(VARIABLE, str(LIMIT))
    try:
        return max(0.0, float(text))
    except ValueError:
        raise InputError(f"the environment variable {VARIABLE} must be seconds, 0 for never, not {text!r}") from None


def start(job: Job, address: tuple[str, int], secret: str) -> Link:
    """Starts this process's sentinel.

    Args:
        address: where that of rank 0 is to listen.

    Returns:
        The connection to it. It says ``{"end": why}`` where this process is to end, and is told the same where that
        ends by itself, or ``{"leaving": True}``.
    """
    said = {"pid": os.getpid(), "rank": job.rank, "size": job.size, "address": address, "secret": secret}
    # msrun kills its workers by their groups, which no terminal stops; elsewhere Ctrl-Z stops both
    said |= {"apart": job.launcher == "msrun", "directory": beat_directory(job), "limit": limit()}
    if job.launcher == "msrun":
        said |= {"launcher": waiting_launcher(), "scheduler": scheduler()}
    ours, theirs = socket.socketpair()
    with theirs:
        command = program(START, str(theirs.fileno()))
        given = {"input": json.dumps(said), "text": True, "stdout": subprocess.DEVNULL}
        subprocess.run(command, pass_fds=[theirs.fileno()], check=False, **given)
    return Link(ours)


def beat_directory(job: Job) -> str:
    """Makes the directory of this process's signs of life. Empty where nobody is to judge by them: a launcher does, or
    none is asked for."""
    if BEAT_FILE in os.environ or not limit():
        return ""
    try:
        remove_left()
        directory = tempfile.mkdtemp(prefix=f"{DIRECTORY}{os.getpid()}-")
    except OSError as error:  # a full disk
        print(
            f"rank {job.rank}: nobody will notice if it hangs: {error.strerror}: {tempfile.gettempdir()}",
            file=sys.stderr,
        )
        return ""
    os.environ[BEAT_FILE] = str(Path(directory, "beat"))
    repeat()
    if not faulthandler.is_enabled():
        faulthandler.enable()  # where it hangs stands in the log then
    return directory


def remove_left() -> None:
    """Removes what sentinels have left that were killed themselves, their workers with them."""
    for place in Path(tempfile.gettempdir()).glob(f"{DIRECTORY}*-*"):
        pid = place.name.removeprefix(DIRECTORY).partition("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists() and Path("/proc").exists():
            shutil.rmtree(place, ignore_errors=True)


def main() -> None:
    """The sentinel: reads from its input what it is to do."""
    said = json.loads(sys.stdin.read())
    if os.fork():
        return
    if said["apart"]:
        os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends when its worker does
    log = os.dup(2)
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - of what launchers say while they look for one another
    try:
        Sentinel(said, Link(socket.socket(fileno=int(sys.argv[1]))), log).keep_watch()
    finally:
        if said["directory"]:
            shutil.rmtree(said["directory"], ignore_errors=True)


class Circle(Control):
    """All sentinels of a job, each as of a machine with one worker."""

    silence = math.inf  # a stopped one is no lost one; whether its machine is there the kernels find out

    def loss(self, node: int) -> str:
        return f"rank {node} is gone, with its sentinel ({self.links[node].loss})"

    def fail(self, code: int, message: str) -> None:
        self._broadcast({"fail": code, "message": message})


class Sentinel:
    """One worker's.

    Args:
        said: what `start` says.
        link: the connection to the worker.
        log: where the worker's errors go.

    Attributes:
        left, hangs: whether the worker said that it is through, and whether it hangs.
    """

    def __init__(self, said: dict, link: Link, log: int):
        import psutil

        self.said, self.rank, self.link, self.log = said, said["rank"], link, log
        self.left = self.hangs = False
        self.worker = self.watch = None
        with contextlib.suppress(psutil.Error):
            self.worker = psutil.Process(said["pid"])
            if said["directory"]:
                beat_file = Path(said["directory"], "beat")
                self.watch = Watch(said["pid"], beat_file, said["limit"], not accelerators_present())
        self.scheduler = Scheduler(said["scheduler"]) if "scheduler" in said else None

    @property
    def runs(self) -> bool:
        return self.worker is not None and runs(self.worker)

    def keep_watch(self) -> None:
        """Until all workers of the job have ended, or this one is to."""
        control = Circle(self.said["size"], self.rank, tuple(self.said["address"]), 1, self.said["secret"].encode())
        why = None
        with contextlib.ExitStack() as joined:
            try:
                joined.enter_context(control)
            except (InputError, OSError) as error:
                self.say(f"rank {self.rank} will not notice if another one hangs or is gone: {error}")
                control = None
            while why is None:
                why = self.look(control)
                time.sleep(PAUSE)
        if why and self.runs and not self.left:
            self.abort(why) if self.hangs else self.end(why)

    def look(self, control: Circle | None) -> str | None:
        """Why the worker is to end; empty where all have ended, None while all is well."""
        running, told = self.runs, self.link.next() or {}
        self.left |= "leaving" in told
        why = told.get("end")
        if why is None and not running and not self.left:
            why = self.describe_end()
        elif running and self.watch is not None:
            alone = find_hanging([self.watch]) is not None
            view = self.watch.view() if self.watch.state not in QUIET else BUSY
            self.hangs = alone or (control is not None and control.awaited({0: view}) is not None)
            why = f"rank {self.rank} hangs: it {self.watch.reason}" if self.hangs else why
        elif control is not None and not running:
            control.awaited({})
        if control is None:
            return why or (self.starter_is_gone() if running else "")
        if why is None and (elsewhere := control.exchange(done=not running)) is not None:
            return elsewhere[1]
        if why is None and running and not self.left:
            why = self.starter_is_gone()
        if why is not None:
            control.fail(1, why)
        return why

    def describe_end(self) -> str:
        """What is said of a worker that ended without a word."""
        name, code = f"{self.rank} on {socket.gethostname()}", zombie_exit_code(self.said["pid"])
        return f"rank {name} is gone" if code is None else describe_end(name, code)[1]

    def starter_is_gone(self) -> str | None:
        """What is said where msrun, or its scheduler, has left the worker alone."""
        import psutil

        with contextlib.suppress(psutil.Error):
            if self.said.get("launcher") not in (None, self.worker.ppid()):
                return f"rank {self.rank}: msrun, which waited for it, is gone"
        if self.scheduler is not None and self.scheduler.gone():
            return "msrun's scheduler is gone, as it is where a process hangs; see scheduler.log"
        return None

    def say(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(self.log, f"\n{text}\n".encode())

    def end(self, why: str) -> None:
        """Has the worker end; kills it where it does not."""
        self.link.send({"end": why})
        limit = time.monotonic() + PARTING
        while self.runs and time.monotonic() < limit:
            time.sleep(PAUSE)
        if self.runs and "leaving" not in (self.link.next() or {}):
            self.say(f"{why}: this process, which does not end by itself, is killed")
            with contextlib.suppress(OSError):
                os.kill(self.said["pid"], signal.SIGKILL)

    def abort(self, why: str) -> None:
        """Ends a worker that hangs, which prints where it is."""
        pid = self.said["pid"]
        self.say(f"{why}: this process ends")
        with contextlib.suppress(OSError, ValueError):
            resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
            for number in (signal.SIGABRT, signal.SIGCONT):  # a stopped one answers as soon as it goes on
                os.kill(pid, number)
            time.sleep(1.0)
            os.kill(pid, signal.SIGKILL)
