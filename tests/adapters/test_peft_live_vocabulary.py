"""Embeddings and heads beside adapters, exchanged with PEFT itself."""

from __future__ import annotations

import copy
import os

import numpy as np
import pytest
from peers import imported
from peft_pairs import DEFAULTS, IDS, LIMIT, change_trained, their_logits

import pet
from adapters.registry import registry
from model_zoo.errors import InputError

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = peft = transformers = None
peers = imported(globals(), "torch", "peft", "transformers")
pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.parametrize("kind", ["PromptTuningConfig", "PrefixTuningConfig"])
@pytest.mark.parametrize("changed", [False, True])
def test_embedding_and_head_that_peft_saves_beside_a_prompt(pairs, kind, changed, tmp_path):
    """They are the base's: PEFT puts them into it, which changes it where they are others."""
    pair = pairs("llama_gqa")
    made = peft.get_peft_model(
        copy.deepcopy(pair.theirs), getattr(peft, kind)(task_type="CAUSAL_LM", num_virtual_tokens=3)
    )
    with torch.no_grad():
        made.base_model.lm_head.weight += 0.1 * changed
    made.save_pretrained(tmp_path, save_embedding_layers=True)
    if changed:
        with pytest.raises(InputError, match=r"base_model\.lm_head\.weight is not this model's.*save_embedding_layers"):
            pet.load_adapter(pair.ours, tmp_path)
        return
    opened = peft.PeftModel.from_pretrained(copy.deepcopy(pair.theirs), tmp_path).eval()
    pet.load_adapter(pair.ours, tmp_path)
    try:
        found = pair.our_logits()
    finally:
        pet.delete_adapter(pair.ours, "default")
    np.testing.assert_allclose(found, their_logits(opened)[:, -found.shape[1] :], rtol=0, atol=LIMIT)


@pytest.mark.parametrize("family", ["llama_gqa", "gpt2"])
@pytest.mark.parametrize("kind", ["as the base's", "changed", "trained too"])
def test_embedding_and_head_that_peft_saves_beside_the_factors(pairs, fixtures, family, kind, tmp_path):
    """PEFT does so (``save_embedding_layers``) where the vocabulary was extended."""
    pair = pairs(family)
    table = "wte" if family == "gpt2" else "embed_tokens"
    config = peft.LoraConfig(
        r=2, target_modules=DEFAULTS[family], modules_to_save=[table, "lm_head"] if kind == "trained too" else None
    )
    made = peft.get_peft_model(copy.deepcopy(pair.theirs), config)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if parameter.requires_grad or (kind == "changed" and (table in name or "lm_head" in name)):
                parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    made.save_pretrained(tmp_path / "theirs", save_embedding_layers=True)
    opened = peft.PeftModel.from_pretrained(copy.deepcopy(pair.theirs), tmp_path / "theirs").eval()
    expected, bare = their_logits(opened), pair.our_logits()
    pet.load_adapter(pair.ours, tmp_path / "theirs")
    try:
        found, whole = pair.our_logits(), len(registry(pair.ours).get("default").replaced)
        pet.save_adapter(pair.ours, tmp_path / "again")
    finally:
        pet.delete_adapter(pair.ours, "default")
    np.testing.assert_allclose(found, expected, rtol=0, atol=LIMIT)
    np.testing.assert_array_equal(pair.our_logits(), bare)
    assert whole == (0 if kind == "as the base's" else 2)
    opened = peft.PeftModel.from_pretrained(copy.deepcopy(pair.theirs), tmp_path / "again").eval()
    np.testing.assert_allclose(their_logits(opened), expected, rtol=0, atol=LIMIT)
    pet.merge_checkpoint(fixtures / family, tmp_path / "theirs", tmp_path / "merged")
    np.testing.assert_allclose(
        pet.AutoModel.from_pretrained(tmp_path / "merged")(IDS).asnumpy(), expected, rtol=0, atol=LIMIT
    )


