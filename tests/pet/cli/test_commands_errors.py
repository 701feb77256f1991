"""What is said of wrong command lines and of what the system does not allow, and with which exit code."""

import errno
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import HANGING

from model_zoo.errors import InputError
from pet.cli.main import main
from pet.cli.output import check_output_file
from pet.cli.parser import Parser


def test_an_output_that_cannot_be_written_is_refused_before_the_work(tmp_path, monkeypatch):
    closed = tmp_path, Path(os.devnull).parent  # root may write anywhere
    monkeypatch.setattr(os, "access", lambda path, mode: path not in closed)
    with pytest.raises(InputError, match=f"--output .*numbers.json: {tmp_path} cannot be written to"):
        check_output_file(str(tmp_path / "gone" / "numbers.json"))
    check_output_file(str(tmp_path.parent / "numbers.json"))
    check_output_file(os.devnull)


@pytest.mark.parametrize("line_buffering", [True, False])
def test_a_full_disk_under_standard_output_is_said_to_be_there(monkeypatch, capsys, line_buffering):
    full = open("/dev/full", "w", buffering=1 if line_buffering else 1 << 20)  # noqa: SIM115 - Python closes its own
    monkeypatch.setattr(sys, "stdout", full)
    assert main(["--version"]) == 1
    assert capsys.readouterr().err == "pet: standard output: the disk is full\n"
    full.close()


def test_the_exit_code_of_a_signal_outlasts_a_terminal_that_is_gone(monkeypatch):
    full = open("/dev/full", "w")  # noqa: SIM115 - Python closes its own
    monkeypatch.setattr(sys, "stdout", full)

    def interrupted(arguments):
        print("stopped by a signal")
        raise SystemExit(129)

    monkeypatch.setattr("pet.cli.main.run", interrupted)
    assert main(["finetune"]) == 129
    full.close()  # Python's own at exit: what is still to be written would be an error


