"""Adapters exchanged with Hugging Face PEFT itself, both ways: the same files give the same logits."""

from __future__ import annotations

import copy
import os
import warnings

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from peers import imported

import pet
from adapters.adalora import ADALORA
from adapters.methods import BY_PEFT_TYPE
from adapters.peft_config import WEIGHTS
from adapters.peft_others import WAYS
from adapters.registry import registry
from model_zoo.checkpoint.safetensors_io import read_file
from model_zoo.engine import no_bf16
from model_zoo.errors import InputError
from pet.train.precision import set_precision
from pet.train.trainer import Trainer

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = peft = transformers = None
peers = imported(globals(), "torch", "peft", "transformers")
IDS = np.random.default_rng(0).integers(3, 120, (2, 9))
LIMIT = 1e-4

# ours, and the same in PEFT's words
CASES = {
    "lora": ({"rank": 4}, {"r": 4, "lora_alpha": 16}),
    "rslora": ({"rank": 4, "use_rslora": True}, {"r": 4, "lora_alpha": 16, "use_rslora": True}),
    "dora": ({"rank": 4, "use_dora": True}, {"r": 4, "lora_alpha": 16, "use_dora": True}),
    "pissa": ({"rank": 4, "init": "pissa"}, {"r": 4, "lora_alpha": 16, "init_lora_weights": "pissa"}),
    "olora": ({"rank": 4, "init": "olora"}, {"r": 4, "lora_alpha": 16, "init_lora_weights": "olora"}),
    "pissa dora": (
        {"rank": 4, "init": "pissa", "use_dora": True},
        {"r": 4, "lora_alpha": 16, "init_lora_weights": "pissa", "use_dora": True},
    ),
    "olora dora": (
        {"rank": 4, "init": "olora", "use_dora": True},
        {"r": 4, "lora_alpha": 16, "init_lora_weights": "OLoRA", "use_dora": True},
    ),
}
LLAMA = {
    "patterns": (
        {
            "targets": ["q_proj", "down_proj"],
            "rank_pattern": {"down_proj": 2, "1.*q_proj": 3},
            "alpha_pattern": {"q_proj": 5},
        },
        {
            "target_modules": ["q_proj", "down_proj"],
            "rank_pattern": {"down_proj": 2, "1.*q_proj": 3},
            "alpha_pattern": {"q_proj": 5},
            "r": 8,
            "lora_alpha": 16,
        },
    ),
    "whole": (
        {"rank": 2, "modules_to_save": ["lm_head", "norm"]},
        {"r": 2, "lora_alpha": 16, "modules_to_save": ["lm_head", "norm"]},
    ),
    "embedding": (
        {"rank": 2, "targets": ["embed_tokens"]},
        {"r": 2, "lora_alpha": 16, "target_modules": ["embed_tokens"]},
    ),
    "embedding dora": (
        {"rank": 2, "targets": ["embed_tokens"], "use_dora": True},
        {"r": 2, "lora_alpha": 16, "target_modules": ["embed_tokens"], "use_dora": True},
    ),
    "pissa beside an embedding": (
        {"rank": 3, "targets": ["q_proj", "embed_tokens"], "init": "pissa", "rank_pattern": {"embed_tokens": 2}},
        {
            "r": 3,
            "lora_alpha": 16,
            "target_modules": ["q_proj", "embed_tokens"],
            "init_lora_weights": "pissa",
            "rank_pattern": {"embed_tokens": 2},
        },
    ),
    "olora dora beside an embedding": (
        {"rank": 2, "targets": ["q_proj", "embed_tokens"], "init": "olora", "use_dora": True, "use_rslora": True},
        {
            "r": 2,
            "lora_alpha": 16,
            "target_modules": ["q_proj", "embed_tokens"],
            "init_lora_weights": "olora",
            "use_dora": True,
            "use_rslora": True,
        },
    ),
    "regex": (
        {"rank": 2, "targets": [r"re:model\.layers\.[12]\.self_attn\.[qo]_proj"]},
        {"r": 2, "lora_alpha": 16, "target_modules": r"model\.layers\.[12]\.self_attn\.[qo]_proj"},
    ),
    "regex that sweeps": (
        {"rank": 2, "targets": [r"re:model\.layers\.[12]\..*"]},
        {"r": 2, "lora_alpha": 16, "target_modules": "all-linear", "exclude_modules": r"model\.layers\.0\..*"},
    ),
    "layers": (
        {"rank": 2, "targets": ["q_proj"], "layers": ["1-2"]},
        {"r": 2, "lora_alpha": 16, "target_modules": ["q_proj"], "layers_to_transform": [1, 2]},
    ),
    "tokens": (
        {"rank": 2, "trainable_tokens": [5, 77]},
        {"r": 2, "lora_alpha": 16, "trainable_token_indices": [5, 77]},
    ),
}
GPT2 = {
    "bias of the targets": ({"rank": 2, "bias": "lora_only"}, {"r": 2, "lora_alpha": 16, "bias": "lora_only"}),
    "all biases": ({"rank": 2, "bias": "all"}, {"r": 2, "lora_alpha": 16, "bias": "all"}),
    "tied tokens": (
        {"rank": 2, "trainable_tokens": {"wte": [5, 77]}},
        {"r": 2, "lora_alpha": 16, "trainable_token_indices": {"wte": [5, 77]}},
    ),
    "tied whole head": (
        {"rank": 2, "modules_to_save": ["lm_head"]},
        {"r": 2, "lora_alpha": 16, "modules_to_save": ["lm_head"]},
    ),
    "tied embedding": ({"rank": 2, "targets": ["wte"]}, {"r": 2, "lora_alpha": 16, "target_modules": ["wte"]}),
    "tied head": ({"rank": 2, "targets": ["lm_head"]}, {"r": 2, "lora_alpha": 16, "target_modules": ["lm_head"]}),
}
DEFAULTS = {"gpt2": ["c_attn"], "llama_gqa": ["q_proj", "v_proj"], "glm": ["q_proj", "v_proj"]}
# PEFT's OLoRA does not turn GPT-2's transposed weights, and fails
RUNS = [("llama_gqa", name) for name in (*CASES, *LLAMA)]
RUNS += [("gpt2", name) for name in ("lora", "dora", "pissa", "pissa dora", *GPT2)] + [
    ("glm", name) for name in ("lora", "dora")
]


