"""How long answers are, and what they are filled up with, by generation_config.json: as in transformers."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from model_zoo.auto import AutoModel
from model_zoo.errors import InputError
from model_zoo.generation.decoders import KEPT_DECODERS, cached_decoder
from model_zoo.generation.generate import SHORT_ANSWER
from model_zoo.generation_settings import settled


@pytest.fixture
def base(fixtures, tmp_path):
    """A small model that is given a generation_config.json, or None for none."""

    def made(values, config=()):
        directory = tmp_path / "base"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        source = fixtures / "llama_gqa"
        shutil.copy(source / "model.safetensors", directory)
        described = {**json.loads((source / "config.json").read_text()), **dict(config)}
        (directory / "config.json").write_text(json.dumps(described))
        if values is not None:
            (directory / "generation_config.json").write_text(json.dumps(values))
        return directory

    return made


@pytest.fixture(scope="module")
def prompt(fixtures):
    return np.load(fixtures / "llama_gqa" / "ref.npz")["input_ids"][:, :9]


def answers_of(directory, prompt, **settings):
    return AutoModel.from_pretrained(directory).generate(prompt, **settings)


def ends(prompt, base) -> list[int]:
    """Ids that the rows come to, each at another place."""
    free = answers_of(base({}), prompt, max_new_tokens=8, eos_token_id=None)[:, prompt.shape[1] :]
    return [int(free[0, 2]), int(free[1, 5])]


FILES = {
    "new tokens": {"max_new_tokens": 21},
    "length": {"max_length": 14},
    "new tokens before length": {"max_new_tokens": 3, "max_length": 30},
    "beyond the context": {"max_length": 5000},
    "padding": {"max_new_tokens": 12, "pad_token_id": 7},
    "padding 0": {"max_new_tokens": 12, "pad_token_id": 0},
    "padding of beams": {"max_new_tokens": 12, "pad_token_id": 7, "num_beams": 3},
    "padding 0 of beams": {"max_new_tokens": 12, "pad_token_id": 0, "num_beams": 3},
    "no file": None,
}


@pytest.mark.parametrize("name", FILES)
def test_as_in_transformers(name, base, prompt):
    torch = pytest.importorskip("torch", reason="the live comparison needs torch")
    transformers = pytest.importorskip("transformers", reason="the live comparison needs transformers")
    stops = {"eos_token_id": ends(prompt, base)}
    given = FILES[name]
    directory = base(None, {**stops, "pad_token_id": 5}) if given is None else base({**given, **stops})
    theirs = transformers.AutoModelForCausalLM.from_pretrained(directory).eval()
    limit = {"max_new_tokens": 12} if given is None else {}
    with torch.no_grad():
        ids, ones = torch.tensor(prompt), torch.ones(prompt.shape, dtype=torch.long)
        expected = theirs.generate(ids, attention_mask=ones, do_sample=False, **limit).numpy()
    found = answers_of(directory, prompt, **limit)
    most = theirs.config.max_position_embeddings  # they go on beyond it
    assert np.array_equal(found, expected[:, :most])


def test_an_older_checkpoint_says_it_in_config_json(base, prompt):
    """Where there is no generation_config.json, as in transformers; beside one it says nothing."""
    torch = pytest.importorskip("torch", reason="the live comparison needs torch")
    transformers = pytest.importorskip("transformers", reason="the live comparison needs transformers")
    older = {"max_length": 15, "num_beams": 2, "repetition_penalty": 1.7, "pad_token_id": 7, "bad_words_ids": [[48]]}
    directory = base(None, older)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(directory).eval()
    with torch.no_grad():
        ids, ones = torch.tensor(prompt), torch.ones(prompt.shape, dtype=torch.long)
        expected = theirs.generate(ids, attention_mask=ones).numpy()
    found = answers_of(directory, prompt)
    assert np.array_equal(found, expected) and found.shape[1] == 15
    plain = answers_of(base({}), prompt)
    assert np.array_equal(answers_of(base({}, older), prompt), plain)
    assert not np.array_equal(found, plain[:, :15])


def test_the_call_counts_before_the_file(base, prompt):
    model = AutoModel.from_pretrained(base({"max_new_tokens": 3, "pad_token_id": 7, "eos_token_id": None}))
    width = prompt.shape[1]
    assert model.generate(prompt).shape[1] == width + 3
    assert model.generate(prompt, max_new_tokens=5).shape[1] == width + 5
    assert model.generate(prompt, max_length=width + 4).shape[1] == width + 4
    assert model.generate(prompt, max_new_tokens=None).shape[1] == model.room
    silent = AutoModel.from_pretrained(base({"eos_token_id": None}))
    assert silent.generate(prompt).shape[1] == width + SHORT_ANSWER


@pytest.mark.parametrize(
    ("values", "message"),
    (
        ({"max_new_tokens": 0}, "max_new_tokens is 0; a whole number above 0 was expected"),
        ({"max_length": "long"}, "max_length is 'long'; a whole number above 0 was expected"),
        ({"max_length": 9}, "max_length is 9, which a prompt of 9 tokens fills; give max_new_tokens"),
    ),
)
def test_what_leaves_no_answer_is_one_line(values, message, base, prompt):
    model = AutoModel.from_pretrained(base(values))
    with pytest.raises(InputError, match=rf"generation_config.json \(or config.json\): {message}"):
        model.generate(prompt)
    assert model.generate(prompt, max_new_tokens=2).shape[1] == 11


@pytest.mark.parametrize(
    ("given", "values", "expected"),
    (
        ({"min_length": 12}, {"min_new_tokens": 3}, {"min_length": 12}),
        ({}, {"min_new_tokens": 3, "min_length": 12}, {"min_new_tokens": 3}),
        ({}, {"min_new_tokens": 0, "min_length": 12}, {}),  # as in transformers, where 0 takes its place too
        ({}, {"min_new_tokens": None, "min_length": 12}, {"min_length": 12}),
    ),
)
def test_of_two_least_lengths_the_call_s_counts_and_then_that_of_the_answer(given, values, expected):
    assert settled(given, values) == expected


def test_padding_that_is_no_id_is_left_out(base, prompt):
    stops = ends(prompt, base)
    for pad in (-1, 10**6, None):
        found = answers_of(base({"pad_token_id": pad, "eos_token_id": stops, "max_new_tokens": 8}), prompt)
        assert found[0, -1] == stops[0]


def test_the_decoders_used_last_are_kept(fixtures):
    model = AutoModel.from_pretrained(fixtures / "gpt2")
    first, second = (cached_decoder(model, 1, 8, length) for length in (16, 17))
    assert cached_decoder(model, 1, 8, 16) is first and first is not second
    for length in range(18, 18 + KEPT_DECODERS - 1):
        cached_decoder(model, 1, 8, length)
    assert len(model._decoders) == KEPT_DECODERS
    assert cached_decoder(model, 1, 8, 16) is first, "it was used after the second one"
    assert cached_decoder(model, 1, 8, 17) is not second
