"""The command line itself: speed, help, exit codes, and the commands that need no model."""

import errno
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from waiting import HANGING

from adapters.peft_config import ALL_THE_SAME
from model_zoo.errors import InputError
from pet import names
from pet.cli.commands import COMMANDS
from pet.cli.main import main
from pet.cli.output import check_output_file
from pet.cli.parser import Parser
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


@pytest.fixture
def recipe(tmp_path, fixtures, monkeypatch):
    """A small valid recipe, in the current directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.jsonl").write_text('{"content": "a", "summary": "b"}\n')
    path = tmp_path / "job.yaml"
    path.write_text(
        f"model:\n  path: {fixtures / 'llama_gqa'}\ndata:\n  train: train.jsonl\n  max_length: 64\ntrain:\n  steps: 5\n"
    )
    return path


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


@pytest.mark.parametrize("columns", [60, 80])
def test_recipes_are_a_line_each_as_wide_as_the_terminal(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["recipes"]) == 0
    *lines, _, _ = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*names.bundled_recipes()]
    assert max(map(len, lines)) <= columns


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


def test_an_output_that_cannot_be_written_is_refused_before_the_work(tmp_path, monkeypatch):
    closed = tmp_path, Path(os.devnull).parent  # root may write anywhere
    monkeypatch.setattr(os, "access", lambda path, mode: path not in closed)
    with pytest.raises(InputError, match=f"--output .*numbers.json: {tmp_path} cannot be written to"):
        check_output_file(str(tmp_path / "gone" / "numbers.json"))
    check_output_file(str(tmp_path.parent / "numbers.json"))
    check_output_file(os.devnull)


def test_version(capsys):
    from pet import __version__

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pet {__version__}\n"


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


def test_validate_a_directory(recipe, capsys):
    (recipe.parent / "other.yaml").write_text("model: {}\n")
    assert main(["validate", str(recipe.parent)]) == 2
    captured = capsys.readouterr()
    assert f"{recipe}: ok" in captured.out
    assert "other.yaml:1: model.path: is missing" in captured.err


def test_show_can_be_loaded_again(recipe, capsys):
    assert main(["recipes", "show", str(recipe), "train.steps=7"]) == 0
    shown = capsys.readouterr().out
    assert "# Peak learning rate." in shown and "all-\n" not in shown, "all-linear is one word"
    again = recipe.parent / "again.yaml"
    again.write_text(shown)
    assert load(again) == load(recipe, ["train.steps=7"])


def test_schema_is_json(capsys):
    assert main(["recipes", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "pet recipe"


def has_weights(name: str) -> bool:
    """Whether a bundled recipe's model is bundled too; of the real sizes only the name is known."""
    return load(name, check_files=False).model.path not in names.preset_names()


def test_bundled_recipes_are_valid(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert names.bundled_recipes(), "no recipes are bundled"
    for name in names.bundled_recipes():
        recipe = load(name, check_files=False)
        if recipe.model.path not in names.preset_names():
            load(name)
            continue
        # a recipe for a published model: all but the checkpoint is there
        with pytest.raises(InputError) as error:
            load(name)
        assert "its weights are not bundled: download the checkpoint" in str(error.value)
        assert "problems" not in str(error.value)


def test_copied_recipes_are_valid_and_take_their_data_along(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for index, name in enumerate(names.bundled_recipes()):
        assert main(["recipes", "copy", name, f"copy{index}/mine.yaml"]) == 0
        recipe = load(tmp_path / f"copy{index}" / "mine.yaml", check_files=False)
        original = load(name, check_files=False)
        assert recipe.adapter == original.adapter
        for path in recipe.data.train or []:
            assert Path(path).is_relative_to(tmp_path), path
            assert Path(path).exists()
        assert names.model_config(recipe.model.path) == names.model_config(original.model.path)
    capsys.readouterr()


def test_copied_recipes_share_their_data(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["recipes", "copy", "glm_lora", "."]) == main(["recipes", "copy", "glm_dora", "."]) == 0
    assert main(["validate", "glm_lora.yaml", "glm_dora.yaml"]) == 0
    data = next(path for path in tmp_path.rglob("*.jsonl"))
    data.write_text("{}\n")
    capsys.readouterr()
    assert main(["recipes", "copy", "glm_bitfit", "."]) == 2
    assert "is there already" in capsys.readouterr().err
    assert not (tmp_path / "glm_bitfit.yaml").exists()


def test_examples_name_nothing_of_the_clone(monkeypatch, tmp_path):
    """Every recipe in an example is a bundled name or a file that the examples make themselves."""
    monkeypatch.chdir(tmp_path)
    lines = [line for module, *_ in COMMANDS.values() for line, _ in import_module(module).EXAMPLES]
    assert len(lines) > 20
    assert [line for line in lines if "recipes/" in line] == []


def test_copy_replaces_nothing_unasked(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name = next(iter(names.bundled_recipes()))
    (tmp_path / "mine.yaml").write_text("precious")
    assert main(["recipes", "copy", name, "mine.yaml"]) == 2
    assert (tmp_path / "mine.yaml").read_text() == "precious"
    assert "--force" in capsys.readouterr().err
    assert main(["recipes", "copy", name, "mine.yaml", "--force"]) == 0


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
