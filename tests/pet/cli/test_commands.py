"""The command line itself: speed, help, the tab key, and the state of the installation."""

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from waiting import HANGING

from adapters.peft_config import ALL_THE_SAME
from pet import names
from pet.cli.commands import COMMANDS
from pet.cli.main import main
from pet.recipe import load

ROOT = Path(__file__).resolve().parents[3]


def pet(*arguments, **options):
    """Run ``pet`` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "pet", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=HANGING,
        **options,
    )


COUNTED = """
import sys

calls = within = 0

def count(frame, event, _):
    global calls, within
    file = frame.f_code.co_filename
    of_pydantic = "pydantic" in file
    if event == "return":
        within -= of_pydantic
    elif event in ("call", "c_call"):
        calls += not (within or of_pydantic or file.startswith("<frozen importlib"))
        within += of_pydantic and event == "call"

sys.setprofile(count)
from pet.cli.main import main
code = main(sys.argv[1:])
sys.setprofile(None)
print(code, calls, len(sys.modules))
"""


@pytest.mark.parametrize(
    "arguments, most_calls, most_modules",
    [(["--help"], 35_000, 170), (["recipes"], 620_000, 260), (["validate", "JOB"], 160_000, 390)],
    ids=["--help", "recipes", "validate"],
)
def test_quick_commands_are_quick(recipe, arguments, most_calls, most_modules):
    """In calls of functions and in modules, which are the same on each machine; times are not, nor is their ratio to
    what Python needs to start. What pydantic does for itself depends on its version, and looking for modules on how
    many directories there are to look in: both are left out.
    """
    arguments = [str(recipe) if word == "JOB" else word for word in arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run(
        [sys.executable, "-c", COUNTED, *arguments], capture_output=True, text=True, env=environment, timeout=HANGING
    )
    code, calls, modules = map(int, result.stdout.splitlines()[-1].split())
    assert code == 0, result.stderr
    assert calls < most_calls
    assert modules < most_modules


@pytest.mark.parametrize("arguments", [["--help"], ["recipes"], ["validate", "JOB"], ["doctor", "--quick"]])
def test_quick_commands_import_nothing_heavy(recipe, arguments):
    arguments = [str(recipe) if word == "JOB" else word for word in arguments]
    code = (
        f"import sys; from pet.cli.main import main; main({arguments!r});"
        "print([name for name in ('mindspore', 'matplotlib', 'numpy', 'torch') if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=HANGING
    )
    assert result.stdout.strip().endswith("[]"), result.stdout + result.stderr


@pytest.mark.parametrize("columns", [40, 80])
def test_help_names_every_command(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert max(len(line) for line in text.splitlines()) <= columns and "\\" not in text
    for name in COMMANDS:
        assert f"  {name} " in text
    assert main([]) == 0


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_the_examples(name, columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert max(len(line) for line in text.splitlines()) <= columns
    text = re.sub(r" \\\n +", " ", text)  # a long command goes on after a backslash
    examples = import_module(COMMANDS[name][0]).EXAMPLES
    assert examples
    for line, meaning in examples:
        assert line in text
        assert meaning in " ".join(text.split())
        assert line.startswith(f"pet {name}") or f"pet {name}" in line


def test_what_a_message_says_of_other_bases_is_an_option_of_the_commands_that_it_names(capsys):
    for name in re.search(r"of pet (.*)\)", ALL_THE_SAME)[1].split(", "):
        assert main([name, "--help"]) == 0
        assert "--no-strict" in capsys.readouterr().out, name


def test_version(capsys):
    from pet import __version__

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pet {__version__}\n"


def test_doctor_says_which_path_runs(capsys, monkeypatch):
    import dataclasses

    from model_zoo import engine
    from model_zoo.engine import build, cells
    from model_zoo.engine.ops import OPS
    from model_zoo.engine.plain import rms_norm

    def findings(code):
        assert main(["doctor"]) == code
        lines = [line for line in capsys.readouterr().out.splitlines() if line.split()[1:2] in (["kernels"], ["path"])]
        engine.available.cache_clear(), build.library.cache_clear()
        return lines

    engine.available.cache_clear(), build.library.cache_clear()  # of another cache directory, after another test
    if engine.available():
        kernels, line = findings(0)
        assert kernels.startswith("ok") and str(build.library()) in kernels and "thread" in kernels
        assert line.startswith("ok") and "fast: kernels in C" in line
    monkeypatch.setenv("PET_NATIVE", "0")
    build.library.cache_clear(), engine.available.cache_clear()
    kernels, line = findings(0)
    assert kernels.startswith("note") and "none in C (PET_NATIVE=0)" in kernels
    assert line.startswith("ok") and "fast: compiled kernels of operators" in line
    wrong = dataclasses.replace(OPS["rms_norm"], plain=lambda eps, offset: rms_norm(eps, offset + 1.0))
    monkeypatch.setitem(OPS, "rms_norm", wrong)
    cells.plain.cache_clear()
    _, line = findings(1)
    assert line.startswith("BAD") and "the fast kernels are off by" in line
    monkeypatch.delenv("PET_NATIVE")
    monkeypatch.setenv("PET_NATIVE_THREADS", "lots")
    kernels, _ = findings(1)
    assert kernels.startswith("BAD") and "PET_NATIVE_THREADS is 'lots'" in kernels
    cells.plain.cache_clear()


def test_doctor_names_variables_that_change_what_mindspore_does(capsys, monkeypatch):
    found = {"OMP_NUM_THREADS": "4096", "MS_COMPILER_CACHE_ENABLE": "1", "MS_SIMULATION_LEVEL": "1", "RANK_SIZE": "2"}
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    assert main(["doctor", "--quick"]) == 1
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    marks = {words[1]: words[0] for words in lines if len(words) > 2}
    assert marks["MS_COMPILER_CACHE_ENABLE"] == "BAD"
    assert {marks[name] for name in ("threads", "MS_SIMULATION_LEVEL", "processes")} == {"note"}


def has_weights(name: str) -> bool:
    """Whether a bundled recipe's model is bundled too; of the real sizes only the name is known."""
    return load(name, check_files=False).model.path not in names.preset_names()


