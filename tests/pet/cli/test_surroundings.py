"""What lies around the program: encodings that lack characters, and packages of the same name."""

import contextlib
import importlib.metadata
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import mindspore
import pytest
from packaging.requirements import Requirement
from waiting import HANGING

import adapters
from model_zoo import BLIND
from model_zoo.errors import InputError
from model_zoo.generation.streamers import TextStreamer
from model_zoo.graph import address_of
from pet import installation
from pet.cli import doctor
from pet.cli.main import main
from pet.installation import KNOWN, TESTED, foreign_adapters, installed

ROOT = Path(__file__).resolve().parents[3]

QUESTION = "类型#裤\U0001f600"
ENCODINGS = [
    {"PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "latin-1:strict"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
]


def strict(encoding: str) -> io.TextIOWrapper:
    """An output as PYTHONIOENCODING makes one."""
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")


def test_a_character_that_the_output_lacks(monkeypatch, tmp_path):
    """Commands that print Chinese text: data, and what is wrong with it."""
    (tmp_path / "rows.jsonl").write_text(f'{{"prompt": "{QUESTION}", "completion": "好"}}\n')
    (tmp_path / "job.yaml").write_text(
        f"model: {{path: glm_tiny}}\nadapter: {{method: lora}}\n"
        f"data: {{train: {tmp_path}/rows.jsonl, max_length: 64, packing: none, cache_dir: {tmp_path}/cache}}\n"
    )
    for encoding in ("ascii", "latin-1"):
        out, errors = strict(encoding), strict(encoding)
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", errors)
        assert main(["data", str(tmp_path / "job.yaml")]) == 0
        assert main(["data", "类型.yaml"]) == 2
        for stream, text in ((out, "\\u7c7b"), (errors, "\\u7c7b\\u578b.yaml")):
            stream.flush()
            assert text.encode() in stream.buffer.getvalue()


@pytest.mark.parametrize("settings", ENCODINGS, ids=lambda settings: next(iter(settings)))
def test_in_a_process_of_its_own(settings):
    done = subprocess.run(
        [sys.executable, "-m", "pet", "validate", QUESTION], env={**os.environ, **settings}, capture_output=True
    )
    assert done.returncode == 2 and b"Traceback" not in done.stderr, done.stderr
    assert b"no such file" in done.stderr


def test_a_name_that_file_names_cannot_have_here(tmp_path):
    (tmp_path / "job.yaml").write_text("model: {path: gpt_tiny}\ndata: {train: 类型.jsonl}\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pet", "validate", str(tmp_path / "job.yaml")],
        env={**os.environ, **ENCODINGS[-1]},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "data.train: no file can have this name (" in done.stderr
    assert "or one that ascii (without PYTHONUTF8=1) lacks)" in done.stderr


def test_an_answer_is_printed_whatever_the_output(monkeypatch):
    """Also for a program that calls the library."""
    out = strict("ascii")
    monkeypatch.setattr(sys, "stdout", out)

    class Tokenizer:
        def stream_decoder(self, skip_special_tokens):
            return None

    TextStreamer(Tokenizer()).on_text("a好")
    assert out.buffer.getvalue() == b"a\\u597d"


def test_what_is_read_in_another_encoding_is_refused(monkeypatch, capsys, base):
    """It would be another question."""
    source = io.TextIOWrapper(io.BytesIO(QUESTION.encode()), encoding="ascii", errors="surrogateescape")
    for command in (["predict", "--model", str(base), "--file", "-"], ["chat", "--model", str(base)]):
        source.seek(0)
        monkeypatch.setattr(sys, "stdin", source)
        assert main(command) == 2
        assert "stdin: is not ascii text; name its encoding: PYTHONIOENCODING=utf-8" in capsys.readouterr().err


def test_questions_from_a_pipe_are_those_of_the_same_file(monkeypatch, capsys, base, tmp_path):
    """Written by another system: with a byte order mark, and a carriage return at the end of each line."""
    written = f"\ufeff{QUESTION}\r\nWhat is 1?\r\n".encode()
    (tmp_path / "questions.txt").write_bytes(written)
    # on Linux Python's own standard input leaves lines as they are
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(written), encoding="utf-8", newline="\n"))
    asked = []
    for name in (str(tmp_path / "questions.txt"), "-"):
        assert main(["predict", "--model", str(base), "--max-new-tokens", "1", "--json", "--file", name]) == 0
        asked.append([json.loads(line)["prompt"] for line in capsys.readouterr().out.splitlines()])
    assert asked == [[QUESTION, "What is 1?"]] * 2