@pytest.mark.parametrize(
    "family, method, settings",
    [
        ("llama_gqa", "LoraConfig", {"r": 2, "trainable_token_indices": [5, 77]}),
        ("gpt2", "LoraConfig", {"r": 2, "trainable_token_indices": [5, 77]}),
        ("gpt2", "LoraConfig", {"r": 2, "ensure_weight_tying": True}),
        ("gpt2", "TrainableTokensConfig", {"token_indices": [5, 77], "target_modules": ["wte"]}),
        ("llama_gqa", "TrainableTokensConfig", {"token_indices": [5, 77], "target_modules": ["lm_head"]}),
        ("qwen3_moe", "LoraConfig", {"r": 2, "target_modules": "all-linear", "modules_to_save": ["lm_head"]}),
    ],
)
def test_the_base_s_own_embedding_and_head_are_left_out_of_any_file(
    pairs, fixtures, family, method, settings, tmp_path
):
    """Beside rows of tokens too, of which a tied head has a copy, and beside stacked experts."""
    pair = pairs(family)
    ids = IDS % pair.ours.config.vocab_size
    made = peft.get_peft_model(copy.deepcopy(pair.theirs), getattr(peft, method)(task_type="CAUSAL_LM", **settings))
    change_trained(made)
    made.save_pretrained(tmp_path / "theirs", save_embedding_layers=True)
    expected = their_logits(peft.PeftModel.from_pretrained(copy.deepcopy(pair.theirs), tmp_path / "theirs").eval(), ids)
    pet.load_adapter(pair.ours, tmp_path / "theirs")
    try:
        np.testing.assert_allclose(pair.ours(ids).asnumpy(), expected, rtol=0, atol=LIMIT)
    finally:
        pet.delete_adapter(pair.ours, "default")
    pet.merge_checkpoint(fixtures / family, tmp_path / "theirs", tmp_path / "merged")
    merged = pet.AutoModel.from_pretrained(tmp_path / "merged")
    np.testing.assert_allclose(merged(ids).asnumpy(), expected, rtol=0, atol=LIMIT)


@pytest.mark.parametrize(
    "family, settings, shared",
    [
        ("gpt2", {}, False),
        ("gpt2", {"trainable_token_indices": [3, 5]}, False),
        ("gpt2", {"modules_to_save": ["lm_head"]}, True),
        ("llama_gqa", {"modules_to_save": ["lm_head"]}, False),  # whose head is not tied
    ],
)
def test_tying_is_refused_where_embedding_and_head_share_an_adapter_alone(
    pairs, fixtures, family, settings, shared, tmp_path
):
    pair = pairs(family)
    config = peft.LoraConfig(r=2, target_modules=DEFAULTS[family], ensure_weight_tying=True, **settings)
    made = peft.get_peft_model(copy.deepcopy(pair.theirs), config)
    change_trained(made)
    made.save_pretrained(tmp_path / "theirs")
    expected = their_logits(peft.PeftModel.from_pretrained(copy.deepcopy(pair.theirs), tmp_path / "theirs").eval())
    if shared:
        with pytest.raises(InputError, match="ensure_weight_tying: lm_head and the embedding share"):
            pet.load_adapter(pair.ours, tmp_path / "theirs")
    else:
        pet.load_adapter(pair.ours, tmp_path / "theirs")
        try:
            np.testing.assert_allclose(pair.our_logits(), expected, rtol=0, atol=LIMIT)
        finally:
            pet.delete_adapter(pair.ours, "default")
    assert pet.merge_checkpoint(fixtures / family, tmp_path / "theirs", tmp_path / "merged").untied is None
    merged = pet.AutoModel.from_pretrained(tmp_path / "merged")
    np.testing.assert_allclose(merged(IDS).asnumpy(), expected, rtol=0, atol=LIMIT)


GROWN = {
    "embedding and head trained": ("llama_gqa", {"modules_to_save": ["embed_tokens", "lm_head"]}),
    "neither": ("llama_gqa", {}),
    "neither, the head tied": ("gpt2", {}),
    "new rows trained": ("llama_gqa", {"trainable_token_indices": [5, 129]}),
    "new rows of a tied head": ("gpt2", {"trainable_token_indices": [5, 129]}),
    "factors": ("llama_gqa", {"target_modules": ["q_proj", "embed_tokens", "lm_head"]}),
    "factors beside a tied head": ("gpt2", {"target_modules": ["c_attn", "wte"]}),
}


