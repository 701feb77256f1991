"""How tokens are chosen: every processor against transformers', their settings from all doors, and what is said."""

import inspect
import logging
import typing
from types import SimpleNamespace

import numpy as np
import pytest

from model_zoo.auto import AutoModel
from model_zoo.errors import InputError
from model_zoo.generation.beams import highest
from model_zoo.generation.choose import Choice
from model_zoo.generation.defaults import own_padding, say_unheeded, say_unused
from model_zoo.generation.generate import generate
from model_zoo.generation.processors import PROCESSORS, Step, softmax
from model_zoo.generation_settings import DRAWN, FIELDS, HINTS, settled

VOCABULARY = 128


def of(ids, new=5, mask=None, eos=(), left=9):
    """A `Step` after these tokens."""
    ids = np.atleast_2d(ids)
    return Step(ids, np.ones_like(ids) if mask is None else np.atleast_2d(mask), new, left, list(eos))


def test_draws_follow_the_filtered_distribution():
    scores = np.log(np.array([[0.5, 0.25, 0.15, 0.1]]))
    cases = [
        ({"top_k": 2}, [2 / 3, 1 / 3, 0, 0]),
        ({"top_p": 0.74}, [2 / 3, 1 / 3, 0, 0]),
        ({"top_p": 0.5}, [1, 0, 0, 0]),
        ({"temperature": 0.5}, np.array([0.5, 0.25, 0.15, 0.1]) ** 2 / 0.345),
        ({"min_p": 0.25}, np.array([0.5, 0.25, 0.15, 0]) / 0.9),
    ]
    for settings, expected in cases:
        choice = Choice(4, do_sample=True, **settings)
        assert np.allclose(softmax(choice.scores(scores, of([0]))), expected)
    generator = np.random.default_rng(0)
    drawn = Choice(4, do_sample=True).tokens(np.repeat(scores, 20000, 0), generator)
    assert np.abs(np.bincount(drawn, minlength=4) / 20000 - [0.5, 0.25, 0.15, 0.1]).max() < 0.02


def test_repetition_penalty_and_minimum_length():
    logits = np.array([[2.0, -1.0, 0.5, 1.0]])
    choice = Choice(4, repetition_penalty=2.0, min_new_tokens=2)
    ids, mask = [0, 1, 3], [1, 1, 0]
    assert np.allclose(choice.scores(logits, of(ids, 5, mask, [2])), [[1.0, -2.0, 0.5, 1.0]])
    assert np.isneginf(choice.scores(logits, of(ids, 1, mask, [2]))[0, 2])


# each alone, and what belongs together or follows one another
CASES = [
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.7, "no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 3, "bad_words_ids": [[5], [1, 2, 7], [0, 9], [100]]},
    {"bad_words_ids": [[5, 6], [3], [2, 1]], "suppress_tokens": [4, 100]},
    {"min_length": 9},
    {"min_new_tokens": 4},
    {"forced_eos_token_id": [3, 100]},
    {"exponential_decay_length_penalty": [1, 1.2]},
    {"begin_suppress_tokens": [9, 100], "renormalize_logits": True},
    {"temperature": 0.7},
    {"top_k": 5},
    {"top_k": 1, "top_p": 0.2},
    {"top_p": 0.9},
    {"min_p": 0.1},
    {"typical_p": 0.6},
    {"epsilon_cutoff": 0.02},
    {"eta_cutoff": 0.05},
    {"temperature": 2.0, "top_k": 40, "top_p": 0.95, "min_p": 0.02, "typical_p": 0.9, "eta_cutoff": 0.001},
    {"repetition_penalty": 1.1, "temperature": 1.5, "epsilon_cutoff": 0.01, "renormalize_logits": True},
]


@pytest.fixture(scope="module")
def peer(fixtures):
    transformers = pytest.importorskip("transformers", reason="the live comparison needs transformers")
    pytest.importorskip("torch", reason="the live comparison needs torch")
    return transformers.AutoModelForCausalLM.from_pretrained(fixtures / "llama_mha")


