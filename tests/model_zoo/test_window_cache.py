"""Layers with a window keep as many columns as it is wide, to the logits and ids of a cache of all columns."""

import numpy as np
import pytest
from mindspore import Tensor
from sets import some

import pet
from model_zoo.auto import AutoModel
from model_zoo.generation import cache, decoders
from model_zoo.generation.decoders import CachedDecoder

QWEN2 = {
    "model_type": "qwen2",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "use_sliding_window": True,
    "sliding_window": 20,
    "max_window_layers": 1,
}
NEW = 40
LIMIT = 2e-5


@pytest.fixture(scope="module", params=["mistral", "gemma2", "gemma3", "qwen2"])
def model(request, fixtures):
    if request.param == "qwen2":  # its window is longer than the prompt, so that the ring fills up on the way
        return AutoModel.from_config(QWEN2, seed=3)
    return AutoModel.from_pretrained(fixtures / request.param)


def rows(count: int, prompt: int = 12):
    """Ids and mask of rows that are padded on the left, the first not at all; `NEW` tokens behind the prompt."""
    ids = np.random.default_rng(2).integers(3, 90, (count, prompt + NEW))
    mask = np.ones_like(ids)
    for row in range(1, count):
        mask[row, : 2 * row + 1] = 0
    return ids, mask


def decoded(model, ids, mask) -> tuple[np.ndarray, CachedDecoder]:
    """Logits ``(B, NEW, V)`` of the tokens behind the prompt, by a decoder that is given the ids one by one."""
    prompt = ids.shape[1] - NEW
    decoder = CachedDecoder(model, len(ids), prompt, model.virtual_tokens + ids.shape[1])
    found = [decoder.start(ids[:, :prompt], mask[:, :prompt])]
    found += [decoder.step(ids[:, column]) for column in range(prompt, ids.shape[1] - 1)]
    return np.stack(found, 1), decoder


def test_logits_are_those_of_all_columns(model, monkeypatch):
    """Of a cache that keeps everything, and of the whole sequence without a cache."""
    ids, mask = rows(2)
    found, decoder = decoded(model, ids, mask)
    kept = [layer.length for layer in decoder.cache.layers]
    assert kept == [window or ids.shape[1] for window in model.config.windows] and min(kept) < ids.shape[1]
    whole = model(ids, mask).asnumpy()[:, -NEW - 1 : -1]
    assert np.abs(found - whole).max() < LIMIT
    monkeypatch.setattr(cache, "rows_kept", lambda columns, pinned, window: columns)
    full, decoder = decoded(model, ids, mask)
    assert {layer.length for layer in decoder.cache.layers} == {ids.shape[1]}
    assert np.abs(found - full).max() < LIMIT and np.array_equal(found.argmax(-1), full.argmax(-1))


@pytest.mark.full
def test_without_kernels(shortened, monkeypatch):
    model = AutoModel.from_pretrained(shortened("gemma3", 3))  # the third sees everything
    pet.apply(model, pet.PromptConfig(length=3))
    ids, mask = rows(2)
    whole = model(ids, mask).asnumpy()[:, -NEW - 1 : -1]
    monkeypatch.setattr(decoders, "available", lambda: False)
    found, decoder = decoded(model, ids, mask)
    assert not decoder.fast and decoder.cache.layers[0].length == 3 + 5
    assert np.abs(found - whole).max() < LIMIT


@pytest.mark.parametrize("active", ["prompt", "mixed", "prefix"])
def test_what_stands_in_front_is_seen_from_beyond_the_window(active, shortened):
    """A trained prompt, a prompt of its own for each row, a prefix."""
    model = AutoModel.from_pretrained(shortened("mistral"))
    generator = np.random.default_rng(4)
    configs = {"long": pet.PromptConfig(length=4), "short": pet.PromptConfig(length=2)}
    for name, config in ({"prefix": pet.PrefixConfig(length=3)} if active == "prefix" else configs).items():
        pet.add_adapter(model, config, name)
    for parameter in model.get_parameters():
        if "prompt" in parameter.name:
            parameter.set_data(Tensor(generator.standard_normal(parameter.shape, np.float32)))
    ids, mask = rows(3)
    if active == "mixed":
        with pet.adapter_names(model, ["short", "long", "__base__"]):
            whole = model(ids, mask).asnumpy()[:, -NEW - 1 : -1]
            found, decoder = decoded(model, ids, mask)
    else:
        pet.set_adapter(model, {"prompt": "long", "prefix": "prefix"}[active])
        whole = model(ids, mask).asnumpy()[:, -NEW - 1 : -1]
        found, decoder = decoded(model, ids, mask)
    assert decoder.cache.layers[0].length == 5 + {"prompt": 4, "mixed": 6, "prefix": 0}[active]
    assert np.abs(found - whole).max() < LIMIT


@pytest.mark.parametrize("settings", some([{}, {"num_beams": 3}], [{"num_beams": 3}]))
def test_ids_of_a_growing_cache(settings, fixtures, monkeypatch):
    model = AutoModel.from_pretrained(fixtures / "gemma2")
    ids, mask = (array[:, :12] for array in rows(2))
    settings = {"max_new_tokens": 24, "eos_token_id": None, **settings}
    monkeypatch.setattr(decoders, "FIRST_COLUMNS", 4)
    monkeypatch.setattr(decoders, "SMALLEST_BUCKET", 8)
    found = model.generate(ids, mask, **settings)
    lengths = {(own.length, own.cache.layers[0].length) for own in model.__dict__["_decoders"].values()}
    assert len(lengths) > 1 and {kept for _, kept in lengths} == {5}
    assert np.array_equal(found, model.generate(ids, mask, use_cache=False, **settings))
