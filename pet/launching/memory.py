"""The memory that processes of this machine may use: in a container or a batch job, which is killed where it takes
more, that is less than the machine's. `pet plan` and `pet doctor` go by it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

GROUPS = Path("/proc/self/cgroup")
LIMITS = {"": ("/sys/fs/cgroup", "memory.max"), "memory": ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")}
"""Linux's controller of a control group -> where its groups are, and the file there that says what one may use."""


def limits(groups: str) -> Iterator[Path]:
    """The files that may limit a process, by its ``/proc/self/cgroup``: of its group and of those around it, down to
    the root, which in a container is the container's own. A batch system limits a job so, without a container.
    """
    memberships = {"": "/", "memory": "/"}
    for line in filter(None, groups.split("\n")):
        _, controllers, path = line.split(":", 2)
        memberships |= dict.fromkeys(LIMITS.keys() & set(controllers.split(",")), path)
    for controller, path in memberships.items():
        place, name = LIMITS[controller]
        for parts in accumulate(Path(path).parts[1:], lambda above, part: f"{above}/{part}", initial=""):
            yield Path(f"{place}{parts}", name)


def machine_memory() -> float:
    """Bytes that processes of this machine, container or job can have: memory and swap."""
    import psutil

    total, groups = psutil.virtual_memory().total + psutil.swap_memory().total, ""
    with contextlib.suppress(OSError):
        groups = GROUPS.read_text()
    for path in limits(groups):
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(path.read_text()))
    return total
