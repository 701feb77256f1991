from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import threading
import time

import members
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from members import Member
from waiting import HANGING

import pet
from model_zoo import atomic
from model_zoo.checkpoint import digests
from model_zoo.checkpoint.digests import check_beside
from model_zoo.checkpoint.safetensors_io import read_file, write_file
from model_zoo.errors import InputError
from pet.cli import merge, predict
from pet.names import bundled_models
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


def test_an_optimizer_without_a_state_has_no_file(tmp_path):
    path = files.save(tmp_path, 1, WEIGHTS, {}, STATE)
    assert sorted(file.name for file in path.iterdir()) == [files.STATE, files.WEIGHTS]
    assert files.load(path).weights.keys() == WEIGHTS.keys() and not files.load(path).optimizer


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
    (path / files.STATE).write_text(json.dumps(files.sealed(content)))
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


@pytest.mark.parametrize("name", [files.WEIGHTS, files.STATE])
@pytest.mark.parametrize("number", ["EACCES", "EPERM", "EIO", "ESTALE", "EMFILE", "ENOMEM"])
def test_one_that_cannot_be_read_is_not_taken_for_damaged(tmp_path, monkeypatch, number, name):
    """The run would go on from the one before, and delete it."""
    write(tmp_path, 10)
    last, number = write(tmp_path, 20), getattr(errno, number)

    def refuse(path, *arguments, **settings):
        if path == last / name:
            raise OSError(number, os.strerror(number), str(path))
        return open(path, *arguments, **settings)

    monkeypatch.setattr(atomic, "open", refuse, raising=False)
    reason = f"step-000020: {re.escape(name)} cannot be read .*{os.strerror(number)}"
    with pytest.raises(InputError, match=reason):
        files.load_last(tmp_path)
    for found in together(lambda member: files.load_last(tmp_path, member)):
        assert isinstance(found, InputError) and re.search(reason, str(found))
    number = errno.ENOENT
    assert files.load_last(tmp_path).path.name == "step-000010"


def test_one_with_the_name_of_another_step_is_neither_used_nor_passed_over(tmp_path):
    write(tmp_path, 6)
    os.rename(write(tmp_path, 9), tmp_path / "step-000012")
    with pytest.raises(InputError, match=r"step-000012: is of step 9; give it the name of that step"):
        files.load_last(tmp_path)
    with pytest.raises(files.Damaged, match="is of step 9"):
        files.load(tmp_path / "step-000012")
    os.rename(tmp_path / "step-000012", tmp_path / "other-step-000009")
    assert files.load_last(tmp_path).path.name == "other-step-000009"
    os.rename(tmp_path / "other-step-000009", tmp_path / "the_one")  # a name without a step says nothing
    assert files.load(tmp_path / "the_one").state["step"] == 9


def test_what_lies_beside_the_weights_is_covered_by_the_digests(tmp_path):
    def extra(stage):
        write_file(stage / "notes.safetensors", {"c": WEIGHTS["b"]})
        (stage / "adapter" / "more").mkdir(parents=True)
        for name in ("adapter_config.json", "more/optimizer.txt"):
            (stage / "adapter" / name).write_text("text")

    path = files.save(tmp_path, 1, WEIGHTS, OPTIMIZER, STATE, extra)
    check_beside(path / "adapter")
    (path / "adapter" / "README.md").write_text("a user's own")
    check_beside(path / "adapter")
    for name in ("more/optimizer.txt", "adapter_config.json"):
        (path / "adapter" / name).write_text("texT")
        with pytest.raises(InputError, match=f"step-000001: damaged: adapter/{name} has changed"):
            check_beside(path / "adapter")
    # the trainer has no use for it
    assert files.load(path).weights.keys() == WEIGHTS.keys()
    content = json.loads((path / files.STATE).read_text())
    del content["digest"], content["beside"]  # as earlier versions wrote it
    (path / files.STATE).write_text(json.dumps(files.sealed(content)))
    check_beside(path / "adapter")
    assert files.load(path).weights.keys() == WEIGHTS.keys()
    check_beside(tmp_path)  # no checkpoint's


