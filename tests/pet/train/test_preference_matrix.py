"""Objectives over answers with every method, family, precision, storage and way of packing.

`pytest` runs so many cases that every value but the methods' occurs (these are in tests/adapters/test_matrix.py),
`pytest -m full` those that cover the pairs of values. A case is held to the same job operator by operator, in float32
products, with one sample to a row and a question for each answer.
"""

from __future__ import annotations

import itertools
import json
import random
import re

import numpy as np
import pytest
import sets

import pet
from adapters.methods import method_config
from adapters.settings import SETTINGS
from model_zoo.atomic import read_json
from model_zoo.checkpoint.safetensors_io import read_file, write_file
from model_zoo.engine import no_bf16
from pet.names import find_model
from pet.planning.layer_memory import LAYER_COUNTS
from pet.train.trainer import Trainer

LATER_LAYER = re.compile(r"\.(h|layers)\.[1-9]")
RATES = {"lora": 5e-3, "dora": 5e-3, "prefix": 0.1, "ptuning2": 0.1, "prompt": 0.1, "p_tuning": 1e-2, "none": 1e-3}
RATES |= {"adapter": 1e-2, "low_rank_adapter": 1e-2, "ia3": 5e-2, "bitfit": 1e-2}
VIRTUAL = ("prefix", "ptuning2", "prompt", "p_tuning")
"""They change what the base says before anything is learnt, and PEFT keeps no reward model's head beside them."""
SIZES = {"lora": {"rank": 4, "targets": "all-linear"}, "dora": {"rank": 4}, "adapter": {"size": 8}}
SIZES |= {name: {"length": 3} for name in VIRTUAL}
FIRST = {"dpo": np.log(2), "hinge": 1.0, "ipo": 25.0, "robust": np.log(2), "kto": 0.5, "reward": np.log(2)}
"""The loss before anything is learnt, whatever the model is. Without a reference it is the answers' own."""
DIMENSIONS = {
    "objective": (*FIRST, "simpo", "orpo"),
    "method": (*(name for method in SETTINGS for name in method.names()), "none"),
    "base": ("llama_tiny", "gpt_tiny", "glm_tiny", "glm4_tiny"),
    "precision": ("fp32", "bf16", "fp16"),
    "storage": ("float32", "bfloat16", "int8", "nf4"),
    "packing": ("pack", "buckets", "longest", "none"),
    "recompute": (False, True),
}


def makes_sense(objective, method, storage, **_) -> bool:
    """Whether there can be such a job: packed weights cannot be trained, and a reward model's head is an adapter's."""
    return not (
        (method == "none" and (storage != "float32" or objective == "reward"))
        or (objective == "reward" and method in VIRTUAL)
    )


def possible() -> list[dict]:
    """Every case that makes sense."""
    every = (dict(zip(DIMENSIONS, values, strict=True)) for values in itertools.product(*DIMENSIONS.values()))
    return [case for case in every if makes_sense(**case)]


def chosen() -> list[dict]:
    """Cases that cover every pair of values that makes sense, among so many that all pairs occur: every process that
    collects tests chooses them. Float16 is what MindSpore compiles, and takes seven times as long as the others: so few
    of its cases as cover its own pairs, and KTO's, which are two graphs, where nothing else does; what pairs these have
    besides need no other case."""
    every, half = possible(), ("precision", "fp16")
    random.Random(1).shuffle(every)
    few = sorted(every[:1000], key=lambda case: case["objective"] == "kto")
    pairs = [set(itertools.combinations(case.items(), 2)) for case in few]
    first = sets.cover([{pair for pair in each if half in pair} for each in pairs])
    there = set().union(*(pairs[number] for number in first))
    rest = sets.cover(
        [each - there if half not in case.items() else set() for case, each in zip(few, pairs, strict=True)]
    )
    return [few[number] for number in sorted(first | rest)]


def test_the_cases_have_every_pair_of_values_that_makes_sense():
    every, few = possible(), chosen()
    for pair in itertools.combinations(DIMENSIONS, 2):
        of_all, of_few = ({tuple(case[name] for name in pair) for case in cases} for cases in (every, few))
        assert of_all == of_few, pair


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Loads the first layer of a bundled base with its matrices stored so."""
    home = tmp_path_factory.mktemp("stored")

    def load(base: str, storage: str):
        source, short = find_model(base), home / base
        if not short.exists():
            short.mkdir()
            values = read_json(source / "config.json")
            values |= {name: 1 for name in LAYER_COUNTS if name in values}
            (short / "config.json").write_text(json.dumps(values))
            tensors = read_file(source / "model.safetensors")
            kept = {name: array for name, array in tensors.items() if not LATER_LAYER.search(name)}
            write_file(short / "model.safetensors", kept)
        if storage in ("int8", "nf4"):
            return pet.AutoModel.from_pretrained(short, quantization={"type": storage})
        if storage == "float32":
            return pet.AutoModel.from_pretrained(short)
        if not (short / storage).exists():
            pet.save_pretrained(pet.AutoModel.from_pretrained(short), short / storage, dtype=storage)
        return pet.AutoModel.from_pretrained(short / storage, "auto")

    return load


@pytest.mark.cover(by=lambda case: [item for item in case.items() if item[0] != "method"])
@pytest.mark.parametrize("case", chosen(), ids=lambda case: "-".join(map(str, case.values())))
def test_a_case(case, stored, comparisons):
    if case["precision"] == "bf16" and no_bf16():
        pytest.skip(no_bf16())
    objective, method = case["objective"], case["method"]
    found = []
    for plain in (False, True):
        model = stored(case["base"], case["storage"])
        if method != "none":
            pet.apply(model, method_config({"method": method, **SIZES.get(method, {})}))
        packing = "none" if plain and objective != "kto" else case["packing"]  # what is exchanged depends on the rows
        kind = "answers" if objective == "kto" else "pairs"
        feed = comparisons(model, kind, rows=12 if kind == "answers" else 6, shared=not plain, packing=packing)
        steps = 4 if not plain or case["precision"] == "fp32" else 1  # as many as are compared
        how = {"objective": objective, "steps": steps, "learning_rate": RATES[method]}
        how |= {"schedule": "constant", "warmup": 0}
        if not plain:
            how |= {"precision": case["precision"], "recompute": case["recompute"], "loss_scale": {"initial": 64.0}}
        trainer = Trainer(model, feed, compiled=not plain, **how)
        trainer.train()
        found.append([line["loss"] for line in trainer.history])
    ours, expected = found
    if method not in VIRTUAL and objective in FIRST:
        assert ours[0] == pytest.approx(FIRST[objective], rel=1e-5)
    if case["precision"] == "fp32":
        assert ours == pytest.approx(expected, rel=2e-4, abs=2e-5)
    else:
        assert ours[0] == pytest.approx(expected[0], rel=0.02)
    assert ours[-1] < ours[0] - 1e-3
