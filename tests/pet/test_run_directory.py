"""Whose directory it is: nothing of another run is overwritten, and nothing of a user's is deleted."""

import errno
import os
import shutil
import subprocess
import sys

import pytest

from model_zoo.errors import InputError
from pet import run_directory
from pet.recipe import load
from pet.recipe.loading import from_dict


@pytest.fixture
def recipe(fixtures, tmp_path):
    def make(**overrides):
        values = {"model": {"path": str(fixtures / "llama_gqa")}, "data": {"max_length": 64}}
        settings = {"output.dir": str(tmp_path / "run"), **{key.replace("__", "."): v for key, v in overrides.items()}}
        return from_dict(values, settings, name="job")

    return make


def test_recipe_in_the_directory_loads_again(recipe):
    directory = run_directory.open_for(recipe(train__steps=7))
    assert load(directory / "recipe.yaml").train.steps == 7
    assert [entry.name for entry in directory.iterdir()] == ["recipe.yaml"]


def test_another_run_is_refused_and_untouched(recipe):
    directory = run_directory.open_for(recipe(train__steps=7))
    before = (directory / "recipe.yaml").read_text()
    with pytest.raises(InputError, match=r"holds another run \(recipe.yaml\); go on with it by --resume"):
        run_directory.open_for(recipe(train__steps=8))
    assert (directory / "recipe.yaml").read_text() == before


def test_a_directory_in_place_of_a_file_is_refused_before_the_run(recipe):
    directory = run_directory.open_for(recipe())
    (directory / "summary.json").mkdir()
    with pytest.raises(InputError, match=r"summary\.json is a directory, and a file of the run has this name"):
        run_directory.open_for(recipe(train__resume=True))


def test_resume_and_force(recipe):
    directory = run_directory.open_for(recipe())
    (directory / "checkpoints").mkdir()
    (directory / "checkpoints" / "x").write_text("x")
    (directory / "notes.txt").write_text("mine")
    run_directory.open_for(recipe(train__resume=True))
    assert (directory / "checkpoints" / "x").exists()
    run_directory.open_for(recipe(output__force=True))
    assert sorted(entry.name for entry in directory.iterdir()) == ["notes.txt", "recipe.yaml"]


@pytest.fixture
def left(recipe):
    """A directory with what a run has left, and a user's file."""
    directory = run_directory.open_for(recipe(train__steps=7))
    for name in ("checkpoints/step-000001/state.json", "adapter/adapter_config.json", "metrics.jsonl", "notes.txt"):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(name)
    return directory


def test_what_force_cannot_take_away_ends_it_before_anything_is_deleted(recipe, left, monkeypatch):
    def refuse(source, target):
        if "checkpoints" in str(source):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(source))
        rename(source, target)

    before, rename = sorted(left.rglob("*")), os.rename
    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(InputError, match=r"run/checkpoints cannot be deleted \(.*busy\); nothing was"):
        run_directory.open_for(recipe(output__force=True))
    assert sorted(left.rglob("*")) == before and load(left / "recipe.yaml").train.steps == 7


def test_what_force_cannot_delete_is_no_part_of_the_new_run(recipe, left, monkeypatch, caplog):
    """A directory that may not be entered, say."""
    remove = shutil.rmtree
    monkeypatch.setattr(
        shutil, "rmtree", lambda path, **how: None if "checkpoints" in str(path) else remove(path, **how)
    )
    run_directory.open_for(recipe(output__force=True))
    kept, *others = sorted(entry.name for entry in left.iterdir())
    assert kept.startswith(".checkpoints.unfinished-") and others == ["notes.txt", "recipe.yaml"]
    assert [record.getMessage() for record in caplog.records] == [
        f"{left / kept}: not all of it can be deleted; delete it yourself"
    ]
    monkeypatch.undo()
    run_directory.open_for(recipe(train__resume=True))
    assert not (left / kept).exists()


def test_a_users_own_files_are_no_run(recipe, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    run_directory.open_for(recipe())
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


def test_a_file_in_the_way(recipe, tmp_path):
    (tmp_path / "run").write_text("x")
    with pytest.raises(InputError, match="is a file"):
        run_directory.check(recipe())
    with pytest.raises(InputError, match="is a file"):
        run_directory.check(recipe(output__dir=str(tmp_path / "run" / "below")))


def test_a_link_to_what_is_not_there_is_called_so(recipe, tmp_path):
    """A disk that is not mounted, say."""
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    for directory in ("run", "run/below"):
        with pytest.raises(InputError, match=r"run is a link to .*/disk, which is not there"):
            run_directory.check(recipe(output__dir=str(tmp_path / directory)))


def test_changes_between_a_run_and_its_resumption(recipe):
    """But for what a checkpoint holds of its own accord: the settings of training."""
    directory = run_directory.open_for(recipe(data__seed=7))
    assert list(run_directory.changes(recipe(data__seed=7, train__steps=9, data__workers=2), directory)) == []
    found = list(run_directory.changes(recipe(data__seed=9, adapter__rank=4, generation__max_new_tokens=3), directory))
    assert found == [("adapter.rank", 8, 4), ("data.seed", 7, 9)]


def test_one_job_at_a_time(recipe, tmp_path):
    """Refused while the other lives, whatever is asked for; free as soon as it is gone, however it went."""
    directory = run_directory.open_for(recipe())
    run_directory.release(directory)
    before = (directory / "recipe.yaml").stat()
    code = "import sys; from pet.run_directory import claim; print(claim(sys.argv[1]), flush=True); input()"
    command = [sys.executable, "-c", code, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "True\n"
        for settings in ({}, {"train__resume": True}, {"output__force": True}):
            with pytest.raises(InputError, match="another job is running in"):
                run_directory.check(recipe(**settings))
            with pytest.raises(InputError, match="another job is running in"):
                run_directory.open_for(recipe(**settings))
        assert (directory / "recipe.yaml").stat() == before
        other.kill()
    run_directory.open_for(recipe(train__resume=True))
    run_directory.release(directory)


def test_no_program_that_is_started_keeps_the_lock(recipe, tmp_path):
    directory = run_directory.open_for(recipe())
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE):
        run_directory.release(directory)
        assert run_directory.claim(os.path.relpath(directory))
        assert not run_directory.claim(directory), "this process has it"
        run_directory.release(directory)
