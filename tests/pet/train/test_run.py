"""Whole runs by recipe, on a model of a few thousand weights: resuming through the data, full training, refusals."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from model_zoo.checkpoint.safetensors_io import read_file
from model_zoo.errors import InputError
from pet.recipe.loading import from_dict
from pet.train import run
from pet.train.callbacks import Callback
from pet.train.callbacks.records import read_metrics
from pet.train.checkpoint import load
from pet.train.evaluate_run import evaluate


@pytest.fixture(scope="module")
def base(tmp_path_factory, tiny_gpt):
    """A tiny random GPT-2, and 30 questions of uneven length."""
    home = tiny_gpt(tmp_path_factory.mktemp("base"), context=64)
    rows = [
        {"prompt": f"What is {number}?", "completion": f"It is {number}" + ", again" * (number % 4) + "."}
        for number in range(30)
    ]
    (home / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return home


def recipe(base, directory, **changes):
    values = {
        "model": {"path": str(base)},
        "adapter": {"method": "lora", "rank": 4, "dropout": 0.2},
        "data": {
            "train": str(base / "data.jsonl"),
            "eval_fraction": 0.2,
            "max_length": 48,
            "cache_dir": str(base / "cache"),
            "workers": 0,
        },
        "train": {"epochs": 4, "batch_size": 2, "accumulation": 2, "learning_rate": 1e-2, "warmup": 2, "save_every": 2},
        "eval": {"every_steps": 4, "metrics": ["loss", "exact_match"], "shown_samples": 1, "generated_samples": 2},
        "generation": {"max_new_tokens": 4},
        "output": {"dir": str(directory)},
    }
    return from_dict(values, {key.replace("__", "."): value for key, value in changes.items()})


class Stop(Callback):
    def __init__(self, at):
        self.at = at

    def step(self, trainer, record):
        if record["step"] == self.at:
            trainer.stop("enough for today")


def numbers(directory):
    keys = ("step", "loss", "learning_rate", "eval_loss", "eval_exact_match", "padding", "epoch")
    return [tuple(line.get(key) for key in keys) for line in read_metrics(directory / "metrics.jsonl")]


@pytest.mark.slow
def test_a_stopped_run_goes_on_where_it_was_in_the_data(base, tmp_path):
    """Shuffled and packed rows, four epochs, dropout: the second half is that of the run that was not stopped."""
    said = []
    summary = run.finetune(recipe(base, tmp_path / "whole"), show=said.append)
    steps = summary["steps"]
    assert steps >= 10 and summary["stopped"] is None
    text = "\n".join(said)
    for word in ("trainable params: ", "held-out loss", "exact match", "base", "tuned", "summary.json", "padding"):
        assert word in text
    stopped = run.finetune(recipe(base, tmp_path / "parts"), show=said.append, callbacks=[Stop(steps // 2 + 1)])
    assert stopped["steps"] == steps // 2 + 1 and stopped["stopped"] == "enough for today"
    resumed = run.finetune(recipe(base, tmp_path / "parts"), resume=True, show=said.append)
    assert numbers(tmp_path / "parts") == numbers(tmp_path / "whole")
    written = [(tmp_path / name / "samples.jsonl").read_text() for name in ("whole", "parts")]
    assert written[0] == written[1] and written[0].count("\n") >= 4, "before, and at each evaluation"
    assert resumed["before"] == summary["before"] and resumed["after"] == summary["after"]
    first, second = (read_file(tmp_path / n / "adapter" / "adapter_model.safetensors") for n in ("whole", "parts"))
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)
    again = evaluate(recipe(base, tmp_path / "whole"), adapter=tmp_path / "whole" / "adapter", show=said.append)
    assert again == summary["after"]


def test_the_weights_that_are_named_are_trained_and_no_others(base, tmp_path):
    named = ["transformer.h.1.*", "re:.*ln_f\\.(weight|bias)"]
    changes = {"adapter": {"method": "none", "trained": named}, "eval__metrics": ["loss"], "train__epochs": 1}
    said = []
    summary = run.finetune(recipe(base, tmp_path / "whole", **changes), show=said.append)
    before, after = (read_file(home / "model.safetensors") for home in (base, tmp_path / "whole/model"))
    moved = {name for name, value in before.items() if not np.array_equal(value, after[name])}
    assert before.keys() == after.keys()
    assert moved == {name for name in before if name.startswith(("transformer.h.1.", "transformer.ln_f."))}
    assert summary["trainable"] == sum(before[name].size for name in moved) < summary["total"]
    assert "trained transformer.h.1.*" in "\n".join(said)
    run.finetune(recipe(base, tmp_path / "parts", **changes), show=None, callbacks=[Stop(3)])
    (at,) = [one for one in (tmp_path / "parts/checkpoints").iterdir() if one.name.endswith("3")]
    assert load(at).weights.keys() == moved
    run.finetune(recipe(base, tmp_path / "parts", **changes), resume=True, show=None)
    again = read_file(tmp_path / "parts/model/model.safetensors")
    assert all(np.array_equal(value, again[name]) for name, value in after.items())
    other = recipe(tmp_path / "whole/model", tmp_path / "parts", data__train=str(base / "data.jsonl"), **changes)
    with pytest.raises(InputError, match=r"model\.path"):  # the weights that stay would be others
        run.finetune(other, resume=True, show=None)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"trained": ["transformer.h.9.*"]}, r"adapter.trained: 'transformer.h.9.\*' matches no weight"),
        ({"trained": []}, "adapter.trained"),
        ({"trained": ["*"], "parallel__tensor": 2}, "adapter.trained: .*parallel.data alone"),
        ({"trained": ["*"], "model__from_scratch": True}, "adapter.trained: random weights have to be trained"),
    ],
    ids=str,
)
def test_weights_that_cannot_be_chosen(base, tmp_path, changes, problem):
    beside = {key: value for key, value in changes.items() if key != "trained"}
    with pytest.raises(InputError, match=problem):
        recipe(base, tmp_path, adapter={"method": "none", "trained": changes["trained"]}, **beside)


def nobody_there(text):
    """The terminal was closed, which ends no run."""
    raise OSError(errno.EIO, os.strerror(errno.EIO))


LATE = """
import json, sys
from pet.recipe.loading import from_dict
from pet.train import run
from pet.train.callbacks import Callback

