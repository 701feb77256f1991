"""Planned activations against MindSpore's own count of memory."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sets import asked, some
from waiting import HANGING

from adapters.lora import LoRAConfig
from model_zoo.engine import available
from pet.meta_model import MetaModel
from pet.parallel.shares import shares
from pet.planning import Work
from pet.planning.activations import activation_bytes
from pet.planning.layer_memory import layer_memory
from pet.planning.traffic import Steps

ROOT = Path(__file__).resolve().parents[2]
PEAK = """
from pet.cli.imports import import_quickly
import_quickly()
import contextlib, json, os, sys
import numpy as np
import pet.train.step
from adapters.apply import apply_lora
from model_zoo.auto import AutoModel
from pet.train.trainer import Trainer
from pet.train.optimizers import OPTIMIZERS
for name, case in json.loads(sys.argv[1]).items():
    if os.fork():  # each in a process of its own, which MindSpore is imported for once
        os.wait()
        continue
    log = os.open(name, os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1), os.dup2(log, 2)
    model = AutoModel.from_config(case["config"])
    if case.get("apart"):
        pet.train.step.in_whole = lambda *_: contextlib.nullcontext()
    if case["lora"]:
        apply_lora(model, **case["lora"])
    ids = np.random.default_rng(0).integers(5, 150, (case["rows"], case["length"])).astype(np.int32)
    settings = {name: case[name] for name in ("recompute", "r_drop_alpha") if name in case}
    Trainer(model, [{"input_ids": ids}], steps=1, **settings).train()
    break
"""
LLAMA = {"model_type": "llama", "vocab_size": 20000, "hidden_size": 256, "intermediate_size": 688}
LLAMA |= {"num_hidden_layers": 4, "num_attention_heads": 4, "max_position_embeddings": 1024}
GLM = {"model_type": "glm4", "vocab_size": 200, "hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
GLM |= {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024}
CASES = {
    "pieces of the loss and blocks of attention": {"config": LLAMA, "lora": {"rank": 8}, "rows": 4, "length": 512},
    "every matrix adapted": {"config": GLM, "lora": {"rank": 8, "targets": "all-linear"}, "rows": 32, "length": 128},
    "DoRA on every matrix": {
        "config": GLM,
        "lora": {"rank": 8, "targets": "all-linear", "use_dora": True},
        "rows": 32,
        "length": 128,
    },
    "DoRA computed again": {
        "config": GLM,
        "lora": {"rank": 8, "targets": "all-linear", "use_dora": True},
        "rows": 32,
        "length": 128,
        "recompute": True,
    },
    "operator by operator": {
        "config": {**GLM, "num_hidden_layers": 2},  # each is compiled
        "lora": {"rank": 8, "targets": "all-linear"},
        "rows": 32,
        "length": 128,
        "apart": True,
    },
    "computed again": {
        "config": {**LLAMA, "vocab_size": 2000, "num_hidden_layers": 8},
        "lora": {"rank": 8},
        "rows": 16,
        "length": 256,
        "recompute": True,
    },
    "every third layer computed again": {
        "config": {**LLAMA, "vocab_size": 2000, "num_hidden_layers": 8},
        "lora": {"rank": 8},
        "rows": 8,
        "length": 256,
        "recompute": 3,
    },
    "all logits": {"config": LLAMA, "lora": {"targets": ["lm_head"]}, "rows": 2, "length": 512},
    "R-Drop's pairs": {"config": LLAMA, "lora": {"rank": 8}, "rows": 2, "length": 512, "r_drop_alpha": 1.0},
}
OFTEN = ("DoRA on every matrix", "R-Drop's pairs")


@pytest.fixture(scope="module")
def peaks(request, tmp_path_factory) -> Path:
    """What MindSpore said of each case that is asked for."""
    names = [parameters["name"] for parameters in asked(request, "peaks")]
    directory = tmp_path_factory.mktemp("peaks")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment["MS_SUBMODULE_LOG_v"] = "{PRE_ACT:1}"
    command = [sys.executable, "-c", PEAK, json.dumps({name: CASES[name] for name in names})]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=HANGING)
    assert done.returncode == 0, done.stderr[-3000:]
    return directory


@pytest.mark.skipif(not available(), reason="no C compiler")
def test_dropout_is_planned_as_a_trainer_runs_it():
    meta_model = MetaModel(CASES[next(iter(CASES))]["config"])
    without, dropping = (layer_memory(meta_model, LoRAConfig(dropout=rate), False) for rate in (0.0, 0.1))
    assert dropping.saved > without.saved


def test_layers_that_a_program_of_two_does_not_have_are_planned_coarsely():
    """The program is of the model's first layers alone, and DoRA's is without its norms."""
    meta_model = MetaModel(CASES[next(iter(CASES))]["config"])
    assert layer_memory(meta_model, LoRAConfig(layers=[3]), False) is None
    assert layer_memory(meta_model, LoRAConfig(init="pissa"), False) is None
    for recompute, part in ((False, "saved"), (True, "backward")):
        plain, dora = (layer_memory(meta_model, LoRAConfig(use_dora=one), recompute) for one in (False, True))
        assert plain is None or getattr(dora, part) == getattr(plain, part) + 2 * 256


@pytest.mark.slow
@pytest.mark.skipif(not available(), reason="no C compiler: operators are planned coarsely")
@pytest.mark.parametrize("name", some(CASES, OFTEN))
def test_activations_are_within_a_tenth_of_the_measured_peak(name, peaks, monkeypatch):
    """The peak of the pool that all tensors of compiled graphs come from, as MindSpore logs it at its end."""
    case = CASES[name]
    text = (peaks / name).read_text(errors="replace")
    found = re.findall(r"peak used mem:(\d+)M, actual peak", text)
    assert found, text[-3000:]
    meta_model, adapter = MetaModel(case["config"]), LoRAConfig(**case["lora"])
    if case.get("apart"):
        monkeypatch.setattr("pet.planning.activations.layer_memory", lambda *_: None)
    again = case.get("recompute", False)
    r_drop = "r_drop_alpha" in case
    rows = case["rows"] * (2 if r_drop else 1)
    work = Work(meta_model, adapter, rows, case["length"], "float32", recompute=again, r_drop=r_drop)
    steps = Steps(1, 1, 1, 1, rows * case["length"], 4, recompute=again)
    planned = activation_bytes(work, shares(meta_model, adapter), steps, 0) / 2**20
    assert planned > 80  # MB, of which the pool counts whole ones
    assert planned == pytest.approx(int(found[-1]), rel=0.1)
