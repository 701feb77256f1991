"""Wrong recipes by the hundred: each is refused with exit code 2 and one report, never with a traceback."""

import contextlib
import io
import random

import pytest

from pet.cli.main import main
from pet.recipe.keys import walk

GOOD = {
    "model": {"path": "MODEL", "dtype": "float32"},
    "adapter": {"method": "lora", "rank": 8, "alpha": 16, "targets": ["q_proj"]},
    "data": {"train": "train.jsonl", "max_length": 64},
    "train": {"steps": 10, "batch_size": 4, "learning_rate": 1e-3, "betas": [0.9, 0.99]},
    "eval": {"metrics": ["loss"]},
    "parallel": {"data": 1},
}
# values that no key of these accepts
WRONG = {
    "number": ["eight", "[1]", "{a: 1}", "true", ".nan", "-1e400", '"3"', "-1"],
    "text": ["[1, 2]", "{a: 1}", "3", "true", "''"],
    "list": ["{a: 1}", "3", "true", "[[1]]", "[{a: 1}]"],
    "section": ["3", "text", "[1]", "true"],
}
KEYS = {
    "number": ["adapter.rank", "adapter.alpha", "data.max_length", "train.steps", "train.batch_size"]
    + ["train.learning_rate", "parallel.data", "train.weight_decay", "eval.every_steps", "train.warmup"],
    "text": ["model.path", "model.dtype", "adapter.method", "train.optimizer", "data.format", "data.too_long"],
    "list": ["adapter.targets", "data.train", "eval.metrics", "train.betas", "callbacks", "generation.stop"],
    "section": ["model", "adapter", "data", "train", "eval", "parallel", "output", "generation", "train.loss_scale"],
}
BROKEN_TEXTS = [
    "",
    "\t",
    "null",
    "- a",
    "just words",
    "8",
    "model",
    "model: [",
    "model: {path: x",
    "model:\n path: x\n  dtype: y",
    "model:",
    "model: &a [*a]",
    "a: *b",
    "model: !!python/object/apply:os.system ['true']",
    "model: !include x.yaml",
    "model: {path: x}\nmodel: {path: y}",
    "model: {path: x, path: y}",
    "? {a: 1}\n: b",
    "? [a]\n: b",
    "%YAML 9.9\n---\na: 1",
    "a: 1\n---\nb: 2",
    "[" * 3000,
    "{a: " * 500 + "1" + "}" * 500,
    "model: 'unfinished",
    'model: "\\xZZ"',
    "\x00",
    "model: \x07",
    "model: {path: ~nobody_of_this_name/x}",
    "model: {path: ${NO_SUCH_VARIABLE_ANYWHERE}/x}",
    "model: {path: $NO_SUCH_VARIABLE_ANYWHERE}",
    "model: {path: /dev/null}",
    "model: {path: /}",
    "model: {path: .}",
    "model: {path: '" + "x" * 5000 + "'}",
    "model: {path: 'a\\0b'}",
    'model: {path: "a\\0b"}',
    'model: {path: "\\ud800"}',
    "model: {path: 漢字}",
    "1: 2",
    "null: 2",
    "true: {}",
    "'': 2",
    "'model.path': x",
    "model: {path: x, config: [1]}",
    "<<: {model: {path: x}}",
    "callbacks: [[]]\nmodel: {path: x}",
    "callbacks: [{name: a, arg: {}}]\nmodel: {path: x}",
    "train: {groups: [1, {match: 3}, {mtach: a}]}\nmodel: {path: x}",
    "train: {betas: [0.9, 1.0]}\nmodel: {path: x}",
    "adapter: {method: [lora]}\nmodel: {path: x}",
    "adapter: {method: {}}\nmodel: {path: x}",
    "adapter: {method: null}\nmodel: {path: x}",
    "adapter: {method: LORA}\nmodel: {path: x}",
    "adapter: {method: lora, rank_pattern: {a: b}}\nmodel: {path: x}",
    "adapter: {method: lora, layers: [-1]}\nmodel: {path: x}",
    "adapter: {method: lora, layers: [true]}\nmodel: {path: x}",
    "adapter: {method: lora, layers: ['a-b']}\nmodel: {path: x}",
    "adapter: {method: lora, name: ../../etc}\nmodel: {path: x}",
    "adapter: {method: lora, rank: 1000000000}\nmodel: {path: x}",
    "adapter: {method: prefix, length: 99999999999999999999999999}\nmodel: {path: x}",
    "train: {seed: " + "9" * 5000 + "}\nmodel: {path: x}",
    "train: {learning_rate: 1e999}\nmodel: {path: x}",
]


