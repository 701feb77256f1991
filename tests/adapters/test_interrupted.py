"""Ctrl-C while adapters are put on, merged or taken off: the change is made, or it is not."""

import signal

import numpy as np
import pytest

import pet
from adapters import merge, registry
from model_zoo.turns import undivided
from tests.support import pressing

IDS = np.array([[5, 6, 7, 8]], np.int32)


@pytest.fixture
def model():
    return pet.AutoModel.from_pretrained("llama_tiny")


def press_within(*arguments):
    assert pressing.press_within(*arguments) > 3  # it went on to the end of what belongs together


def test_adapters_put_on(monkeypatch, model):
    before = model(IDS).asnumpy()
    trained = {parameter.name: parameter.requires_grad for parameter in model.get_parameters()}
    press_within(monkeypatch, registry, "attach", lambda: pet.apply_lora(model, rank=2))
    assert pet.list_adapters(model) == []
    assert {parameter.name: parameter.requires_grad for parameter in model.get_parameters()} == trained
    np.testing.assert_array_equal(model(IDS).asnumpy(), before)
    pet.apply_lora(model, rank=2)


def test_adapters_merged_and_taken_out(monkeypatch, model):
    before = model(IDS).asnumpy()
    pet.apply_lora(model, rank=2, init="gaussian")
    for parameter in pet.trainable_parameters(model):
        parameter.set_data(parameter + 0.1)
    adapted = model(IDS).asnumpy()
    press_within(monkeypatch, merge.Target, "exchange", lambda: pet.merge(model))
    np.testing.assert_allclose(model(IDS).asnumpy(), adapted, atol=1e-4)
    press_within(monkeypatch, merge.Target, "exchange", lambda: pet.unmerge(model))
    np.testing.assert_array_equal(model(IDS).asnumpy(), adapted)
    press_within(monkeypatch, registry, "detach", lambda: pet.delete_adapter(model, "default"))
    assert pet.list_adapters(model) == []
    np.testing.assert_array_equal(model(IDS).asnumpy(), before)


def test_an_error_within_does_not_swallow_the_interrupt():
    with pytest.raises(KeyboardInterrupt) as caught, undivided():
        signal.raise_signal(signal.SIGINT)
        raise ValueError("its own")
    assert isinstance(caught.value.__context__, ValueError)
