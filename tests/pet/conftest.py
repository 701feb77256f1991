"""Bases for GGUF files."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def bases(tmp_path_factory):
    from gguf_models import bases_in  # not for the tests below this directory

    return bases_in(tmp_path_factory.mktemp("bases"))