def processed_by(peer, settings, ids, logits, prompt, length, eos):
    """transformers' processed scores, in its own order."""
    import torch
    from transformers import GenerationConfig

    # its top_k is 50 where nothing is said
    config = GenerationConfig(**{"top_k": 0, **settings}, max_length=length, eos_token_id=eos)
    config._eos_token_tensor = torch.tensor(eos)
    processors = peer._get_logits_processor(config, prompt, encoder_input_ids=torch.tensor(ids[:, :prompt]))
    return processors(torch.tensor(ids), torch.tensor(logits)).double().numpy()


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("settings", CASES, ids="-".join)
def test_processors_against_transformers(peer, settings, beams):
    settings = {**settings, "do_sample": bool(settings.keys() & set(DRAWN)), "num_beams": beams}
    generator, eos = np.random.default_rng(0), [100, 17]
    choice = Choice(VOCABULARY, **settings)
    for new, spread in ((0, 1), (3, 4), (5, 0.3)):
        ids = generator.integers(0, 10, (2 * beams, 5 + new))  # of so few that they repeat
        logits = (generator.standard_normal((2 * beams, VOCABULARY)) * spread).astype(np.float32)
        expected = processed_by(peer, settings, ids, logits, 5, 11, eos)
        step = Step(ids, np.ones_like(ids), new, 6 - new, eos, 3 if beams > 1 else 1)
        found = choice.scores(logits, step)
        assert np.array_equal(np.isneginf(found), np.isneginf(expected))
        assert np.allclose(found, expected, rtol=1e-6, atol=1e-6)


OF_FILES = {
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens"), ([-1], [VOCABULARY], [3, -1, VOCABULARY + 5])),
    **dict.fromkeys(("min_length", "min_new_tokens", "no_repeat_ngram_size"), (-1, 0)),
    **dict.fromkeys(("top_p", "typical_p"), (-0.5, 0, 1, 1.5)),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff"), (-1, 0, 0.02, 1, 1.5)),
    **{"top_k": [-1, 0, 500, 2.0], "temperature": [0, -1, 1, "a"], "min_p": [-1, 0, 1, 2]},
    **{"repetition_penalty": [0, -1, 1], "renormalize_logits": [False, True], "bad_words_ids": [[[-1]], [[5]]]},
    **{"forced_eos_token_id": [-1, 3], "exponential_decay_length_penalty": [[2, 1.1]]},
}


@pytest.mark.parametrize(("name", "value"), [(name, one) for name, values in OF_FILES.items() for one in values])
def test_values_of_a_base_s_file_count_as_for_transformers(peer, name, value):
    """What says nothing there says nothing here, and what ends there is refused here."""
    generator = np.random.default_rng(0)
    ids = generator.integers(0, 10, (2, 5))
    logits = generator.standard_normal((2, VOCABULARY)).astype(np.float32)
    found = expected = None
    try:
        expected = processed_by(peer, {"do_sample": True, name: value}, ids, logits, 5, 6, [100])
    except (ValueError, TypeError):
        with pytest.raises(InputError, match=name):
            Choice(VOCABULARY, **settled({"do_sample": True}, {name: value}, VOCABULARY))
        return
    choice = Choice(VOCABULARY, **settled({"do_sample": True}, {name: value}, VOCABULARY))
    found = choice.scores(logits, Step(ids, np.ones_like(ids), 0, 1, [100]))
    assert np.array_equal(np.isneginf(found), np.isneginf(expected))
    assert np.allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_every_setting_is_in_the_signature_and_in_the_comparison():
    kinds, parameters = typing.get_type_hints(generate.__wrapped__), inspect.signature(generate).parameters
    said = {name: (kinds.get(name), getattr(parameters.get(name), "default", None)) for name in FIELDS}
    assert said == {name: (HINTS[name], field.default) for name, field in FIELDS.items()}
    assert FIELDS.keys() >= PROCESSORS.keys()
    assert {name for settings in CASES for name in settings} == PROCESSORS.keys()
    assert [name for name in FIELDS if name in PROCESSORS] == list(PROCESSORS)


def test_padding_is_no_token_that_occurred():
    choice = Choice(4, no_repeat_ngram_size=1, bad_words_ids=[[0, 2]])
    scores = choice.scores(np.zeros((2, 4)), of([[0, 3], [0, 3]], mask=[[0, 1], [1, 1]]))
    assert np.isneginf(scores).tolist() == [[False, False, False, True], [True, False, False, True]]
    scores = Choice(4, min_length=2).scores(np.zeros((2, 4)), of([[0, 3], [0, 3]], mask=[[0, 1], [1, 1]], eos=[1, 2]))
    assert np.isneginf(scores).tolist() == [[False, True, True, False], [False] * 4]


