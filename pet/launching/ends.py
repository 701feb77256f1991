"""How a worker ended, and what is said of it. It is looked at without being reaped, so that what it left behind can
still be ended with its group."""

from __future__ import annotations

import os
import signal
import subprocess


def exit_code(process: subprocess.Popen) -> int | None:
    """None while it runs, else its exit code, or minus the signal that killed it.

    The process is left unreaped: until then its group's number belongs to it, and the group can be killed safely.
    """
    state = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if state is None:
        return None
    return state.si_status if state.si_code == os.CLD_EXITED else -state.si_status


def describe_end(rank: int | str, code: int) -> tuple[int, str]:
    """The exit code of a job of which this worker ended so, and what is said of it."""
    if code < 0:
        why = " (as the system does where memory runs out, the machine's or the container's)"
        name = signal.Signals(-code).name if -code in [*signal.Signals] else f"signal {-code}"  # real-time: no names
        return 128 - code, f"rank {rank} was killed by {name}{why if code == -9 else ''}"
    return code, f"rank {rank} ended with exit code {code}"


def describe_hang(rank: int, reason: str, ended: list[int]) -> str:
    """What is said of a worker that hangs.

    Args:
        ended: the ranks that were through before, as it seemed: it may wait for one of them.
    """
    ranks = ", ".join(map(str, ended))
    left = f"; it may wait for rank {ranks}, which had ended with exit code 0" if ended else ""
    return f"rank {rank} hangs: it {reason}{left}"
