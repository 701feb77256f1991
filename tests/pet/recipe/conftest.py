"""A recipe beside its data."""

from pathlib import Path

import pytest
from recipe_problems import GOOD


@pytest.fixture
def write(tmp_path, fixtures, monkeypatch):
    """Writes a recipe beside a data file and gives its path; the current directory is elsewhere."""
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    (home / "train.jsonl").write_text('{"content": "a", "summary": "b"}\n')
    (tmp_path / "run/adapter").mkdir(parents=True)
    (tmp_path / "run/adapter/adapter_config.json").write_text("{}")

    def writer(text: str = GOOD) -> Path:
        path = home / "job.yaml"
        path.write_text(text.replace("{model}", str(fixtures / "llama_gqa")))
        return path

    return writer
