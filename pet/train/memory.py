"""What memory was taken, measured: of this process and, where there is one, of the accelerator. Systems count it in
different units and places. (`model_zoo.resources` is what may be taken.)"""

from __future__ import annotations

import sys

from model_zoo.posix import resource


def present_memory() -> float:
    """Resident memory now, in MB (10⁶ bytes)."""
    import psutil

    return psutil.Process().memory_info().rss / 1e6


def peak_memory() -> float:
    """The most that was resident so far, in MB; on an accelerator, the most that was allocated there."""
    import mindspore as ms

    if ms.get_context("device_target") != "CPU":
        return ms.runtime.max_memory_allocated() / 1e6
    if resource is None:
        import psutil

        return psutil.Process().memory_info().peak_wset / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
