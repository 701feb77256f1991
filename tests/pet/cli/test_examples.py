"""The examples in every command's help, run as they stand; long runs are cut short by further settings."""

import io
import os
import shlex
import sys
from importlib import import_module

import pytest

from pet.cli.commands import COMMANDS
from pet.cli.main import main
from pet.names import bundled_directory

# Put at the end of an example, so that it takes seconds instead of minutes.
SHORT = "train.steps=2 train.warmup=0 data.max_samples=16 eval.before=false eval.metrics=[loss] eval.shown_samples=1"
SHORT += " generation.max_new_tokens=4 data.workers=0"
SHORTER = {
    "finetune": SHORT + " data.eval=my_test.jsonl",
    "train": SHORT + " data.eval=null data.max_length=32",
    "evaluate": "eval.metrics=[loss] eval.shown_samples=0 data.eval=my_test.jsonl",
    "predict": "--max-new-tokens 4",
    "chat": "--max-new-tokens 4",
    "doctor --full": "--only machine,products --output doctor_example.json",
}
# These need other machines, or a program of the user's.
ELSEWHERE = ("--nnodes", "python train.py", "pet launch -n 2 -- pet", "pet download")
# In this order, because later commands look at what earlier ones made.
ORDER = ["finetune", "train", "evaluate", "merge", "predict", "chat", "export", "info", "data", "recipes", "validate"]
ORDER += ["transform"]


def examples() -> list[tuple[str, str]]:
    """(command, line) of everything that can be run here."""
    names = [*ORDER, *(name for name in COMMANDS if name not in ORDER)]
    lines = [(name, line) for name in names for line, _ in import_module(COMMANDS[name][0]).EXAMPLES]
    # what takes a merged model comes after it was merged
    lines.sort(key=lambda pair: (names.index(pair[0]), 0))
    later = [pair for pair in lines if "--model merged" in pair[1] and pair[0] == "evaluate"]
    return [pair for pair in lines if pair not in later] + later


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("examples")
    (home / "questions.txt").write_text("What is it?\n")
    export = "model_name_or_path: glm_tiny\nadapter_name_or_path: output/glm_lora\nexport_dir: exported\n"
    (home / "lora_export.yaml").write_text(export)
    held_out = (bundled_directory() / "data" / "adgen" / "held_out.jsonl").read_text("utf-8").splitlines()
    (home / "my_test.jsonl").write_text("\n".join(held_out[:8]) + "\n", "utf-8")
    return home


@pytest.mark.slow
@pytest.mark.parametrize(("name", "line"), [p for p in examples() if not any(word in p[1] for word in ELSEWHERE)])
def test_example(home, monkeypatch, capsys, name, line):
    monkeypatch.chdir(home)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))  # for the processes that it starts
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n/quit\n"))
    line, _, target = line.partition(" > ")
    words = shlex.split(line)
    for beginning in (name, " ".join(words[1:3])):
        words += shlex.split(SHORTER.get(beginning, ""))
    assert words[0] == "pet"
    code = main(words[1:])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    assert captured.out
    if "--profile" in line:
        assert "all_reduce  data" in captured.out
    if target:
        assert captured.out.startswith("{")


def test_other_examples_are_at_least_read(capsys):
    """Their options exist: what follows the options is refused, not the options themselves."""
    left_out = [pair for pair in examples() if any(word in pair[1] for word in ELSEWHERE)]
    assert {name for name, _ in left_out} == {"launch", "download"}
    left_out = [pair for pair in left_out if pair[0] == "launch"]  # downloads: tests/pet/test_hub.py
    for _, line in left_out:
        words = shlex.split(line)
        command = words[1 : words.index("--")]
        assert main(command) == 2
        assert "no command" in capsys.readouterr().err