@pytest.fixture
def type_at_a_prompt():
    """Types into a chat's prompt on a terminal of this kind, which marks pasted lines where it is asked to; returns
    whether it was, and all that the terminal shows."""

    def do(pasted: str, **settings):
        pytest.importorskip("readline")
        screen, terminal = os.openpty()
        program = "from pet.cli.chat import edit_lines; edit_lines(); print(ascii(input('> ')))"
        environment = {**os.environ, "INPUTRC": os.devnull, **settings}
        process = subprocess.Popen([sys.executable, "-c", program], env=environment, stdin=terminal, stdout=terminal)
        os.close(terminal)
        shown = b""
        with open(screen, "r+b", 0) as typed:
            while b"> " not in shown:
                shown += typed.read(1 << 16)
            marks = b"\x1b[?2004h" in shown
            typed.write((b"\x1b[200~%b\x1b[201~\r" if marks else b"%b\r") % pasted.encode())
            with contextlib.suppress(OSError):  # nobody has the terminal any more
                while True:
                    shown += typed.read(1 << 16)
        assert process.wait(HANGING) == 0
        return marks, shown.decode(errors="replace")

    return do


@pytest.mark.parametrize(("kind", "question"), [("xterm", r"'one\ntwo'"), ("dumb", "'one'")])
def test_pasted_lines_are_one_question_of_a_chat(type_at_a_prompt, kind, question):
    """A dumb terminal would show what asks it to mark them."""
    marks, shown = type_at_a_prompt("one\rtwo", TERM=kind)
    assert marks == (kind == "xterm") and question in shown


def test_chinese_is_typed_whatever_the_locale(type_at_a_prompt):
    """By LC_ALL=C readline took its bytes for keys: nothing was shown, and nothing asked."""
    assert r"'\u7c7b\u578b'" in type_at_a_prompt("类型", TERM="dumb", LC_ALL="C", PYTHONUTF8="1")[1]


