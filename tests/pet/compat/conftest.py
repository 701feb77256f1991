"""Runs in a directory of their own, and perplexity by NumPy."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def own_directory(tmp_path, tmp_path_factory, monkeypatch, own_cache):
    """Runs write to ``./output`` and keep their tokenised data below the user's cache; here both are the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", own_cache(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def perplexity(numpy_loss):
    """Perplexity of token rows, all of whose tokens are labels."""
    return lambda model, rows: float(np.exp(numpy_loss(model, [(row, [True] * len(row)) for row in rows])))


@pytest.fixture
def lora_file():
    """Writes a MindFormers file of LoRA matrices."""
    from model_zoo.checkpoint.ckpt_io import write_ckpt

    def write(path, matrices, rank, prefix="mindpet", same=False):
        """A file of LoRA matrices for {name: (out, in)}; B is not zero."""
        random = np.random.default_rng(0)
        shared = random.normal(size=(rank, next(iter(matrices.values()))[1])).astype(np.float32)
        arrays = {}
        for name, (out, width) in matrices.items():
            a = shared if same else random.normal(size=(rank, width)).astype(np.float32)
            arrays[f"{name}.{prefix}_delta_lora_a"] = a
            arrays[f"{name}.{prefix}_delta_lora_b"] = random.normal(size=(out, rank)).astype(np.float32)
        write_ckpt(path, {name: ("float32", array.shape) for name, array in arrays.items()}, arrays.__getitem__)
        return arrays

    return write
