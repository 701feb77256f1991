"""An objective of a user's own, with its own data, arrays and measures, through the command line's code path."""

import json
from pathlib import Path

import pytest
import yaml

from model_zoo.errors import InputError
from pet.cli.main import main
from pet.recipe.classes import find_objective

HERE = Path(__file__).parent
OBJECTIVE = "preferred_answers:PreferredAnswers"


@pytest.fixture
def finetune(base, tmp_path, monkeypatch, capsys):
    """Runs a recipe with that objective; gives its lines of metrics, its summary and what was printed."""
    monkeypatch.syspath_prepend(str(HERE))
    rows = [{"question": f"What is {number}?", "good": f"two {number}", "bad": f"one {number}"} for number in range(24)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(name: str, packing: str, *settings: str):
        recipe = {
            "model": {"path": str(base)},
            "data": {"train": "pairs.jsonl", "eval_fraction": 0.25, "max_length": 48, "packing": packing},
            "adapter": {"method": "none"},
            "train": {"objective": OBJECTIVE, "steps": 20, "batch_size": 6, "learning_rate": 0.01, "clip_norm": None},
            "output": {"dir": str(tmp_path / name)},
        }
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(recipe))
        code = main(["finetune", str(tmp_path / f"{name}.yaml"), *settings])
        said = capsys.readouterr()
        assert code == 0, said.err
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        return lines, json.loads((tmp_path / name / "summary.json").read_text()), said.out

    return run


def test_it_learns_to_prefer(finetune):
    lines, summary, said = finetune("alone", "none")
    assert {line["pairs"] for line in lines} == {6}
    assert summary["before"]["preferred"] < 0.5
    assert summary["after"]["preferred"] == 1 and summary["after"]["loss"] < 0.2
    assert "preferred" in said and "18 to train on, 6 held out" in said


def test_packed_pairs_are_measured_as_single_ones(finetune):
    (_, alone, said), (packed_lines, packed, _) = (
        finetune("alone", "none", "train.steps=1"),
        finetune("packed", "pack", "train.steps=1"),
    )
    assert packed["before"] == pytest.approx(alone["before"], rel=1e-5)
    assert packed_lines[0]["pairs"] > 6, "several pairs in a row"
    assert alone["tokens_per_second"] is None and "tokens/s" not in said, "nobody has measured a rate of one step"


def test_rows_that_cannot_be_compared_are_named(finetune, tmp_path, capsys):
    with open(tmp_path / "pairs.jsonl", "a") as file:
        file.write('{"question": "?", "good": "x", "bad": "x"}\n{"question": "?", "good": "x"}\n')
    with pytest.raises(AssertionError, match=r"pairs.jsonl:25: both answers are the same[\s\S]*:26: no column 'bad'"):
        finetune("wrong", "none")


@pytest.mark.parametrize(
    "name, message",
    [
        ("casual", "did you mean 'causal'"),
        ("no_such_module:Thing", "no_such_module"),
        ("json:dumps", "is no objective"),
        ("losses:Loss", "is no objective; expected a class with the methods from_settings, extend, begin"),
    ],
)
def test_names_that_are_no_objective(name, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    methods = "from_settings prepare count loss measure metrics forward measured"
    (tmp_path / "losses.py").write_text(f"class Loss:\n    {' = '.join(methods.split())} = print\n")
    with pytest.raises(InputError, match=message):
        find_objective(name)
    assert main(["validate", "glm_lora", f"train.objective={name}"]) == 2
    assert message in capsys.readouterr().err
