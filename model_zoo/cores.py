"""How many processor cores there are for this process, and whether the machine has accelerators. Without MindSpore."""

from __future__ import annotations

import os
from pathlib import Path


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def accelerators_present() -> bool:
    """Whether this machine has Ascend devices."""
    return any(Path("/dev").glob("davinci[0-9]*"))
