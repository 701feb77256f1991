"""Rows of a batch that go through adapters of their own."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from adapter_states import IDS, Own, add, logits, lora, randomise

import pet

# Rows of a batch ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [["a"], ["a", "__base__"], ["a"] * 4, ["a"] * 6, []], ids=len)
def test_one_adapter_name_per_row(model, names):
    add(model, "a", lora(), 1)
    with pytest.raises(pet.InputError, match="adapter_names"), pet.adapter_names(model, names):
        logits(model)
    with pytest.raises(pet.InputError, match="adapter_names"), pet.adapter_names(model, names):
        model.generate(IDS, max_new_tokens=1)
    assert logits(model).shape == (3, 6, 128)


def test_beams_take_their_rows_adapter(model):
    def written():
        return model.generate(IDS, max_new_tokens=3, num_beams=2, eos_token_id=None, use_cache=False)

    add(model, "a", lora(), 1)
    bare = written()
    pet.set_adapter(model, "a")
    adapted = written()
    assert (bare != adapted).any(1).all()
    with pet.adapter_names(model, ["a", "__base__", "a"]):
        np.testing.assert_array_equal(written(), np.stack([adapted[0], bare[1], adapted[2]]))


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE])
def test_rows_of_a_cell_of_ones_own_are_counted_too(mode):
    own, x = Own(), ms.Tensor(np.ones((4, 6), np.float32))
    bare = own(x).asnumpy()
    pet.apply_lora(own, rank=2, targets=["last"])
    randomise(own, "default")
    adapted = own(x).asnumpy()
    ms.set_context(mode=mode)
    try:
        with pytest.raises(pet.InputError, match="2 adapter names, 4 rows"), pet.adapter_names(own, ["default"] * 2):
            own(x)
        with pet.adapter_names(own, ["default", "__base__"] * 2):
            np.testing.assert_allclose(own(x).asnumpy(), np.where([[1], [0]] * 2, adapted, bare), rtol=0, atol=1e-5)
        np.testing.assert_allclose(own(x).asnumpy(), adapted, rtol=0, atol=1e-5)
        assert own(x[:3]).shape == (3, 4)
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)


def test_mixed_batches_nest(model):
    bare = logits(model)
    add(model, "a", lora(), 1)
    add(model, "b", lora(), 2)
    with pet.adapter_names(model, ["a", "b", "__base__"]):
        outer = logits(model)
        with pet.adapter_names(model, ["__base__", "a", "b"]):
            inner = logits(model)
            with pet.disable_adapters(model):
                np.testing.assert_array_equal(logits(model), bare)
            np.testing.assert_array_equal(logits(model), inner)
        np.testing.assert_array_equal(logits(model), outer)
        for call in (lambda: pet.delete_adapter(model, "b"), lambda: pet.merge(model, "a")):
            with pytest.raises(pet.InputError, match="adapter_names"):
                call()
        np.testing.assert_array_equal(logits(model), outer)
    assert np.abs(inner - outer).max() > 1e-3
    np.testing.assert_array_equal(logits(model), bare)
