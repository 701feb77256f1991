"""Runs of LoRA that begins anew."""

from __future__ import annotations

import numpy as np

import pet
from model_zoo.quantization import Quantization
from pet.train.trainer import Trainer

KINDS = {"float32": None, "nf4": Quantization("nf4", block=32), "int8": Quantization("int8")}
SETTINGS = {"steps": 10, "learning_rate": 0.01, "schedule": "constant", "warmup": 0, "save_every": 2, "keep_last": 9}
SETTINGS |= {"restart_every": 4, "restart_warmup": 2}
RANK, ALPHA = 2, 3.0


def made(fixtures, kind="float32", **settings):
    model = pet.AutoModel.from_pretrained(fixtures / "llama_gqa", quantization=KINDS[kind])
    targets = {"targets": ["q_proj", "down_proj"], **settings}
    return pet.apply_lora(model, rank=RANK, alpha=ALPHA, **targets)


def batches():
    draw = np.random.default_rng(5)
    return [{"input_ids": ids, "labels": ids.copy()} for ids in draw.integers(3, 60, (6, 2, 10)).astype(np.int32)]


def trainer(model, directory, **settings):
    settings = {**SETTINGS, **settings}
    data = batches()
    callbacks = ["metrics"] * (directory is not None)
    return Trainer(model, data, data[:1], directory=directory, eval={"every_steps": 4}, callbacks=callbacks, **settings)
