"""A process beside each worker of a job that `pet launch` did not start, which finds out whether that hangs.

It looks at its worker as the launcher does (watch.py), and the sentinels of a job judge together, as launchers of
several machines do (control.py). Where a worker hangs, each says which and why in its worker's log, and that worker is
ended; then the others end by themselves (`pet.parallel.peers`). Only workers are judged that say what they are at, as
runs of this library do (heartbeat.py), not a script's own loop.

It is no child of its worker, which would seem to work when it does.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from model_zoo.cores import accelerators_present
from model_zoo.errors import InputError
from model_zoo.posix import resource
from model_zoo.programs import program
from pet.launching.control import Control
from pet.launching.environment import Job
from pet.launching.heartbeat import BEAT_FILE, PAUSING, SILENT, repeat
from pet.launching.watch import View, Watch, find_hanging

VARIABLE = "PET_HANG_TIMEOUT"
"""Names the environment variable with `LIMIT`; 0 for no sentinels."""
LIMIT = 30.0
"""Seconds without any sign of life after which a worker counts as hanging. Nobody who starts it is asked, so that they
are more than the launcher's."""
DIRECTORY = "pet-sentinel-"
"""How directories begin in which a worker and its sentinel have their files; its id follows."""
PAUSE = 0.2
"""Seconds between two looks."""
HANGS = 124
"""The exit code that sentinels exchange for a hang; any other end of one says nothing."""
BUSY = View(PAUSING, False, False, False, 0.0)
"""What is thought of a worker that says nothing."""
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


def start(job: Job, address: tuple[str, int], secret: str) -> None:
    """Starts this process's sentinel.

    Args:
        address: where that of rank 0 is to listen.
    """
    if BEAT_FILE in os.environ or not limit():
        return
    try:
        remove_left()
        directory = tempfile.mkdtemp(prefix=f"{DIRECTORY}{os.getpid()}-")
    except OSError as error:  # a full disk
        print(
            f"rank {job.rank}: nobody will notice if it hangs: {error.strerror}: {tempfile.gettempdir()}",
            file=sys.stderr,
        )
        return
    os.environ[BEAT_FILE] = str(Path(directory, "beat"))
    repeat()
    if not faulthandler.is_enabled():
        faulthandler.enable()  # where it hangs stands in the log then
    said = {"pid": os.getpid(), "rank": job.rank, "size": job.size, "address": address, "secret": secret}
    # msrun kills its workers by their groups, which no terminal stops; elsewhere Ctrl-Z stops both
    said |= {"directory": directory, "limit": limit(), "apart": job.launcher == "msrun"}
    subprocess.run(program(START), input=json.dumps(said), text=True, stdout=subprocess.DEVNULL, check=False)


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
        keep_watch(said, log)
    except (InputError, OSError):  # nobody to judge with, or no worker any more
        pass
    finally:
        shutil.rmtree(said["directory"], ignore_errors=True)


def keep_watch(said: dict, log: int) -> None:
    """Until the worker has ended, or hangs.

    Args:
        said: what `start` says.
        log: where the worker's errors go.
    """
    import psutil

    rank = said["rank"]
    with contextlib.suppress(psutil.Error):
        worker = psutil.Process(said["pid"])
        watch = Watch(worker.pid, Path(said["directory"], "beat"), said["limit"], not accelerators_present())
        with Control(said["size"], rank, tuple(said["address"]), 1, said["secret"].encode()) as control:
            while worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE:
                hangs = find_hanging([watch]) is not None
                view = watch.view() if watch.state != SILENT else BUSY
                if hangs or control.awaited({0: view}) is not None:
                    text = f"rank {rank} hangs: it {watch.reason}"
                    control.fail(HANGS, text)
                    end(worker.pid, text, log)
                    return
                elsewhere = control.exchange(done=False)
                if elsewhere is not None:
                    code, text = elsewhere
                    if code == HANGS:
                        say(text.partition(": ")[2], log)
                    return
                time.sleep(PAUSE)


def say(text: str, log: int) -> None:
    with contextlib.suppress(OSError):
        os.write(log, f"\n{text}\n".encode())


def end(pid: int, text: str, log: int) -> None:
    """Ends the worker, which prints where it is."""
    say(f"{text}: this process ends", log)
    with contextlib.suppress(OSError, ValueError):
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
        for number in (signal.SIGABRT, signal.SIGCONT):  # a stopped one answers as soon as it goes on
            os.kill(pid, number)
        time.sleep(1.0)
        os.kill(pid, signal.SIGKILL)
