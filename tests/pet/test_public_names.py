"""What a program imports from ``pet``."""

import importlib
import inspect
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import HANGING

import pet
from adapters.settings import SETTINGS
from pet.lazy import stub_table


def test_every_name_stands_once():
    names = [name for names in stub_table(pet.__file__).values() for name in names]
    assert len(names) == len(set(names))


def test_the_configuration_of_every_method_is_public():
    assert {method.config.rsplit(".", 1)[1] for method in SETTINGS} <= set(pet.__all__)


def test_the_keyword_arguments_that_editors_know_are_the_schema_s():
    write_keywords = runpy.run_path(str(Path(__file__).parents[1] / "typing" / "write_keywords.py"))
    for stub, text in write_keywords["sources"]().items():
        assert stub.read_text("utf-8") == text, "run tests/typing/write_keywords.py"


def test_names_of_other_systems_are_reachable_but_not_this_library_s():
    assert pet.TrainingArguments.__module__.startswith("pet.compat")
    assert "TrainingArguments" in dir(pet) and "TrainingArguments" not in pet.__all__ and "Trainer" in pet.__all__


@pytest.mark.parametrize("front", ["pet", "pet.compat.mindformers"])
def test_every_name_is_there_and_documented(front):
    """By somebody: a dataclass without a docstring has its signature for one."""
    front = importlib.import_module(front)
    values = {name: getattr(front, name) for name in front.__all__}
    assert len(values) > 20

    def documented(name, value) -> bool:
        text = vars(value)["__doc__"] if inspect.isclass(value) else value.__doc__
        return bool(text) and not text.startswith(f"{name}(")

    assert [name for name, value in values.items() if not documented(name, value)] == []


def test_importing_pet_imports_no_framework():
    code = "import sys, pet; dir(pet); print([m for m in ('mindspore', 'numpy', 'pydantic') if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=_environment(), timeout=HANGING
    )
    assert result.stdout.strip() == "[]", result.stderr


def _environment():
    import os

    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'pet' has no attribute 'aply_lora'"):
        _ = pet.aply_lora
    assert not hasattr(pet, "no_such_name")


def test_the_package_front_defines_nothing():
    """Apart from what makes the names lazy; and no submodule hides behind a public name."""
    from importlib.util import find_spec

    for name in pet.__all__:
        assert find_spec(f"pet.{name}") is None, f"importing the module pet.{name} would hide the public name"


@pytest.mark.parametrize("call", [pet.apply_lora, pet.list_adapters, lambda name: pet.Trainer(name, "rows.jsonl")])
def test_a_name_in_the_place_of_a_model(call):
    with pytest.raises(pet.InputError, match="model is 'llama_tiny'; an opened model"):
        call("llama_tiny")
