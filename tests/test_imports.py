"""Who imports whom, late imports counted: no circle, and every import goes from a higher room to a lower one."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("model_zoo", "adapters", "pet")

# From the lowest to the highest. What is named by its file stands in its room, whatever room its directory is.
ROOMS = {
    "model_zoo": ("model_zoo",),
    "adapters": ("adapters",),
    "names": tuple(f"pet/{name}.py" for name in ("__init__", "lazy", "installation", "files", "names", "hub", "auto")),
    "launching": ("pet/interrupts.py", "pet/launching"),
    "recipe": ("pet/recipe", "pet/run_directory.py", "pet/meta_model.py"),
    "data": ("pet/data",),
    "models": (
        "pet/pipelines.py",
        "pet/text_classification.py",
        "pet/text_generation.py",
        "pet/export.py",
        "pet/companions.py",
        "pet/gguf",
        "pet/serving.py",
        "pet/quantize.py",
        "pet/added_tokens.py",
    ),
    "train": ("pet/train",),
    "parallel": ("pet/parallel",),
    "planning": ("pet/planning", "pet/info.py"),
    "jobs": (
        "pet/model_card.py",
        "pet/train/prepare.py",
        "pet/train/run.py",
        "pet/train/evaluate_run.py",
        "pet/train/callbacks/hub.py",
    ),
    "diagnosis": ("pet/diagnosis",),
    "compat": ("pet/compat",),
    "cli": ("pet/cli", "pet/__main__.py"),
}
# Of model_zoo, adapters know these and no family.
FOR_ADAPTERS = (
    "layers",
    "norms",
    "activations",
    "errors",
    "arguments",
    "progress",
    "atomic",
    "checkpoint",
    "engine",
    "graph",
    "labels",
    "quantization",
    "settings",
    "turns",
)


def files() -> dict[str, Path]:
    """{module: its file}; a package is its ``__init__``."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(module: str, path: Path, modules: dict[str, Path]) -> Iterator[str]:
    """The modules that a file imports anywhere in it, in functions too, and the packages that come with them."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            outer = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*outer, *([node.module] if node.module else [])])
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        for name in names:
            while name:
                # importing a module runs its packages first; a module's own are running already
                if name in modules and not f"{module}.".startswith(f"{name}."):
                    yield name
                name = name.rpartition(".")[0]


@cache
def graph() -> dict[str, set[str]]:
    modules = files()
    return {module: set(imported(module, path, modules)) for module, path in modules.items()}


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules that reach one another (Tarjan)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in edges[node]:
            if other not in order:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], order[other])
        if low[node] == order[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in edges:
        if node not in order:
            visit(node)
    return found


def room_of(path: Path) -> str:
    """The room whose entry names most of a file's path."""
    name = path.relative_to(ROOT).as_posix()
    places = {place: room for room, entries in ROOMS.items() for place in entries}
    fitting = [place for place in places if name == place or name.startswith(f"{place}/")]
    assert fitting, f"{name} is in no room; give it one in ROOMS"
    return places[max(fitting, key=len)]


def test_the_graph_has_late_and_relative_imports_and_packages():
    edges = graph()
    assert "pet.parallel.context" in edges["pet.train.prepare"], "in a function"
    assert "pet.data.loader" in edges["pet.data.wrap"], "relative"
    assert {"pet.recipe", "pet.recipe.classes"} <= edges["pet.train.objectives"], "with its package"
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def test_no_import_goes_in_a_circle():
    assert circles(graph()) == []


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_lower_ones_only(room):
    rank = list(ROOMS).index
    rooms = {module: room_of(path) for module, path in files().items()}
    wrong = [
        f"{module} imports {other}, which is in {rooms[other]}"
        for module, others in graph().items()
        if rooms[module] == room
        for other in sorted(others)
        if rank(rooms[other]) > rank(room)
    ]
    assert wrong == []


def test_adapters_know_no_family():
    allowed = tuple(f"model_zoo.{name}" for name in FOR_ADAPTERS)
    wrong = [
        f"{module} imports {other}"
        for module, others in graph().items()
        if module.startswith("adapters")
        for other in sorted(others)
        if other.startswith("model_zoo.") and not f"{other}.".startswith(tuple(f"{name}." for name in allowed))
    ]
    assert wrong == []


def test_the_engine_is_imported_through_its_door():
    wrong = [
        f"{module} imports {other}"
        for module, others in graph().items()
        if not f"{module}.".startswith("model_zoo.engine.")
        for other in sorted(others)
        if other.startswith("model_zoo.engine.")
    ]
    assert wrong == []


@pytest.mark.parametrize("suffix", ["py", "c", "h"])
def test_no_file_is_longer_than_400_lines(suffix):
    paths = [path for directory in (*PACKAGES, "tests") for path in (ROOT / directory).rglob(f"*.{suffix}")]
    assert paths and [path for path in paths if len(path.read_text("utf-8").splitlines()) > 400] == []


def test_no_directory_of_the_tests_hides_a_package():
    """A directory of a package's name on the path is found before what `pip install -e` installs."""
    here = str(Path(__file__).parent)
    hidden = [
        f"{entry}/{name}"
        for entry in sys.path
        if entry.startswith(here)
        for name in PACKAGES
        if (Path(entry) / name).exists()
    ]
    assert hidden == []


PEERS = {"bitsandbytes", "datasets", "peft", "torch", "transformers", "trl", "xllamacpp"}
"""What the tests compare with, and ``pip install '.[test]'`` leaves out."""


def test_tests_ask_whether_a_peer_is_there_before_they_import_it():
    """Without them the README's command has to pass, too."""
    wrong = {}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(file.read_text("utf-8"))
        tried = {id(one) for block in ast.walk(tree) if isinstance(block, ast.Try) for one in block.body}
        free = (node for node in ast.walk(tree) if id(node) not in tried)
        used = {name.partition(".")[0] for node in free for name in imported_names(node)} & PEERS
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        asked = [call for call in calls if ast.unparse(call.func).rpartition(".")[2] in ("importorskip", "imported")]
        given = {one.value.partition(".")[0] for call in asked for one in call.args if isinstance(one, ast.Constant)}
        if used - given:
            wrong[str(file.relative_to(ROOT))] = sorted(used - given)
    assert wrong == {}


def imported_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [one.name for one in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
