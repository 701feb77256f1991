"""Commands that list, check, show and copy recipes."""

import json
from importlib import import_module
from pathlib import Path

import pytest

from model_zoo.errors import InputError
from pet import names
from pet.cli.commands import COMMANDS
from pet.cli.main import main
from pet.recipe import load


@pytest.mark.parametrize("columns", [60, 80])
def test_recipes_are_a_line_each_as_wide_as_the_terminal(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["recipes"]) == 0
    *lines, _, _ = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*names.bundled_recipes()]
    assert max(map(len, lines)) <= columns


def test_validate_a_directory(recipe, capsys):
    (recipe.parent / "other.yaml").write_text("model: {}\n")
    assert main(["validate", str(recipe.parent)]) == 2
    captured = capsys.readouterr()
    assert f"{recipe}: ok" in captured.out
    assert "other.yaml:1: model.path: is missing" in captured.err


def test_show_can_be_loaded_again(recipe, capsys):
    assert main(["recipes", "show", str(recipe), "train.steps=7"]) == 0
    shown = capsys.readouterr().out
    assert "# Peak learning rate." in shown and "all-\n" not in shown, "all-linear is one word"
    again = recipe.parent / "again.yaml"
    again.write_text(shown)
    assert load(again) == load(recipe, ["train.steps=7"])


def test_schema_is_json(capsys):
    assert main(["recipes", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "pet recipe"


def test_bundled_recipes_are_valid(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert names.bundled_recipes(), "no recipes are bundled"
    for name in names.bundled_recipes():
        recipe = load(name, check_files=False)
        if recipe.model.path not in names.preset_names():
            load(name)
            continue
        # a recipe for a published model: all but the checkpoint is there
        with pytest.raises(InputError) as error:
            load(name)
        assert "its weights are not bundled: download the checkpoint" in str(error.value)
        assert "problems" not in str(error.value)


def test_copied_recipes_are_valid_and_take_their_data_along(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for index, name in enumerate(names.bundled_recipes()):
        assert main(["recipes", "copy", name, f"copy{index}/mine.yaml"]) == 0
        recipe = load(tmp_path / f"copy{index}" / "mine.yaml", check_files=False)
        original = load(name, check_files=False)
        assert recipe.adapter == original.adapter
        for path in recipe.data.train or []:
            assert Path(path).is_relative_to(tmp_path), path
            assert Path(path).exists()
        assert names.model_config(recipe.model.path) == names.model_config(original.model.path)
    capsys.readouterr()


def test_copied_recipes_share_their_data(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["recipes", "copy", "glm_lora", "."]) == main(["recipes", "copy", "glm_dora", "."]) == 0
    assert main(["validate", "glm_lora.yaml", "glm_dora.yaml"]) == 0
    data = next(path for path in tmp_path.rglob("*.jsonl"))
    data.write_text("{}\n")
    capsys.readouterr()
    assert main(["recipes", "copy", "glm_bitfit", "."]) == 2
    assert "is there already" in capsys.readouterr().err
    assert not (tmp_path / "glm_bitfit.yaml").exists()


def test_examples_name_nothing_of_the_clone(monkeypatch, tmp_path):
    """Every recipe in an example is a bundled name or a file that the examples make themselves."""
    monkeypatch.chdir(tmp_path)
    lines = [line for module, *_ in COMMANDS.values() for line, _ in import_module(module).EXAMPLES]
    assert len(lines) > 20
    assert [line for line in lines if "recipes/" in line] == []


def test_copy_replaces_nothing_unasked(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name = next(iter(names.bundled_recipes()))
    (tmp_path / "mine.yaml").write_text("precious")
    assert main(["recipes", "copy", name, "mine.yaml"]) == 2
    assert (tmp_path / "mine.yaml").read_text() == "precious"
    assert "--force" in capsys.readouterr().err
    assert main(["recipes", "copy", name, "mine.yaml", "--force"]) == 0
