"""What all doors do with settings that have no counterpart."""

from __future__ import annotations

import pytest

from model_zoo.errors import InputError
from pet.recipe.translation import Ignored, Refused, Translation

TABLE = {
    "rate": "train.learning_rate",
    "speed": Ignored("it changes nothing"),
    "threads": Ignored("it changes nothing"),
    "shift": Refused("positions are fixed"),
}


def translated(**given):
    translation = Translation("job")
    translation.apply(given, TABLE)
    return translation


@pytest.mark.parametrize("value", [None, False, "", "None", "no", [], {}])
def test_a_value_that_turns_a_setting_off_counts_before_its_name(value):
    translation = translated(unheard_of=value, shift=value)
    assert not translation.problems
    translation.finish()


@pytest.mark.parametrize("value", [True, 0.5, "yes", [0]])
def test_a_setting_that_is_on_and_not_known_is_an_error(value):
    with pytest.raises(InputError, match=r"^job: unheard_of: is not known$"):
        translated(unheard_of=value).finish()


def test_the_list_of_all_settings_does_not_stand_in_the_way_of_the_nearest():
    with pytest.raises(InputError, match=r"^job: rat: is not known \(did you mean 'rate'\?\)$"):
        translated(rat=1).finish()


def test_what_is_ignored_for_one_reason_is_one_note():
    assert translated(speed=1, threads=2).ignored_lines() == ["speed, threads: it changes nothing"]


@pytest.mark.parametrize("value", [None, "None", ""])
def test_none_as_a_word_is_not_given(value):
    assert not translated(rate=value).settings
