"""Settings of the command line over those of a recipe, and variables in paths."""

import pytest
from recipe_problems import GOOD, problems

from pet.recipe import dump, load
from pet.recipe.overrides import parse_override


def test_overrides_are_yaml(write):
    recipe = load(
        write(), ["train.learning_rate=1e-3", "adapter.targets=[k_proj]", "eval.before=false", "data.train_on=all"]
    )
    assert recipe.train.learning_rate == 1e-3
    assert recipe.adapter.targets == ["k_proj"]
    assert recipe.eval.before is False
    assert recipe.data.train_on == "all"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("data.template=Q: {prompt}\n=A=", "Q: {prompt}\n=A="),
        ('data.template="x{prompt}"', "x{prompt}"),
        ("data.system=8", "8"),
        ("data.system=[not a list", "[not a list"),
        ("data.system=", None),
        ("data.system=null", None),
        ("data.system='null'", "null"),
        ("data.template=### Human: {prompt} ### Assistant:", "### Human: {prompt} ### Assistant:"),
        ("data.system=# Be short.", "# Be short."),
    ],
)
def test_a_text_is_taken_as_it_stands(write, text, value):
    recipe = load(write(), [text, *(["data.template={system}{prompt}"] if "system" in text else [])])
    assert (recipe.data.template if "template" in text else recipe.data.system) == value


def test_override_value_may_hold_equals_signs():
    assert parse_override("a.b=c=d==") == (("a", "b"), "c=d==", [])


def test_override_of_epochs_puts_steps_aside(write):
    recipe = load(write(), ["train.epochs=2"])
    assert (recipe.train.steps, recipe.train.epochs) == (None, 2.0)


def test_an_override_puts_the_other_of_two_settings_aside_where_it_says_something(write):
    kept = GOOD + "eval: {every_epochs: 1}\n"
    schedule = load(write(kept), ["data.eval=home/train.jsonl", "eval.every_steps=5"]).eval
    assert (schedule.every_steps, schedule.every_epochs) == (5, None)
    held_out = GOOD.replace("max_length: 128", "eval: train.jsonl")
    assert load(write(held_out), ["data.eval_fraction=0"]).data.eval
    assert not load(write(held_out), ["data.eval_fraction=0.5"]).data.eval


@pytest.mark.parametrize("text", ["80%:", "5:", "[80%:]", "[{5: null}]", ":5%", "'80%:'"])
def test_a_part_of_the_rows_needs_no_quotes(write, text):
    (part,) = load(write(), [f"data.rows={text}"]).data.rows
    assert part in text


def test_a_directory_is_looked_into(write, tmp_path):
    (tmp_path / "home" / "set" / "part").mkdir(parents=True)
    (problem,) = problems(write(), ["data.train=home/set"])
    assert "home/set: the directory holds no files" in problem
    (tmp_path / "home" / "set" / "part" / "rows.jsonl").write_text("{}\n")
    assert load(write(), ["data.train=home/set"]).data.train


def test_overrides_as_a_mapping(write):
    assert load(write(), {"train.steps": 7, "adapter.rank": 4}).adapter.rank == 4


def test_path_overrides_are_relative_to_the_current_directory(write, tmp_path):
    (tmp_path / "here.jsonl").write_text("{}\n")
    assert load(write(), ["data.train=here.jsonl"]).data.train == [str(tmp_path / "here.jsonl")]
    assert load(write(), ["data.train=[here.jsonl]"]).data.train == [str(tmp_path / "here.jsonl")]
    assert load(write(), ["data={train: here.jsonl, max_length: 64}"]).data.train == [str(tmp_path / "here.jsonl")], (
        "a whole section"
    )
    (problem,) = problems(write(), ["data={train: nowhere.jsonl, max_length: 64}"])
    assert problem.startswith("command line: data={train: nowhere.jsonl, max_length: 64}: data.train")


