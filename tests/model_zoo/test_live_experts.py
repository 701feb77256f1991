"""LoRA on experts, exchanged with transformers and PEFT themselves."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest
from mindspore import Tensor
from peers import imported, random_second_factors
from published_models import LIMIT, QWEN3_MOE, logits_of, random_model

import pet
from model_zoo.auto import AutoModel
from pet.export import merge_checkpoint

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = peft = transformers = None
peers = imported(globals(), "torch", "peft", "transformers")


def test_lora_on_experts_merges_into_what_transformers_opens(tmp_path, prompts):
    random_model(QWEN3_MOE, tmp_path)
    model = AutoModel.from_pretrained(tmp_path)
    pet.apply_lora(model, rank=2, targets=["gate_proj", "up_proj", "down_proj"])
    generator = np.random.default_rng(4)
    for parameter in model.trainable_params():
        if ".lora_B." in parameter.name:
            parameter.set_data(Tensor(generator.standard_normal(parameter.shape).astype(np.float32) * np.float32(0.2)))
    ids, mask = prompts
    expected = model(ids).asnumpy()
    pet.save_adapter(model, tmp_path / "adapter")
    pet.merge(model)
    assert np.abs(model(ids).asnumpy() - expected).max() < LIMIT
    model.save_pretrained(tmp_path / "merged")
    peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged", attn_implementation="eager").eval()
    assert np.abs(logits_of(peer, ids, np.ones_like(mask)) - expected).max() < LIMIT
    again = AutoModel.from_pretrained(tmp_path)
    assert np.abs(again(ids).asnumpy() - expected).max() > 0.01
    pet.load_adapter(again, tmp_path / "adapter")
    assert np.abs(again(ids).asnumpy() - expected).max() < 1e-5


BOTH = ["experts.gate_up_proj", "experts.down_proj"]
STACKED = {
    "both": {"target_parameters": BOTH, "target_modules": ["q_proj", "o_proj"]},
    "gate-up": {"target_parameters": BOTH[:1], "target_modules": []},
    "down-rslora": {"target_parameters": BOTH[1:], "target_modules": ["v_proj"], "use_rslora": True},
    "rslora": {"target_parameters": BOTH, "target_modules": ["v_proj"], "use_rslora": True},
    "all-linear": {"target_modules": "all-linear"},
    "router": {"target_parameters": [*BOTH, "mlp.gate.weight"], "target_modules": r".*layers\.1.*\.k_proj"},
    "layer-0": {"target_parameters": BOTH, "target_modules": ["q_proj"], "layers_to_transform": 0},
    "one-layer": {"target_parameters": [f"layers.1.mlp.{name}" for name in BOTH], "target_modules": ["k_proj"]},
    "patterns": {
        "target_parameters": BOTH,
        "target_modules": ["q_proj", "k_proj"],
        "rank_pattern": {"experts.gate_up_proj": 4, "q_proj": 2},
        "alpha_pattern": {r"layers\.\d+\.mlp\.experts\.down_proj": 5},
    },
}


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    directory = tmp_path_factory.mktemp("experts")
    return random_model(QWEN3_MOE, directory), directory


def fresh(directory):
    return transformers.AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager").eval()


def opened_by_peft(directory, adapter, ids, mask, partly=False):
    """Logits of an adapter in PEFT, which has found a tensor for each of its own, or of some layers' alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", FutureWarning)  # what PEFT calls in transformers is going to go
        if partly:
            warnings.filterwarnings("ignore", "Found missing adapter keys")
        warnings.filterwarnings("ignore", "The following (rank|alpha)_pattern keys")  # it looks at modules only
        return logits_of(peft.PeftModel.from_pretrained(fresh(directory), adapter), ids, mask)


@pytest.mark.parametrize("name", STACKED)
def test_lora_on_stacked_experts_goes_both_ways(experts, prompts, tmp_path, name):
    """As PEFT writes it, on disk and in memory; as it is saved here, unchanged and changed."""
    peer, directory = experts
    ids, mask = prompts
    theirs = peft.get_peft_model(fresh(directory), peft.LoraConfig(r=3, lora_alpha=7, **STACKED[name]))
    random_second_factors(theirs, 0.2)
    expected = logits_of(theirs, ids, mask)
    assert np.abs(logits_of(peer, ids, mask) - expected).max() > 0.05
    theirs.save_pretrained(tmp_path / "theirs")
    mine = AutoModel.from_pretrained(directory)
    pet.load_adapter(mine, tmp_path / "theirs")
    assert np.abs(mine(ids, mask).asnumpy() - expected)[mask == 1].max() < LIMIT
    merge_checkpoint(directory, tmp_path / "theirs", tmp_path / "merged")
    merged = AutoModel.from_pretrained(tmp_path / "merged")
    assert np.abs(merged(ids, mask).asnumpy() - expected)[mask == 1].max() < LIMIT
    if name == "gate-up":
        return  # PEFT takes the matrices' factors for gate_up_proj's where down_proj is adapted, too
    pet.save_adapter(mine, tmp_path / "unchanged")
    partly = name == "one-layer"
    assert (
        np.abs(opened_by_peft(directory, tmp_path / "unchanged", ids, mask, partly) - expected)[mask == 1].max() < 1e-5
    )
    for parameter in mine.trainable_params():
        parameter.set_data(Tensor(parameter.asnumpy() * np.float32(1.25)))
    pet.save_adapter(mine, tmp_path / "trained")
    found = opened_by_peft(directory, tmp_path / "trained", ids, mask, partly)
    assert np.abs(found - mine(ids, mask).asnumpy())[mask == 1].max() < LIMIT
    assert np.abs(found - expected)[mask == 1].max() > 0.01


@pytest.mark.parametrize("rank", [{"rank": 2}, {"rank": 2, "use_rslora": True}, {"rank": 2, "init": "pissa"}])
def test_lora_on_the_matrices_of_experts_goes_to_peft_and_back(experts, prompts, tmp_path, rank):
    _, directory = experts
    ids, mask = prompts
    mine = AutoModel.from_pretrained(directory)
    pet.apply_lora(mine, **rank, alpha=5, targets=["gate_proj", "up_proj", "down_proj", "q_proj"])
    generator = np.random.default_rng(4)
    for parameter in mine.trainable_params():
        change = generator.standard_normal(parameter.shape).astype(np.float32) * np.float32(0.1)
        parameter.set_data(Tensor(parameter.asnumpy() + change))
    expected = mine(ids, mask).asnumpy()
    pet.save_adapter(mine, tmp_path / "mine")
    assert np.abs(opened_by_peft(directory, tmp_path / "mine", ids, mask) - expected)[mask == 1].max() < LIMIT
    peft.PeftModel.from_pretrained(fresh(directory), tmp_path / "mine").save_pretrained(tmp_path / "theirs")
    again = AutoModel.from_pretrained(directory)
    pet.load_adapter(again, tmp_path / "theirs")
    assert np.abs(again(ids, mask).asnumpy() - expected)[mask == 1].max() < LIMIT
