"""Every family with a method of each kind through the whole of a job: finetune, evaluate, predict, merge, predict."""

import json
import shutil

import pytest

from model_zoo.checkpoint.safetensors_io import read_file
from pet.cli.main import main
from pet.names import bundled_directory

# One layer of the family's own architecture, since compiling it is what takes time. The random weights are wide, so
# that even a few factors over them change what is written.
SIZES = {
    "glm": {"num_layers": 1, "hidden_size": 32, "inner_hidden_size": 64, "max_sequence_length": 64},
    "llama": {
        "num_hidden_layers": 1,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    },
    "gpt": {"n_layer": 1, "n_embd": 32, "n_head": 4, "n_positions": 64},
}
# Settings, a learning rate that shows, and the tokens of an answer: from the second on, one more graph is compiled.
METHODS = {
    "lora": ({"rank": 4, "alpha": 16, "targets": "all-linear"}, 5e-2, 6),
    "prefix": ({"length": 4}, 1.0, 1),
    "ia3": ({}, 0.3, 1),
}
MERGEABLE = ("lora", "ia3")
ROWS = [
    {"prompt": f"Is {number} red?", "completion": "Yes, it is red." if number % 2 else "No."} for number in range(8)
]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A directory with a small random base of each family, and a few questions."""
    from model_zoo.auto import AutoModel
    from model_zoo.checkpoint.saving import save_pretrained

    home = tmp_path_factory.mktemp("families")
    for family, size in SIZES.items():
        source = bundled_directory() / "bases" / f"{family}_tiny"
        config = {**json.loads((source / "config.json").read_text()), **size, "initializer_range": 0.4}
        save_pretrained(AutoModel.from_config(config, seed=3), home / family)
        for path in source.iterdir():
            if path.suffix != ".safetensors" and path.name != "config.json":
                shutil.copyfile(path, home / family / path.name)
    (home / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return home


def asked(capsys, tokens: int, *words: str) -> list[str]:
    """What a model answers to the questions."""
    capsys.readouterr()
    assert main(["predict", *words, "--file", "data.jsonl", "--max-new-tokens", str(tokens), "--json"]) == 0
    return [json.loads(line)["answer"] for line in capsys.readouterr().out.splitlines()]


@pytest.fixture(scope="module")
def untrained() -> dict[str, list[str]]:
    """How the base of each family begins its answers; asked once."""
    return {}


@pytest.mark.cover(pairs=False)  # tests/adapters/test_matrix.py has the pairs
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", SIZES)
def test_finetune_evaluate_predict_merge_predict(family, method, home, untrained, capsys, monkeypatch):
    monkeypatch.chdir(home)
    settings, rate, tokens = METHODS[method]
    job = home / f"{family}_{method}.yaml"
    job.write_text(
        f"model: {{path: {family}}}\nadapter: {json.dumps({'method': method, **settings})}\n"
        "data: {train: data.jsonl, eval: data.jsonl, max_length: 32, packing: none, workers: 0, cache_dir: cache}\n"
        f"train: {{steps: 30, batch_size: 8, learning_rate: {rate}, warmup: 0}}\n"
        "eval: {metrics: [loss, accuracy], shown_samples: 0}\n"
    )
    run, base = home / "output" / job.stem, home / family
    weights = (base / "model.safetensors").read_bytes()

    assert main(["finetune", job.name]) == 0
    summary = json.loads((run / "summary.json").read_text())
    assert summary["after"]["loss"] < 0.8 * summary["before"]["loss"]

    assert main(["evaluate", str(run), "--output", "numbers.json"]) == 0
    assert json.loads((home / "numbers.json").read_text()) == summary["after"]

    tuned = asked(capsys, tokens, "--model", family, "--adapter", str(run / "adapter"))
    if method == "lora":  # enough weights to know the answers by heart, as far as they were written
        assert sum(row["completion"].startswith(answer) for row, answer in zip(ROWS, tuned, strict=True)) >= 4, tuned
    else:
        if family not in untrained:
            untrained[family] = asked(capsys, tokens, "--model", family)
        assert tuned != untrained[family], "as if nothing were trained"

    code = main(["merge", str(run / "adapter"), "--base", family, "--output", str(run / "plain")])
    if method in MERGEABLE:
        assert code == 0
        assert read_file(run / "plain" / "model.safetensors").keys() == read_file(base / "model.safetensors").keys()
        assert asked(capsys, tokens, "--model", str(run / "plain")) == tuned
    else:
        assert code == 2
        assert "cannot be merged" in capsys.readouterr().err
        assert not (run / "plain").exists()
    assert (base / "model.safetensors").read_bytes() == weights