def test_what_is_left_out_stays_so():
    """Infinities of different signs make NaN of it in transformers."""
    choice = Choice(4, min_new_tokens=9, exponential_decay_length_penalty=[0, 2.0], renormalize_logits=True)
    scores = choice.scores(np.zeros((1, 4)), of([0, 1], eos=[2]))
    assert np.isneginf(scores[0, 2]) and np.allclose(scores[0, [0, 1, 3]], np.log(1 / 3))


BEAMS = [
    {"min_new_tokens": 2, "min_length": 10},  # the first one counts
    {"num_return_sequences": 3},
    {"num_return_sequences": 2, "early_stopping": True, "length_penalty": 2.0},
    {"early_stopping": "never", "length_penalty": 1.5},
    {"no_repeat_ngram_size": 2, "repetition_penalty": 1.2, "length_penalty": -1.0},
    {"min_new_tokens": 5, "renormalize_logits": True, "suppress_tokens": [3, 4, 5], "num_return_sequences": 3},
]


@pytest.fixture(scope="module")
def model(fixtures):
    return AutoModel.from_pretrained(fixtures / "llama_mha")


@pytest.mark.parametrize("settings", BEAMS, ids="-".join)
def test_beams_against_transformers(model, peer, settings):
    import torch

    prompt = np.array([[5, 9, 77, 3], [8, 8, 2, 100]])
    ends = model.generate(prompt, max_new_tokens=8, eos_token_id=None)[:, [6, 8]].ravel().tolist()
    settings = {"num_beams": 3, "max_new_tokens": 8, "eos_token_id": ends, "pad_token_id": 1, **settings}
    with torch.no_grad():
        given = torch.tensor(prompt)
        expected = peer.generate(given, attention_mask=torch.ones_like(given), do_sample=False, **settings).numpy()
    assert np.array_equal(model.generate(prompt, **settings), expected)


def test_several_answers_are_drawn(model):
    prompt, settings = [[5, 9], [8, 2]], {"max_new_tokens": 3, "do_sample": True, "eos_token_id": None, "seed": 3}
    found = model.generate(prompt, num_return_sequences=3, **settings)
    assert found.shape == (6, 5) and found[:, :2].tolist() == [[5, 9]] * 3 + [[8, 2]] * 3
    assert len({tuple(row) for row in found.tolist()}) > 2
    assert np.array_equal(model.generate(np.repeat(prompt, 3, 0), **settings), found)
    drawn = model.generate(prompt, num_beams=3, num_return_sequences=2, **settings)
    assert drawn.shape == (4, 5) and np.array_equal(
        drawn, model.generate(prompt, num_beams=3, num_return_sequences=2, use_cache=False, **settings)
    )


def test_generation_config_counts_where_a_call_says_nothing(model, monkeypatch):
    prompt, free = [[5, 9, 77]], {"max_new_tokens": 6, "eos_token_id": None}
    plain = model.generate(prompt, **free)
    asked = {"suppress_tokens": plain[0, 3:].tolist(), "top_k": 1, "temperature": 0.5, "do_sample": True}
    expected = model.generate(prompt, suppress_tokens=asked["suppress_tokens"], **free)
    assert not set(expected[0, 3:]) & set(asked["suppress_tokens"])
    monkeypatch.setattr(model, "generation_config", asked)
    assert np.array_equal(model.generate(prompt, **free), expected)
    assert np.array_equal(model.generate(prompt, suppress_tokens=[], **free), plain)
    for make in (tuple, np.array, set, iter):
        same = make(asked["suppress_tokens"])
        assert np.array_equal(model.generate(prompt, suppress_tokens=same, **free), expected)
    assert model.generate(prompt, forced_eos_token_id=np.int64(3), **free)[0, -1] == 3
    assert np.array_equal(
        model.generate(prompt, num_beams=np.int64(2), **free), model.generate(prompt, num_beams=2, **free)
    )
    assert np.array_equal(model.generate(prompt, do_sample=True, **free), expected)  # of the likeliest one
    assert not np.array_equal(
        model.generate(prompt, do_sample=True, top_k=0, temperature=9.0, seed=1, **free), expected
    )
    monkeypatch.setattr(model, "generation_config", {"top_p": 3, "num_beams": 0.5})
    with pytest.raises(InputError, match=r"\(or config\.json\): num_beams is 0\.5; a whole number"):
        model.generate(prompt, **free)


