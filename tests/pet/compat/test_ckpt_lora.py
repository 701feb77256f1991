"""LoRA in MindFormers' ``.ckpt`` files."""

from __future__ import annotations

import json

import numpy as np
import pytest
from ckpt_tables import bits, dimensions, weights

import pet
from model_zoo.checkpoint.ckpt_io import write_ckpt
from model_zoo.checkpoint.safetensors_io import read_file
from model_zoo.errors import InputError
from pet.compat.ckpt.lora import to_adapter, to_lora_file
from pet.compat.ckpt.names import Form


@pytest.mark.parametrize(("prefix", "same"), [("mindpet", False), ("tk", True)])
def test_lora_on_parts_of_gpt2s_matrix(fixtures, tmp_path, prefix, same, lora_file):
    n, _ = dimensions(fixtures / "gpt2")
    h, rank, alpha = n.hidden, 2, 6.0
    dense = "backbone.blocks.{}.attention.dense{}"
    parts = (1, 2, 3) if same else (1, 3)  # MindFormers adapts query and value
    names = [dense.format(layer, part) for layer in range(n.layers) for part in parts]
    theirs = lora_file(tmp_path / "lora.ckpt", dict.fromkeys(names, (h, h)), rank, prefix, same)
    to_adapter(tmp_path / "lora.ckpt", tmp_path / "adapter", alpha, fixtures / "gpt2")
    model = pet.AutoModel.from_pretrained(str(fixtures / "gpt2"))
    pet.load_adapter(model, tmp_path / "adapter")
    pet.merge(model)
    before = weights(fixtures / "gpt2")
    for layer in range(n.layers):
        fused = before[f"transformer.h.{layer}.attn.c_attn.weight"].copy()
        for part in parts:
            a, b = (theirs[f"{dense.format(layer, part)}.{prefix}_delta_lora_{letter}"] for letter in "ab")
            fused[:, (part - 1) * h : part * h] += alpha / rank * (b @ a).T
        after = model.transformer.h[layer].attn.c_attn.weight.asnumpy()
        assert np.allclose(after, fused, atol=1e-5)
    report = to_lora_file(tmp_path / "adapter", tmp_path / "back.ckpt", fixtures / "gpt2", Form(old_names=same))
    assert "lora_rank: 2, lora_alpha: 6" in str(report)
    assert bits(tmp_path / "back.ckpt") == bits(tmp_path / "lora.ckpt")


def test_lora_of_the_other_families(fixtures, tmp_path, lora_file):
    n, size = dimensions(fixtures / "llama_gqa")
    names = {}
    for layer in range(n.layers):
        names[f"model.layers.{layer}.attention.wq"] = (size["q"], n.hidden)
        names[f"model.layers.{layer}.attention.wv"] = (size["k"], n.hidden)
    theirs = lora_file(tmp_path / "llama.ckpt", names, 4)
    to_adapter(tmp_path / "llama.ckpt", tmp_path / "llama", 8, fixtures / "llama_gqa")
    ours = read_file(tmp_path / "llama/adapter_model.safetensors")
    b = ours["base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight"]
    assert np.array_equal(b, theirs["model.layers.1.attention.wv.mindpet_delta_lora_b"])
    settings = json.loads((tmp_path / "llama/adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"], settings["target_modules"]) == (4, 8, ["q_proj", "v_proj"])
    to_lora_file(tmp_path / "llama", tmp_path / "back.ckpt", fixtures / "llama_gqa")
    assert bits(tmp_path / "back.ckpt") == bits(tmp_path / "llama.ckpt")

    n, size = dimensions(fixtures / "chatglm2")
    name = "transformer.encoder.layers.{}.self_attention.query_key_value"
    shapes = {name.format(layer): (size["q+2k"], n.hidden) for layer in range(n.layers)}
    lora_file(tmp_path / "glm2.ckpt", shapes, 2)
    form = Form(use_rearrange_rope=True)
    to_adapter(tmp_path / "glm2.ckpt", tmp_path / "glm2", 2, fixtures / "chatglm2", form)
    to_lora_file(tmp_path / "glm2", tmp_path / "glm2_back.ckpt", fixtures / "chatglm2", form)
    assert bits(tmp_path / "glm2_back.ckpt") == bits(tmp_path / "glm2.ckpt")
    with pytest.raises(InputError, match=r"self_attention.qkv is no matrix of this model.*query_key_value"):
        shapes = {"transformer.encoder.layers.0.self_attention.qkv": (4, 4)}
        lora_file(tmp_path / "odd.ckpt", shapes, 2)
        to_adapter(tmp_path / "odd.ckpt", tmp_path / "odd", 2, fixtures / "chatglm2")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank_pattern": {"v_proj": 2}}, "rank 2 alpha 8, rank 4 alpha 8; MindFormers has one rank and alpha for all"),
        ({"alpha_pattern": {"v_proj": 3}}, r"v_proj\.weight differ in scale, but are one matrix in MindFormers"),
        ({"targets": ["q_proj", "embed_tokens"]}, r"embed_tokens\.weight: MindFormers has LoRA on linear layers only"),
    ],
)
def test_lora_that_mindformers_has_not_is_not_written(fixtures, tmp_path, settings, message):
    base = fixtures / "llama_gqa"
    model = pet.AutoModel.from_pretrained(base)
    targets = {"targets": ["q_proj", "k_proj", "v_proj"]}
    pet.save_adapter(pet.apply_lora(model, rank=4, alpha=8, **{**targets, **settings}), tmp_path / "adapter")
    with pytest.raises(InputError, match=message):
        to_lora_file(tmp_path / "adapter", tmp_path / "lora.ckpt", base, Form(qkv_concat="alpha_pattern" in settings))
    assert not (tmp_path / "lora.ckpt").exists()


