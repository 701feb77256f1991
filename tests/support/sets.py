"""The sets of tests: `quick`, `full`, and all the others, which `pytest` runs (CONTRIBUTING.md has the table).

A matrix is a test with several parameters and the marker `cover`. Of a matrix `pytest` runs so many cases that every
value of each parameter and every pair of values occurs; the remaining ones are marked `full`. ``cover(pairs=False)``
asks for every value alone, where the pairs are covered by a test below or above. ``cover(by=function)`` says what a
case covers: the function takes the case's parameters by name and returns the things. `some` is given the cases; what
takes long beside another test of its kind is marked `full` by hand.
"""

from __future__ import annotations

import inspect
from collections import Counter, defaultdict
from collections.abc import Collection
from itertools import combinations
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

# Beginnings of the paths of files that neither compile graphs nor start jobs. What takes longer in them is `slow`.
QUICK = (
    *(f"adapters/test_{name}" for name in ("foreign_cells", "freeze", "lora_cells", "lora_files", "lora_plan")),
    "adapters/test_small_methods",
    *(f"model_zoo/test_{name}" for name in ("arguments", "checkpoint", "configs", "errors", "presets", "resources")),
    *(f"model_zoo/test_{name}" for name in ("safetensors_io", "saving")),
    *(f"model_zoo/test_{name}" for name in ("special_files", "tokenizers_call", "tokenizers_files", "tokenizers_ids")),
    *(f"model_zoo/test_tokenizers_{name}" for name in ("pieces", "prompts")),
    "pet/cli/test_bad_recipes",
    "pet/cli/test_commands",
    *(
        f"pet/compat/test_{name}"
        for name in ("ckpt", "mindformers_configs", "mindformers_tokenizers", "mindpet", "modelarts")
    ),
    *(f"pet/compat/test_{name}" for name in ("names", "job_files")),
    "pet/data",
    *(f"pet/parallel/test_{name}" for name in ("control", "fits", "transform")),
    "pet/recipe",
    *(f"pet/test_{name}" for name in ("base_names", "files", "public_names", "readme", "run_directory")),
    *(f"pet/train/test_{name}" for name in ("checkpoint", "metrics", "prepare", "progress")),
    *(f"pet/train/test_{name}" for name in ("records", "report", "schedules")),
    "recipes/test_corpus",
)


def is_quick(path: Path) -> bool:
    """Whether a file holds quick tests."""
    return path.relative_to(TESTS).as_posix().startswith(QUICK)


def mark(items: list) -> None:
    """Adds `full` to what a matrix need not run each time, and `quick` to what is left in the files of `QUICK`."""
    matrices = defaultdict(list)
    for item in items:
        if item.get_closest_marker("cover"):
            matrices[item.nodeid.partition("[")[0]].append(item)
    for cases in matrices.values():
        chosen = cover([covered(case) for case in cases])
        for number, case in enumerate(cases):
            if number not in chosen:
                case.add_marker("full")
    for item in items:
        if is_quick(item.path) and not any(item.get_closest_marker(name) for name in ("slow", "full")):
            item.add_marker("quick")


def some(values, often: Collection) -> list:
    """Parameters of a test of which `pytest` runs those that are named, and ``pytest -m full`` the others."""
    return [value if value in often else pytest.param(value, marks=pytest.mark.full) for value in values]


def asked(request, fixture: str) -> list[dict]:
    """The parameters of each test of this run that uses a fixture of its file, by name: a fixture that makes what many
    tests read makes no more than they do."""
    items = (item for item in request.session.items if item.path == request.path and fixture in item.fixturenames)
    return [item.callspec.params if hasattr(item, "callspec") else {} for item in items]


def covered(case) -> set:
    """What a case covers: by default its values, and the pairs of them."""
    options, values = case.get_closest_marker("cover").kwargs, case.callspec.params
    if rule := options.get("by"):
        return set(rule(**{name: values[name] for name in inspect.signature(rule).parameters}))
    settings = [(name, repr(value)) for name, value in sorted(values.items())]
    return {*settings, *(combinations(settings, 2) if options.get("pairs", True) else ())}


def cover(cases: list[set]) -> set[int]:
    """The numbers of a few cases that cover together what all of them do: always the one next that adds most."""
    missing, chosen = set().union(*cases), set()
    while missing:
        best = max(range(len(cases)), key=lambda number: len(cases[number] & missing))
        missing -= cases[best]
        chosen.add(best)
    return chosen


def long_files_first(items: list) -> None:
    """So that processes end together: files with slow tests, the most of them first; others by the number of tests; the
    quick ones last, which are short and many."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    size = Counter(item.path for item in items)
    quick = {item.path for item in items if item.get_closest_marker("quick")}
    items.sort(key=lambda item: (-slow[item.path], item.path in quick, -size[item.path], item.path))
