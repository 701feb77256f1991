"""Processes of several machines that were not started alike: it is noticed, and said in one line, before they train."""

import json
import shutil
import socket

import numpy as np
import pytest
from members import together

from model_zoo.checkpoint.safetensors_io import read_file, write_file
from model_zoo.errors import InputError
from pet.recipe.loading import from_dict
from pet.train import agreement
from pet.train.agreement import apart, check_alike, facts_of

HOST = socket.gethostname()


@pytest.fixture
def machines(tmp_path, base):
    """A recipe for each of two machines, which have the same files in places of their own."""

    def recipe(machine: str, **changes):
        home = tmp_path / machine
        if not home.exists():
            shutil.copytree(base, home / "base")
        settings = {
            "model": {"path": str(home / "base")},
            "data": {"train": str(home / "base/data.jsonl"), "cache_dir": str(home / "cache")},
            "adapter": {"method": "lora", "rank": 2},
            "train": {"steps": 2, "seed": 1},
            "output": {"dir": str(home / "run")},
        }
        for key, value in changes.items():
            section, _, name = key.partition("__")
            settings[section] = {**settings[section], name: value}
        return from_dict(settings)

    return recipe


def problems(*recipes) -> list[str]:
    """What each process is told."""
    found = together(lambda member: check_alike(recipes[member.rank], member), own=InputError)
    assert all(each is None or isinstance(each, InputError) for each in found), found
    return [str(each) if each else "" for each in found]


def test_paths_output_and_what_only_rank_0_does_may_differ(machines):
    changes = {"train__log_every": 7, "output__merged": True, "data__workers": 2}
    assert problems(machines("a", **changes), machines("b")) == ["", ""]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"train__seed": 2}, "train.seed is 2, not 1"),
        ({"train__resume": True}, "train.resume is True, not False"),
        ({"adapter__rank": 4}, "adapter.rank is 4, not 2"),
        ({"data__template": "Q: {prompt} A: "}, "data.template: it has another content"),
    ],
)
def test_settings_that_differ_are_named(machines, changes, text):
    expected = f"rank 1 on {HOST} differs from rank 0 on {HOST}: {text}"
    assert problems(machines("a"), machines("b", **changes)) == [expected, expected]


def another_row(home):
    (home / "data.jsonl").write_text('{"prompt": "Who?", "completion": "I."}\n')


def another_weight(home):
    tensors = read_file(home / "model.safetensors")
    name = min(tensors)
    tensors[name] = np.array(tensors[name])
    tensors[name].flat[-1] += 1.0
    write_file(home / "model.safetensors", tensors)


def another_setting(home):
    config = json.loads((home / "config.json").read_text())
    (home / "config.json").write_text(json.dumps({**config, "layer_norm_epsilon": 1e-3}))


def another_word(home):
    with open(home / "merges.txt", "a") as file:
        file.write("q q\n")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (another_row, "data.train: data.jsonl has another content"),
        (another_weight, "model.path: base has another content"),
        (another_setting, "model.path: config.json has another content"),
        (another_word, "model.path: merges.txt has another content"),
    ],
)
def test_files_that_differ_are_named(machines, tmp_path, change, text):
    recipes = machines("a"), machines("b")
    change(tmp_path / "b/base")
    for told in problems(*recipes):
        assert told == f"rank 1 on {HOST} differs from rank 0 on {HOST}: {text}"


def test_a_file_that_one_machine_lacks_ends_all(machines, tmp_path):
    recipes = machines("a"), machines("b")
    (tmp_path / "b/base/data.jsonl").unlink()
    for told in problems(*recipes):
        assert told.startswith(f"rank 1 on {HOST}: ") and "data.jsonl: no such file" in told
    (tmp_path / "a/base/data.jsonl").unlink()
    ours = problems(recipes[0], recipes[0])  # where all lack it, the message is that of one process
    assert ours[0] == ours[1] and ours[0].startswith(str(tmp_path))


def test_other_code_is_named(machines, monkeypatch):
    ours = facts_of(machines("a"))
    assert "pet/train/step.py" in agreement.library() and "model_zoo/engine/csrc/program.c" in agreement.library()
    monkeypatch.setattr(agreement, "library", lambda: {**ours["contents"]["this library"], "pet/train/step.py": "1"})
    assert [*apart(ours, facts_of(machines("a")))] == ["this library: pet/train/step.py has another content"]
    monkeypatch.setattr(agreement, "version", lambda name: "0.9")
    assert [text.split(",")[0] for text in apart(ours, facts_of(machines("a")))][:2] == [
        "mindspore is '0.9'",
        "numpy is '0.9'",
    ]


def test_each_machine_reads_its_files_once(machines, monkeypatch):
    read = []
    whole = agreement.origins_of
    monkeypatch.setattr(agreement, "origins_of", lambda recipe, base: read.append(1) or whole(recipe, base))
    recipe = machines("a")
    assert problems(recipe, recipe) == ["", ""] and len(read) == 0  # there is one
    assert problems(recipe, machines("b")) == ["", ""] and len(read) == 2
