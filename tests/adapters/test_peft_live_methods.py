"""Methods of PEFT that are not here."""

from __future__ import annotations

import copy
import os

import numpy as np
import pytest
from peers import imported
from peft_pairs import IDS, LIMIT, change_trained, their_logits

import pet
from adapters.adalora import ADALORA
from adapters.methods import BY_PEFT_TYPE
from adapters.peft_others import WAYS
from model_zoo.errors import InputError

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = peft = transformers = None
peers = imported(globals(), "torch", "peft", "transformers")
pytestmark = pytest.mark.usefixtures("quiet")


def deltas(model) -> dict[str, np.ndarray]:
    """What a model of PEFT's adds to each weight."""
    with torch.no_grad():
        cells = {name: cell for name, cell in model.named_modules() if hasattr(cell, "get_delta_weight")}
        return {name: cell.get_delta_weight("default").numpy() for name, cell in cells.items()}


@pytest.mark.parametrize(("family", "init_r", "target"), [("gpt2", 6, "c_attn"), ("llama_gqa", 4, "q_proj")])
def test_adalora_opens_as_the_lora_that_it_is(pairs, family, init_r, target, tmp_path):
    pair = pairs(family)
    config = peft.AdaLoraConfig(
        task_type="CAUSAL_LM", init_r=init_r, total_step=9, lora_alpha=20, target_modules=[target]
    )
    made = peft.get_peft_model(copy.deepcopy(pair.theirs), config).eval()
    change_trained(made)
    if family != "gpt2":  # budgets as its allocator leaves them: fewer ranks, and none
        names = [name for name, _ in made.named_parameters() if "lora_E" in name]
        kept = [[True, False, True, True], [False] * 4, *[[True] * 4] * len(names)]
        pattern = {name.removeprefix("base_model.model."): rank for name, rank in zip(names, kept, strict=False)}
        made.peft_config["default"].rank_pattern = pattern
    made.save_pretrained(tmp_path / "own")
    theirs = peft.PeftModel.from_pretrained(copy.deepcopy(pair.theirs), tmp_path / "own").eval()
    pet.load_adapter(pair.ours, tmp_path / "own")
    try:
        found = pair.our_logits()
        pet.save_adapter(pair.ours, tmp_path / "lora")
    finally:
        pet.delete_adapter(pair.ours, "default")
    np.testing.assert_allclose(found, their_logits(theirs), rtol=0, atol=LIMIT)
    assert np.abs(found - pair.our_logits()).max() > 0.01
    again = peft.PeftModel.from_pretrained(copy.deepcopy(pair.theirs), tmp_path / "lora").eval()
    np.testing.assert_allclose(found, their_logits(again), rtol=0, atol=LIMIT)
    ours, right = deltas(again), deltas(theirs)
    assert ours and ours.keys() <= right.keys()
    for name, delta in right.items():  # a cell that has no rank left is none of ours
        np.testing.assert_allclose(ours.get(name, 0.0 * delta), delta, rtol=0, atol=1e-6, err_msg=name)
    pet.merge_checkpoint(pair.theirs.config._name_or_path, tmp_path / "own", tmp_path / "merged")
    whole = pet.AutoModel.from_pretrained(tmp_path / "merged")
    np.testing.assert_allclose(whole(IDS).asnumpy(), found, rtol=0, atol=1e-5)


ELSEWHERE = {"C3A": {"block_size": 16}, "LOHA": {"r": 4}, "VERA": {"r": 8, "projection_prng_key": 1}}


@pytest.mark.parametrize("kind", ELSEWHERE)
def test_a_method_that_is_not_here_opens_as_the_lora_that_peft_makes_of_it(pairs, kind, tmp_path):
    from peft.tuners.lora import conversion

    pair = pairs("llama_gqa")
    config = {"peft_type": kind, "task_type": "CAUSAL_LM", "target_modules": ["q_proj"], **ELSEWHERE[kind]}
    made = peft.get_peft_model(copy.deepcopy(pair.theirs), peft.get_peft_config(config)).eval()
    change_trained(made)
    made.save_pretrained(tmp_path / "own")
    with pytest.raises(InputError, match=r"save_as_lora.* makes a LoRA adapter of it, which opens here"):
        pet.load_adapter(pair.ours, tmp_path / "own")
    conversion.save_as_lora(tmp_path / "lora", made, rank=1.0)
    pet.load_adapter(pair.ours, tmp_path / "lora")
    try:
        found = pair.our_logits()
    finally:
        pet.delete_adapter(pair.ours, "default")
    np.testing.assert_allclose(found, their_logits(made), rtol=0, atol=LIMIT)
    assert np.abs(found - pair.our_logits()).max() > 0.01


def test_a_way_is_said_for_each_method_of_peft_that_is_not_here():
    assert set(WAYS) == set(peft.PeftType) - set(BY_PEFT_TYPE) - {ADALORA}
