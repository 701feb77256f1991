"""An objective goes with all that next-token training goes with; what does not is listed here, with the reason."""

from __future__ import annotations

import itertools

import pytest

from adapters.settings import SETTINGS
from model_zoo.errors import InputError
from pet.parallel.fits import check_fits
from pet.recipe.classes import COMPARED, JUDGING
from pet.recipe.loading import from_dict

METHODS = [name for method in SETTINGS for name in method.names()]
DIMENSIONS = {
    "base": [{"model.path": name} for name in ("llama_tiny", "gpt_tiny", "glm_tiny", "glm4_tiny")],
    "method": [{"adapter.method": name} for name in (*METHODS, "none")] + [{"adapter.load": "tuned"}],
    "layout": [
        {"parallel.data": 2},
        {"parallel.tensor": 2},
        {"parallel.pipeline": 2, "parallel.micro_batches": 2},
        {"parallel.data": 2, "parallel.shard_optimizer": True},
    ],
    "precision": [{"train.precision": name} for name in ("fp32", "bf16", "fp16", "auto")],
    "storage": [{"model.quantization.type": name} for name in ("int8", "nf4")] + [{"model.dtype": "auto"}],
    "rows": [{"data.packing": name} for name in ("pack", "buckets", "longest", "none")]
    + [{"data.streaming": True}, {"data.eval_fraction": 0.1}],
    "run": [{"train.recompute": True}, {"train.accumulation": 2}, {"train.resume": True}, {"output.merged": True}],
}
REFUSED = {
    (objective, "adapter.method", name): "no modules_to_save"  # where a head is kept
    for objective, name in itertools.product(JUDGING, ("prefix", "ptuning2", "prompt", "p_tuning"))
}
"""(objective, key, value) that an objective refuses by itself."""


def refusal(settings: dict) -> str:
    """What a recipe with these settings is refused for before it is run; "" where it is not."""
    base = {"model.path": "llama_tiny", "data.train": "rows.jsonl", "train.steps": 2, "train.batch_size": 8}
    found = {**base, "output.dir": "run", **settings}
    try:
        check_fits(from_dict({}, found, check_files=False))
    except InputError as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def combinations() -> dict[tuple, dict]:
    """Every value of every dimension, and every pair of values of two, that next-token training takes."""
    found = {}
    for first, second in itertools.combinations(DIMENSIONS, 2):
        for one, other in itertools.product(DIMENSIONS[first], DIMENSIONS[second]):
            settings = {**one, **other}
            if not refusal(settings):
                found[tuple(settings.items())] = settings
    return found


@pytest.mark.parametrize("objective", [*COMPARED, "classification"])
def test_an_objective_refuses_nothing_else(combinations, objective):
    assert len(combinations) > 300
    unexpected, met = {}, set()
    for settings in combinations.values():
        if not (said := refusal({**settings, "train.objective": objective})):
            continue
        known = {(objective, key, value) for key, value in settings.items()}
        reasons = [key for key in known & REFUSED.keys() if REFUSED[key] in said]
        met.update(reasons)
        if not reasons:
            unexpected[tuple(settings.items())] = said
    assert not unexpected
    assert met == {key for key in REFUSED if key[0] == objective}, "nothing is listed that is not refused"
