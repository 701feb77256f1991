"""What this process may use of the machine: cores, memory, accelerators. Without MindSpore.

In a container or a batch job that is less than the machine has. Linux's control groups say how much: of a process's
group and of those around it, down to the root, which in a container is the container's own.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

GROUPS = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")


def limits(controller: str, *forms: str) -> Iterator[list[str]]:
    """The words by which groups limit this process.

    Args:
        controller: ``cpu`` or ``memory``.
        forms: names of files, the words of which belong together where there are several names in one. Those of
            version 2, and those of version 1, which has a tree of groups for each controller.
    """
    trees, groups = {"": MOUNT, controller: MOUNT / controller}, ""
    places = dict.fromkeys(trees, "/")
    with contextlib.suppress(OSError):
        groups = GROUPS.read_text()
    for line in filter(None, groups.split("\n")):
        _, controllers, path = line.split(":", 2)
        places |= dict.fromkeys(places.keys() & set(controllers.split(",")), path)
    for tree, path in places.items():
        for parts in accumulate(Path(path).parts[1:], Path.joinpath, initial=trees[tree]):
            for form in forms:
                with contextlib.suppress(OSError):
                    yield " ".join((parts / name).read_text() for name in form.split()).split()


def available_cores() -> int:
    """Cores this process may use; of a share of processor time (``docker run --cpus 1.5``) as many as it takes."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for quota, period in limits("cpu", "cpu.max", "cpu.cfs_quota_us cpu.cfs_period_us"):
        if quota.isdigit():  # neither max nor -1
            cores = min(cores, max(1, math.ceil(int(quota) / int(period))))
    return cores


def machine_memory() -> float:
    """Bytes that processes of this machine, container or job can have: memory and swap. Who takes more is killed."""
    import psutil

    total = psutil.virtual_memory().total + psutil.swap_memory().total
    for (limit,) in limits("memory", "memory.max", "memory.limit_in_bytes"):
        if limit.isdigit():  # not max
            total = min(total, int(limit))
    return total


def accelerators_present() -> bool:
    """Whether this machine has Ascend devices."""
    return any(Path("/dev").glob("davinci[0-9]*"))
