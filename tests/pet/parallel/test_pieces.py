"""What a tensor-parallel group adds up cuts a program of the engine: one member's half of a model, both ways."""

import dataclasses

import numpy as np
import pytest

import pet
from adapters.lora import LoRAConfig
from model_zoo import engine
from pet.parallel import collectives, tensor
from pet.parallel.collectives import Group
from pet.train.trainer import Trainer

IDS = np.arange(5, 37, dtype=np.int32).reshape(2, 16)


class Twice(collectives.GroupSum):
    """A member whose other one gives half as much (of numbers in another type than float32 this makes others)."""

    def __init__(self, group):
        super().__init__(dataclasses.replace(group, ranks=(0,)))

    def construct(self, x):
        return x * 1.5


def losses(precision: str, compiled: bool, **settings) -> list[float]:
    model = pet.apply(pet.AutoModel.from_pretrained("llama_tiny"), LoRAConfig(rank=4, targets="all-linear"))
    tensor.shard(model, Group("tensor", "", (0, 1), 0))
    batches, settings = [{"input_ids": IDS}] * 3, {"warmup": 0, "learning_rate": 1e-2, **settings}
    trainer = Trainer(model, batches, steps=3, batch_size=2, precision=precision, compiled=compiled, **settings)
    trainer.train()
    return [line[key] for line in trainer.history for key in ("loss", "gradient_norm")]


@pytest.mark.skipif(bool(engine.no_bf16()), reason=engine.no_bf16())
@pytest.mark.parametrize("recompute", [False, True])
def test_sums_between_products_of_bf16_are_of_float32(monkeypatch, recompute):
    monkeypatch.setattr(collectives, "GroupSum", Twice)
    plain = losses("fp32", False)
    assert losses("fp32", True, recompute=recompute) == pytest.approx(plain, rel=1e-4)
    rounded = losses("bf16", True, recompute=recompute)
    assert rounded == pytest.approx(plain, rel=3e-2) and rounded != pytest.approx(plain, rel=1e-4)
