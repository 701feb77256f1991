"""How the processes of a job come together that somebody else's launcher started, on as many machines as there are."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from model_zoo.errors import InputError
from pet.launching.environment import Job, read_job
from pet.launching.msrun import all_here, end_scheduler
from pet.train.agreement import raise_everywhere

TELL_LIMIT = 60
"""Seconds that a process which has found something wrong waits for the others, to tell them."""

_came = False


def come_together(problem: InputError | None = None) -> Job:
    """Joins the job. What one process has found wrong in its input before ends all of them, with its message.

    ``pet launch`` sees to that by itself. Under msrun and others a process that ended before the job has come together
    would leave the others waiting for it for minutes. So it is said at once, and the job comes together in any case;
    but where all are on this machine, msrun ends the others.

    Args:
        problem: what this process has found; None joins it to work.

    Raises:
        InputError: what any process has found.
    """
    global _came
    job = read_job()
    ours = not job.joins or job.launcher in ("none", "pet") or _came
    if problem is not None and ours:
        raise problem
    if problem is not None:
        from pet.recipe.variables import hide

        print(f"rank {job.rank}: {hide(str(problem))}", file=sys.stderr, flush=True)
        problem.said = True
        if job.launcher == "msrun" and all_here():
            end_scheduler()
            raise problem
    from pet.parallel import collectives, join, peers

    try:
        job = join.join(None if problem is None else TELL_LIMIT)
    except InputError as error:  # nobody is there to be told
        raise problem or error from None
    peers.watch()
    if not ours:
        _came = True
        if job.distributed:
            raise_everywhere(problem, lambda value: collectives.all_gather_object(value, collectives.world()))
        elif problem is not None:
            raise problem
    return job


@contextlib.contextmanager
def shared_errors() -> Iterator[None]:
    """A block that reads this process's input, and comes together with the others of its job at the end."""
    job = read_job()
    if job.launcher == "pet" or not job.joins:
        yield
        return
    problem = None
    try:
        yield
    except InputError as error:
        problem = error
    os.environ.setdefault("GLOG_v", "3")  # MindSpore's C++ side: errors only
    come_together(problem)
