"""What every test shares: where the reference files lie, and a core for each of the processes that pytest-xdist starts.

MindSpore's threads wait for one another in a busy loop. On a core of its own a test process is as fast as on two, and
two of them on the same two cores are twice as slow as they need be.
"""

import os
from pathlib import Path

import pytest

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")  # gw0, gw1, …
if WORKER and CORES:  # before MindSpore counts the cores for its threads
    os.sched_setaffinity(0, {CORES[int(WORKER[2:]) % len(CORES)]})
    os.environ["OMP_NUM_THREADS"] = "1"

import model_zoo  # noqa: E402, F401  (it sets what MindSpore reads when it is imported)

os.environ.setdefault("GLOG_v", "3")  # MindSpore's C++ log: errors only


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """The reference models, tokenizers and adapters, each with the outputs of an independent implementation."""
    return Path(__file__).parent / "fixtures"


@pytest.fixture(scope="module")
def all_cores():
    """For tests that start several processes: these may run on every core again."""
    if not WORKER or not CORES:
        yield
        return
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, CORES)
    yield
    os.sched_setaffinity(0, mine)
