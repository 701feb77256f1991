"""Where commands write: one at a time, and not over what another one has just written."""

import errno
import fcntl
import os
import shutil

import pytest

from model_zoo.errors import InputError
from model_zoo.unwritable import UNFINISHED, CannotWrite
from pet.cli.export import export_gguf
from pet.cli.main import main
from pet.cli.output import sole_writer
from pet.names import bundled_models

COMMANDS = {
    "quantize": (["quantize", "llama_tiny", "--output"], "out"),
    "convert": (["convert", "llama_tiny", "--output"], "out.ckpt"),
    "transform": (["transform", "--src_ckpt_dir", "llama_tiny", "--dst_ckpt_dir"], "out"),
    "merge": (["merge", "adapter", "--base", "llama_tiny", "--output"], "out"),
    "predict": (["predict", "--model", "llama_tiny", "--input", "Hello", "--output"], "out.jsonl"),
    "export": (["export", "llama_tiny", "--format", "gguf", "--output"], "out.gguf"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_second_command_is_refused_while_one_writes(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments, name = COMMANDS[command]
    with sole_writer(name):
        assert main([*arguments, name]) == 2
        assert f"--output {name}: another command is writing there; wait until it has ended" in capsys.readouterr().err
        with sole_writer("another"):
            pass
    assert list(tmp_path.iterdir()) == []


def test_the_place_of_a_command_that_was_killed_is_free_and_what_it_left_is_named(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    (tmp_path / f".out{UNFINISHED}lock").touch()
    (tmp_path / f".out{UNFINISHED}a1").mkdir()
    (tmp_path / f".out{UNFINISHED}a1" / "model.safetensors").write_bytes(bytes(2_500_000))
    for others in (f".out.gguf{UNFINISHED}b", f".out2{UNFINISHED}c", "out"):
        (tmp_path / others).mkdir()
    assert main(["quantize", "llama_tiny", "--output", "out", "--skip", "model"]) in (0, 2)
    said = [record.getMessage() for record in caplog.records if "killed" in record.getMessage()]
    assert said == [
        f".out{UNFINISHED}a1: 2.5 MB that a command left which was killed; delete it, unless a program is writing it"
    ]
    assert not (tmp_path / f".out{UNFINISHED}lock").exists() and (tmp_path / f".out{UNFINISHED}a1").exists()
    caplog.clear()
    (tmp_path / f".model{UNFINISHED}x.gguf").write_bytes(b"1")
    with sole_writer("model.gguf"):
        assert len(caplog.records) == 1


def test_a_place_that_does_not_exist_yet_is_kept_too_and_nothing_is_made_there(tmp_path):
    with sole_writer(str(tmp_path / "a" / "b")):
        with pytest.raises(InputError, match="another command"), sole_writer(str(tmp_path / "a" / "b")):
            pass
        with sole_writer(str(tmp_path / "a" / "c")):
            pass
        assert not (tmp_path / "a").exists()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_another_took_away_meanwhile_is_no_lock(tmp_path, monkeypatch):
    flock, calls = fcntl.flock, []

    def once(handle, how):
        flock(handle, how)
        if not calls:
            os.unlink(tmp_path / f".out{UNFINISHED}lock")
        calls.append(handle)

    monkeypatch.setattr(fcntl, "flock", once)
    with sole_writer(str(tmp_path / "out")):
        assert len(calls) == 2 and (tmp_path / f".out{UNFINISHED}lock").exists()


def test_where_there_are_no_locks_or_nothing_can_be_made_commands_write_as_they_can(tmp_path, monkeypatch):
    def without(handle, how):
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", without)
        with sole_writer(str(tmp_path / "out")):
            pass
    for place in (os.devnull, "/", ".", str(tmp_path / ("x" * 250))):
        with sole_writer(place):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_gguf_files_directory_is_made_and_what_is_in_its_way_is_named(fixtures, tmp_path, monkeypatch):
    pytest.importorskip("gguf")

    class Source:
        adapter, result, base, name = True, tmp_path / "adapter", "llama_tiny", "tiny"

        def accompany(self, stage):
            shutil.copytree(bundled_models()["llama_tiny"], stage, dirs_exist_ok=True)

    class Options:
        dtype, dequantize = None, False

    monkeypatch.setattr("pet.export.merge_checkpoint", lambda *arguments, **options: None)
    export_gguf(Source(), Options(), tmp_path / "a" / "b" / "out.gguf")
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["out.gguf"]
    with pytest.raises(CannotWrite, match=r"out.gguf/x.gguf: cannot be written: a file is in the way"):
        export_gguf(Source(), Options(), tmp_path / "a" / "b" / "out.gguf" / "x.gguf")
