from __future__ import annotations

import json
import logging
import os

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from model_zoo.checkpoint.safetensors_io import read_file, write_file
from model_zoo.errors import InputError
from pet.train import checkpoint as files

WEIGHTS = {"a.weight": np.arange(12, dtype=np.float32).reshape(3, 4).T, "b": np.float16([1.5, -2.0])}
OPTIMIZER = {"exp_avg.a.weight": np.full((4, 3), 1e-30, np.float32)}
STATE = {"position": {"step": 3}, "loss": 0.1 + 0.2, "none": None, "text": "中"}


def write(directory, step, **changes):
    return files.save(directory, step, {**WEIGHTS, **changes}, OPTIMIZER, {**STATE, "step": step})


def test_round_trip_keeps_every_bit(tmp_path):
    found = files.load(write(tmp_path, 20))
    assert found.path.name == "step-000020"
    for name, value in WEIGHTS.items():
        assert found.weights[name].dtype == value.dtype and np.array_equal(found.weights[name], value)
    assert np.array_equal(found.optimizer["exp_avg.a.weight"], OPTIMIZER["exp_avg.a.weight"])
    assert found.state == {**STATE, "step": 20}


def test_a_prefix_of_the_name_changes_nothing_else(tmp_path):
    write(tmp_path, 3)
    files.save(tmp_path, 20, WEIGHTS, OPTIMIZER, STATE, prefix="glm2-6b")
    assert [path.name for path in files.checkpoints(tmp_path)] == ["step-000003", "glm2-6b-step-000020"]
    assert files.load_last(tmp_path).path == files.path_of(tmp_path, 20) == tmp_path / "glm2-6b-step-000020"
    files.prune(tmp_path, 1, set())
    assert [path.name for path in files.checkpoints(tmp_path)] == ["glm2-6b-step-000020"]


def test_weights_that_a_model_directory_holds_are_written_once(tmp_path):
    def extra(stage):
        (stage / "model").mkdir()
        for name, tensors in (
            ("one", {"a.weight": WEIGHTS["a.weight"]}),
            ("two", {"b": WEIGHTS["b"], "tied": np.ones(3)}),
        ):
            write_file(stage / "model" / f"{name}.safetensors", tensors)
        return "model"

    path = files.save(tmp_path, 1, WEIGHTS, OPTIMIZER, STATE, extra)
    assert not (path / files.WEIGHTS).exists()
    found = files.load(path).weights
    assert found.keys() == WEIGHTS.keys() and all(np.array_equal(found[name], WEIGHTS[name]) for name in WEIGHTS)
    more = {**WEIGHTS, "head": np.float32([3])}
    path = files.save(tmp_path, 2, more, OPTIMIZER, STATE, extra)
    assert read_file(path / files.WEIGHTS).keys() == {"head"}, "what the directory lacks"
    assert files.load(path).weights.keys() == more.keys()
    os.truncate(path / "model" / "one.safetensors", 30)
    with pytest.raises(files.Damaged, match=r"model/one.safetensors has changed"):
        files.load(path)


def test_a_checkpoint_of_the_first_format_is_still_read(tmp_path):
    path = write(tmp_path, 1)
    content = json.loads((path / files.STATE).read_text())
    del content["digest"], content["weights"]
    content["format"] = 1
    (path / files.STATE).write_text(json.dumps({"digest": files._digest_of(content), **content}))
    assert files.load(path).weights.keys() == WEIGHTS.keys()


@settings(max_examples=60)
@given(data=st.data())
def test_any_changed_or_missing_byte_is_noticed(tmp_path_factory, data):
    directory = tmp_path_factory.mktemp("damage")
    path = write(directory, 1)
    name = data.draw(st.sampled_from([files.WEIGHTS, files.OPTIMIZER, files.STATE]))
    content = (path / name).read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        changed = content[:place]
    else:
        flipped = content[place] ^ data.draw(st.sampled_from([1, 4, 32, 128]))
        changed = content[:place] + bytes([flipped]) + content[place + 1 :]
    (path / name).write_bytes(changed)
    try:
        found = files.load(path)
    except files.Damaged:
        return
    # a space or a final newline of the JSON may change without any value changing
    assert name == files.STATE and found.state == {**STATE, "step": 1}


def test_a_damaged_last_one_falls_back_to_the_one_before(tmp_path, caplog):
    write(tmp_path, 10)
    os.truncate(write(tmp_path, 20) / files.WEIGHTS, 30)
    with caplog.at_level(logging.WARNING, "pet"):
        assert files.load_last(tmp_path).path.name == "step-000010"
    assert "step-000020 is damaged: weights.safetensors" in caplog.text
    os.remove(tmp_path / "step-000010" / files.OPTIMIZER)
    with pytest.raises(InputError, match=r"(?s)step-000020.*step-000010.*no whole checkpoint"):
        files.load_last(tmp_path)


def test_nothing_there_is_no_error(tmp_path):
    assert files.load_last(tmp_path / "none") is None
    assert files.checkpoints(tmp_path) == []


def test_a_write_that_dies_leaves_no_checkpoint(tmp_path, monkeypatch):
    write(tmp_path, 10)

    def dies(stage):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.save(tmp_path, 20, WEIGHTS, OPTIMIZER, STATE, extra=dies)
    assert [path.name for path in files.checkpoints(tmp_path)] == ["step-000010"]
    # and what a kill leaves, which has no time to clean up, is no checkpoint either, and is swept away
    (tmp_path / ".step-000020.unfinished-abc").mkdir()
    assert files.load_last(tmp_path).path.name == "step-000010"
    files.prune(tmp_path, 2)
    assert sorted(os.listdir(tmp_path)) == ["step-000010"]


def test_keep_last_and_best(tmp_path):
    for step in (1, 2, 3, 4, 1000000):
        write(tmp_path, step)
    files.prune(tmp_path, 2, {1})
    assert [files.step_of(path) for path in files.checkpoints(tmp_path)] == [1, 4, 1000000]
    files.discard_after(tmp_path, 4)
    assert [files.step_of(path) for path in files.checkpoints(tmp_path)] == [1, 4]


def test_a_newer_format_is_refused_and_not_called_damaged(tmp_path):
    path = write(tmp_path, 1)
    content = json.loads((path / files.STATE).read_text())
    content["format"] = files.FORMAT + 1
    content.pop("digest")
    content = {"digest": files._digest_of(content), **content}
    (path / files.STATE).write_text(json.dumps(content))
    with pytest.raises(InputError, match="newer version"):
        files.load(path)