@pytest.fixture
def another_library(tmp_path, monkeypatch):
    """An ``adapters`` in front of this library's on the path, as an installation into the same environment puts it."""
    packages = tmp_path / "site-packages"
    (packages / "adapters").mkdir(parents=True)
    (packages / "adapters" / "__init__.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(packages)
    for name in [name for name in sys.modules if name.partition(".")[0] == "adapters"]:
        monkeypatch.delitem(sys.modules, name)
    return packages / "adapters" / "__init__.py"


def test_a_current_directory_that_was_deleted(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for command in (["info", "llama_tiny"], ["finetune", "llama_lora"], ["doctor"]):
        assert main(command) == 2
        assert "the current directory was deleted; change to another (cd)" in capsys.readouterr().err
    assert main(["finetune", "--help"]) == 0 and "usage" in capsys.readouterr().out


def test_no_directory_for_temporary_files(tmp_path, monkeypatch, capsys):
    """A container whose root is read-only: MindSpore's import ended the process, with a dump and exit code 134."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "none")])
    for command in (["info", "llama_tiny"], ["finetune", "llama_lora"], ["doctor"]):
        assert main(command) == 2
        assert "none']: name one that can be written to: export TMPDIR=/…\n" in capsys.readouterr().err
    assert main(["finetune", "--help"]) == 0


def test_a_user_without_a_home(monkeypatch, capsys):
    """A container's, under a number that /etc/passwd does not have."""

    def unknown(number):
        raise KeyError(number)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    for command in (["info", "~/base"], ["finetune", "~/job.yaml"], ["predict", "--model", "~/base", "--input", "a"]):
        assert main(command) == 2
        assert "~: there is no such home directory; give the whole path, or set HOME\n" in capsys.readouterr().err


def test_a_current_directory_that_is_deleted_while_a_command_runs(tmp_path, monkeypatch, capsys):
    """The system names no file then."""
    place = tmp_path / "gone"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setattr("pet.cli.info.main", lambda arguments: (place.rmdir(), os.getcwd()))
    assert main(["info", "llama_tiny"]) == 1
    assert capsys.readouterr().err == "pet info: the current directory was deleted; change to another (cd)\n"


@pytest.mark.full
def test_without_docstrings():
    """``python -OO`` keeps none, which the methods' are made of."""
    code = "import adapters.tokens, pet; pet.LoRAConfig(rank=2)"
    subprocess.run([sys.executable, "-OO", "-c", code], check=True, cwd=ROOT)


def test_our_own_adapters():
    assert foreign_adapters() is None
    assert Path(adapters.__file__).is_file()


def test_a_package_of_the_same_name_is_reported(another_library, capsys):
    for command in (["info", "gpt_tiny"], ["validate", "glm_lora"], ["finetune", "glm_lora"]):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert f"the package 'adapters' is that of {another_library}, of another library" in error
        assert "an environment of its own" in error
    assert main(["doctor", "--quick"]) == 1
    line = next(line for line in capsys.readouterr().out.splitlines() if line.split()[1:2] == ["adapters"])
    assert line.startswith("BAD") and str(another_library) in line
    assert main(["--version"]) == 0


@pytest.mark.parametrize("name", ["adapters", "model_zoo"])
def test_a_directory_beside_a_script_is_called_one(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    (tmp_path / "script.py").write_text("import pet; pet.LoRAConfig")
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=surroundings, capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: the package '{name}' is that of {tmp_path / name}")
    assert last.endswith("rename that directory, or run from another one")


def test_a_program_that_imports_pet_hears_of_it(another_library):
    import pet

    pet.__dict__.pop("apply_lora", None)
    with pytest.raises(ImportError, match="an environment of its own"):
        pet.apply_lora  # noqa: B018


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("2.10.0", None),
        ("2.7.1", "2.7.1 passed the quick tests and the full diagnosis"),
        ("2.8.0", "2.8.0 passed"),
        ("2.1.0", "2.1.0 was not tested"),
        ("2.11.0", "2.11.0 was not tested; all tests passed with 2.10, the quick ones with 2.7, 2.8 and 2.9"),
    ],
)
def test_doctor_says_which_versions_were_tested(monkeypatch, version, words):
    found = {"mindspore": version, "numpy": "1.26.4", "safetensors": "0.7.0"}
    monkeypatch.setattr(doctor, "installed", lambda package: found.get(package, "1.0"))
    told = [text for kind, what, text in doctor.packages() if what == "mindspore" and kind == "note"]
    assert len(told) == (words is not None)
    assert words is None or told[0].startswith(words)


@pytest.mark.parametrize(("whole", "end"), [(True, b"at the end\n"), (False, b"")], ids=["imported", "half"])
def test_a_mindspore_that_could_not_be_imported_does_not_end_the_process(whole, end):
    """With another protobuf its C++ part is there, and at exit it aborts the process behind pages of its own."""
    program = (
        "import atexit, sys, types; from pet.cli.main import leave; atexit.register(print, 'at the end'); "
        f"names = ['mindspore._c_expression', 'mindspore'][:{1 + whole}]; "
        "sys.modules.update({name: types.ModuleType(name) for name in names}); sys.exit(leave(1))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, end, b"")


def test_packages_that_another_one_changed_are_named(monkeypatch, capsys):
    """Behind a failure, too, since MindSpore then fails with a traceback of somebody else's."""
    changed = {"protobuf": "3.1", "numpy": "2.2.0", "tqdm": None}
    monkeypatch.setattr(installation, "installed", lambda package: changed.get(package, installed(package)))
    needs = {
        "mindspore-pet": ["numpy<2,>=1.26", "tqdm", "pyyaml>9; extra == 'x'"],
        "mindspore": ["protobuf>=3.13"],
    }
    monkeypatch.setattr(importlib.metadata, "requires", needs.get)
    told = {what: text for kind, what, text in doctor.packages() if kind == "bad"}
    assert told["protobuf"] == "3.1: mindspore needs another: pip install 'protobuf>=3.13'"
    assert "pyyaml" not in told and told["tqdm"] == "is not installed: pip install 'tqdm'"
    assert told["numpy"].startswith("2.2.0: ") and "; MindSpore's wheel is built for NumPy 1" in told["numpy"]
    changed["mindspore-pet"] = changed["mindspore"] = None  # run from a directory
    assert [what for what, _ in installation.unmet()] == ["numpy"]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "packaging.requirements", None)
        assert [what for what, _ in installation.unmet()] == ["packaging"]
        patch.setattr(installation, "find_spec", {}.get)  # a clone alone: one command, not one for each package
        clone = Path(installation.__file__).parents[1]
        assert [*installation.unmet()] == [("mindspore-pet", f"is not installed: pip install {clone}")]
    del changed["mindspore-pet"], changed["mindspore"]
    monkeypatch.setattr("pet.cli.main.run", lambda _: 1 / 0)
    assert main(["recipes"]) == 1
    first, *others, _ = capsys.readouterr().err.splitlines()
    assert first == "pet recipes: ZeroDivisionError: division by zero"
    assert f"protobuf {told['protobuf']}" in others


def test_a_mindspore_that_does_not_say_where_tensors_lie_is_refused(monkeypatch):
    monkeypatch.setattr(doctor, "installed", {"mindspore": BLIND, "numpy": "1.26.4"}.get)
    assert ("bad", "mindspore") in [finding[:2] for finding in doctor.packages()]
    weight = mindspore.Parameter(mindspore.Tensor([1.0]))
    assert address_of(weight) == weight.data_ptr() != 0
    monkeypatch.setattr(mindspore, "__version__", BLIND)
    with pytest.raises(InputError, match=r"MindSpore 2\.7\.0 does not say where .*mindspore>=2\.7\.1"):
        address_of(weight)


def test_tested_versions_are_those_that_are_installed_and_that_checks_run_with(tmp_path):
    project, checks = ((ROOT / name).read_text() for name in ("pyproject.toml", ".ci/run"))
    after = ".".join([TESTED[-1].split(".")[0], str(int(TESTED[-1].split(".")[1]) + 1)])
    assert f'"mindspore>={TESTED[0]}.1,<{after}"' in project
    for name, bound in (need.split("<") for need in KNOWN["mindspore-pet"]):
        assert re.search(rf'"{name}>=[\d.]+,<{re.escape(bound)}"', project)
    (lowest,) = (line for line in checks.splitlines() if "s/>=/==/" in line)
    subprocess.run(["bash", "-c", lowest], cwd=ROOT, env={**os.environ, "work": str(tmp_path)}, check=True)
    assert f"mindspore=={TESTED[0]}.1" in (tmp_path / "lowest.txt").read_text().splitlines()


def test_the_tracker_that_fits_mindspore_is_one_that_its_extra_takes():
    """Otherwise pip puts an older MindSpore in the place of the newest."""
    project, document = ((ROOT / name).read_text() for name in ("pyproject.toml", "docs/trackers.md"))
    (fits,) = re.findall(r"pip installs SwanLab ([\d.]+\d)", document)
    (takes,) = re.findall(r'^swanlab = \["(.*)"\]', project, re.MULTILINE)
    assert Requirement(takes).specifier.contains(fits)


def test_mindspore_is_imported_without_collecting_and_without_scipy_and_tables():
    """By a command's process; afterwards Python's collector works, and leaves MindSpore's modules alone; and what
    MindSpore has of SciPy, and what anybody imports of it, is SciPy's; and so are its tables of Ascend's operators."""
    code = (
        "import gc, sys\n"
        "from pet.__main__ import main\n"
        "sys.argv = ['pet', '--version']\n"
        "main()\n"
        "rounds = []\n"
        "gc.callbacks.append(lambda phase, _: rounds.append(phase))\n"
        "import mindspore\n"
        "assert len(rounds) < 10 and gc.isenabled() and gc.get_freeze_count() > 100_000\n"
        "cell = []\n"
        "cell.append(cell)\n"
        "del cell\n"
        "assert gc.collect()\n"
        "assert not any(name.startswith('scipy') for name in sys.modules)\n"
        "from model_zoo.resources import accelerators_present\n"
        "tables = 'mindspore.ops._op_impl.aicpu'\n"
        "assert accelerators_present() or not any(name.startswith(tables) for name in sys.modules)\n"
        "from mindspore.ops._op_impl.aicpu import add_n\n"
        "assert add_n.__name__.startswith(tables) and sys.modules[tables].__file__\n"
        "from mindspore.dataset.engine import datasets_vision\n"
        "from mindspore.train.callback import _landscape\n"
        "from mindspore.train.metrics import hausdorff_distance\n"
        "assert _landscape.sparse.issparse(0) is False\n"
        "import scipy.special, scipy.linalg, scipy.io\n"
        "assert scipy.special.gamma(5) == 24 and _landscape.linalg.svd is scipy.linalg.svd\n"
        "assert hausdorff_distance.morphology.binary_erosion([[True]]).shape == (1, 1)\n"
        "try:\n"
        "    datasets_vision.loadmat('nowhere.mat')\n"
        "except FileNotFoundError:\n"
        "    sys.exit(0)\n"
        "sys.exit('it is not there')\n"
    )
    strict = {**os.environ, "PYTHONWARNINGS": "error:getName"}  # which MindSpore's end would trip over
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANGING, env=strict)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
