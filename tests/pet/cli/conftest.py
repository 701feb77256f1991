"""A recipe, and the run of one."""

import shutil

import pytest
from run_directories import QUESTIONS, SIGNALLER, WATCHER

from pet.cli.main import main


@pytest.fixture(scope="session")
def home(tmp_path_factory, tiny_gpt, pictures):
    """A directory with a tiny random GPT-2, data, a recipe, and a run of it."""
    home = tmp_path_factory.mktemp("home")
    tiny_gpt(home / "base", context=64)
    (home / "data.jsonl").write_text("\n".join(QUESTIONS) + "\n")
    (home / "job.yaml").write_text(
        "model: {path: base}\ndata: {train: data.jsonl, eval: data.jsonl, max_length: 32}\n"
        "train: {steps: 3, batch_size: 4, learning_rate: 1e-2, warmup: 0}\n"
        "eval: {metrics: [loss, perplexity, accuracy], shown_samples: 1}\ngeneration: {max_new_tokens: 4}\n"
        "callbacks: ['watcher:Watcher']\n"
    )
    (home / "watcher.py").write_text(WATCHER)
    (home / "signaller.py").write_text(SIGNALLER)
    with pytest.MonkeyPatch.context() as patch, pictures():
        patch.chdir(home)
        assert main(["finetune", "job.yaml"]) == 0
    return home


@pytest.fixture
def here(home, monkeypatch):
    monkeypatch.chdir(home)
    return home


@pytest.fixture
def copied(home, tmp_path, monkeypatch):
    """A home of one's own, with the run in it."""
    shutil.copytree(home, tmp_path / "home")
    monkeypatch.chdir(tmp_path / "home")
    return tmp_path / "home"


@pytest.fixture
def recipe(tmp_path, fixtures, monkeypatch):
    """A small valid recipe, in the current directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.jsonl").write_text('{"content": "a", "summary": "b"}\n')
    path = tmp_path / "job.yaml"
    path.write_text(
        f"model:\n  path: {fixtures / 'llama_gqa'}\ndata:\n  train: train.jsonl\n  max_length: 64\ntrain:\n  steps: 5\n"
    )
    return path
