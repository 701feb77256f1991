"""PiSSA's and OLoRA's first factors over a packed base."""

from __future__ import annotations

import os

import numpy as np

import pet
from adapters.registry import registry
from model_zoo.quantization import Quantization
from model_zoo.quantization.cells import quantized_cells
from pet.train.trainer import Trainer

os.environ.setdefault("HF_HUB_OFFLINE", "1")

NF4 = Quantization("nf4")
BASE = "llama_gqa"


def loaded(fixtures, family=BASE, quantization=NF4):
    return pet.AutoModel.from_pretrained(str(fixtures / family), quantization=quantization)


def started(model, init="pissa", rank=4, **settings):
    settings = {"targets": "all-linear", **settings}
    return pet.apply_lora(model, rank=rank, alpha=8, init=init, **settings)


def input_ids(fixtures, family=BASE):
    return np.load(fixtures / family / "ref.npz")["input_ids"]


def codes(model):
    return {name: {part: a.copy() for part, a in c.arrays().items()} for name, c in quantized_cells(model).items()}


def same_codes(model, before) -> bool:
    return all(
        np.array_equal(array, before[name][part])
        for name, cell in quantized_cells(model).items()
        for part, array in cell.arrays().items()
    )


def modules(model, name="default"):
    return registry(model).get(name).modules


def originals(fixtures, model, family=BASE):
    """{path: W (out, in)} of the adapted cells in the file."""
    wide = pet.AutoModel.from_pretrained(str(fixtures / family))
    values = {parameter.name: parameter.asnumpy() for parameter in wide.get_parameters()}
    sites = registry(model).get("default").sites
    return {
        path: values[f"{path}.weight"].T if site.published_transposed else values[f"{path}.weight"]
        for path, site in sites.items()
    }


def train(model, ids, steps=2, compiled=False):
    batch = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    how = {"optimizer": "sgd", "learning_rate": 0.1, "clip_norm": None, "weight_decay": 0.0, "schedule": "constant"}
    trainer = Trainer(model, [batch] * steps, compiled=compiled, steps=steps, batch_size=len(ids), warmup=0, **how)
    trainer.train()
    return trainer


def moved(model):
    """As if it had been trained."""
    for parameter in pet.trainable_parameters(model):
        parameter.set_data(parameter + 0.01)
    return model
