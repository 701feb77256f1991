"""Which tests are in which set (support/sets.py)."""

import shutil
from itertools import combinations, product
from types import SimpleNamespace

import pytest

pytest_plugins = ["pytester"]
MATRIX = """
import pytest

@pytest.mark.cover
@pytest.mark.parametrize("a", "xyz")
@pytest.mark.parametrize("b", range(3))
@pytest.mark.parametrize("c", [True, False])
@pytest.mark.parametrize("d", [True, False])
def test_of_four(a, b, c, d):
    pass

@pytest.mark.cover(by=lambda a, b: [a, (b, a in "xy")])
@pytest.mark.parametrize("a", "xyz")
@pytest.mark.parametrize("b", range(3))
def test_with_a_rule(a, b):
    pass

@pytest.mark.cover(pairs=False)
@pytest.mark.parametrize("a", "xyz")
@pytest.mark.parametrize("b", range(4))
def test_of_values(a, b):
    pass

def test_alone():
    pass
"""


def test_a_cover_has_all_values_and_all_pairs():
    from sets import cover

    axes = {"a": "xyz", "b": range(3), "c": (True, False), "d": (True, False)}
    cases = []
    for values in product(*axes.values()):
        places = list(zip(axes, values, strict=True))
        cases.append({*places, *combinations(places, 2)})
    chosen = cover(cases)
    assert set().union(*(cases[number] for number in chosen)) == set().union(*cases)
    assert 9 <= len(chosen) <= 12  # the two longest axes alone have nine pairs


def test_slow_files_start_first_and_quick_ones_last():
    from sets import long_files_first

    files = {"a": ["quick"] * 9, "b": [""] * 2, "c": ["slow", "slow"], "d": ["quick"], "e": [""] * 3, "f": ["slow", ""]}
    items = [
        SimpleNamespace(path=path, name=index, get_closest_marker=lambda name, has=marker: name == has)
        for path, markers in files.items()
        for index, marker in enumerate(markers)
    ]
    long_files_first(items)
    assert list(dict.fromkeys(item.path for item in items)) == ["c", "f", "e", "b", "a", "d"]
    assert [item.name for item in items if item.path == "a"] == list(range(9))


@pytest.fixture
def collected(pytester, request):
    """Runs a matrix with this directory's conftest.py; returns how many passed and how many were left out."""
    here = request.path.parent
    pytester.makeini("[pytest]\nmarkers =\n    cover\n    full\n    quick\n    slow\n")
    shutil.copy(here / "conftest.py", pytester.path)
    shutil.copytree(here / "support", pytester.path / "support")
    (pytester.path / "test_it.py").write_text(MATRIX)

    def run(*words):
        outcomes = pytester.runpytest_subprocess("-p", "no:xdist", *words).parseoutcomes()
        return outcomes.get("passed", 0), outcomes.get("deselected", 0)

    return run


def test_what_a_cover_leaves_out_runs_when_it_is_asked_for(collected):
    few, others = collected()
    assert few + others == 36 + 9 + 12 + 1 and 9 + 6 + 4 + 1 <= few <= 12 + 6 + 4 + 1
    assert collected("-m", "full") == (others, few)
    assert collected("-m", "full or not full") == (few + others, 0)
    assert collected("-m", "not slow") == (few, others)
    # a case that is named runs, whatever set it is in
    assert collected("test_it.py::test_of_four[True-False-2-z]") == (1, 0)