def test_every_package_directory_is_a_package():
    """What has no __init__.py is missing from an installed copy."""
    for package in ("pet", "adapters", "model_zoo"):
        for file in (ROOT / package).rglob("*.py"):
            assert (file.parent / "__init__.py").exists(), f"{file.parent} has no __init__.py"


def test_a_report_fits_on_a_terminal(capsys):
    """An endless name is cut; so is a list of problems, unless --debug asks for all of it."""
    assert main(["info", "n" * 100_000]) == 2
    assert len(capsys.readouterr().err) < 2000
    settings = [f"train.no_such_key_{number}=1" for number in range(40)]
    assert main(["validate", "glm_lora", *settings]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 20 and lines[-1] == "… and 22 more lines (--debug shows all)"
    assert main(["validate", "glm_lora", *settings, "--debug"]) == 2
    assert len([line for line in capsys.readouterr().err.splitlines() if "no_such_key" in line]) >= 40


ASKED = {
    "pet fin": ["finetune "],
    "pet finetune": ["finetune "],
    "pet finetune llama_l": ["llama_lora "],
    "pet finetune llama_lora train.schedule_s": ["train.schedule_steps="],
    "pet recipes show llama_l": ["llama_lora "],
    "pet plan llama_7": ["llama_7b "],
    "pet plan llama_7b --reduce-dtype bf": ["bfloat16 "],
    "pet finetune job_of_my": [],
    "pet launch --debu": ["--debug "],
}
"""What stands on the line -> what argcomplete's function in the shell gets; it offers files where that is nothing."""


@pytest.mark.parametrize("line", ASKED)
def test_the_tab_key(line, tmp_path):
    pytest.importorskip("argcomplete", reason="argcomplete is not installed")
    asked = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9", "_ARGCOMPLETE": "1"}
    asked |= {
        "_ARGCOMPLETE_SHELL": "bash",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "to"),
    }
    done = pet(env={**os.environ, **asked}, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "to").read_text().splitlines() == ASKED[line]