def test_a_path_may_say_how_its_rows_are_read(write, tmp_path, monkeypatch):
    monkeypatch.setenv("PET_TEST_NAME", "s3cond")
    (tmp_path / "home" / "s3cond.jsonl").write_text("{}\n")
    (tmp_path / "home" / "own.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    own = "{path: $PET_TEST_NAME.jsonl, columns: {prompt: ask}, template: own.jinja, system: null}"
    recipe = load(write(GOOD.replace("train: train.jsonl", f"train: [train.jsonl, {own}, {{path: train.jsonl}}]")))
    home = tmp_path / "home"
    first, second, third = recipe.data.train
    assert first == third == str(home / "train.jsonl") and second.path == str(home / "s3cond.jsonl")
    assert second.own == {"columns": {"prompt": "ask"}, "template": str(home / "own.jinja"), "system": None}
    text = dump(recipe)
    assert f'  - {{path: "{home}/$PET_TEST_NAME.jsonl", columns: ' in text
    (tmp_path / "again.yaml").write_text(text)
    assert load(tmp_path / "again.yaml") == recipe
    given = [{"path": "home/train.jsonl", "format": "chat"}]
    assert load(write(), {"data.train": given}).data.train[0].path == first and given[0]["path"] == "home/train.jsonl"
    assert load(write(), ["data.train={path: home/train.jsonl, format: chat}"]).data.train[0].format == "chat"
    found = problems(
        write(),
        ["data.train=[{path: home/train.jsonl, colums: {}}, {path: a, format: alpca}, {format: chat}, 5]"]
        + ["data.eval={path: home/no.jsonl, template: no.jinja}", "data.test={path: home/train.jsonl, template: Ask}"],
    )
    for problem in (
        "data.train[0].colums: the section data.train[0] has no such key (did you mean 'columns'?)",
        "data.train[1].format: expected one of auto, alpaca",
        "data.train[2].path: is missing",
        "data.train[3]: expected a path, or a mapping as {path: rows.jsonl, format: chat}; got 5",
        f"data.eval: {tmp_path}/home/no.jsonl: no such file",
        f"data.eval.template: {tmp_path}/no.jinja: no such file",
        "data.test[0].template: the text must hold {prompt}",
    ):
        assert sum(problem in line for line in found) == 1, (problem, found)
    (problem,) = problems(write(), ["data.train={path: home/train.jsonl, format: text, system: S}"])
    assert "data.train[0].system: text rows have no question that it could go with" in problem


def test_environment_variables_in_paths(write, monkeypatch, tmp_path):
    monkeypatch.setenv("PET_TEST_DIR", str(tmp_path / "home"))
    path = write(GOOD.replace("train.jsonl", "${PET_TEST_DIR}/train.jsonl"))
    assert load(path).data.train == [str(tmp_path / "home" / "train.jsonl")]
    assert '["${PET_TEST_DIR}/train.jsonl"]' in dump(load(path)), "absolute, and not below the recipe's directory"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PET_TEST_DIR", "~/home")
    assert '["${PET_TEST_DIR}/train.jsonl"]' in dump(load(path))
    monkeypatch.delenv("PET_TEST_DIR")
    (problem,) = problems(path)
    assert "job.yaml:7: data.train" in problem
    assert "'PET_TEST_DIR' is not set" in problem
    assert load(path, check_files=False).adapter.method, "nobody asks for the data"


def test_the_values_of_environment_variables_are_neither_written_nor_shown(write, monkeypatch, tmp_path):
    monkeypatch.setenv("PET_TEST_TOKEN", "s3cret")
    (tmp_path / "home" / "s3cret").mkdir()
    (tmp_path / "home" / "s3cret" / "train.jsonl").write_text("{}\n")
    path = write(GOOD.replace("train.jsonl", "${PET_TEST_TOKEN}/train.jsonl"))
    recipe = load(path, [f"output.dir={tmp_path}/$PET_TEST_TOKEN/run"])
    assert recipe.data.train == [str(tmp_path / "home" / "s3cret" / "train.jsonl")]
    text = dump(recipe)
    assert not [line for line in text.splitlines() if "s3cret" in line]
    assert f"{tmp_path}/home/${{PET_TEST_TOKEN}}/train.jsonl" in text
    (tmp_path / "again.yaml").write_text(text)
    assert load(tmp_path / "again.yaml") == recipe
    (tmp_path / "home" / "s3cret" / "train.jsonl").unlink()
    (problem,) = problems(path)
    assert "s3cret" not in problem and "${PET_TEST_TOKEN}/train.jsonl: no such file" in problem
    (tmp_path / "home" / "s3cret").rmdir()
    (problem,) = problems(path)
    assert "s3cret" not in problem and "${PET_TEST_TOKEN}" in problem


def test_a_variable_whose_value_is_the_name_of_a_key_hides_no_key(write, monkeypatch):
    monkeypatch.setenv("PET_TEST_DIR", "data")
    found = problems(write(GOOD.replace("train.jsonl", "${PET_TEST_DIR}/none.jsonl").replace("128", "0")))
    assert "data.train: " in found[0] and "${PET_TEST_DIR}/none.jsonl: no such file" in found[0]
    assert "data.max_length: expected at least 2" in found[1]
