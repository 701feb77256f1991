"""Wrong data rows by the hundred: refused with exit code 2 and a report that names the file, or harmless. Other kinds
of wrong inputs are in ``test_malformed.py``."""

import contextlib
import io
import json
import random
import shutil

import malformed
import pytest

from pet.cli.main import main
from pet.names import bundled_directory

STRANGE = [None, 3, -1.5, True, "", [], {}, [[]], [None], {"a": 1}, "\x00", "\ud800", float("nan"), [1, "a"]]
STRANGE += [[{"role": "user"}], [{"role": "wizard", "content": "x"}], [{"from": [], "value": {}}], 10**400]
RAW = ["", "{", "[1,2]", '{"prompt": "a" "completion"}', '{"a":1}\n[1]', '"x"', "nan", "[" * 5000, '{"prompt":' * 2000]


def bad_rows(count: int) -> list[tuple[str, str]]:
    """(format, file's text) of files whose second row has something strange in it; the same ones each time."""
    found = [
        (kind, json.dumps(row) + "\n" + json.dumps(malformed.put(row, path, strange)) + "\n")
        for kind, row in malformed.ROWS.items()
        for path in malformed.places(row)
        for strange in STRANGE
        if not (isinstance(strange, int) and strange > 10**300)  # more digits than json.dumps gives back
    ]
    return [("raw", text) for text in RAW] + random.Random(5).sample(found, count)


def run(arguments) -> tuple[int, str]:
    errors = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        code = main(arguments)
    assert "Traceback" not in errors.getvalue()
    return code, errors.getvalue()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A recipe, and a base of one small layer."""
    from model_zoo.auto import AutoModel
    from model_zoo.checkpoint.saving import save_pretrained

    home = tmp_path_factory.mktemp("inputs")
    source = bundled_directory() / "bases" / "gpt_tiny"
    sizes = {"n_layer": 1, "n_embd": 32, "n_head": 4, "n_positions": 64}
    config = {**json.loads((source / "config.json").read_text()), **sizes}
    save_pretrained(AutoModel.from_config(config, seed=3), home / "base")
    for path in source.iterdir():
        if path.suffix != ".safetensors" and path.name != "config.json":
            shutil.copyfile(path, home / "base" / path.name)
    (home / "good.jsonl").write_text("".join(json.dumps(malformed.ROWS["prompt_completion"]) + "\n" for _ in range(4)))
    (home / "job.yaml").write_text(
        "model: {path: base}\nadapter: {method: lora, rank: 2}\n"
        "data: {train: good.jsonl, max_length: 32, packing: none, cache_dir: cache, workers: 0}\n"
        "train: {steps: 2, batch_size: 2, warmup: 0}\n"
    )
    return home


def test_rows(home, monkeypatch):
    monkeypatch.chdir(home)
    refused = 0
    for number, (kind, text) in enumerate(bad_rows(150)):
        path = home / f"rows{number}.jsonl"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        code, errors = run(["data", "job.yaml", "--samples", "0", f"data.train={path.name}"])
        assert code in (0, 2), (kind, text[:200], errors)
        if code == 2:
            assert path.name in errors, (kind, text[:200], errors)
        refused += code == 2
    assert refused > 130
