"""The MindsporeTrainer task: trains, measures with its own main metric, predicts."""

from __future__ import annotations

import json

import pytest

from model_zoo.errors import InputError


def test_task(alone, losses):
    directory, said = alone("mindspore")
    found = losses(directory)
    assert len(found) == 6
    assert found[-1] < found[0]
    assert said.count("answer:") == 2
    assert "--allreduce_post_accumulation" in said
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    measured = {line["step"]: line["eval_accuracy"] for line in lines if "eval_accuracy" in line}
    assert sorted(measured) == [2, 4, 6]
    best = json.loads((directory / "summary.json").read_text())["best"]["step"]
    assert measured[best] == max(measured.values())


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
