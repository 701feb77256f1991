"""The recipe's ``model.quantization``: what it asks of the loader, and what it cannot be asked for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from model_zoo.auto import AutoModel
from model_zoo.errors import InputError
from model_zoo.quantization import Quantization, Storage
from pet.planning import room
from pet.recipe.loading import from_dict

DATA = {"train": str(Path(__file__).parents[3] / "recipes/data/adgen/train.jsonl"), "format": "adgen", "max_length": 64}


def recipe(quantization, method="lora", **model):
    values = {"model": {"path": "glm_tiny", "quantization": quantization, **model}, "adapter": {"method": method}}
    return from_dict({**values, "data": DATA}, check_files=True)


def test_it_is_what_the_loader_takes():
    assert recipe({}).model.quantization.settings() is None
    section = recipe({"type": "nf4", "double": True, "skip": "lm_head"}).model.quantization
    assert section.settings() == Quantization("nf4", 64, True, ("lm_head",))


@pytest.mark.parametrize(
    ("quantization", "words"),
    [
        ({"type": "nf5"}, "quantization.type"),
        ({"type": "nf4", "block": 48}, "quantization.block: .*nf4 has blocks of 32"),
        ({"type": "int8", "double": True}, "quantization.double: .*no double quantisation"),
        ({"type": "int8", "block": 128}, "quantization.block: has no effect with int8"),
        ({"double": True}, "quantization.double: has no effect without"),
        ({"type": "nf4", "skip": ["dense_4h_to_g"]}, "names no projection.*dense_4h_to_h"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(quantization, words):
    with pytest.raises(InputError, match=words):
        recipe(quantization)


def test_room_is_that_of_the_model_as_it_was_loaded(fixtures, monkeypatch):
    """Files that are packed need no ``model.quantization``."""
    seen = {}
    monkeypatch.setattr(room, "step_memory", lambda *_, **types: seen.update(types) or 0.0)
    feed = SimpleNamespace(steps_per_epoch=lambda epoch: 1, shapes=lambda epoch: [(2, 16)])
    for name, storage in (("nf4_double", Storage("nf4", double=True)), ("int8", Storage("int8")), ("base", None)):
        model = AutoModel.from_pretrained(fixtures / "bitsandbytes" / name, dtype="auto")
        room.check_room(recipe({}), SimpleNamespace(model=model, train_feed=feed, tokenizer=None))
        found = seen.pop("quantization")
        assert (found.storage if found else None) == storage
        stored = "bfloat16" if storage is None else "float32"
        assert seen == {"dtype": "float32", "stored": stored, "precision": "fp32"}


def test_packed_weights_are_not_trained():
    with pytest.raises(InputError, match="weights in nf4 cannot be trained"):
        recipe({"type": "nf4"}, "none")
