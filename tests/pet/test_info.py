"""Counts and memory from shapes, against published numbers and against real models."""

from __future__ import annotations

import json

import numpy as np
import pytest

from adapters.apply import apply, trainable_parameters
from adapters.lora import LoRAConfig
from adapters.matching import check_names, plan, sites
from adapters.methods import METHODS
from adapters.settings import LoRA
from model_zoo.auto import AutoModel
from model_zoo.checkpoint.reading import read_config
from model_zoo.errors import InputError
from model_zoo.quantization import Quantization
from pet.cli.main import main
from pet.info import describe
from pet.meta_model import MetaModel
from pet.names import bundled_models

FIXTURES = ("chatglm1", "chatglm2", "glm", "glm4_0414", "gpt2", "llama_gqa", "llama_mha")


@pytest.mark.parametrize(
    "model, trainable, cells",
    [("llama_7b", 4_194_304, 64), ("glm_6b", 3_670_016, 28), ("gpt2", 294_912, 12), ("glm2_6b", 1_949_696, 28)],
)
def test_published_lora_counts(model, trainable, cells):
    found = describe(model, {"method": "lora", "rank": 8})
    assert (found.trainable, found.cells) == (trainable, cells)


def place(site):
    return site.path, site.kind, site.in_features, site.out_features, site.transposed, site.layer, tuple(site.shape)


@pytest.mark.parametrize("name", FIXTURES)
def test_meta_model_has_the_sites_of_the_real_model(name, fixtures):
    model = AutoModel.from_pretrained(fixtures / name)
    meta_model = MetaModel(read_config(fixtures / name))
    assert sorted(map(place, sites(meta_model))) == sorted(map(place, sites(model)))


WRONG = {
    "misspelt": {"targets": ["q_prj", "c_atn", "query_key_valu"]},
    "in other words": {"targets": ["lm_head|wte"]},
    "a sublayer": {"targets": ["self_attn", "self_attention", "attention_", "attn"]},
    "an activation": {"targets": ["act_fn", "act"]},
    "excluded": {"exclude": ["nothing"]},
    "layers": {"layers": ["0-77", 99]},
    "ranks": {"rank_pattern": {"nothing": 2, "(": 3}},
    "in full": {"modules_to_save": ["lmhead", "nrm"]},
    "in full and adapted": {"targets": ["lm_head"], "modules_to_save": ["lm_head"]},
    "tokens": {"trainable_tokens": {"nothing": [1]}},
    "a token": {"trainable_tokens": [1 << 20]},
    "core": {"targets": ["core"]},
}


@pytest.mark.parametrize("name", (*FIXTURES, "gemma2", "qwen3_moe"))
def test_what_is_said_of_wrong_names_is_said_by_shapes_alone(name, fixtures):
    model = AutoModel.from_pretrained(fixtures / name)
    meta_model = MetaModel(model.config)
    for settings in WRONG.values():
        with pytest.raises(InputError) as live:
            apply(model, LoRAConfig(**settings))
        with pytest.raises(InputError) as by_shapes:
            check_names(meta_model, LoRA(**settings))
        assert str(by_shapes.value) == str(live.value)


CONFIGS = {
    "default": {},
    "all": {"targets": "all-linear", "rank": 3},
    "dora": {"use_dora": True},
    "layers": {"targets": "attention", "layers": "1", "rank_pattern": {".*": 5}},
    "head": {"modules_to_save": ["HEAD"]},
    "norms": {"modules_to_save": ["NORM"]},
    "bias": {"bias": "all"},
    "bias_of_cells": {"bias": "lora_only", "targets": "all-linear"},
}


