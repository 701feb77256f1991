"""YAML as we read it: the values of YAML 1.2, and the line of every key."""

import math

import pytest
import yaml

from pet.recipe.source import _Loader, old_scalar, parse, read


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("1E5", 1e5),
        ("-.5", -0.5),
        ("1.", 1.0),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("8", 8),
        ("-3", -3),
        ("0x1F", 31),
        ("0o17", 15),
        ("017", 17),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        # words in YAML 1.2, though not in YAML 1.1
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("1:30", "1:30"),
        ("2024-01-02", "2024-01-02"),
        ("1_000", "1_000"),
        ('"8"', "8"),
        ("'3e-4'", "3e-4"),
        ("!!str 8", "8"),
        ("e5", "e5"),
        (".", "."),
    ],
)
def test_scalars(text, value):
    source = parse(f"key: {text}", "f")
    assert source.problems == []
    assert source.value == {"key": value}
    assert type(source.value["key"]) is type(value)


def test_nan():
    assert math.isnan(parse("a: .nan", "f").value["a"])


def test_lines():
    source = parse("# first\na:\n  b: 1\n  c: [1,\n    2]\n\nd:\n- x\n- y: 3\n", "f.yaml")
    assert source.value == {"a": {"b": 1, "c": [1, 2]}, "d": ["x", {"y": 3}]}
    assert source.line(("a",)) == 2
    assert source.line(("a", "b")) == 3
    assert source.line(("a", "c", 1)) == 5
    assert source.line(("d", 1, "y")) == 9
    assert source.line(("a", "b", "no such")) == 3, "the line of what is around it"
    assert source.where(("d",)) == "f.yaml:7"


@pytest.mark.parametrize("escape", ["\\U00110000", "\\UFFFFFFFF"])
def test_an_escape_of_no_character(escape):
    source = parse(f'a: "{escape}"', "f")
    assert source.problems == [r"f: this is no YAML: an escape \U is beyond the last character, \U0010ffff"]


def test_duplicate_key():
    source = parse("train:\n  steps: 1\n  steps: 2\n", "f")
    assert source.problems == ["f:3: train.steps: the key stands twice, first in line 2; keep one of them"]


def test_of_another_systems_file_the_last_of_two_keys_counts(tmp_path, caplog):
    """As in PyYAML, by which it is read there; a line says so."""
    file = tmp_path / "theirs.yaml"
    file.write_text("model:\n  is_dynamic: yes\n  top_k: 3\n  is_dynamic: no\n")
    source = read(file, "theirs.yaml", old_scalar)
    assert (source.value, source.problems) == ({"model": {"is_dynamic": False, "top_k": 3}}, [])
    said = "theirs.yaml:4: model.is_dynamic: the key stands twice, first in line 2; the last one counts, as in PyYAML"
    assert caplog.messages == [said]


@pytest.mark.parametrize(
    "text",
    [
        "a: &x\n  k: 1\n  m: {z: 3}\nb:\n  <<: *x\n  k: 2\n",
        "a: &x {k: 1}\nb: &y {k: 5, <<: *x, l: 6}\nc: {<<: [*x, *y], l: 7}\n",
        "a: {'<<': 3}",
        "<<: {a: 1}\nb: 2\n",
    ],
)
def test_merge_keys(text):
    source = parse(text, "f")
    assert not source.problems
    assert source.value == yaml.safe_load(text)


def test_merged_keys_have_the_line_they_stand_in():
    source = parse("a: &x\n  k: 1\n  l: 2\nb:\n  <<: *x\n  k: 3\n", "f")
    assert [source.line(("b", key)) for key in "kl"] == [6, 3]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: &x {k: 1}\nb: {<<: *x, k: 2, k: 3}", 2, "twice"),
        ("a: {<<: 3}", 1, "alias of a mapping"),
        ("a: &x {<<: *x}", 1, "alias"),
        ("a: [1, 2", 1, "no YAML"),
        ("a: 1\n  b: 2", 2, "no YAML"),
        ("a:\n\t- b", 2, "tab"),
        ("a: &x [*x]", 1, "alias"),
        ("a: *nothing", 1, "no YAML"),
        ("a: !!python/object:os.system x", 1, "tag"),
        ("a: !mine x", 1, "tag"),
        ("? [1, 2]\n: 3", 1, "single word"),
        ("a: 1\n---\nb: 2", 2, "no YAML"),
        ("a: '\x00'", None, "no YAML"),
    ],
)
def test_what_is_no_recipe(text, line, words):
    (problem, *_) = parse(text, "f").problems
    assert problem.startswith(f"f:{line}: " if line else "f: ")
    assert words in problem


@pytest.mark.parametrize("what", ["[{}]", "{{<<: [{}]}}"])
def test_aliases_of_aliases_do_not_blow_up(what):
    text = "a0: &a0 {}\n" + "".join(f"a{i}: &a{i} {what.format(', '.join([f'*a{i - 1}'] * 9))}\n" for i in range(1, 12))
    (problem,) = parse(text, "f").problems
    assert "too large" in problem


def test_deep_nesting_is_a_problem_not_a_crash():
    for depth in (150, 20_000):
        (problem,) = parse("[" * depth + "]" * depth, "f").problems
        assert "deep" in problem


def test_deep_nesting_is_refused_where_it_becomes_too_deep():
    """Reading on would take time by the square of the depth."""
    source = parse("[" * 1_000_000, "job.yaml")
    assert source.problems == ["job.yaml: nested too deep for a recipe"]


def test_a_text_is_parsed_once_and_gives_values_of_its_own_each_time(monkeypatch):
    begun = []
    monkeypatch.setattr("pet.recipe.source._Loader", lambda text: begun.append(text) or _Loader(text))
    text = "a: {b: [1, 2]}\n# parsed here alone\n"
    first = parse(text, "f")
    first.value["a"]["b"].append(3)
    again = parse(text, "g")
    assert (again.value, again.where(("a", "b")), len(begun)) == ({"a": {"b": [1, 2]}}, "g:1", 1)
    assert [parse("a: [", "h").problems for _ in range(2)][1][0].startswith("h:")