def settings(family, name):
    ours, theirs = {**CASES, **LLAMA, **GPT2}[name]
    return {"targets": DEFAULTS[family], **ours}, {"target_modules": DEFAULTS[family], **theirs}


class Pair:
    """One base in both libraries."""

    def __init__(self, path):
        self.ours = pet.AutoModel.from_pretrained(path)
        self.theirs = transformers.AutoModelForCausalLM.from_pretrained(path).eval()

    def our_logits(self):
        return self.ours(IDS).asnumpy()


@pytest.fixture(scope="module")
def pairs(fixtures):
    made = {}

    def pair(family):
        if family not in made:
            made[family] = Pair(fixtures / family)
        return made[family]

    return pair


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def change_trained(made) -> None:
    """As training would: no weight is what it began as."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn(parameter.shape, generator=generator)


def their_logits(model, ids=IDS):
    with torch.no_grad():
        return model(torch.tensor(ids)).logits.float().numpy()


def deltas(model) -> dict[str, np.ndarray]:
    """What a model of PEFT's adds to each weight."""
    with torch.no_grad():
        cells = {name: cell for name, cell in model.named_modules() if hasattr(cell, "get_delta_weight")}
        return {name: cell.get_delta_weight("default").numpy() for name, cell in cells.items()}


def randomise(parameters, seed):
    generator = np.random.default_rng(seed)
    for parameter in parameters:
        value = parameter.asnumpy()
        ops.assign(parameter, ms.Tensor((value + 0.05 * generator.standard_normal(value.shape)).astype(np.float32)))


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


# The states of several adapters -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two(pairs, tmp_path_factory):
    """One base with the adapters ``a`` (LoRA) and ``b`` (rsLoRA) in both libraries, neither of them active here."""
    pair, directory = pairs("llama_gqa"), tmp_path_factory.mktemp("two")
    for seed, (name, settings) in enumerate({"a": {}, "b": {"use_rslora": True}}.items()):
        pet.add_adapter(pair.ours, pet.LoRAConfig(rank=2, targets=["q_proj", "down_proj"], seed=seed, **settings), name)
        randomise(registry(pair.ours).get(name).parameters(), seed)
        pet.save_adapter(pair.ours, directory / name, name)
    theirs = peft.PeftModel.from_pretrained(copy.deepcopy(pair.theirs), directory / "a", adapter_name="a").eval()
    theirs.load_adapter(directory / "b", "b")
    yield pair.ours, theirs
    for name in "ab":
        pet.delete_adapter(pair.ours, name)


def equal(two):
    """Both models' logits, which must agree."""
    found, expected = two[0](IDS).asnumpy(), their_logits(two[1])
    np.testing.assert_allclose(found, expected, rtol=0, atol=LIMIT)
    return found