@pytest.mark.parametrize("case", CONFIGS)
@pytest.mark.parametrize("name", FIXTURES)
def test_lora_counts_equal_the_real_adapter(name, case, fixtures):
    model = AutoModel.from_pretrained(fixtures / name)
    norm = {"gpt2": "ln_f", "chatglm1": "final_layernorm", "chatglm2": "final_layernorm"}.get(name, "norm")
    settings = dict(CONFIGS[case])
    if "modules_to_save" in settings:
        settings["modules_to_save"] = [norm if settings["modules_to_save"] == ["NORM"] else model.family.embedding]
    expected = describe(fixtures / name, LoRAConfig(**settings))
    assert sum(not entry.whole for entry in plan(model, LoRAConfig(**settings)).entries) == expected.cells
    apply(model, LoRAConfig(**settings))
    assert sum(parameter.size for parameter in trainable_parameters(model)) == expected.trainable > 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", FIXTURES)
def test_every_methods_count_equals_the_real_adapter(name, method, fixtures):
    model = AutoModel.from_pretrained(fixtures / name)
    expected = describe(fixtures / name, {"method": method})
    apply(model, METHODS[method]())
    assert sum(parameter.size for parameter in trainable_parameters(model)) == expected.trainable > 0


@pytest.mark.parametrize("name", FIXTURES)
def test_weights_are_the_real_models_bytes(name, fixtures):
    model = AutoModel.from_pretrained(fixtures / name)
    real = sum(parameter.asnumpy().nbytes for parameter in model.get_parameters())
    found = describe(fixtures / name, {"method": "lora"}, dtype="float32")
    assert found.memory["weights"] == real
    assert describe(fixtures / name, {"method": "lora"}, dtype="bf16").memory["weights"] == real // 2
    assert found.parameters == sum(parameter.size for parameter in model.get_parameters())


@pytest.mark.parametrize("name", ["nf4", "nf4_double", "fp4", "int8"])
def test_packed_weights_are_the_real_models_bytes(name, fixtures, capsys):
    """Packed while loading, and packed in the files: these say so themselves."""
    base, packed = fixtures / "bitsandbytes/base", fixtures / "bitsandbytes" / name
    form = Quantization(name.partition("_")[0], double=name.endswith("double"))
    model = AutoModel.from_pretrained(packed)
    real = sum(parameter.asnumpy().nbytes for parameter in model.get_parameters())
    lora = {"method": "lora"}
    for found in (describe(base, lora, dtype="float32", quantization=form), describe(packed, lora, dtype="float32")):
        assert found.memory["weights"] == real
        assert found.quantization.storage == form.storage and found.quantization.skip in (None, ("lm_head",))
    with pytest.raises(InputError, match=r"is stored in .* already, int4, blocks of 32 was asked for"):
        describe(packed, lora, quantization=Quantization("int4", 32))
    with pytest.raises(InputError, match=f"weights in {form.type} cannot be trained"):
        describe(packed)
    assert main(["plan", str(packed), "--devices", "1", "--memory", "4GB", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    layout = next(one for one in plan["feasible"] if (one["data"], one["tensor"], one["pipeline"]) == (1, 1, 1))
    adapter = 4 * describe(packed, lora).trainable
    assert plan["quantization"]["type"] == form.type and layout["memory_bytes"]["weights"] == real + adapter


def test_memory_of_full_and_of_adapter_training():
    lora = describe("llama_7b", {"method": "lora"}, batch=2, length=256)
    assert lora.dtype == "float16"
    assert lora.memory["weights"] == 2 * 6_738_415_616
    assert lora.memory["adapter"] == lora.memory["gradients"] == 4 * 4_194_304
    assert lora.memory["optimizer"] == 8 * 4_194_304
    full = describe("llama_7b", batch=2, length=256)
    assert full.adapter is None and full.trainable == full.parameters and full.share == 1
    assert full.memory["weights"] == full.memory["gradients"] == 4 * full.parameters
    assert describe("llama_7b", optimizer="sgd").memory["optimizer"] == 0
    assert lora.total == sum(lora.memory.values()) < full.total
    assert abs(lora.share - 4_194_304 / (6_738_415_616 + 4_194_304)) < 1e-12


def activations(batch, length, **settings):
    return describe("llama_7b", {"method": "lora"}, batch, length, **settings).memory["activations"]


def test_activations_grow_as_they_should():
    one = activations(1, 128)
    assert activations(3, 128) == 3 * one
    assert activations(1, 256) > 2 * one  # attention is quadratic in the length
    assert activations(1, 128, recompute=True) < one / 4
    assert activations(1, 1024, dtype="float32") < activations(1, 1024)  # the kernels keep no probability


def test_prints_a_table():
    text = str(describe("llama3_8b", {"method": "lora", "rank": 16}, batch=4, length=1024))
    for part in (
        "llama3_8b (llama)",
        "32 × hidden 4096, ffn 14336",
        "32 heads of 128 sharing 8 key-value heads",
        "8,030,261,248",
        "lora on 64 cells",
        "batch 4 × 1024 tokens, base in bfloat16",
        "activations",
        "total",
    ):
        assert part in text, text
    assert len({line.index(" MB") for line in text.splitlines() if " MB" in line}) == 1


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("gemma3_1b", "a window of 512 tokens in 22 of 26 layers"),
        ("mistral_7b", "a window of 4,096 tokens in 32 of 32 layers"),
        ("qwen3_30b_a3b", "ffn 768 × 128 experts"),
    ],
)
def test_windows_and_experts_are_shown(model, words):
    assert words in str(describe(model, {"method": "lora"}))


