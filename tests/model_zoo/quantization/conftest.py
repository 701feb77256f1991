"""What tests of this directory share."""

from __future__ import annotations

import pytest
from packed_files import KINDS


@pytest.fixture(params=KINDS)
def name(request):
    return request.param


@pytest.fixture
def directory(fixtures, name):
    return fixtures / "bitsandbytes" / name
