"""One side's process: waits for a number on its input, does that many units of work, answers with one JSON line."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable


def serve(run: Callable[[int], dict]) -> None:
    """Answers ``n`` with what ``run(n)`` gives, the seconds it took, and the process's peak memory in MB."""
    out, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        begin = time.perf_counter()
        answer = run(int(line))
        answer["seconds"] = time.perf_counter() - begin
        answer["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(answer), file=out, flush=True)
