"""Jobs of several processes need more than the one core that a test process has (tests/conftest.py)."""

import psutil
import pytest


@pytest.fixture(scope="module", autouse=True)
def _everywhere(all_cores):
    return None


@pytest.fixture
def assert_gone(until):
    """No process that wrote its id there lives on."""

    def lives(pid):
        try:
            return psutil.Process(pid).status() != "zombie"
        except psutil.NoSuchProcess:
            return False

    def check(pid_directory, count):
        pids = [int(path.name) for path in pid_directory.iterdir()]
        assert len(pids) == count
        until(lambda: not any(map(lives, pids)))

    return check
