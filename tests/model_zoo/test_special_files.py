"""Pipes, sockets and devices where a file is expected: refused at once, wherever files are read."""

import os
import shutil
import signal
import socket
from pathlib import Path

import pytest

from model_zoo.atomic import locked, open_file, read_json
from model_zoo.errors import InputError
from pet.cli.main import main
from pet.names import bundled_directory


@pytest.fixture(autouse=True)
def no_hang():
    """A reader that waits for a pipe fails the test instead of stopping the suite."""

    def late(*_):
        raise TimeoutError("waits for a pipe")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


KINDS = {"a pipe": pipe, "a socket": unix_socket, "a device": device}


@pytest.mark.parametrize("kind", KINDS)
def test_only_regular_files_are_opened(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    path = Path("config.json")
    KINDS[kind](path)
    for read in (open_file, read_json):
        with pytest.raises(InputError, match=f"config.json: is {kind}, a regular file was expected"):
            read(path)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A base, an adapter's configuration, data and a recipe; each test makes one of them something else."""
    home = tmp_path_factory.mktemp("files")
    shutil.copytree(bundled_directory() / "bases" / "gpt_tiny", home / "base")
    (home / "adapter").mkdir()
    (home / "adapter" / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2}')
    (home / "adapter" / "adapter_model.safetensors").write_bytes(b"")
    (home / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    (home / "job.yaml").write_text(
        "model: {path: base}\ndata: {train: rows.jsonl, max_length: 32}\nadapter: {method: lora}\n"
    )
    return home


COMMANDS = {
    "job.yaml": ["validate", "job.yaml"],
    "rows.jsonl": ["data", "job.yaml"],
    "base/config.json": ["info", "base"],
    "base/model.safetensors": ["info", "base"],
    "base/vocab.json": ["data", "job.yaml"],
    "adapter/adapter_config.json": ["info", "adapter"],
    "adapter/adapter_model.safetensors": ["merge", "adapter", "--base", "base", "--output", "out"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_refuse_a_pipe(home, name, tmp_path, monkeypatch, capsys):
    shutil.copytree(home, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    pipe(Path(name))
    assert main(COMMANDS[name]) == 2
    errors = capsys.readouterr().err
    assert "is a pipe" in errors or f"no {Path(name).name}" in errors or f"({Path(name).name})" in errors


@pytest.mark.parametrize(("kind", "said"), [(Path.mkdir, ": is a directory, a file was expected"), (pipe, "")])
def test_what_stands_in_place_of_a_caches_lock(home, kind, said, tmp_path, monkeypatch, capsys):
    """A directory is refused by name; at a pipe nobody waits for a reader."""
    shutil.copytree(home, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    command = ["data", "job.yaml", "data.cache_dir=cache"]
    assert main(command) == 0
    (lock,) = Path("cache").glob("*.lock")
    lock.unlink()
    kind(lock)
    capsys.readouterr()
    assert main(command) == (2 if said else 0)
    assert (f"{lock}{said}" in capsys.readouterr().err) == bool(said)
    if not said:
        with locked(lock) as alone:
            assert alone
