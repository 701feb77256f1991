"""Type checkers find what the public names are, and wrong keywords. Each runs where it is installed."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FRONTS = ("pet", "pet.compat.mindformers", "pet.compat.mindspore_trainer")
UNTYPED = re.compile(r"(?:Any|Unknown)|.*-> (?:Any|Unknown)", re.DOTALL)


def run(checker: str, *arguments: object) -> str:
    if shutil.which(checker) is None:
        pytest.skip(f"{checker} is not installed")
    command = [checker, *map(str, arguments), *(["--python-executable", sys.executable] if checker == "mypy" else [])]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600).stdout


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["pyright", "mypy"])
def test_what_stands_in_public_py(checker):
    """Expected errors are marked there, and a mark too many is an error."""
    said = run(checker)
    assert "0 errors" in said or "no issues found" in said, said


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["pyright", "mypy"])
def test_no_public_name_is_unknown_and_no_call_returns_it(checker, tmp_path):
    fronts = {f"front{index}": importlib.import_module(name) for index, name in enumerate(FRONTS)}
    names = [f"{front}.{name}" for front, module in fronts.items() for name in dir(module) if is_public(module, name)]
    (tmp_path / "names.py").write_text(
        "".join(f"import {module.__name__} as {front}\n" for front, module in fronts.items())
        + "".join(f"reveal_type({name})\n" for name in names),
        "utf-8",
    )
    if checker == "pyright":
        settings = {"include": ["."], "extraPaths": [str(ROOT)], "typeCheckingMode": "basic"}
        (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), "utf-8")
        found = json.loads(run(checker, "--outputjson", "-p", tmp_path))["generalDiagnostics"]
        said = "\0".join(one["message"] for one in found)
        revealed = re.findall(r'Type of "\S+" is "([^\0]*)"', said)
    else:
        revealed = re.findall(r'names\.py:\d+: note: Revealed type is "(.*)"', run(checker, tmp_path / "names.py"))
    kinds = dict(zip(names, revealed, strict=True))
    assert len(kinds) > 100
    # `build_transformer_model` may give a script's own class
    untyped = [name for name, kind in kinds.items() if UNTYPED.fullmatch(kind)]
    assert untyped == [], untyped


def is_public(module, name: str) -> bool:
    """Whether a front's type stub has a name."""
    return re.search(rf"\b{name} as {name}\b", Path(module.__file__ + "i").read_text("utf-8")) is not None
