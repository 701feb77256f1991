"""Jobs of several processes need more than the one core that a test process has (tests/conftest.py)."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _everywhere(all_cores):
    return None