def test_a_damaged_adapter_or_model_in_a_checkpoint_is_opened_by_no_door(tmp_path, monkeypatch, capsys):
    """As it is not exported, in the same words; and what was found whole is read for its digest once."""
    base = bundled_models()["gpt_tiny"]
    model = pet.apply_lora(pet.AutoModel.from_pretrained(base), rank=2)

    def extra(stage):
        pet.save_adapter(model, stage / "adapter")
        shutil.copytree(base, stage / "model")

    path = files.save(tmp_path, 1, WEIGHTS, OPTIMIZER, STATE, extra)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "a", "completion": "b"}))
    asked = ["--input", "a", "--max-new-tokens", "1"]
    doors = {
        "adapter/adapter_model.safetensors": [
            lambda: pet.load_adapter(pet.AutoModel.from_pretrained(base), path / "adapter"),
            lambda: pet.merge_checkpoint(base, path / "adapter", tmp_path / "merged"),
            lambda: merge.main([str(path / "adapter"), "--base", str(base), "--output", str(tmp_path / "out")]),
            lambda: predict.main(["--model", str(base), "--adapter", str(path / "adapter"), *asked]),
        ],
        "model/model.safetensors": [
            lambda: pet.AutoModel.from_pretrained(path / "model"),
            lambda: predict.main(["--model", str(path / "model"), *asked]),
        ],
    }
    read = []
    digest_file = digests.digest_file
    monkeypatch.setattr(digests, "digest_file", lambda file: read.append(file.name) or digest_file(file))
    for opens in doors.values():
        opens[0]()
        opens[0]()
    assert sorted(read) == sorted(set(read)) and "adapter_model.safetensors" in read
    for name, opens in doors.items():
        content = bytearray((path / name).read_bytes())
        content[-1] ^= 1  # the last number's sign and exponent
        (path / name).write_bytes(content)
        for each in opens:
            with pytest.raises(InputError, match=rf"checkpoint {path}: damaged: {name} has changed since it was writ"):
                each()


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
    content = files.sealed(content)
    (path / files.STATE).write_text(json.dumps(content))
    with pytest.raises(InputError, match="newer version"):
        files.load(path)


class Cut(Member):
    """Of "a.weight" each has some rows, everything else is on one of them."""

    def parts(self, arrays):
        rows = [[0, 1], [3, 4]] if self.is_main else [[1, 3]]
        return arrays, {name: {"shape": [4, 3], "axis": 0, "ranges": rows} for name in arrays if "a.weight" in name}

    def gather(self, arrays):
        first, second = self.objects(arrays)
        joined = {name: first[name][[0, 0, 0, 1]] for name in first if "a.weight" in name}
        for name, array in joined.items():
            array[1:3] = second[name]
        return {**first, **second, **joined} if self.is_main else {}


def together(function, sees: bool = True) -> list:
    """See `members.together`."""
    return members.together(function, Cut, sees, (files.Damaged, InputError))


def write_own(directory, step):
    """What a member writes of `WEIGHTS` and `OPTIMIZER`."""

    def write(member):
        own = slice(None, None, 3) if member.is_main else slice(1, 3)
        weights = {"a.weight": WEIGHTS["a.weight"][own], **({} if member.is_main else {"b": WEIGHTS["b"]})}
        optimizer = {name: array[own] for name, array in OPTIMIZER.items()}
        return files.save(directory, step, weights, optimizer, STATE, distributed=member)

    return write


def check_whole(found):
    for stored, expected in ((found.weights, WEIGHTS), (found.optimizer, OPTIMIZER)):
        assert stored.keys() == expected.keys()
        for name, array in expected.items():
            assert stored[name].dtype == array.dtype and np.array_equal(stored[name], array)
    assert found.state == STATE


