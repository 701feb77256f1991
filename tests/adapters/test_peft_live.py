"""Adapters exchanged with Hugging Face PEFT itself, both ways: the same files give the same logits."""

from __future__ import annotations

import copy
import os

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from peers import imported
from peft_pairs import CASES, GPT2, IDS, LIMIT, LLAMA, change_trained, randomise, settings, their_logits

import pet
from adapters.peft_config import WEIGHTS
from adapters.registry import registry
from model_zoo.checkpoint.safetensors_io import read_file
from model_zoo.engine import no_bf16
from pet.train.precision import set_precision
from pet.train.trainer import Trainer

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = peft = transformers = None
peers = imported(globals(), "torch", "peft", "transformers")
pytestmark = pytest.mark.usefixtures("quiet")

# PEFT's OLoRA does not turn GPT-2's transposed weights, and fails
RUNS = [("llama_gqa", name) for name in (*CASES, *LLAMA)]
RUNS += [("gpt2", name) for name in ("lora", "dora", "pissa", "pissa dora", *GPT2)] + [
    ("glm", name) for name in ("lora", "dora")
]


@pytest.mark.parametrize(("family", "name"), RUNS, ids=lambda value: value.replace(" ", "_"))
def test_ours_opens_in_peft(pairs, family, name, tmp_path):
    pair = pairs(family)
    bare = pair.our_logits()
    pet.apply_lora(pair.ours, **settings(family, name)[0])
    try:
        randomise(registry(pair.ours).get("default").parameters(), 1)
        expected = pair.our_logits()
        pet.save_adapter(pair.ours, tmp_path)
    finally:
        pet.delete_adapter(pair.ours, "default")
    opened = peft.PeftModel.from_pretrained(copy.deepcopy(pair.theirs), tmp_path).eval()
    assert np.abs(expected - bare).max() > 0.01
    np.testing.assert_allclose(their_logits(opened), expected, rtol=0, atol=LIMIT)


@pytest.mark.parametrize(("family", "name"), RUNS, ids=lambda value: value.replace(" ", "_"))
def test_theirs_opens_here_and_is_saved_byte_for_byte(pairs, family, name, tmp_path):
    pair = pairs(family)
    config = peft.LoraConfig(task_type="CAUSAL_LM", **settings(family, name)[1])
    made = peft.get_peft_model(copy.deepcopy(pair.theirs), config).eval()
    change_trained(made)
    made.save_pretrained(tmp_path / "theirs")
    # what PEFT itself makes of its files: a trained copy that it forgets to save is no difference of ours
    expected = their_logits(peft.PeftModel.from_pretrained(copy.deepcopy(pair.theirs), tmp_path / "theirs").eval())
    pet.load_adapter(pair.ours, tmp_path / "theirs")
    try:
        found = pair.our_logits()
        pet.save_adapter(pair.ours, tmp_path / "again")
    finally:
        pet.delete_adapter(pair.ours, "default")
    np.testing.assert_allclose(found, expected, rtol=0, atol=LIMIT)
    assert np.abs(found - pair.our_logits()).max() > 0.01
    first, again = (tmp_path / part / "adapter_model.safetensors" for part in ("theirs", "again"))
    assert first.read_bytes() == again.read_bytes()


# What PEFT passes over, or names in another way: its own files, in its own words.
THEIRS = {
    "absent target": {"target_modules": ["q_proj", "w_proj"]},
    "unmatched exclude": {"target_modules": ["q_proj"], "exclude_modules": ["w_proj"]},
    "unmatched patterns": {"target_modules": ["q_proj"], "rank_pattern": {"w": 2}, "alpha_pattern": {"w": 3}},
    "target saved whole": {"target_modules": ["q_proj", "lm_head"], "modules_to_save": ["lm_head"]},
    "block saved whole": {"target_modules": ["q_proj", "down_proj"], "modules_to_save": ["mlp"]},
    "absent saved": {"target_modules": ["q_proj"], "modules_to_save": ["score"]},
    "no layers": {"target_modules": ["q_proj"], "layers_to_transform": []},
    "layers beyond": {"target_modules": ["q_proj"], "layers_to_transform": [1, 99]},
    "whole paths outside of the layers": {
        "target_modules": ["v_proj", "model.layers.1.self_attn.q_proj", "lm_head"],
        "layers_to_transform": 0,
    },
    "names outside of the layers": {
        "target_modules": ["q_proj", "layers.0.self_attn.k_proj", "embed_tokens"],
        "layers_to_transform": [1],
    },
    "look-ahead": {"target_modules": r"^(?!.*layers\.1).*\.q_proj"},
    "tokens alone": {"token_indices": [5, 77]},
    "tokens of an embedding": {"token_indices": [5, 77], "target_modules": ["embed_tokens"]},
}


