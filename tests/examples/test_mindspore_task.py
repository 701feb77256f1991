"""The MindsporeTrainer task: trains, measures with its own main metric, predicts."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from runs import arguments

from model_zoo.errors import InputError


def test_task(base, alone, inside, losses):
    directory, said = alone("mindspore")
    found = losses(directory)
    assert len(found) == 6
    assert found[-1] < found[0]
    assert said.count("answer:") == 2
    assert "--allreduce_post_accumulation" in said
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    measured = {line["step"]: line["eval_accuracy"] for line in lines if "eval_accuracy" in line}
    assert sorted(measured) == [2, 4, 6]
    summary = json.loads((directory / "summary.json").read_text())
    assert measured[summary["best"]["step"]] == max(measured.values())
    # what was trained is measured and asked again without training
    again = [*arguments("mindspore", base, do=("--do_eval", "--do_predict")), "--output_dir", directory]
    more = inside(*again, "--load_checkpoint_path", directory)
    numbers = ast.literal_eval(next(line for line in more.splitlines() if line.startswith("{")))
    assert numbers["loss"] == pytest.approx(summary["after"]["loss"], rel=1e-4)
    assert numbers["main_metric"] == numbers["accuracy"] == pytest.approx(measured[6], abs=1e-6)
    answers = [[line for line in text.splitlines() if line.startswith("answer:")] for text in (said, more)]
    assert answers[0] == answers[1]


def test_what_is_wrong_is_said(tmp_path):
    from pet.compat.mindspore_trainer import Task, launch, register_task

    register_task(name="nothing")(Task)
    with pytest.raises(InputError, match="nothing to do"):
        launch(["--task_name", "nothing"])
    with pytest.raises(InputError, match="no file"):
        launch(["--task_name", "absent.py", "--do_train"])
    with pytest.raises(InputError, match="learning_rat"):
        launch(["--task_name", "nothing", "--do_train", "--learning_rat", "1"])
    with pytest.raises(InputError, match="pet launch"):
        launch(["--task_name", "nothing", "--do_train", "--distribute"])
