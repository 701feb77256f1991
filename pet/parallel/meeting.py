"""Meeting through a key-value store that rank 0 serves.

While MindSpore's store waits, no Python code runs: no line is said, and no signal is received, for minutes. So it is
asked only for what is there. What may take its time is waited for here: that rank 0 comes, and then all others.

Each process notes its rank and the job's size, so that processes of two jobs at one address are told apart.
"""

from __future__ import annotations

import socket
import time
from datetime import timedelta

from model_zoo.errors import InputError, first_line
from pet.launching.addresses import Notice, only_here, refusal, resolve, unreachable
from pet.launching.environment import Job, split_address
from pet.launching.heartbeat import repeat

OPERATION = timedelta(seconds=60)
"""That an operation of the store may take, where all are there."""
PAUSE = 0.1
"""Seconds between two questions."""
MOST_NAMED = 8
"""Ranks that are named."""


def meet(job: Job, seconds: float, patience: float):
    """The store, when all processes of the job are there.

    Args:
        seconds: that the others have to come.
        patience: seconds after which is said who is waited for.

    Raises:
        InputError: they do not come, another program has the port, or processes of two jobs meet.
    """
    limit, notice = time.monotonic() + seconds, Notice(patience)
    store = serve(job) if job.rank == 0 else reach(job, limit, notice, seconds)
    try:
        gather(store, job, limit, notice, seconds)
    except RuntimeError:
        raise InputError(f"rank 0 of the job at {job.master} is gone: it ended before all had joined") from None
    return store


def serve(job: Job):
    """Rank 0's."""
    host, port = split_address(job.master)
    address = resolve(host)
    try:
        if why := unreachable(address):  # MindSpore would try for a minute, in thousands of lines
            raise OSError(why)
        return store_at(address, port, job)
    except (RuntimeError, OSError) as error:
        why = refusal(address, port, "MASTER_ADDR", "the machine of rank 0") or first_line(error)
        raise InputError(f"the workers cannot meet at {job.master}: {why}") from None


def reach(job: Job, limit: float, notice: Notice, seconds: float):
    """Another one's: rank 0 may come later."""
    host, port = split_address(job.master)
    address = resolve(host)
    while True:
        try:
            with socket.create_connection((address, port), timeout=5.0):
                break
        except OSError as error:
            why = error.strerror or str(error)
        if time.monotonic() > limit:
            raise InputError(f"no rank 0 at {job.master} within {seconds:.0f} s ({why})")
        notice(f"rank {job.rank}: waiting at {job.master} for rank 0 ({why}){only_here(job.master)}")
        pause()
    try:
        return store_at(address, port, job)
    except (RuntimeError, OSError):
        raise InputError(
            f"what listens at {job.master} is no rank 0 of this job; if another program has this port, set "
            "MASTER_PORT, for all processes"
        ) from None


def pause() -> None:
    """Between two questions. It is a sign of life: who asks so rarely looks idle, and that in code of ours."""
    repeat()
    time.sleep(PAUSE)


def store_at(address: str, port: int, job: Job):
    """MindSpore's store, without waiting for anybody else."""
    from mindspore.mint import distributed

    place = (address, port, job.size, job.rank == 0)
    return distributed.TCPStore(*place, timeout=OPERATION, wait_for_workers=False)


def gather(store, job: Job, limit: float, notice: Notice, seconds: float) -> None:
    """Returns when all are there."""

    def count(key: str, more: int = 0) -> int:
        return store.add(key, more)

    own, everybody = f"of {job.size}", "processes"
    if count(f"rank {job.rank}", 1) > 1:
        raise InputError(
            f"rank {job.rank}: another process has this rank in a job at {job.master}; two jobs at once need two ports "
            "(MASTER_PORT)"
        )
    count(own, 1)
    count(everybody, 1)
    while True:
        total, alike = count(everybody), count(own)
        if total > alike:
            raise InputError(f"RANK_SIZE is {job.size} here, and another number in others of the job at {job.master}")
        if alike == job.size:
            return
        late = time.monotonic() > limit
        if late or notice.due:
            missing = [rank for rank in range(job.size) if not count(f"rank {rank}")]
            names = ", ".join(map(str, missing[:MOST_NAMED])) + (" …" if len(missing) > MOST_NAMED else "")
            if late:
                raise InputError(
                    f"not all {job.size} processes joined at {job.master} within {seconds:.0f} s: missing {names}"
                )
            notice(f"rank {job.rank}: waiting at {job.master} for ranks {names} of {job.size}{only_here(job.master)}")
        pause()
