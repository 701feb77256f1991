"""Joining the job that this process belongs to, and leaving it without stalling the others.

Whoever started the workers (environment.py) decides how they find each other: msrun, and a rank table on an
accelerator, are served by MindSpore's own ``init()``; ``pet launch``, bare RANK_ID/RANK_SIZE and a rank table on a CPU
by a key-value store on MASTER_ADDR:MASTER_PORT, which is several times faster and needs no scheduler process. On
Ascend ``mint.distributed.init_process_group`` takes such a store. It refuses a CPU, where the function behind it, which
is private, is called instead. HCCL moves the data on Ascend, MCCL on a CPU.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

from model_zoo.errors import InputError, first_line
from pet.launching.addresses import await_listener, only_here
from pet.launching.environment import Job, has_rank, on_device, read_job
from pet.launching.heartbeat import joined, joining, leaving, waiting
from pet.launching.msrun import SCHEDULER, check_port, end_scheduler, scheduler, start_guard
from pet.parallel.meeting import meet

JOIN_LIMIT = 120
"""Seconds that all workers of `pet launch`, which starts them at once, have to import MindSpore and join."""
START_LIMIT = 600
"""The same where another system starts them: one machine may be ready minutes after another, as msrun allows."""
PATIENCE = 20.0
"""Seconds after which a worker says what it waits for, in which another one of `pet launch` has imported MindSpore."""
WAIT_LIMITS = {"MS_CPU_COMM_OP_TIMEOUT": "86400", "HCCL_CONNECT_TIMEOUT": "7200", "HCCL_EXEC_TIMEOUT": "17340"}
"""Seconds that a collective may wait for its peers, on a CPU and on Ascend: the first between two processes, and any.
The defaults (30, 120 and 1836) are less than one rank's compilation, evaluation or saving may take longer than
another's; a worker that hangs or dies is the launcher's business. HCCL takes no more than these."""
MINDSPORES_LIMITS = {"HCCL_CONNECT_TIMEOUT": "600"}
"""What importing MindSpore puts there where nobody has set it."""
SAY_LATER = """
import select, sys
if not select.select([sys.stdin], [], [], float(sys.argv[1]))[0]:
    print(sys.argv[2], file=sys.stderr, flush=True)
"""
LEAVE_LIMIT = 20.0
"""Seconds that a worker which is through waits for the others. One that ends while its last message is under way may
leave the others without it."""
PART_LIMIT = 5.0
"""The same where all have found out that something is wrong."""
LONGEST_REASON = 400
"""Characters of an error that the other processes are told."""

_job: Job | None = None
_failed = ""
_left = False
_told: list[Callable[[str], None]] = []


def on_leaving(tell: Callable[[str], None]) -> None:
    """Has a function called when this process is through, with nothing, or failed, with what it did."""
    _told.append(tell)


def join(limit: int | None = None) -> Job:
    """Joins the job, once per process; alone there is nothing to join. Returns this process's place in it.

    To be called before any tensor is made, since it chooses the device of an accelerator.

    Args:
        limit: seconds that others have to join; by default `JOIN_LIMIT` or `START_LIMIT`. A scheduler has its own.
    """
    global _job
    if _job is not None:
        return _job
    job = read_job()
    if job.distributed and not has_rank(os.environ):
        raise InputError(
            f"RANK_SIZE says {job.size} workers, but no RANK_ID says which one this is; unset it, and start them by "
            f"pet launch -n {job.size} -- COMMAND"
        )
    if job.joins:
        job = on_device(job)
        for name, seconds in WAIT_LIMITS.items():
            if os.environ.get(name) in (None, MINDSPORES_LIMITS.get(name)):
                os.environ[name] = seconds
        show = sys.excepthook  # which MindSpore puts back to what it was when it was imported itself
        with joining():
            job = _connect(job, limit)
        joined()
        _print_failures(show)
        atexit.register(leave, wait=_ready_to_wait())
    _job = job
    return job


def world_group() -> str:
    """MindSpore's name for the group of all workers."""
    from mindspore.communication import GlobalComm

    return GlobalComm.WORLD_COMM_GROUP


def barrier() -> None:
    """Returns when every process has called it."""
    if join().distributed:
        with waiting():
            _meet_all()


def _meet_all() -> None:
    import numpy as np
    from mindspore import Tensor, ops

    # MCCL's own barrier returns without waiting
    ops.AllReduce(group=world_group())(Tensor(np.zeros(1, np.float32))).asnumpy()


def _connect(job: Job, limit: int | None) -> Job:
    import dataclasses

    import mindspore as ms
    from mindspore import communication

    target = ms.get_context("device_target")
    if target != "CPU":
        ms.set_device(target, job.device)
    if communication.GlobalComm.INITED:  # the user's script has done it
        pass
    elif job.launcher == "msrun" or (job.launcher == "rank_table" and target != "CPU"):
        with _said(job):
            communication.init()
    else:
        _meet(job, target, limit or (JOIN_LIMIT if job.launcher == "pet" else START_LIMIT))
    if target == "CPU" and job.distributed:
        # mint's send and recv ask for this group whatever group they are given
        communication.create_group("hccl_world_group", list(range(job.size)))
    # a scheduler may have numbered the workers anew
    return dataclasses.replace(job, rank=communication.get_rank(), size=communication.get_group_size())