def test_lora_files_that_no_adapter_comes_of(fixtures, tmp_path, lora_file):
    base, query = fixtures / "llama_gqa", "model.layers.{}.attention.wq"
    n, size = dimensions(base)
    file, fits = tmp_path / "lora.ckpt", (size["q"], n.hidden)
    two = lora_file(file, {query.format(0): fits}, 2) | lora_file(file, {query.format(1): fits}, 4)
    narrow = lora_file(file, {query.format(0): (size["q"], n.hidden + 1)}, 2)
    half = {name: array for name, array in two.items() if name.endswith("0.attention.wq.mindpet_delta_lora_a")}
    for arrays, message in (
        (two, r"LoRA matrices of ranks \[2, 4\]; MindFormers has one for all"),
        (narrow, rf"q_proj is {size['q']}×{n.hidden + 1}, the matrix {size['q']}×{n.hidden}"),
        (half, "has only one of its two LoRA matrices"),
        ({"model.norm_out.weight": np.ones(n.hidden, np.float32)}, "holds no LoRA matrices"),
    ):
        write_ckpt(file, {name: ("float32", array.shape) for name, array in arrays.items()}, arrays.__getitem__)
        with pytest.raises(InputError, match=message):
            to_adapter(file, tmp_path / "adapter", 8, base)


def test_of_lora_on_more_layers_the_first_are_read(fixtures, tmp_path, lora_file, caplog):
    """As of a file of weights; what is of no layer of such a model stays an error."""
    n, size = dimensions(fixtures / "llama_gqa")
    shapes = {f"model.layers.{layer}.attention.wq": (size["q"], n.hidden) for layer in range(n.layers + 2)}
    theirs = lora_file(tmp_path / "more.ckpt", shapes, 4)
    to_adapter(tmp_path / "more.ckpt", tmp_path / "adapter", 8, fixtures / "llama_gqa")
    assert f"the first {n.layers} of {n.layers + 2} layers are read" in caplog.text
    ours = read_file(tmp_path / "adapter/adapter_model.safetensors")
    assert len(ours) == 2 * n.layers
    b = ours[f"base_model.model.model.layers.{n.layers - 1}.self_attn.q_proj.lora_B.weight"]
    assert np.array_equal(b, theirs[f"model.layers.{n.layers - 1}.attention.wq.mindpet_delta_lora_b"])
    lora_file(tmp_path / "odd.ckpt", {**shapes, f"model.layers.{n.layers}.attention.wx": (4, n.hidden)}, 4)
    with pytest.raises(InputError, match=r"attention\.wx is no matrix of this model"):
        to_adapter(tmp_path / "odd.ckpt", tmp_path / "other", 8, fixtures / "llama_gqa")
