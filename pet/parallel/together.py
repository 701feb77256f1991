"""A command that somebody else's launcher runs in several processes, on as many machines as there are."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from model_zoo.errors import InputError
from pet.launching.environment import read_job
from pet.train.agreement import raise_everywhere

TELL_LIMIT = 60
"""Seconds that a process which has found something wrong waits for the others, to tell them."""


@contextlib.contextmanager
def shared_errors() -> Iterator[None]:
    """Within, what one process finds wrong in its input ends all of them, with its message.

    ``pet launch`` sees to that by itself. Under msrun and others a process that ended before the job has come together
    would leave the others waiting for it for minutes. So the job comes together in any case.
    """
    if read_job().launcher in ("none", "pet") or not read_job().distributed:
        yield
        return
    problem = None
    try:
        yield
    except InputError as error:
        problem = error
    os.environ.setdefault("GLOG_v", "3")  # MindSpore's C++ side: errors only
    from pet.parallel import collectives, join, peers

    try:
        join.join(None if problem is None else TELL_LIMIT)
    except InputError as error:  # nobody is there to be told
        raise problem or error from None
    peers.watch()
    raise_everywhere(problem, lambda value: collectives.all_gather_object(value, collectives.world()))
