"""ReLoRA that cannot begin anew, or would do nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from restarted_runs import made, trainer

import pet
from model_zoo.errors import InputError
from model_zoo.quantization import Quantization
from pet.quantize import quantize_checkpoint
from pet.recipe.loading import load
from pet.train.schedules import Schedule

RECIPE = Path(__file__).parents[3] / "recipes" / "llama_lora.yaml"
REFUSED = [
    ({"use_dora": True}, {}, "adapter 'default': only LoRA that begins with B at zero can be begun anew"),
    ({"init": "pissa"}, {}, "only LoRA that begins with B at zero"),
    ({"targets": ["embed_tokens"]}, {}, "model.embed_tokens is of kind embedding; only linear cells can"),
    ({}, {"objective": "dpo"}, "train.restart_every: dpo compares with the base, which would change"),
    ({}, {"restart_warmup": 5}, "5 steps of warm-up and 0 of descent are more than that"),
]


@pytest.mark.parametrize(("adapter", "settings", "words"), REFUSED)
def test_what_cannot_begin_anew_is_refused_before_the_first_step(fixtures, tmp_path, adapter, settings, words):
    with pytest.raises(InputError, match=words):
        trainer(made(fixtures, **adapter), tmp_path, **settings)


def test_a_run_without_a_restart_says_so(fixtures, tmp_path, caplog):
    trainer(made(fixtures), tmp_path, steps=5, restart_every=4)
    assert "never begins anew" not in caplog.text
    trainer(made(fixtures), tmp_path, steps=4, restart_every=4)
    assert "train.restart_every: the run ends after 4 steps, and the adapter never begins anew" in caplog.text


def test_a_descent_of_one_step_says_that_it_is_none(fixtures, tmp_path, caplog):
    rates = [Schedule("constant", 1.0, 8, restart_every=4, restart_warmup=0, restart_decay=n) for n in (0, 1, 2)]
    flat, one, two = ([rate(step) for step in range(8)] for rate in rates)
    assert flat == one != two
    trainer(made(fixtures), tmp_path, steps=5, restart_every=4, restart_warmup=0, restart_decay=2)
    assert "restart_decay" not in caplog.text
    trainer(made(fixtures), tmp_path, steps=5, restart_every=4, restart_warmup=0, restart_decay=1)
    assert "train.restart_decay: 1 has no effect" in caplog.text


def test_adapters_beside_it_are_refused(fixtures, tmp_path):
    model = made(fixtures)
    pet.add_adapter(model, pet.LoRAConfig(rank=2), "second")
    pet.set_adapter(model, ["default", "second"])
    with pytest.raises(InputError, match="one adapter can be begun anew; active are: default, second"):
        trainer(model, tmp_path)
    pet.merge(model, "second")
    with pytest.raises(InputError, match="adapter 'second' is merged, and what 'default' learns"):
        trainer(model, tmp_path)


def test_a_base_that_is_packed_in_its_files_is_refused(fixtures, tmp_path):
    """What is learnt may be less than a step of its codes, and what these were is not known."""
    quantize_checkpoint(fixtures / "llama_gqa", tmp_path / "packed", Quantization("nf4", block=32))
    model = pet.apply_lora(pet.AutoModel.from_pretrained(tmp_path / "packed"), rank=2)
    with pytest.raises(InputError, match=r"train\.restart_every: .*expected an unquantised base, packed while loading"):
        trainer(model, tmp_path / "run")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"adapter.method": "dora"}, "only LoRA|begins at zero"),
        ({"adapter.init": "olora"}, "begins at zero alone can begin anew"),
        ({"parallel.tensor": 2}, r"parallel\.data"),
        ({"parallel.data": 2, "parallel.shard_optimizer": True}, r"would have to be whole; use parallel\.data"),
        ({"train.restart_every": None, "train.restart_prune": 0.5}, r"has no effect without train\.restart_every"),
    ],
)
def test_recipes_that_ask_for_more_are_refused(settings, words):
    with pytest.raises(InputError, match=words):
        load(RECIPE, {"train.restart_every": 20, **settings})