class Late(Callback):
    def step(self, trainer, record):
        self.before = getattr(self, "before", None) or {*sys.modules}

late = Late()
run.finetune(from_dict(json.loads(sys.argv[1])), callbacks=[late], show=lambda text: None)
new = {*sys.modules} - late.before
print(sorted(name for name in new if name.partition(".")[0] in ("pet", "adapters", "model_zoo")))
"""


@pytest.mark.slow
def test_nothing_of_the_library_is_imported_after_the_first_step(base, tmp_path):
    """Another version may have taken its place meanwhile."""
    changes = {"train__steps": 2, "train__epochs": None, "eval__before": False, "output__merged": True}
    given = recipe(base, tmp_path / "run", **changes).model_dump(mode="json", exclude_unset=True)
    found = subprocess.run([sys.executable, "-c", LATE, json.dumps(given)], capture_output=True, text=True, check=False)
    assert found.stdout.splitlines()[-1:] == ["[]"], found.stdout + found.stderr
    assert (tmp_path / "run" / "merged" / "model.safetensors").exists()


@pytest.mark.slow
def test_what_is_merged_by_files_has_the_tokenizer_of_the_run(base, tiny_gpt, tmp_path):
    """It had that of the base, or none, where the base is packed or processes divide it."""
    other = tiny_gpt(tmp_path / "other", context=64)
    (other / "vocab.json").rename(other / "added_tokens.json")
    changes = {"model__path": str(other), "model__tokenizer": str(base), "model__quantization": {"type": "int8"}}
    changes |= {"train__steps": 1, "train__epochs": None, "eval": {}, "data__eval_fraction": 0, "output__merged": True}
    run.finetune(recipe(base, tmp_path / "run", **changes), show=nobody_there)
    files = {file.name for file in (tmp_path / "run" / "merged").iterdir()}
    assert {"vocab.json", "merges.txt", "tokenizer_config.json"} <= files and "added_tokens.json" not in files


@pytest.mark.slow
def test_training_every_weight_from_random_ones(base, tmp_path):
    config = base / "config.json"
    values = {
        "model.path": str(config),
        "model.tokenizer": str(base),
        "model.from_scratch": True,
        "adapter": {"method": "none"},
        "train.save_every": None,
        "train.epochs": 1,
    }
    changes = {key.replace(".", "__"): value for key, value in values.items()}
    summary = run.train(recipe(base, tmp_path, **changes), show=nobody_there)
    assert summary["trainable"] == summary["total"]
    assert summary["after"]["loss"] < summary["before"]["loss"]
    (last,) = (tmp_path / "checkpoints").iterdir()
    assert not (last / "weights.safetensors").exists(), "model/ holds them already"
    result, kept = read_file(tmp_path / "model" / "model.safetensors"), load(last).weights
    assert kept and all(np.array_equal(value, result[name]) for name, value in kept.items())
    from pet.auto import AutoModel, AutoTokenizer

    assert AutoTokenizer.from_pretrained(tmp_path / "model").encode("It is") != []
    ids = np.array([[5, 6, 7]])
    assert np.isfinite(AutoModel.from_pretrained(tmp_path / "model")(ids).asnumpy()).all()


def test_wrong_uses_are_told_before_anything_is_written(base, tmp_path):
    target = tmp_path / "run"
    with pytest.raises(InputError, match="trains every weight"):
        run.train(recipe(base, target))
    with pytest.raises(InputError, match="no_such"):
        run.finetune(recipe(base, target, adapter__targets=["no_such"]))
    with pytest.raises(InputError, match="pet finetune needs a base"):
        run.finetune(recipe(base, target, adapter={"method": "none"}, model__from_scratch=True))
    assert not target.exists()
    (target / "checkpoints").mkdir(parents=True)
    with pytest.raises(InputError, match="holds another run"):
        run.finetune(recipe(base, target))
