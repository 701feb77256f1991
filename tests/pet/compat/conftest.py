"""A tiny random GPT-2 with a bundled tokenizer, questions with one answer each, and the same as token rows."""

from __future__ import annotations

import json
import shutil

import pytest

from pet.names import bundled_directory


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    """A checkpoint directory with ``data.jsonl`` and ``held_out.jsonl`` in it."""
    from model_zoo.auto import AutoModel
    from model_zoo.saving import save_pretrained

    home = tmp_path_factory.mktemp("base")
    source = bundled_directory() / "bases" / "gpt_tiny"
    config = json.loads((source / "config.json").read_text())
    config.update(n_embd=32, n_layer=2, n_head=2, n_positions=128)
    save_pretrained(AutoModel.from_config(config, seed=1), home)
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        shutil.copyfile(source / name, home / name)
    for name, numbers in (("data.jsonl", range(16)), ("held_out.jsonl", range(16, 20))):
        rows = [{"prompt": f"What is {number}?", "completion": f"It is {number}."} for number in numbers]
        (home / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return home


@pytest.fixture(autouse=True)
def own_directory(tmp_path, monkeypatch):
    """Runs write to ``./output`` and keep their tokenised data below the user's cache; here both are the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def perplexity():
    """Perplexity of token rows by NumPy from a model's logits: no code of the trainer takes part."""
    import numpy as np

    def measure(model, rows) -> float:
        total, count = 0.0, 0
        for row in rows:
            ids = np.asarray(row)
            logits = model(ids[None].astype(np.int32)).asnumpy()[0].astype(np.float64)
            top = logits.max(-1, keepdims=True)
            logs = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
            total -= logs[np.arange(len(ids) - 1), ids[1:]].sum()
            count += len(ids) - 1
        return float(np.exp(total / count))

    return measure