def test_merging_and_unmerging_beside_peft(two):
    ours, theirs = two
    for chosen, merged in ((["a"], ["b"]), (["a"], ["a"]), (["a", "b"], ["a", "b"]), (["b", "a"], ["a", "b"])):
        pet.set_adapter(ours, chosen)
        theirs.base_model.set_adapter(chosen)
        before = equal(two)
        for name in merged:
            pet.merge(ours, name)
        theirs.merge_adapter(merged)
        if set(merged) == set(chosen) == {"a"}:  # theirs takes each ΔW over what is merged, and leaves out the others
            np.testing.assert_allclose(equal(two), before, rtol=0, atol=LIMIT)
        pet.unmerge(ours)
        theirs.unmerge_adapter()
        assert list(registry(ours).active) == list(theirs.active_adapters) == chosen
        np.testing.assert_array_equal(equal(two), before)


@pytest.mark.parametrize(
    "method, density",
    [
        *((method, 0.3) for method in ("cat", "svd", "linear", "ties_svd", "magnitude_prune_svd")),
        *((method, 1.0) for method in ("dare_linear_svd", "dare_ties_svd")),  # below 1 a share by chance
    ],
)
def test_combining_beside_peft(two, method, density):
    """Of rank 2, so that none of the truncated ones is the whole sum."""
    pytest.importorskip("peft", "0.21")  # before, ΔW is scaled twice
    ours, theirs = two
    for majority in ("total", "frequency") if "ties" in method else ("total",):
        theirs.add_weighted_adapter(
            ["a", "b"], [0.7, -1.3], "mix", method, density=density, majority_sign_method=majority
        )
        report = pet.combine_adapters(ours, ["a", "b"], [0.7, -1.3], "mix", method, density=density, majority=majority)
        try:
            pet.set_adapter(ours, "mix")
            theirs.set_adapter("mix")
            np.testing.assert_allclose(ours(IDS).asnumpy(), their_logits(theirs), rtol=0, atol=LIMIT)
            assert (report.error > 0.01) == (method != "cat")
        finally:
            pet.delete_adapter(ours, "mix")
            theirs.delete_adapter("mix")


def test_disabling_beside_peft(two):
    ours, theirs = two
    pet.set_adapter(ours, "a")
    theirs.set_adapter("a")
    adapted = equal(two)
    with pet.disable_adapters(ours), theirs.disable_adapter():
        bare = equal(two)
        pet.set_adapter(ours, "b")
        theirs.set_adapter("b")
        np.testing.assert_array_equal(equal(two), bare)
    assert np.abs(equal(two) - adapted).max() > 0.01 < np.abs(equal(two) - bare).max()


def test_mixed_batches_beside_peft(two):
    ours, theirs = two
    names = ["b", "__base__"]
    with pet.adapter_names(ours, names), torch.no_grad():
        expected = theirs(torch.tensor(IDS), adapter_names=names).logits.numpy()
        np.testing.assert_allclose(ours(IDS).asnumpy(), expected, rtol=0, atol=LIMIT)
    for wrong in (names[:1], names * 2):
        with pytest.raises(ValueError, match="adapter_names"):
            copy.deepcopy(theirs)(torch.tensor(IDS), adapter_names=wrong)  # after an error it keeps the names
        with pytest.raises(pet.InputError, match="adapter_names"), pet.adapter_names(ours, wrong):
            ours(IDS)


def test_another_scale_beside_peft(two):
    ours, theirs = two
    for name in "ab":
        pet.set_adapter(ours, name)
        theirs.set_adapter(name)
        before = equal(two)
        layers = [layer for layer in theirs.modules() if isinstance(layer, peft.tuners.lora.LoraLayer)]
        for factor in (3, 1):
            pet.set_alpha(ours, 16 * factor, name)
            for layer in layers:
                if name in layer.scaling:
                    layer.set_scale(name, factor)
            changed = equal(two)
            assert factor == 1 or np.abs(changed - before).max() > 0.01
        np.testing.assert_array_equal(changed, before)


def test_merge_and_unload_beside_peft(pairs, tmp_path):
    theirs = pairs("llama_gqa").theirs
    ours = pet.AutoModel.from_pretrained(theirs.config._name_or_path)
    pet.apply_lora(ours, rank=2, use_dora=True, modules_to_save=["norm"])
    randomise(registry(ours).get("default").parameters(), 4)
    pet.save_adapter(ours, tmp_path)
    theirs = peft.PeftModel.from_pretrained(copy.deepcopy(theirs), tmp_path).merge_and_unload(safe_merge=True)
    ours = pet.merge_and_unload(ours, safe=True)
    equal((ours, theirs))
    assert ours.parameters_dict().keys() == dict(theirs.named_parameters()).keys()


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
