"""Ctrl-C while a model is got ready for an answer, or put back behind one: it computes afterwards as before."""

import signal

import numpy as np
import pytest
from mindspore import nn

import pet
from model_zoo import causal_lm
from model_zoo.engine.run import replace_layers
from model_zoo.generation.cache import Cache
from model_zoo.graph import evaluating
from model_zoo.turns import changed
from tests.support.pressing import press_within

IDS = np.array([[5, 6, 7, 8]], np.int32)


@pytest.mark.parametrize(
    ("owner", "name", "press_at"),
    [(causal_lm, "set_kernels", at) for at in (1, 2)] + [(Cache, name, 1) for name in ("attach", "detach")],
)
def test_an_answer(monkeypatch, owner, name, press_at):
    model = pet.AutoModel.from_pretrained("llama_tiny")
    before = model(IDS).asnumpy()
    press_within(monkeypatch, owner, name, lambda: model.generate(IDS, max_new_tokens=3), press_at)
    assert not model.runs_fast and not model.decoding
    assert all(getattr(cell, "cache", None) is None for _, cell in model.cells_and_names())
    np.testing.assert_array_equal(model(IDS).asnumpy(), before)


def test_a_measurement(monkeypatch):
    model = pet.AutoModel.from_pretrained("llama_tiny").set_train(True)

    def measure():
        with evaluating(model):
            pass

    for press_at in (1, 2):
        press_within(monkeypatch, type(model), "set_train", measure, press_at)
        assert all(cell.training for _, cell in model.cells_and_names())


def test_layers_that_operators_replace():
    layers = nn.CellList([nn.Dense(2, 2), nn.Dense(2, 2)])
    own = list(layers)
    with pytest.raises(KeyboardInterrupt), replace_layers(layers, [nn.Dense(2, 2)]):
        assert len(layers) == 1
        signal.raise_signal(signal.SIGINT)
    assert list(layers) == own


def test_a_change_that_fails_is_undone():
    state = []

    def change():
        state.append(1)
        raise ValueError("half done")

    with pytest.raises(ValueError, match="half done"), changed(change, state.clear):
        pytest.fail("the block is entered")
    assert state == []
