"""Runs in a directory of their own, and perplexity by NumPy."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def own_directory(tmp_path, monkeypatch):
    """Runs write to ``./output`` and keep their tokenised data below the user's cache; here both are the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def perplexity(numpy_loss):
    """Perplexity of token rows, all of whose tokens are labels."""
    return lambda model, rows: float(np.exp(numpy_loss(model, [(row, [True] * len(row)) for row in rows])))
