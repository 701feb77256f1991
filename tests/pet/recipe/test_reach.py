"""No setting of a recipe reaches nothing: what the schema offers, the code behind it takes, with the same default."""

import dataclasses

import pytest

from adapters.methods import METHODS
from pet.data import DataSettings
from pet.recipe.adapter import Full
from pet.recipe.classes import CALLBACKS
from pet.recipe.data import Data
from pet.recipe.keys import sections_in
from pet.recipe.schema import Recipe
from pet.recipe.training import Callback
from pet.train.prepare import NOT_SETTINGS, method_config

SECTIONS = [
    (method, section)
    for section in sections_in(Recipe.model_fields["adapter"].annotation)
    for method in section.model_fields["method"].annotation.__args__
    if section is not Full
]


def test_every_method_has_a_section():
    assert {method for method, _ in SECTIONS} == {*METHODS, "dora"}


@pytest.mark.parametrize(("method", "section"), SECTIONS, ids=[method for method, _ in SECTIONS])
def test_every_key_is_a_setting_of_the_method_with_the_same_default(method, section):
    written_out = section.model_validate(section(method=method).model_dump())
    config = method_config(written_out, seed=3)
    config.validate()
    fresh = type(config)()
    for name in section.model_fields.keys() - NOT_SETTINGS:
        assert hasattr(fresh, name), name
        # an empty mapping and None both say: nothing
        assert (getattr(config, name) or None) == (getattr(fresh, name) or None), name
    for field in dataclasses.fields(config):
        if field.name in section.model_fields:
            continue
        # what a recipe cannot set is set by its train section, or belongs to another front door
        assert field.name in {
            "seed",
            "use_dora",
            "learning_rate_ratio",
            "init_ids",
            "folded",
            "embedding_size",
            "targets",
            "exclude",
            "layers",
            "modules_to_save",
            "init_text",
        }, field.name


def test_data_settings():
    fields = {field.name: field.default for field in dataclasses.fields(DataSettings)}
    assert Data.model_fields.keys() - fields.keys() == {"train", "eval", "test", "eval_fraction"}
    for name in ("conversations", "documents"):  # an objective's
        assert name not in Data.model_fields and fields.pop(name) in (None, 1)
    assert fields.keys() <= Data.model_fields.keys()
    for name, default in fields.items():
        assert (Data.model_fields[name].get_default(call_default_factory=True) or None) == (default or None), name


def test_built_in_callbacks_are_named_in_the_schema():
    description = Callback.model_fields["name"].description
    always_on = {"progress", "metrics", "samples", "plot"}
    for name in CALLBACKS.keys() - always_on:
        assert name in description