@pytest.mark.parametrize("family", ["llama_gqa", "gpt2"])
@pytest.mark.parametrize("name", THEIRS)
def test_what_peft_loads_loads_here(pairs, fixtures, family, name, tmp_path):
    if family == "gpt2" and name != "tokens alone":
        pytest.skip("GPT-2 is for the rows that a tied head uses too")
    pair, given = pairs(family), THEIRS[name]
    method = peft.TrainableTokensConfig if "token_indices" in given else peft.LoraConfig
    sizes = {} if "token_indices" in given else {"r": 4, "lora_alpha": 16}
    made = peft.get_peft_model(copy.deepcopy(pair.theirs), method(task_type="CAUSAL_LM", **sizes, **given)).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))
    made.save_pretrained(tmp_path / "theirs")
    expected = their_logits(made)
    bare = pair.our_logits()
    assert np.abs(expected - bare).max() > 0.01
    pet.load_adapter(pair.ours, tmp_path / "theirs")
    try:
        found = pair.our_logits()
        randomise(registry(pair.ours).get("default").parameters(), 4)
        trained = pair.our_logits()
        pet.save_adapter(pair.ours, tmp_path / "trained")
    finally:
        pet.delete_adapter(pair.ours, "default")
    np.testing.assert_allclose(found, expected, rtol=0, atol=LIMIT)
    names, written = (read_file(tmp_path / part / WEIGHTS).keys() for part in ("theirs", "trained"))
    assert set(written) == {name for name in names if not name.endswith(".base_layer.weight")}
    opened = peft.PeftModel.from_pretrained(copy.deepcopy(pair.theirs), tmp_path / "trained").eval()
    np.testing.assert_allclose(their_logits(opened), trained, rtol=0, atol=LIMIT)
    pet.merge_checkpoint(fixtures / family, tmp_path / "theirs", tmp_path / "merged")
    merged = pet.AutoModel.from_pretrained(tmp_path / "merged")
    np.testing.assert_allclose(merged(IDS).asnumpy(), expected, rtol=0, atol=LIMIT)


@pytest.mark.parametrize(
    ("entries", "written"),
    [
        (["down_proj", "mlp"], ["mlp"]),
        (["layers.0.mlp", "down_proj"], ["layers.0.mlp", *(f"model.layers.{i}.mlp.down_proj" for i in (1, 2))]),
    ],
)
def test_cells_trained_whole_within_one_another(pairs, entries, written, tmp_path):
    """PEFT finds no tensor of the inner one, in its own file either."""
    pair = pairs("llama_gqa")
    pet.apply_lora(pair.ours, rank=2, targets=["q_proj"], modules_to_save=entries)
    try:
        randomise(registry(pair.ours).get("default").parameters(), 1)
        pet.save_adapter(pair.ours, tmp_path)
        expected = pair.our_logits()
    finally:
        pet.delete_adapter(pair.ours, "default")
    opened = peft.PeftModel.from_pretrained(copy.deepcopy(pair.theirs), tmp_path).eval()
    assert opened.peft_config["default"].modules_to_save == written
    np.testing.assert_allclose(their_logits(opened), expected, rtol=0, atol=LIMIT)


