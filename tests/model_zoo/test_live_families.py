"""Families against transformers and PEFT themselves: random models whose config.json has the published fields."""

from __future__ import annotations

import dataclasses
import json
import os

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor
from peers import imported, random_second_factors
from published_models import LIMIT, QWEN3_MOE, SIZES, logits_of, random_model
from tiny_tokenizers import write_byte_level

import pet
from model_zoo.auto import AutoModel
from model_zoo.engine import available
from model_zoo.families import CONFIGS, config_class
from model_zoo.generation import decoders
from model_zoo.rope_config import rope_settings
from model_zoo.tokenizers import AutoTokenizer
from pet.data.packing import collate
from pet.train.objectives.causal import CausalLM
from pet.train.optimizers import AdamW
from pet.train.segments import make_segments
from pet.train.step import TrainStep

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = peft = transformers = None
peers = imported(globals(), "torch", "peft", "transformers")

NEW = 16
QWEN2 = {
    **SIZES,
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "max_window_layers": 21,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "tie_word_embeddings": True,
}
LLAMA3_1 = {
    **SIZES,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "mlp_bias": False,
    "hidden_act": "silu",
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
        "rope_type": "llama3",
    },
    "tie_word_embeddings": False,
}
MISTRAL = {
    **SIZES,
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "sliding_window": 5,
    "tie_word_embeddings": False,
}
GEMMA = {
    **SIZES,
    "num_hidden_layers": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "head_dim": 12,
    "query_pre_attn_scalar": 20,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "cache_implementation": "hybrid",
    "sliding_window": 5,
}
GEMMA2 = {
    **GEMMA,
    "architectures": ["Gemma2ForCausalLM"],
    "model_type": "gemma2",
    "hidden_act": "gelu_pytorch_tanh",
    "rope_theta": 10000.0,
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 4.0,
    "sliding_window_size": 4096,
}
GEMMA3 = {
    **GEMMA,
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "rope_theta": 1000000,
    "rope_local_base_freq": 10000,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "sliding_window_pattern": 3,
}
CASES = {
    "qwen2.5": QWEN2,
    "deepseek-r1-qwen": {
        **QWEN2,
        "rope_theta": 10000,
        "sliding_window": 4096,
        "use_mrope": False,
        "tie_word_embeddings": False,
        "eos_token_id": 1,
    },
    "deepseek-r1-llama": LLAMA3_1,
    "mistral": MISTRAL,
    "ministral": {**MISTRAL, "head_dim": 8, "layer_types": ["full_attention", "sliding_attention"]},
    "gemma2": GEMMA2,
    "gemma2-without-caps": {**GEMMA2, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    "gemma3": GEMMA3,
    "qwen3-moe": QWEN3_MOE,
    "qwen2-window": {**QWEN2, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
}


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("live") / request.param
    directory.mkdir()
    return random_model(CASES[request.param], directory), directory


def test_logits_and_config(case, prompts, tmp_path):
    peer, directory = case
    ids, mask = prompts
    model = AutoModel.from_pretrained(directory)
    whole, padded = logits_of(peer, ids, np.ones_like(mask)), logits_of(peer, ids, mask)
    assert np.abs(model(ids).asnumpy() - whole).max() < LIMIT
    assert np.abs(model(ids, mask).asnumpy() - padded)[mask == 1].max() < LIMIT
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert np.abs(logits_of(again, ids, mask) - padded)[mask == 1].max() < 1e-5


@pytest.mark.parametrize("kind", [kind for config in CONFIGS for kind in config.architectures if kind != "chatglm"])
def test_what_config_json_leaves_out_is_what_transformers_assumes(kind):
    there = transformers.AutoConfig.for_model(kind)
    text = getattr(there, "text_config", there)
    config = config_class({"model_type": kind}).from_dict({"model_type": kind, "text_config": {}})
    unknown = {"model_type", "extra", "rope_theta", "rope_parameters", "rope_scaling", "num_local_experts"}
    fields = {field.name for field in dataclasses.fields(config)} - unknown
    expected = {name: getattr(text, name) for name in fields if hasattr(text, name)}
    found = {name: getattr(config, name) for name in expected}
    for name, value in {"num_key_value_heads": config.dims.kv_heads, "head_dim": config.dims.head_dim}.items():
        if expected.get(name) is not None:
            found[name] = value
    assert found == expected and len(expected) > 8
    rope = getattr(text, "rope_parameters", None)
    if rope is not None:
        assert rope_settings(config).items() >= rope.get("full_attention", rope).items()
        assert rope_settings(config, local=True).items() >= rope.get("sliding_attention", rope).items()


def test_greedy_ids(case, prompts):
    peer, directory = case
    ids, mask = prompts
    model = AutoModel.from_pretrained(directory)
    with torch.no_grad():
        expected = peer.generate(
            torch.tensor(ids),
            attention_mask=torch.tensor(mask),
            max_new_tokens=NEW,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        ).numpy()
    settings = {"max_new_tokens": NEW, "eos_token_id": None}
    assert np.array_equal(model.generate(ids, mask, **settings), expected)
    assert np.array_equal(model.generate(ids, mask, use_cache=False, **settings), expected)


@pytest.mark.parametrize("kind", ["llama", "glm"])
def test_a_window_that_only_caches_heed(kind, prompts, tmp_path, caplog, monkeypatch):
    """transformers' layers of these families pass over ``sliding_window``, its cache does not."""
    architecture = {"llama": "LlamaForCausalLM", "glm": "GlmForCausalLM"}[kind]
    values = {
        **SIZES,
        "head_dim": 8,
        "hidden_act": "silu",
        "model_type": kind,
        "architectures": [architecture],
        "pad_token_id": 0,
    }
    peer = random_model({**values, "sliding_window": 6, "use_sliding_window": False}, tmp_path)
    ids, mask = prompts
    rows, settings = (torch.tensor(ids), torch.tensor(mask)), {"max_new_tokens": NEW, "eos_token_id": None}
    with torch.no_grad():
        expected = {
            cached: peer.generate(rows[0], attention_mask=rows[1], use_cache=cached, pad_token_id=0, **settings).numpy()
            for cached in (True, False)
        }
    assert not np.array_equal(*expected.values())
    model = AutoModel.from_pretrained(tmp_path)
    for cached, answer in expected.items():
        assert np.array_equal(model.generate(ids, mask, use_cache=cached, **settings), answer)
    assert [record.name for record in caplog.records if "sliding_window=6" in record.getMessage()] == ["pet"]
    monkeypatch.setattr(decoders, "available", lambda: False)
    model = AutoModel.from_pretrained(tmp_path)
    assert np.array_equal(model.generate(ids, mask, **settings), expected[True])
    uncached = {**json.loads((tmp_path / "config.json").read_text()), "use_cache": False}
    (tmp_path / "config.json").write_text(json.dumps(uncached))
    for beside in (True, False):  # a generation_config.json counts alone where there is one
        again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
        there = again.generate(rows[0], attention_mask=rows[1], pad_token_id=0, **settings).numpy()
        assert np.array_equal(there, expected[beside])
        assert np.array_equal(AutoModel.from_pretrained(tmp_path).generate(ids, mask, **settings), there)
        (tmp_path / "generation_config.json").unlink(missing_ok=True)


@pytest.fixture
def adapted(case, tmp_path):
    """PEFT's model with LoRA at every projection, B not 0, and the same here out of its files."""
    peer, directory = case  # of stacked experts the gradients are others: gate and up share their A
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"] if "moe" in directory.name else "all-linear"
    config = peft.LoraConfig(r=3, lora_alpha=6, target_modules=targets, task_type="CAUSAL_LM")
    theirs = peft.get_peft_model(peer, config)
    random_second_factors(theirs, 0.1)
    theirs.save_pretrained(tmp_path / "theirs")
    mine = AutoModel.from_pretrained(directory)
    pet.load_adapter(mine, tmp_path / "theirs")
    yield theirs, mine
    theirs.unload()


def test_adapters_go_both_ways(adapted, prompts, tmp_path):
    theirs, mine = adapted
    ids, mask = prompts
    expected = logits_of(theirs, ids, mask)
    assert np.abs(mine(ids, mask).asnumpy() - expected)[mask == 1].max() < LIMIT
    pet.save_adapter(mine, tmp_path / "mine")
    with theirs.disable_adapter():
        assert np.abs(logits_of(theirs, ids, mask) - expected).max() > 0.01
    theirs.load_adapter(tmp_path / "mine", adapter_name="mine")
    theirs.set_adapter("mine")
    assert np.abs(logits_of(theirs, ids, mask) - expected)[mask == 1].max() < 1e-5


@pytest.mark.skipif(not available(), reason="there are no C kernels here")
def test_loss_and_gradients_of_packed_documents(adapted):
    """Two documents in a row, by the compiled step; transformers takes each by itself."""
    theirs, mine = adapted
    generator = np.random.default_rng(3)
    rows = [
        [(generator.integers(3, 96, size), generator.random(size) < 0.8) for size in sizes]
        for sizes in ((13, 8), (9, 11))
    ]
    batch = collate(rows, 24)
    weight = 0.05
    summed = 0.0
    for row in rows:
        for ids, trained in row:
            logits = theirs(torch.tensor(ids[None])).logits[0, :-1].float()
            losses = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")
            summed = summed + losses[torch.tensor(trained[1:])].sum()
    theirs.set_adapter("default")  # all its weights get gradients
    (weight * summed).backward()
    expected = {name.replace(".default", ""): p.grad for name, p in theirs.named_parameters() if p.grad is not None}
    mine.set_fast(True)
    mine.set_train(True)
    segments = make_segments([parameter for parameter in mine.get_parameters() if parameter.requires_grad])
    step = TrainStep(mine, AdamW(segments), CausalLM())
    total, vectors = step.accumulate([batch], 0, Tensor(weight, ms.float32))
    assert total == pytest.approx(float(summed.detach()), rel=1e-5)
    found = {}
    for segment, vector in zip(segments, vectors, strict=True):
        found.update(segment.split(vector.asnumpy()))
    assert len(found) == len(expected) >= 2 * 4 * mine.config.dims.layers
    for name, gradient in found.items():
        there = expected["base_model.model." + name].numpy()
        assert np.abs(there).max() > 1e-4
        assert np.abs(gradient.reshape(there.shape) - there).max() < LIMIT * max(1.0, np.abs(there).max()), name


SCALED = {
    "lora": lambda: peft.LoraConfig(r=2, lora_alpha=6, target_modules=["embed_tokens"]),
    "dora": lambda: peft.LoraConfig(r=2, lora_alpha=6, target_modules=["embed_tokens"], use_dora=True),
    "rows": lambda: peft.TrainableTokensConfig(token_indices=[5, 17, 30], target_modules=["embed_tokens"]),
    "prompt": lambda: peft.PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"),
}


@pytest.mark.parametrize("method", SCALED)
def test_adapters_of_an_embedding_that_is_scaled(method, fixtures, tmp_path):
    """Gemma multiplies rows by √hidden: what is trained in the table too, a prompt in front of it not. The rows are no
    longer than the window, which PEFT lets a prompt leave."""
    peer = transformers.AutoModelForCausalLM.from_pretrained(fixtures / "gemma3", attn_implementation="eager").eval()
    theirs = peft.get_peft_model(peer, SCALED[method]())
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    theirs.save_pretrained(tmp_path)
    mine = AutoModel.from_pretrained(fixtures / "gemma3")
    ids = np.array([[5, 17, 8], [30, 5, 40]])
    plain = mine(ids).asnumpy()
    with torch.no_grad():
        expected = theirs(torch.tensor(ids)).logits.numpy()[:, -3:]
    pet.load_adapter(mine, tmp_path)
    assert np.abs(expected - plain).max() > 0.01
    assert np.abs(mine(ids).asnumpy() - expected).max() < LIMIT


def test_a_prompt_begins_with_scaled_rows(fixtures):
    model = AutoModel.from_pretrained(fixtures / "gemma3")
    rows = model.model.embed_tokens(Tensor([[7, 9]], ms.int32)).asnumpy()[0]
    pet.apply(model, pet.PromptConfig(length=2, init_ids=[7, 9]))
    (prompt,) = [p for p in model.get_parameters() if p.requires_grad]
    assert np.array_equal(prompt.asnumpy(), rows)


BEGIN, END = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
R1_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '<｜User｜>' + m.content }}{% else %}"
    "{{ '<｜Assistant｜>' + m.content.split('</think>')[-1] + '<｜end▁of▁sentence｜>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\\n' }}{% endif %}"
)


