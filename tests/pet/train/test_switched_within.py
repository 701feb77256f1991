"""Adapters that a callback switches while a trainer trains one of them."""

import numpy as np
import pytest

import pet
from model_zoo.errors import InputError
from pet.train.callbacks import Callback

IDS = np.array([[5, 6, 7, 8]], np.int32)
HELD = []


def disable(model):
    HELD.append(pet.disable_adapters(model))  # a block that nothing holds ends
    HELD[-1].__enter__()


SWITCHED = {
    "merged": pet.merge,
    "deleted": lambda model: pet.delete_adapter(model, "default"),
    "another one": lambda model: pet.apply_lora(model, rank=2, name="other"),
    "disabled": disable,
}


class After(Callback):
    """Calls a function behind the second step."""

    def __init__(self, call):
        self.call = call

    def step(self, trainer, record):
        if record["step"] == 2:
            self.call(trainer.model)


def trainer_with(call):
    model = pet.apply_lora(pet.AutoModel.from_pretrained("llama_tiny"), rank=2)
    batches = [{"input_ids": IDS, "labels": IDS}]
    return pet.Trainer(model, batches, steps=4, learning_rate=1e-2, warmup=0, callbacks=After(call))


@pytest.mark.parametrize("how", SWITCHED)
def test_a_run_whose_adapter_was_switched_off_ends(how):
    """It went on: with gradients of 0, or with what is no part of the model any more."""
    trainer = trainer_with(SWITCHED[how])
    words = "cannot train within a block of" if how == "disabled" else "what the model trains has changed since"
    with pytest.raises(InputError, match=words):
        trainer.train()
    assert [record["step"] for record in trainer.history] == [1, 2]
    while HELD:
        HELD.pop().__exit__(None, None, None)


def test_what_is_switched_back_goes_on():
    def aside(model):
        with pet.disable_adapters(model):
            model(IDS)
        pet.merge(model)
        pet.unmerge(model)

    trainer, plain = trainer_with(aside), trainer_with(lambda model: None)
    trainer.train(), plain.train()
    assert [record["loss"] for record in trainer.history] == [record["loss"] for record in plain.history]