def test_settled_leaves_sampling_to_the_call():
    config = {"do_sample": True, "temperature": 0.6, "repetition_penalty": 1.1, "min_length": 0, "num_beams": 2}
    assert settled({"num_beams": 1}, config) == {"repetition_penalty": 1.1, "num_beams": 1}
    assert settled({"do_sample": True}, config).keys() == {
        "do_sample",
        "temperature",
        "repetition_penalty",
        "num_beams",
    }


@pytest.mark.parametrize(
    "config, own, beams, token",
    [
        ({"pad_token_id": 0}, {}, 1, 0),
        ({"pad_token_id": 0}, {}, 2, None),
        ({"pad_token_id": 7}, {"pad_token_id": 3}, 2, 7),
        ({}, {"pad_token_id": 3}, 2, 3),
        ({"pad_token_id": 9}, {}, 1, None),
        ({"pad_token_id": -1}, {}, 1, None),
        ({"pad_token_id": True}, {}, 1, None),
        ({"eos_token_id": 2}, {"pad_token_id": 3}, 1, None),
    ],
)
def test_a_models_own_padding(config, own, beams, token):
    dims = SimpleNamespace(vocab=9)
    model = SimpleNamespace(generation_config=config, config=SimpleNamespace(dims=dims, to_dict=lambda: own))
    assert own_padding(model, beams) == token


def test_settings_of_generation_config_that_take_no_effect_are_said_once(caplog):
    """transformers would give other answers by them; those of the draw count only where a caller samples."""
    asked = {"repetition_penalty": 1.05, "guidance_scale": 3, "max_time": None, "temperature": 0.7, "num_beams": 1}
    asked |= {"num_return_sequences": 1, "penalty_alpha": 0.0, "sequence_bias": [], "token_healing": False}
    asked |= {"encoder_repetition_penalty": 1.0, "diversity_penalty": 0}
    say_unheeded("base", {name: value for name, value in asked.items() if name != "guidance_scale"}, [])
    assert not caplog.records
    for _ in range(2):
        say_unheeded("base", {**asked, "stop_strings": ["x"]}, [])
    say_unheeded("base", {**asked, "stop_strings": ["x"]}, ["stop_strings"])
    words = [record.getMessage() for record in caplog.records]
    said = "base: generation_config.json (or config.json) says guidance_scale=3, "
    assert words == [
        said + "stop_strings=['x'], which takes no effect here; give generate the tokenizer",
        said + "which takes no effect here",
    ]


@pytest.mark.parametrize(
    ("name", "value"), [("guidance_scale", 0), ("forced_bos_token_id", 0), ("token_healing", True)]
)
def test_zero_says_something_where_it_does_for_transformers(name, value, caplog):
    say_unheeded(f"base of {name}", {name: value}, [])
    assert f"generation_config.json (or config.json) says {name}={value!r}, which takes no effect here" in caplog.text


def test_settings_of_a_call_that_have_no_effect_are_said_once(caplog):
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            say_unused({**dict.fromkeys(FIELDS), "top_k": 1, "typical_p": 0.5, "early_stopping": True}, False, 1)
    assert [record.getMessage() for record in caplog.records] == [
        "typical_p=0.5 has no effect without do_sample=True",
        "early_stopping=True has no effect without num_beams",
    ]


@pytest.mark.parametrize("count", [1, 4, 7, 40, 41])
def test_the_highest_are_those_of_a_stable_sort_of_which_little_is_done(count, monkeypatch):
    generator = np.random.default_rng(count)
    values = generator.integers(0, 6, (3, 40)).astype(float)  # many are equal
    values[1, 5:] = -np.inf
    values[2] = generator.standard_normal(40)
    expected = np.argsort(-values, 1, kind="stable")[:, :count]
    sort, sorted_ = np.argsort, []
    monkeypatch.setattr(np, "argsort", lambda given, **how: sorted_.append(np.size(given)) or sort(given, **how))
    assert np.array_equal(highest(values, count), expected)
    assert sorted_[2] == min(count, 40)  # without equal ones no more than these
