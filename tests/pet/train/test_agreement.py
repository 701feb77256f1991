"""Processes of several machines that were not started alike: it is noticed, and said in one line, before they train."""

import json
import shutil
import socket
from types import SimpleNamespace

import mindspore as ms
import numpy as np
import pytest
from members import together
from mindspore import nn

from model_zoo.checkpoint.safetensors_io import read_file, write_file
from model_zoo.errors import InputError
from pet.recipe.loading import from_dict
from pet.train import agreement
from pet.train.agreement import apart, check_alike, facts_of
from pet.train.feed import BatchList
from pet.train.origins import differences

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
    changes |= {"train__keep_last": 7, "train__profile": True}
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


OF_A_SCRIPT = {"model.path": ".", "adapter.method": "none", "train.steps": 1, "train.seed": 1}


@pytest.fixture
def scripts():
    """What a script with a model of its own comes to on each machine."""

    def told(*models):
        recipe = from_dict({}, OF_A_SCRIPT, check_files=False)
        found = together(lambda member: check_alike(recipe, member, model=models[member.rank]), own=InputError)
        return [str(each or "") for each in found]

    return told


def test_a_scripts_own_model_begins_with_the_same_weights(scripts):
    one, other = (nn.Dense(3, 4, weight_init="ones", has_bias=False) for _ in range(2))
    assert scripts(one, other) == ["", ""]
    other.weight.set_data(ms.Tensor(np.full((4, 3), 2, np.float32)))
    assert scripts(one, one) == ["", ""]
    expected = f"rank 1 on {HOST} differs from rank 0 on {HOST}: {agreement.WEIGHTS}: weight has another content"
    assert scripts(one, other) == [expected, expected]


@pytest.mark.parametrize(
    "now, words",
    [
        ((("a", "1"), ("b", "3")), "b has another content"),
        ((("a", "1"), ("c", "3")), "c is new, b is gone"),
        ((("b", "2"), ("a", "1")), "the files are in another order"),
        ((("renamed", "1"), ("b", "2")), None),
    ],
)
def test_what_differs_between_two_lists_of_files(now, words):
    found = list(differences({"data.train": (("a", "1"), ("b", "2"))}, {"data.train": now, "data.eval": now}))
    assert found == ([] if words is None else [f"data.train: {words}"])


def test_a_scripts_own_data_has_as_many_batches_everywhere():
    from pet.compat.objects import check_feeds

    def feeds(member):
        batches = [{"input_ids": np.ones((1, 3), int)}] * (2 + member.rank)
        check_feeds(SimpleNamespace(train_feed=BatchList(batches), eval_feed=None), member)

    found = together(feeds, own=InputError)
    assert [str(each) for each in found] == [
        f"rank 1 on {HOST} differs from rank 0 on {HOST}: steps in data.train is 3, not 2"
    ] * 2


def test_the_adapter_that_is_measured_is_compared(machines, tmp_path):
    adapters = [tmp_path / name for name in "xy"]
    for number, directory in enumerate(adapters):
        directory.mkdir()
        (directory / "adapter_config.json").write_text(str(number))
    recipe = machines("a")
    found = together(lambda member: check_alike(recipe, member, adapter=adapters[member.rank]), own=InputError)
    assert all("adapter: adapter_config.json has another content" in str(each) for each in found)


@pytest.mark.parametrize("what", ["evaluate", "measure", "run"])
def test_measuring_and_scripts_compare_as_training_does(machines, base, tmp_path, monkeypatch, what):
    from pet.compat import objects
    from pet.train.evaluate_run import evaluate

    def refuse(*_, **__):
        raise InputError("differs")

    for module in (agreement, objects):
        monkeypatch.setattr(module, "check_alike", refuse)
    recipe = from_dict({}, {**OF_A_SCRIPT, "output.dir": str(tmp_path / "run")}, check_files=False)
    script = objects.Objects(model=nn.Dense(1, 1))
    call = {
        "evaluate": lambda: evaluate(machines("a", data__eval=str(base / "data.jsonl"))),
        "measure": lambda: objects.measure(recipe, script),
        "run": lambda: objects.run(recipe, script),
    }[what]
    with pytest.raises(InputError, match="differs"):
        call()


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