@pytest.mark.parametrize("name", GROWN)
def test_an_extended_vocabulary_is_merged_on_disk(pairs, fixtures, name, tmp_path):
    family, settings = GROWN[name]
    pair, longer = pairs(family), copy.deepcopy(pairs(family).theirs)
    longer.resize_token_embeddings(131, mean_resizing=False)
    made = peft.get_peft_model(
        longer, peft.LoraConfig(**{"r": 2, "target_modules": DEFAULTS[family], "task_type": "CAUSAL_LM", **settings})
    )
    change_trained(made)
    made.save_pretrained(tmp_path / "theirs", save_embedding_layers=True)
    with pytest.raises(InputError, match="vocabulary has 131 tokens, the base's 128: pet merge makes one checkpoint"):
        pet.load_adapter(pair.ours, tmp_path / "theirs")
    tokenizer = pet.AutoTokenizer.from_pretrained(fixtures / "tok_gpt2")
    tokenizer.with_chat_template("Q: {{ messages[0].content }}", "own").save_pretrained(tmp_path / "theirs")
    report = pet.merge_checkpoint(fixtures / family, tmp_path / "theirs", tmp_path / "merged")
    assert (report.untied is None) == (name != "factors beside a tied head")
    ids = np.concatenate([IDS, np.tile([128, 129, 130], (len(IDS), 1))], 1)
    with torch.no_grad():
        expected = made.eval()(torch.tensor(ids)).logits.numpy()
    merged = pet.AutoModel.from_pretrained(tmp_path / "merged")
    np.testing.assert_allclose(merged(ids).asnumpy(), expected, rtol=0, atol=LIMIT)
    assert (tmp_path / "merged/vocab.json").read_bytes() == (tmp_path / "theirs/vocab.json").read_bytes()


def test_an_extended_vocabulary_is_named_where_the_file_lacks_a_part(pairs, fixtures, tmp_path):
    longer = copy.deepcopy(pairs("llama_gqa").theirs)
    longer.resize_token_embeddings(131, mean_resizing=False)
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"])
    peft.get_peft_model(longer, config).save_pretrained(tmp_path / "theirs", save_embedding_layers=False)
    with pytest.raises(InputError, match="has 131 tokens, the base's 128: it has no rows for them in both"):
        pet.merge_checkpoint(fixtures / "llama_gqa", tmp_path / "theirs", tmp_path / "merged")


def test_rows_of_a_tied_head_other_than_the_embeddings_are_refused(pairs, fixtures, tmp_path):
    """By loading and by merging on disk alike: one table cannot have both."""
    pair, rows = pairs("gpt2"), {"wte": [4], "lm_head": [3, 5]}
    config = peft.LoraConfig(r=2, target_modules=["c_attn"], trainable_token_indices=rows, task_type="CAUSAL_LM")
    peft.get_peft_model(copy.deepcopy(pair.theirs), config).save_pretrained(tmp_path / "theirs")
    with pytest.raises(InputError, match=r"lm_head shares transformer.wte.* same ids"):
        pet.load_adapter(pair.ours, tmp_path / "theirs")
    with pytest.raises(InputError, match=r"lm_head shares transformer.wte.* same ids"):
        pet.merge_checkpoint(fixtures / "gpt2", tmp_path / "theirs", tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize("rows", [[3, 5], {"wte": [3, 5]}], ids=str)
def test_rows_of_a_tied_head_that_is_a_target_too_are_merged_on_disk_alone(pairs, fixtures, rows, tmp_path):
    """PEFT puts LoRA around the head with the trained rows; in a model here one of the two would be lost."""
    pair, targets = pairs("gpt2"), ["c_attn", "lm_head"]
    config = peft.LoraConfig(r=2, target_modules=targets, trainable_token_indices=rows, task_type="CAUSAL_LM")
    made = peft.get_peft_model(copy.deepcopy(pair.theirs), config).eval()
    change_trained(made)
    made.save_pretrained(tmp_path / "theirs")
    said = r"lm_head has transformer\.wte's weight, so these rows too, and is a target"
    with pytest.raises(InputError, match=said):
        pet.load_adapter(pair.ours, tmp_path / "theirs")
    with pytest.raises(InputError, match=said):
        pet.apply_lora(pair.ours, rank=2, targets=targets, trainable_tokens=rows)
    pet.merge_checkpoint(fixtures / "gpt2", tmp_path / "theirs", tmp_path / "merged")
    merged = pet.AutoModel.from_pretrained(tmp_path / "merged")
    np.testing.assert_allclose(merged(IDS).asnumpy(), their_logits(made), rtol=0, atol=LIMIT)