@pytest.mark.skipif(bool(no_bf16()), reason="no bf16 products here")
@pytest.mark.parametrize("dora", [False, True])
def test_what_is_trained_in_bf16_is_the_same_adapter_in_float32(pairs, dora, tmp_path):
    """bf16 is of the products alone: weights, and DoRA's norms, are float32's, so that in float32 files agree."""
    pair = pairs("llama_gqa")
    pet.apply_lora(pair.ours, rank=4, targets="all-linear", use_dora=dora)
    try:
        batch = {"input_ids": IDS.tolist(), "labels": IDS.tolist()}
        how = {"learning_rate": 2e-2, "warmup": 0, "schedule": "constant", "precision": "bf16"}
        Trainer(pair.ours, [batch] * 5, steps=5, **how).train()
        pet.save_adapter(pair.ours, tmp_path)
        narrow = pair.our_logits()
        set_precision(pair.ours, "fp32")
        expected = pair.our_logits()
    finally:
        pet.delete_adapter(pair.ours, "default")
        set_precision(pair.ours, "fp32")
    opened = peft.PeftModel.from_pretrained(copy.deepcopy(pair.theirs), tmp_path).eval()
    theirs = their_logits(opened)
    np.testing.assert_allclose(theirs, expected, rtol=0, atol=2e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = their_logits(opened)
    assert 1e-3 < np.abs(narrow - theirs).max() < 1.5 * np.abs(rounded - theirs).max()


def test_patterns_keep_their_order_through_peft(pairs, tmp_path):
    """PEFT takes the first match as we do, and sorts the keys when it saves."""
    pair, patterns = pairs("llama_gqa"), {"layers.1.self_attn.q_proj": 5, "q_proj": 3, ".*layers.[12].*": 4}
    pet.apply_lora(pair.ours, rank=2, targets=["q_proj", "v_proj"], rank_pattern=patterns, alpha_pattern=patterns)
    try:
        randomise(registry(pair.ours).get("default").parameters(), 1)
        expected = pair.our_logits()
        pet.save_adapter(pair.ours, tmp_path / "ours")
    finally:
        pet.delete_adapter(pair.ours, "default")
    opened = peft.PeftModel.from_pretrained(copy.deepcopy(pair.theirs), tmp_path / "ours").eval()
    np.testing.assert_allclose(their_logits(opened), expected, rtol=0, atol=LIMIT)
    opened.save_pretrained(tmp_path / "theirs")
    again = peft.PeftModel.from_pretrained(copy.deepcopy(pair.theirs), tmp_path / "theirs").eval()
    np.testing.assert_allclose(their_logits(again), expected, rtol=0, atol=LIMIT)
    pet.load_adapter(pair.ours, tmp_path / "theirs")
    try:
        np.testing.assert_allclose(pair.our_logits(), expected, rtol=0, atol=LIMIT)
    finally:
        pet.delete_adapter(pair.ours, "default")


class OurPictures(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(120, 4)
        self.line = nn.Conv1d(4, 6, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.plane = nn.Conv2d(2, 3, (3, 2), pad_mode="valid", has_bias=True)
        self.last = nn.Dense(2, 4, has_bias=False)

    def construct(self, ids):
        x = self.line(self.embed(ids).transpose(0, 2, 1))  # (B, 6, S / 2)
        return self.last(self.plane(x.reshape(x.shape[0], 2, 3, -1)).reshape(x.shape[0], -1, 2))


def their_pictures():
    """The same as `OurPictures`."""

    class TheirPictures(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(120, 4)
            self.line = torch.nn.Conv1d(4, 6, 3, stride=2, padding=1)
            self.plane = torch.nn.Conv2d(2, 3, (3, 2))
            self.last = torch.nn.Linear(2, 4, bias=False)

        def forward(self, ids):
            x = self.line(self.embed(ids).transpose(1, 2))
            return self.last(self.plane(x.reshape(x.shape[0], 2, 3, -1)).reshape(x.shape[0], -1, 2))

    return TheirPictures().eval()


@pytest.mark.parametrize("dora", [False, True])
def test_embeddings_and_convolutions_of_ones_own(dora, tmp_path):
    ours, theirs = OurPictures(), their_pictures()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            cell = getattr(ours, name.split(".")[0])
            own = (
                cell.bias if name.endswith("bias") else getattr(cell, "weight", getattr(cell, "embedding_table", None))
            )
            ops.assign(own, ms.Tensor(parameter.numpy().reshape(own.shape)))
    targets, ids = ["embed", "line", "plane", "last"], IDS[:, :6]
    given = ms.Tensor(ids.astype(np.int32))

    def forward(model):
        with torch.no_grad():
            return model(torch.tensor(ids)).numpy()

    np.testing.assert_allclose(ours(given).asnumpy(), forward(theirs), atol=1e-5)
    pet.apply_lora(ours, rank=2, targets=targets, use_dora=dora)
    randomise(registry(ours).get("default").parameters(), 1)
    expected = ours(given).asnumpy()
    pet.save_adapter(ours, tmp_path / "ours")
    pet.delete_adapter(ours, "default")
    opened = peft.PeftModel.from_pretrained(copy.deepcopy(theirs), tmp_path / "ours").eval()
    np.testing.assert_allclose(forward(opened), expected, rtol=0, atol=LIMIT)
    config = peft.LoraConfig(r=2, lora_alpha=16, target_modules=targets, use_dora=dora)
    made = peft.get_peft_model(copy.deepcopy(theirs), config).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape)
    made.save_pretrained(tmp_path / "theirs")
    pet.load_adapter(ours, tmp_path / "theirs")
    assert np.abs(forward(made) - forward(theirs)).max() > 0.01
    np.testing.assert_allclose(ours(given).asnumpy(), forward(made), rtol=0, atol=LIMIT)