def test_a_full_disk_under_standard_error_does_not_change_the_exit_code(monkeypatch):
    full = open("/dev/full", "w", buffering=1)  # noqa: SIM115 - Python closes its own
    monkeypatch.setattr(sys, "stderr", full)
    assert main(["validate", "nowhere.yaml"]) == 2
    full.close()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["validat", "x"], "no command 'validat' (did you mean 'validate'"),
        (["--hlep"], "no option '--hlep' (did you mean '--help'?)"),
        (["merge-lora", "JOB"], "no command 'merge-lora'; that is pet merge FILE here"),
        (["axolotl", "train", "JOB"], "no command 'axolotl'; that is pet finetune FILE here"),
        (["lmf", "export", "JOB"], "no command 'lmf'; that is pet merge FILE here"),
        (["axolotl", "fetch", "examples"], "no command 'axolotl'; see pet --help"),
        (["chat", "JOB", "--lora-model-dir=out"], "no option '--lora-model-dir'; here it is --adapter"),
        (["merge", "JOB", "--lora-model-dir", "out"], "no option '--lora-model-dir'; here it is ADAPTER"),
        (
            ["finetune", "JOB", "--micro-batch-size", "2"],
            "write a job file's setting without dashes: micro_batch_size=",
        ),
        (["export", "JOB"], "was expected; pet merge FILE does what a job file says"),
        (["export", "nowhere"], "give the output: --output PATH"),
        (["predict", "--run", "nowhere", "--input", "a"], "--run nowhere: no such directory"),
        (["export", "nowhere", "--output", "out"], "nowhere: no such directory"),
        (["predict", "--run", "JOB", "JOB", "--input", "a"], "give one of them"),
        (["export", "JOB", "--output", "out"], ": is a file; a run or adapter directory was expected"),
        (["merge", "JOB"], "give the output directory: --output DIR"),
        (["merge", "JOB", "--output", "out"], "adapter: no such directory"),
        (["validate"], "give a recipe: a file, or a name such as in pet validate glm_lora"),
        (["validate", "JOB", "--no-file"], "no option '--no-file' (did you mean '--no-files'?)"),
        (
            ["predict", "--input", "a", "generation.max_new_tokens=3"],
            "takes no settings of a recipe; it has --max",
        ),
        (["predict", "generation.beams=3"], "generation.beams=3: this command takes no settings of a recipe"),
        (["validate", "--train.steps=3", "JOB"], "write overrides without dashes: train.steps=3"),
        (["validate", "train.steps=3"], "no recipe given"),
        (["validate", "jop.yaml"], "no such file"),
        (["recipes", "sho", "x"], "no action 'sho' (did you mean 'show'?)"),
        (["recipes", "show"], "expected pet recipes show NAME"),
        (["recipes", "copy", "no_such_recipe"], "no bundled recipe has this name"),
        (["finetune"], "give a recipe: a file, or a name such as in pet finetune glm_lora"),
        (["finetune", "glm_lora", "--steps", "5"], "no option '--steps'; write a setting without dashes: train.steps="),
        (["finetune", "glm_lora", "--lr=1e-3"], "without dashes: train.learning_rate="),
        (["finetune", "glm_lora", "train.lr=1e-3"], "did you mean 'learning_rate'"),
        (["finetune", "glm_lora", "--resme"], "did you mean '--resume'"),
        (["recipes", "list", "x"], "expected pet recipes list"),
        (["doctor", "now"], "no argument 'now'"),
        (
            ["merge", "a", "--base", "b", "--outptu", "c"],
            "pet merge: there is no option '--outptu' (did you mean '--out",
        ),
        (["info", "-x"], "no option '-x'"),
        (["info"], "required: MODEL; see"),
    ],
)
def test_wrong_command_lines(recipe, capsys, arguments, words):
    assert main([str(recipe) if word == "JOB" else word for word in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert "Traceback" not in captured.err


def test_the_directory_that_was_meant_is_named(tmp_path, capsys):
    """A run's in the place of its recipe, and a repository of Hugging Face's cache in that of its snapshot."""
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0f"
    snapshot.mkdir(parents=True)
    for name in ("recipe.yaml", "models--a--b/snapshots/0f/config.json"):
        (tmp_path / name).write_text("{}")
    assert main(["data", str(tmp_path)]) == main(["quantize", str(snapshot.parents[1]), "--output", "out"]) == 2
    error = capsys.readouterr().err
    assert f"that of the run is {tmp_path}/recipe.yaml" in error and f"there is one in {snapshot}" in error


def test_debug_shows_the_traceback(recipe, capsys):
    assert main(["validate", "--debug", "nowhere.yaml"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(("place", "code"), [("out/.merged.unfinished-1a2b", 1), ("base/config.json", 2)])
def test_what_the_system_does_not_allow_is_named(recipe, capsys, monkeypatch, place, code):
    """What cannot be read is wrong input."""

    def forbidden(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", place)

    monkeypatch.setattr("pet.cli.validate.main", forbidden)
    assert main(["validate", str(recipe)]) == code
    shown = place.replace(".merged.unfinished-1a2b", "merged")
    assert capsys.readouterr().err == f"pet validate: {shown}: permission denied\n"


def test_an_unexpected_error_is_one_line_and_exit_code_1(recipe, capsys, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("first line\n\n----\n- C++ Call Stack: ...\n")

    monkeypatch.setattr("pet.recipe.loading.load", broken)
    assert main(["validate", str(recipe)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("pet validate: RuntimeError: first line\n")
    assert "Call Stack" not in error
    assert "--debug shows where" in error
    for name, value in (("PET_LAUNCH", "1"), ("RANK_ID", "1"), ("RANK_SIZE", "2")):
        monkeypatch.setenv(name, value)
    assert main(["validate", str(recipe)]) == 1
    assert "Traceback" in capsys.readouterr().err, "of one worker among many only the log is left"


def test_a_wrong_variable_of_a_job_is_named_by_what_needs_it(recipe, capsys, monkeypatch):
    monkeypatch.setenv("RANK_SIZE", "x")
    assert main(["validate", str(recipe)]) == 0
    assert main(["finetune", str(recipe)]) == 2
    assert "the environment variable RANK_SIZE must be a whole number, not 'x'" in capsys.readouterr().err


def test_interrupt_is_130(recipe, capsys, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("pet.recipe.loading.load", stopped)
    assert main(["validate", str(recipe)]) == 130
    assert capsys.readouterr().err == "pet validate: interrupted\n"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("recipes schema | head -1; echo ${PIPESTATUS[0]}", "{\n141\n"),
        ("validate nonesuch 2>&1 | true; echo ${PIPESTATUS[0]}", "141\n"),
        ("--version >&- <&-; echo $?", "0\n"),
        ("validate nonesuch 2>&-; echo $?", "2\n"),
    ],
)
def test_streams_that_nobody_reads_or_that_are_closed(command, said):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = f"{shlex.quote(sys.executable)} -m pet {command}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment, timeout=HANGING)
    assert (result.stdout, result.stderr) == (said, "")


@pytest.mark.parametrize("arguments", [["a", "--", "-b", "--c=1", "d"], ["--", "a", "-b", "--c=1", "d"]])
def test_what_follows_two_dashes_is_no_option(arguments):
    parser = Parser("pet merge", "Merge.", [])
    parser.add_argument("--output")
    parser.add_argument("name")
    parser.add_argument("adapters", nargs="*")
    options = parser.read(["--output", "o", *arguments])
    assert (options.output, options.name, options.adapters) == ("o", "a", ["-b", "--c=1", "d"])


@pytest.mark.parametrize("value", ["-0.5,1", "-5+3=?", "-.5e-3", "- a", "-5", "-"])
def test_a_value_that_begins_with_a_dash_and_is_no_option(value):
    parser = Parser("pet merge", "Merge.", [])
    parser.add_argument("--weights")
    parser.add_argument("--rate", type=float)
    parser.add_argument("names", nargs="*")
    options = parser.read(["a", "--weights", value, "b", "--rate", "-1e-3"])
    assert (options.weights, options.rate, options.names) == (value, -1e-3, ["a", "b"])
    with pytest.raises(InputError, match="there is no option '-x'"):
        parser.read(["--weights", "-x"])


def test_a_directory_whose_name_begins_with_a_dash(fixtures, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(fixtures / "gpt2", tmp_path / "-gpt2")
    assert main(["info", "--json", "--", "-gpt2"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "model"
    assert main(["info", "-gpt2"]) == 2