def test_ids_of_deepseek_r1s_tokenizer_files(tmp_path):
    """Qwen's words and NFC, a bos by the post-processor and by add_bos_token, thoughts as text, LLaMA's class name;
    over a bundled vocabulary."""
    write_byte_level(
        tmp_path, ["<|endoftext|>", END, "<｜User｜>", "<｜Assistant｜>", BEGIN], 1, ["<think>", "</think>"]
    )
    description = json.loads((tmp_path / "tokenizer.json").read_text())
    ids = {token["content"]: token["id"] for token in description["added_tokens"]}
    first, own = {"SpecialToken": {"id": BEGIN, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    description["normalizer"] = {"type": "NFC"}
    description["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [first, own],
        "pair": [first, own, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {BEGIN: {"id": BEGIN, "ids": [ids[BEGIN]], "tokens": [BEGIN]}},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    flags = {"__type": "AddedToken", "lstrip": False, "normalized": True, "rstrip": False, "single_word": False}
    named = {"bos_token": BEGIN, "eos_token": END, "pad_token": END}
    settings = {name: {**flags, "content": text} for name, text in named.items()}
    settings |= {"add_bos_token": True, "add_eos_token": False, "unk_token": None, "legacy": True}
    settings |= {"tokenizer_class": "LlamaTokenizerFast", "chat_template": R1_TEMPLATE}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "qwen2", "bos_token_id": ids[BEGIN], "eos_token_id": ids[END]})
    )
    mine, peer = AutoTokenizer.from_pretrained(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("  two  spaces\n\n\n", "e\u0301 3.14159 I'LL", "你好，世界！", "a<think>\nhm</think>🚀", "\t\r\n"):
        found = mine.encode(text)
        assert found == peer(text)["input_ids"] and found[0] == ids[BEGIN]
        assert mine.decode(found) == peer.decode(found, skip_special_tokens=True)
    talk = [("user", "Hi"), ("assistant", "<think>x</think>yo"), ("user", "more")]
    talk = [{"role": role, "content": content} for role, content in talk]
    expected = peer.apply_chat_template(talk, add_generation_prompt=True, tokenize=False)
    assert mine.prompt(talk) == peer(expected, add_special_tokens=False)["input_ids"]
    assert mine.eos_token_ids == [ids[END]]