def test_the_command(capsys):
    assert main(["info", "llama_7b", "--adapter", "lora", "--rank", "16", "--batch", "2"]) == 0
    printed = capsys.readouterr().out
    assert f"{2 * 4_194_304:,}" in printed and "batch 2 × 512 tokens" in printed
    assert main(["info", "llama_7b", "--adapter", "none", "--rank", "8"]) == 2


def test_dictionary_for_programs():
    values = describe("gpt2", {"method": "lora"}).to_dict()
    assert values["trainable"] == 294_912 and values["memory_bytes"]["total"] == sum(
        value for key, value in values["memory_bytes"].items() if key != "total"
    )
    assert values["layers"] == 12 and np.isclose(values["trainable_share"], 294_912 / (124_439_808 + 294_912))


@pytest.mark.parametrize(
    "model, options, message",
    [
        ("lama_7b", {}, "llama_7b"),
        ("llama_7b", {"adapter": {"method": "lorra"}}, "'lorra' is unknown.*lora"),
        ("llama_7b", {"adapter": {"method": "lora", "rnak": 8}}, "no setting 'rnak'.*rank"),
        ("llama_7b", {"adapter": {"method": "lora", "targets": ["q_prj"]}}, "q_prj.*q_proj"),
        ("llama_7b", {"adapter": {"method": "lora", "modules_to_save": ["lm_haed"]}}, "lm_haed.*lm_head"),
        ("llama_7b", {"adapter": 3}, "adapter is 3"),
        ("llama_7b", {"length": 4096}, "context of llama_7b holds 2048"),
        ("llama_7b", {"batch": 0}, "batch is 0"),
        ("llama_7b", {"length": 10**400}, "length is 1"),
        ("llama_7b", {"dtype": "int4"}, "'int4' is not a supported"),
        ("llama_7b", {"optimizer": "adm"}, "'adm' is unknown.*adam"),
        ({"model_type": "bert"}, {}, "model_type is 'bert'; supported"),
    ],
)
def test_what_is_refused(model, options, message):
    with pytest.raises(InputError, match=message):
        describe(model, **options)


def test_numpys_numbers_are_numbers():
    assert describe("llama_7b", batch=np.int64(2), length=np.int32(8)).memory == describe("llama_7b", None, 2, 8).memory


def test_a_base_in_fp8_is_counted_as_what_it_is_once_read():
    config = {**read_config(bundled_models()["llama_tiny"]), "dtype": "bfloat16"}
    fp8 = {"quantization_config": {"quant_method": "fp8"}}
    half, whole = (describe({**config, **more}, LoRAConfig(rank=2)) for more in ({}, fp8))
    assert (half.dtype, whole.dtype) == ("bfloat16", "float32")
    assert whole.memory["weights"] == 2 * half.memory["weights"]