@contextlib.contextmanager
def _said(job: Job) -> Iterator[None]:
    """Says what this process waits for if the block takes long. A scheduler serves.

    While MindSpore waits for its scheduler no Python code of this process runs, so that another one says it.
    """
    if os.environ.get("MS_ROLE") == SCHEDULER:
        check_port()
        start_guard()
        yield
        return
    place = scheduler()
    text = f"rank {job.rank}: waiting at {place} for all {job.size} processes of the job{only_here(place)}"
    command = [sys.executable, "-I", "-S", "-c", SAY_LATER, str(PATIENCE), text]
    speaker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        await_listener(*place.rsplit(":", 1), PATIENCE)
        with _asking_first():
            yield
    finally:
        speaker.stdin.close()
        speaker.wait()


@contextlib.contextmanager
def _asking_first() -> Iterator[None]:
    """Within, threads that this one starts do not take its core from it.

    MindSpore loses a connection to its scheduler when the thread that receives the answer runs before the one that asks
    has put down that it does, and tries again after half a second, so that joining could take a minute.
    """
    plain = hasattr(os, "SCHED_BATCH") and os.sched_getscheduler(0) == os.SCHED_OTHER  # Linux alone has it
    if plain:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        yield
    finally:
        for thread in os.listdir("/proc/self/task") if plain else ():
            with contextlib.suppress(OSError):  # it may have ended
                os.sched_setscheduler(int(thread), os.SCHED_OTHER, os.sched_param(0))


def _meet(job: Job, target: str, seconds: int) -> None:
    """Joins through a store that the first worker serves."""
    from mindspore.communication import management
    from mindspore.mint import distributed

    store = meet(job, seconds, PATIENCE)
    limit, place = timedelta(seconds=seconds), {"world_size": job.size, "rank": job.rank}
    if target != "CPU":
        distributed.init_process_group("hccl", timeout=limit, store=store, **place)
    elif hasattr(management, "_init_with_store"):  # since MindSpore 2.9
        management._init_with_store(backend="mccl", timeout=limit, store=store, **place)
    else:
        management._init_without_sched("mccl", timeout=seconds * 1000, store=store, **place)


def _print_failures(previous: Callable) -> None:
    """Lets an uncaught exception end the process at once: the interpreter's normal end would wait for the peers.

    Args:
        previous: shows it.
    """

    def hook(kind, error, trace):
        global _failed
        _failed = f"failed: {kind.__name__}: {first_line(error)}"[:LONGEST_REASON]
        previous(kind, error, trace)

    sys.excepthook = hook


def leave(code: int = 0, wait: Callable[[float], None] | None = None) -> bool:
    """Waits for the others, so that nobody's message is lost, and ends the process at once if it failed.

    Registered to run at exit; the command line calls it with its exit code.

    Args:
        wait: waits for the others, where no thread can be started for it any more.

    Returns:
        Whether the process may end without the interpreter's normal end. Under msrun it may not: the scheduler takes
        a worker that has not signed off, as MindSpore does at the normal end, for lost, and fails.
    """
    global _left
    if _left or _job is None or not _job.joins:
        return False
    _left = True
    signalled = code > 128 and not _failed  # which ends all processes after the same step
    for tell in _told:
        tell(_failed or (f"ended with exit code {code}" if code and not signalled else ""))
    if signalled:  # who is quick to end is no reason to kill those that still write
        _ready_to_wait()(LEAVE_LIMIT)
    if code or _failed:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        end_scheduler()
        os._exit(code or 1)
    if _job.distributed:
        (wait or _ready_to_wait())(LEAVE_LIMIT)
    return _job.launcher != "msrun"


def part() -> None:
    """Waits for the others, all of which end now for a reason that each knows: who ended at once might leave another
    one without the message that says it."""
    if _job is not None and _job.distributed and not _left:
        for tell in _told:
            tell("")
        _ready_to_wait()(PART_LIMIT)


def _ready_to_wait() -> Callable[[float], None]:
    """What waits for the others, for so many seconds at most, in a thread that is there from now on: Python 3.12 starts
    none in what is registered to run at exit."""
    asked = threading.Event()

    def goodbye() -> None:
        asked.wait()
        # it fails where another one has failed, or this one ends in the middle of a job: its last words are to be why
        with contextlib.suppress(Exception), leaving():
            _meet_all()

    thread = threading.Thread(target=goodbye, daemon=True)
    thread.start()

    def wait(seconds: float) -> None:
        asked.set()
        thread.join(seconds)

    return wait