def test_each_process_writes_its_own_part_and_anyone_reads_the_whole(tmp_path):
    path, other = together(write_own(tmp_path, 20))
    assert path == other == tmp_path / "step-000020"
    assert sorted(file.name for file in path.glob("*")) == [
        *(f"optimizer-0000{rank}-of-00002.safetensors" for rank in (0, 1)),
        files.STATE,
        *(f"weights-0000{rank}-of-00002.safetensors" for rank in (0, 1)),
    ]
    check_whole(files.load(path))
    for found in together(lambda member: files.load_last(tmp_path, member)):
        check_whole(found)
    os.truncate(path / "optimizer-00001-of-00002.safetensors", 30)
    for found in together(lambda member: files.load(path, member)):  # also by the one that did not look at it
        assert isinstance(found, files.Damaged) and "optimizer-00001-of-00002.safetensors" in str(found)


def test_a_process_that_dies_while_it_writes_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    together(write_own(tmp_path, 10))
    whole = files.write_file

    def dies(path, tensors):
        if "optimizer-00001" in path.name:
            raise OSError("no space")
        whole(path, tensors)

    monkeypatch.setattr(files, "write_file", dies)
    assert all(isinstance(found, Exception) for found in together(write_own(tmp_path, 20)))
    assert [path.name for path in files.checkpoints(tmp_path)] == ["step-000010"]
    check_whole(files.load_last(tmp_path))


@pytest.mark.parametrize("failing", [0, 1])
def test_the_one_that_cannot_write_is_the_one_that_fails(tmp_path, monkeypatch, failing):
    whole, failed, there = files.write_file, threading.Event(), {}

    def fills(path, tensors):
        if f"0000{failing}-of" in path.name:
            failed.set()
            raise OSError("no space")
        assert failed.wait(HANGING)
        while path.parent.exists() and not there[failing].barrier_.n_waiting:
            time.sleep(0.001)
        whole(path, tensors)

    def save(member):
        there[member.rank] = member
        return write_own(tmp_path, 20)(member)

    monkeypatch.setattr(files, "write_file", fills)
    found = together(save)
    assert "no space" in str(found[failing])
    assert isinstance(found[1 - failing], threading.BrokenBarrierError)  # it waits
    assert not list(tmp_path.iterdir())


def test_without_a_shared_file_system_the_main_process_gathers(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "pet"):
        path, _ = together(write_own(tmp_path, 20), sees=False)
    assert "not on a file system that all processes share" in caplog.text
    assert sorted(file.name for file in path.glob("*")) == [files.OPTIMIZER, files.STATE, files.WEIGHTS]
    check_whole(files.load(path))


@pytest.mark.parametrize("stale", [False, True])
def test_a_machine_without_the_main_ones_directory_gets_a_copy(tmp_path, stale):
    together(write_own(tmp_path / "0", 20))
    if stale:  # what lies there is of another job
        write(tmp_path / "1", 20, b=np.float16([7.0, 7.0]))

    def load(member):
        found = files.load_last(tmp_path / str(member.rank), member)
        check_whole(found)
        member.objects(None)
        return found

    first, second = together(load)
    assert first.path == tmp_path / "0/step-000020" and second.path == tmp_path / "1/step-000020"
    os.truncate(first.path / "optimizer-00001-of-00002.safetensors", 30)
    for found in together(lambda member: files.load(tmp_path / str(member.rank) / "step-000020", member)):
        assert isinstance(found, files.Damaged) and "optimizer-00001-of-00002.safetensors" in str(found)
    (first.path / files.STATE).unlink()
    for found in together(lambda member: files.load(tmp_path / str(member.rank) / "step-000020", member)):
        assert isinstance(found, files.Damaged) and "state.json cannot be read" in str(found)


def test_the_machine_that_has_the_checkpoints_must_be_the_first(tmp_path):
    for place, step in (("0", 5), ("1", 5), ("1", 10)):
        write(tmp_path / place, step)
    for error in together(lambda member: files.load_last(tmp_path / str(member.rank), member)):
        assert isinstance(error, InputError) and "rank 1 sees a checkpoint of step 10 there, and rank 0" in str(error)
