"""No setting of a recipe reaches nothing: what the schema offers, the code behind it takes, with the same default."""

import dataclasses
from typing import Any, ClassVar

import pytest
from pydantic import ValidationError

import pet
from adapters.method import MethodConfig
from adapters.methods import METHODS
from adapters.schema import Settings
from adapters.settings import SETTINGS
from adapters.tokens import TrainableTokensConfig
from model_zoo.errors import InputError
from model_zoo.settings import setting
from pet.data import DataSettings
from pet.recipe.adapter import SECTIONS, recipe_method, section
from pet.recipe.classes import CALLBACKS
from pet.recipe.data import Data
from pet.recipe.training import Callback


@dataclasses.dataclass(kw_only=True)
class Toy(Settings):
    """A method that nobody has."""

    width: int = setting(3, "How wide.", ge=2, le=5)
    share: float = setting(0.5, "How much.", gt=0, lt=1)
    shape: str = setting("round", "Which.", choices=("round", "square"))
    widths: dict[str, int] | None = setting(None, "By cell.", ge=2, le=5)
    hidden: int = setting(0, "Nothing for recipes.", recipe=False)

    method: ClassVar[str] = "toy"
    variants: ClassVar[dict[str, dict[str, Any]]] = {"square_toy": {"shape": "square"}}
    summary: ClassVar[str] = "For a test."


class ToyConfig(Toy, MethodConfig):
    """The toy's work."""


WRONG = [
    ({"width": 1}, "width", "of at least 2 and at most 5"),
    ({"width": 6}, "width", "of at least 2 and at most 5"),
    ({"width": 2.5}, "width", "a whole number"),
    ({"width": True}, "width", "a whole number"),
    ({"share": 0}, "share", "above 0 and below 1"),
    ({"share": 1.0}, "share", "above 0 and below 1"),
    ({"share": float("nan")}, "share", "above 0 and below 1"),
    ({"shape": "squar"}, "shape", "did you mean 'square'"),
    ({"widths": {"a": 1}}, "widths", r"widths\['a'\] is 1; a whole number of at least 2"),
    ({"widths": [3]}, "widths", "expression"),
    ({"with": 3}, "with", "there is no setting 'with'.*'width'"),
]


def test_fields_with_facts_are_all_that_a_recipe_section_takes():
    made = section(Toy)
    assert list(made.model_fields) == [
        *("name", "load", "targets", "exclude", "layers", "modules_to_save"),
        *("method", "width", "share", "shape", "widths"),
    ]
    written = made(method="square_toy", targets="q_proj", layers="0-3")
    assert (written.targets, written.layers, written.width, written.widths) == (["q_proj"], ["0-3"], 3, {})
    described = made.model_json_schema()
    assert described["description"] == "A method that nobody has."
    assert described["properties"]["method"]["description"] == "For a test."
    width = described["properties"]["width"]
    assert (width["default"], width["minimum"], width["maximum"], width["description"]) == (3, 2, 5, "How wide.")
    assert described["properties"]["shape"]["enum"] == ["round", "square"]


@pytest.mark.parametrize(("given", "name", "message"), WRONG, ids=str)
def test_recipes_and_configurations_refuse_the_same(given, name, message):
    with pytest.raises(ValidationError) as caught:
        section(Toy)(method="toy", **given)
    assert caught.value.errors()[0]["loc"][0] == name
    with pytest.raises(InputError, match=message):
        ToyConfig(**given).validate()


def test_bounds_themselves_are_values():
    for given in ({"width": 2}, {"width": 5, "share": 0.999}, {"widths": {"a": 2, "b": 5}}):
        section(Toy)(method="toy", **given)
        ToyConfig(**given).validate()


def test_a_method_on_the_whole_model_has_no_cells_to_choose():
    @dataclasses.dataclass(kw_only=True)
    class Whole(Toy):
        """Everywhere."""

        targeted = False

    assert not {"targets", "exclude", "layers", "modules_to_save"} & section(Whole).model_fields.keys()
    with pytest.raises(InputError, match="layers has no meaning here"):
        Whole(layers=[1]).validate()

    class WholeConfig(Whole, MethodConfig):
        """On the whole model."""

    assert "width: How wide." in WholeConfig.__doc__ and "layers: " not in WholeConfig.__doc__


def test_docstrings_list_the_settings():
    assert ToyConfig.__doc__.startswith("The toy's work.\n\n    Args:\n        targets: Cells to adapt")
    assert "        width: How wide.\n" in ToyConfig.__doc__


@pytest.mark.parametrize("cls", (*SETTINGS, TrainableTokensConfig), ids=lambda cls: cls.method)
def test_every_setting_says_what_it_means(cls):
    for field in dataclasses.fields(cls):
        assert field.metadata["description"].endswith("."), field.name


@pytest.mark.parametrize(("cls", "name"), [(cls, name) for cls in SETTINGS for name in cls.names()], ids=str)
def test_every_key_reaches_the_configuration_with_the_same_default(cls, name):
    made = {one.model_fields["method"].annotation.__args__: one for one in SECTIONS}[cls.names()]
    written = made.model_validate(made(method=name).model_dump())
    config = recipe_method(written, seed=3)
    config.validate()
    expected = METHODS[cls.method](**cls.variants.get(name, {}))
    for field in dataclasses.fields(config):
        value = 3 if field.name == "seed" else getattr(expected, field.name)
        assert (getattr(config, field.name) or None) == (value or None), field.name


@pytest.mark.parametrize("name", [name for name in dir(pet) if name.startswith("apply_")])
def test_a_methods_function_has_the_defaults_of_its_configuration(name, monkeypatch):
    made = []
    monkeypatch.setattr("adapters.apply.apply", lambda model, config, name: made.append(config))
    getattr(pet, name).__wrapped__(None)
    (config,) = made
    assert config == type(config)()


def test_data_settings():
    ours, recipes = DataSettings.model_fields.keys(), Data.model_fields.keys()
    assert recipes - ours == {
        *("train", "mix", "eval", "test", "eval_fraction"),
        *("eval_format", "eval_columns", "eval_rows"),  # the others' `format`, `columns`, `rows`: `held_out_settings`
    }
    own = {"conversations", "documents", "compares", "share_question", "longer"}
    assert ours - recipes == own, "what is an objective's or the model's is none of the user's"


def test_built_in_callbacks_are_named_in_the_schema():
    description = Callback.model_fields["name"].description
    always_on = {"progress", "metrics", "samples", "plot"}
    for name in CALLBACKS.keys() - always_on:
        assert name in description
