"""Wrong data rows, bases, adapters and run directories by the hundred: refused with exit code 2 and a report, or
harmless; never a traceback, and never the exit code of a run that failed."""

import contextlib
import copy
import io
import json
import random
import shutil

import pytest

from pet.cli.main import main
from pet.names import bundled_directory

ROWS = {
    "adgen": {"content": "a b", "summary": "c"},
    "alpaca": {"instruction": "a", "input": "b", "output": "c"},
    "prompt_completion": {"prompt": "a", "completion": "b"},
    "chat": {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    "sharegpt": {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
    "text": {"text": "a b c"},
    "tokens": {"input_ids": [3, 4, 5], "labels": [-100, 4, 5]},
}
STRANGE = [None, 3, -1.5, True, "", [], {}, [[]], [None], {"a": 1}, "\x00", "\ud800", float("nan"), [1, "a"]]
STRANGE += [[{"role": "user"}], [{"role": "wizard", "content": "x"}], [{"from": [], "value": {}}], 10**400]
NUMBERS = [None, -1, 0, 2.5, True, "", "x", [], {}, [3], {"a": 1}, 1e308, 10**30]
RAW = ["", "{", "[1,2]", '{"prompt": "a" "completion"}', '{"a":1}\n[1]', '"x"', "nan", "[" * 5000, '{"prompt":' * 2000]


def places(value, path=()):
    """Every place in a nested value, as a path of keys."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*path, key))


def with_put(value, path, strange):
    """The value with something else at a place."""
    if not path:
        return strange
    whole = part = copy.deepcopy(value)
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = strange
    return whole


def bad_rows(count: int) -> list[tuple[str, str]]:
    """(format, file's text) of files whose second row has something strange in it; the same ones each time."""
    found = [
        (kind, json.dumps(row) + "\n" + json.dumps(with_put(row, path, strange)) + "\n")
        for kind, row in ROWS.items()
        for path in places(row)
        for strange in STRANGE
        if not (isinstance(strange, int) and strange > 10**300)  # more digits than json.dumps gives back
    ]
    return [("raw", text) for text in RAW] + random.Random(5).sample(found, count)


def mutations(directory):
    """(what, function that does it to a copy) for every file of a directory."""
    for path in sorted(path.relative_to(directory) for path in directory.rglob("*") if path.is_file()):
        content = (directory / path).read_bytes()
        texts = {"empty": b"", "half": content[: len(content) // 2 or 1], "rubbish": random.Random(3).randbytes(300)}
        texts["another beginning"] = b"\xff" * 16 + content[16:]
        if path.suffix == ".json":
            texts |= {f"{value!r}": json.dumps(value).encode() for value in ([], 3, "x", None, {})}
            values = json.loads(content)
            if isinstance(values, dict) and len(values) < 60:  # a configuration, not a vocabulary
                for key in values:
                    texts[f"without {key}"] = json.dumps({k: v for k, v in values.items() if k != key}).encode()
                    for wrong in NUMBERS:
                        texts[f"{key}={wrong!r}"[:60]] = json.dumps({**values, key: wrong}).encode()
        for what, text in texts.items():
            yield f"{path}: {what}", lambda home, path=path, text=text: (home / path).write_bytes(text)
        yield f"{path}: gone", lambda home, path=path: (home / path).unlink()
        yield f"{path}: a directory", lambda home, path=path: ((home / path).unlink(), (home / path).mkdir())


def run(arguments) -> tuple[int, str]:
    errors = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        code = main(arguments)
    assert "Traceback" not in errors.getvalue()
    return code, errors.getvalue()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A recipe, a base of one small layer, and a run directory of two steps over it."""
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
    (home / "good.jsonl").write_text("".join(json.dumps(ROWS["prompt_completion"]) + "\n" for _ in range(4)))
    (home / "job.yaml").write_text(
        "model: {path: base}\nadapter: {method: lora, rank: 2}\n"
        "data: {train: good.jsonl, max_length: 32, packing: none, cache_dir: cache, workers: 0}\n"
        "train: {steps: 2, batch_size: 2, warmup: 0}\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        assert run(["finetune", "job.yaml", "output.dir=run"])[0] == 0
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


DIRECTORIES = {
    "run/adapter": (["merge", "broken", "--base", "base", "--output", "out"], 60),
    "base": (["merge", "run/adapter", "--base", "broken", "--output", "out"], 60),
    "base for its sizes": (["info", "broken", "--method", "lora"], 60),
    "run": (["info", "broken"], 30),
    "run for export": (["export", "broken", "--output", "out"], 80),
}


@pytest.mark.parametrize("which", DIRECTORIES)
def test_directories(home, which, monkeypatch):
    monkeypatch.chdir(home)
    arguments, count = DIRECTORIES[which]
    every = list(mutations(home / which.partition(" ")[0]))
    if which.startswith("run for"):  # whole files of the adapter; its settings are copied as they are
        every = [one for one in every if one[0].startswith(("adapter/", "recipe")) and "=" not in one[0]]
    refused = 0
    for what, change in random.Random(2).sample(every, min(count, len(every))):
        shutil.rmtree(home / "broken", ignore_errors=True)
        shutil.rmtree(home / "out", ignore_errors=True)
        shutil.copytree(home / which.partition(" ")[0], home / "broken")
        change(home / "broken")
        code, errors = run(arguments)
        assert code in (0, 2), (what, errors)
        refused += code == 2
    assert refused, "nothing was wrong with any of them"
