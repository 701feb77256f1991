"""Type checkers find what the public names are, and wrong keywords. Each runs where it is installed."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import HANGING

ROOT = Path(__file__).parents[2]
FRONTS = ("pet", "pet.compat.mindformers", "pet.compat.mindspore_trainer")
UNTYPED = re.compile(r"(?:Any|Unknown)|.*-> (?:Any|Unknown)", re.DOTALL)


def run(checker: str, *arguments: object) -> str:
    if shutil.which(checker) is None:
        pytest.skip(f"{checker} is not installed")
    return subprocess.run(
        [checker, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=HANGING
    ).stdout


@pytest.fixture(scope="module")
def names(tmp_path_factory) -> tuple[Path, list[str]]:
    """A program that asks what each public name is, and the names."""
    fronts = {f"front{index}": importlib.import_module(name) for index, name in enumerate(FRONTS)}
    names = [f"{front}.{name}" for front, module in fronts.items() for name in dir(module) if is_public(module, name)]
    program = tmp_path_factory.mktemp("names") / "names.py"
    program.write_text(
        "".join(f"import {module.__name__} as {front}\n" for front, module in fronts.items())
        + "".join(f"reveal_type({name})\n" for name in names),
        "utf-8",
    )
    return program, names


def by_pyright(program: Path) -> tuple[list[str], list[str]]:
    """Errors, and kinds."""
    settings = json.loads((ROOT / "pyrightconfig.json").read_text("utf-8"))
    places = [os.path.relpath(ROOT / each, program.parent) for each in settings["include"]]
    settings |= {"include": [*places, "."], "extraPaths": [str(ROOT)]}
    (program.parent / "pyrightconfig.json").write_text(json.dumps(settings), "utf-8")
    found = json.loads(run("pyright", "--outputjson", "-p", program.parent))
    assert found["summary"]["filesAnalyzed"] > 10
    said = {"information": [], "error": [], "warning": []}
    for one in found["generalDiagnostics"]:
        said[one["severity"]].append(one["message"])
    return said["error"], re.findall(r'Type of "\S+" is "([^\0]*)"', "\0".join(said["information"]))


def by_mypy(program: Path) -> tuple[list[str], list[str]]:
    lines = run("mypy", "--python-executable", sys.executable, "tests/typing/public.py", program).splitlines()
    kinds = [re.findall(r'names\.py:\d+: note: Revealed type is "(.*)"', line) for line in lines]
    return [line for line in lines if ": error: " in line], [kind for found in kinds for kind in found]


@pytest.mark.slow
@pytest.mark.parametrize("checked", [by_pyright, by_mypy])
def test_what_stands_in_public_py_and_that_every_public_name_is_known(checked, names):
    """Expected errors are marked in public.py, and a mark too many is an error; no name is of no known type, and no
    call returns what is. Checked at once: most of it is reading the packages."""
    errors, revealed = checked(names[0])
    assert errors == []
    kinds = dict(zip(names[1], revealed, strict=True))
    assert len(kinds) > 100
    # `build_transformer_model` may give a script's own class
    untyped = [name for name, kind in kinds.items() if UNTYPED.fullmatch(kind)]
    assert untyped == [], untyped


def is_public(module, name: str) -> bool:
    """Whether a front's type stub has a name."""
    return re.search(rf"\b{name} as {name}\b", Path(module.__file__ + "i").read_text("utf-8")) is not None