def _yaml(value) -> str:
    """Flow style: nested values in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_yaml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_yaml, value)) + "]"
    return str(value)


def _text(sections) -> str:
    return "\n".join(f"{key}: {_yaml(value)}" for key, value in sections.items()) + "\n"


def _set(sections, dotted: str, value) -> dict:
    copy = {key: dict(inner) if isinstance(inner, dict) else inner for key, inner in sections.items()}
    first, _, rest = dotted.partition(".")
    if rest:
        copy[first] = {**copy.get(first, {}), rest: value}
    else:
        copy[first] = value
    return copy


def _misspelt(word: str, dice: random.Random) -> str:
    """The word with one letter lost, doubled or swapped."""
    place = dice.randrange(len(word))
    kind = dice.randrange(3)
    if kind == 0 and len(word) > 2:
        return word[:place] + word[place + 1 :]
    if kind == 1 or place == 0 or word[place] == word[place - 1]:
        return word[:place] + word[place] + word[place:]
    return word[: place - 1] + word[place] + word[place - 1] + word[place + 1 :]


def bad_recipes() -> list[tuple[str, str]]:
    """(what is wrong, text) of every bad recipe; the same ones each time."""
    dice = random.Random(7)
    cases = [(f"broken text {index}", text) for index, text in enumerate(BROKEN_TEXTS)]
    for kind, keys in KEYS.items():
        for key in keys:
            for value in WRONG[kind]:
                if (key, value) == ("data.train", "[[1]]") or not _accepted(key, value):
                    cases.append((f"{key}: {value}", _text(_set(GOOD, key, value))))
    known = {path for path, _ in walk()}
    for path in sorted({path for path in known if len(path) <= 2 and path[0] != "adapter"}):
        wrong = (*path[:-1], _misspelt(path[-1], dice))
        if wrong not in known:
            dotted = ".".join(wrong)
            cases.append((f"misspelt {dotted}", _text(_set(GOOD, dotted, 1))))
    return cases


def _accepted(key: str, value: str) -> bool:
    """The few pairs of the product that are right: an empty section is none, -1 or a text may be meant."""
    return (key, value) in {("model.path", "''")} or (key == "eval.every_steps" and value == "null")


CASES = bad_recipes()


def test_there_are_enough():
    assert len({text for _, text in CASES}) >= 200


@pytest.fixture(scope="module")
def home(tmp_path_factory, fixtures):
    directory = tmp_path_factory.mktemp("bad")
    (directory / "train.jsonl").write_text('{"content": "a", "summary": "b"}\n')
    (directory / "MODEL").symlink_to(fixtures / "llama_gqa")
    return directory


def _run(arguments) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    return code, out.getvalue(), err.getvalue()


def test_the_good_one_is_good(home):
    (home / "good.yaml").write_text(_text(GOOD))
    assert _run(["validate", str(home / "good.yaml")]) == (0, f"{home / 'good.yaml'}: ok\n", "")


@pytest.mark.parametrize(("what", "text"), CASES, ids=[f"{i}-{what[:40]}" for i, (what, _) in enumerate(CASES)])
def test_refused_with_one_report(home, what, text, monkeypatch):
    monkeypatch.chdir(home)
    path = home / "bad.yaml"
    path.write_bytes(text.encode())
    code, out, err = _run(["validate", "bad.yaml"])
    assert code == 2, (out, err)
    assert out == ""
    assert "bad.yaml" in err
    assert "Traceback" not in err
    assert "pydantic" not in err.lower()
    assert max(map(len, err.splitlines())) < 1500, "a line that nobody can read"
    if what.startswith("misspelt"):
        assert "did you mean" in err or "there is:" in err


OVERRIDES = ["train", "=", "=3", ".=1", "train.=1", ".steps=1", "train.steps", "train.steps=", "train.steps=[", "a=b=c"]
OVERRIDES += ["model=3", "model.path.x=1", "train.steps.x=1", "adapter=lora", "adapter.method=x", "train.steps=1e1000"]
OVERRIDES += ["callbacks=csv", "data.train={}", "data.columns={promt: x}", "x.y.z=1", "漢=字", "train.epochs=-1"]


@pytest.mark.parametrize("override", OVERRIDES)
def test_wrong_overrides(home, override):
    (home / "good.yaml").write_text(_text({**GOOD, "train": {"batch_size": 4}}))
    if override == "train.steps=":  # nothing: the default
        assert _run(["recipes", "show", str(home / "good.yaml"), override])[0] == 0
        return
    code, out, err = _run(["recipes", "show", str(home / "good.yaml"), override])
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    assert err.startswith("pet recipes: ")
