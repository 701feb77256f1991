"""Several adapters on one model: adding, choosing, mixing, combining, exchanging; errors leave the model as it was."""

from __future__ import annotations

import json

import mindspore as ms
import numpy as np
import pytest
from adapter_sets import add, same, snapshot
from adapter_states import logits
from mindspore import nn

import pet
from adapters.registry import registry
from adapters.score import add_head
from model_zoo.labels import Labels


def test_names_status_and_list(model):
    before = logits(model)
    add(model, "first", 1)
    add(model, "second", 2, rank=3, targets=["v_proj"])
    assert pet.list_adapters(model) == ["first", "second"]
    np.testing.assert_array_equal(logits(model), before)  # added, not active
    pet.set_adapter(model, "first")
    only_first = logits(model)
    status = pet.adapter_status(model)
    assert status["first"] == {"method": "lora", "active": True, "merged": False, "cells": 3, "parameters": 3 * 2 * 128}
    assert not status["second"]["active"]
    pet.set_adapter(model, ["first", "second"])
    assert np.abs(logits(model) - only_first).max() > 1e-3
    pet.delete_adapter(model, "second")
    np.testing.assert_array_equal(logits(model), only_first)
    pet.delete_adapter(model, "first")
    np.testing.assert_array_equal(logits(model), before)


def test_the_last_adapter_that_goes_leaves_what_was_trained_before(model):
    for parameter in model.get_parameters():
        parameter.requires_grad = "norm" in parameter.name
    try:
        for name in ("first", "second"):
            add(model, name, 1)
            assert not any(
                parameter.requires_grad for parameter in model.get_parameters() if "lora" not in parameter.name
            )
        pet.delete_adapter(model, "first")
        assert not model.model.norm.weight.requires_grad
        pet.delete_adapter(model, "second")
        assert all(parameter.requires_grad == ("norm" in parameter.name) for parameter in model.get_parameters())
    finally:
        for parameter in model.get_parameters():
            parameter.requires_grad = True


def test_disabling_restores_any_state(model):
    before = logits(model)
    add(model, "first", 1)
    add(model, "second", 2)
    pet.set_adapter(model, ["second", "first"])
    both = logits(model)
    with pytest.raises(KeyError), pet.disable_adapters(model):
        np.testing.assert_array_equal(logits(model), before)
        raise KeyError
    np.testing.assert_array_equal(logits(model), both)
    pet.merge(model, "first")
    merged = logits(model)
    with pet.disable_adapters(model):
        np.testing.assert_array_equal(logits(model), before)
    np.testing.assert_array_equal(logits(model), merged)
    assert registry(model).merged_names == ("first",)
    assert registry(model).active == ("second",)


@pytest.mark.parametrize("settings", [{}, {"use_dora": True}])
def test_rows_of_a_batch_go_through_their_own_adapters(model, settings):
    before = logits(model)
    add(model, "first", 1, **settings)
    add(model, "second", 2, targets=["v_proj", "down_proj"])
    alone = {}
    for name in ("first", "second"):
        pet.set_adapter(model, name)
        alone[name] = logits(model)
    with pet.adapter_names(model, ["second", "__base__", "first"]):
        mixed = logits(model)
    np.testing.assert_allclose(mixed[0], alone["second"][0], atol=1e-5)
    np.testing.assert_allclose(mixed[1], before[1], atol=1e-5)
    np.testing.assert_allclose(mixed[2], alone["first"][2], atol=1e-5)
    np.testing.assert_array_equal(logits(model), alone["second"])


def wrong_calls():
    return {
        "unknown": (lambda m: pet.set_adapter(m, "frist"), "did you mean 'first'"),
        "unknown in a batch": (lambda m: pet.adapter_names(m, ["nobody"]).__enter__(), "nobody"),
        "taken": (lambda m: pet.apply_lora(m, rank=2, name="first"), "already"),
        "path as name": (lambda m: pet.apply_lora(m, rank=2, name="../x"), "letters, digits"),
        "base as name": (lambda m: pet.apply_lora(m, rank=2, name="__base__"), "letters, digits"),
        "delete unknown": (lambda m: pet.delete_adapter(m, "third"), "third"),
        "set twice": (lambda m: pet.set_adapter(m, ["first", "first"]), "twice"),
        "no such target": (lambda m: pet.apply_lora(m, targets=["q_prj"], name="new"), "q_proj"),
        "no such method": (lambda m: pet.combine_adapters(m, ["first"], method="sdv"), "did you mean 'svd'"),
        "none to combine": (lambda m: pet.combine_adapters(m, []), "no adapter is named"),
        "combine twice": (lambda m: pet.combine_adapters(m, ["first", "first"]), "names an adapter twice"),
        "wrong weights": (lambda m: pet.combine_adapters(m, ["first"], [1.0, 2.0]), "2 weights"),
        "weight nan": (lambda m: pet.combine_adapters(m, ["first"], [float("nan")]), "weight is nan"),
        "weight too large": (lambda m: pet.combine_adapters(m, ["first"], [10**400]), "weight is 1"),
        "seed": (lambda m: pet.combine_adapters(m, ["first"], method="dare_ties", seed=-1), "seed is -1"),
        "density": (lambda m: pet.combine_adapters(m, ["first"], method="ties", density=0.0), "density"),
        "rank of cat": (lambda m: pet.combine_adapters(m, ["first"], rank=2), "rank"),
        "taken by a combination": (lambda m: pet.combine_adapters(m, ["first"], new_name="first"), "already"),
        "merge unknown": (lambda m: pet.merge(m, "secnd"), "secnd"),
    }


@pytest.mark.parametrize("name", wrong_calls())
def test_an_error_leaves_the_model_as_it_was(model, name):
    add(model, "first", 1)
    pet.set_adapter(model, "first")
    before = snapshot(model)
    call, message = wrong_calls()[name]
    with pytest.raises(pet.InputError, match=message):
        call(model)
    same(before, snapshot(model))


def test_what_is_merged_can_be_neither_deleted_nor_changed(model):
    add(model, "first", 1)
    add(model, "second", 2)
    pet.set_adapter(model, "first")
    pet.merge(model)
    before = snapshot(model)
    for call in (
        lambda: pet.delete_adapter(model, "first"),
        lambda: pet.set_adapter(model, "second"),
        lambda: pet.apply_lora(model, rank=2, name="third"),
        lambda: pet.combine_adapters(model, ["first", "second"]),
        lambda: pet.adapter_names(model, ["second"] * 3).__enter__(),
    ):
        with pytest.raises(pet.InputError, match="merged"):
            call()
    same(before, snapshot(model))


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda model, place: pet.set_alpha(model, 3.0), "only LoRA has an alpha"),
        (lambda model, place: pet.combine_adapters(model, ["default"]), "only LoRA can be combined"),
        (lambda model, place: pet.hotswap_adapter(model, place), "only LoRA can be exchanged"),
        (lambda model, place: pet.save_ptuning(model, place / "prefix.bin"), "only ptuning2 has ChatGLM's form"),
    ],
    ids=["alpha", "combine", "hotswap", "ptuning"],
)
def test_what_one_method_has_is_refused_of_others(model, tmp_path, call, words):
    pet.apply_ia3(model)
    with pytest.raises(pet.InputError, match=f"adapter 'default' is of method ia3; {words}"):
        call(model, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_head_that_judges_texts_belongs_to_one_adapter(model):
    labels = Labels.plain(2)
    for name in ("first", "second"):
        add(model, name, 1)
    for active in ([], ["first", "second"]):
        pet.set_adapter(model, active)
        with pytest.raises(pet.InputError, match="belongs to one adapter"):
            add_head(model, labels)
    with pytest.raises(pet.InputError, match="only a model of a known family gets a head"):
        add_head(nn.Dense(2, 2), labels)


def test_a_head_that_nobody_uses_makes_place_for_one_of_other_labels(fixtures, tmp_path):
    def judging(model, labels, seed):
        add_head(pet.apply_lora(model, rank=2), Labels.plain(labels), seed)
        return model

    def base():
        return pet.AutoModel.from_pretrained(fixtures / "llama_gqa")

    for labels in (3, 5):
        pet.save_adapter(judging(base(), labels, 1), tmp_path / str(labels))
    model = base()
    pet.load_adapter(model, tmp_path / "3")
    with pytest.raises(pet.InputError, match=r"score\.weight has shape \(5, 64\), expected \(3, 64\)"):
        pet.load_adapter(model, tmp_path / "5", name="beside")
    pet.delete_adapter(model, "default")
    pet.load_adapter(model, tmp_path / "5")
    assert len(model.labels.names) == 5
    pet.delete_adapter(model, "default")
    alike = (judging(one, 5, 7).score.weight.asnumpy() for one in (model, base()))
    np.testing.assert_array_equal(*alike)  # it begins as its own seed says


def test_what_a_caller_does_with_its_lists_later_is_none_of_the_adapters(model, tmp_path):
    targets, ranks = {"q_proj": 8}, {"q_proj": 3}
    pet.apply_lora(model, targets=targets.keys(), rank_pattern=ranks, trainable_tokens=[np.int64(5)])
    targets["for_the_next_one"] = 8
    ranks["q_proj"] = 5
    pet.save_adapter(model, tmp_path)
    written = json.loads((tmp_path / "adapter_config.json").read_text())
    assert written["target_modules"] == ["q_proj"] and written["rank_pattern"] == {"q_proj": 3}


def test_a_configuration_is_as_it_was_given_after_a_head_was_added(fixtures):
    config = pet.LoRAConfig(rank=2)
    for _ in range(2):
        model = pet.apply(pet.AutoModel.from_pretrained(fixtures / "llama_gqa"), config)
        add_head(model, Labels.plain(2))
        assert config == pet.LoRAConfig(rank=2)
        assert registry(model).get("default").config.modules_to_save == ["score"]


def test_a_classifier_has_no_head_of_a_language_model_to_adapt(tmp_path):
    """An adapter on it would do nothing; a file that names it beside other cells means those, as in PEFT."""
    base = tmp_path / "base"
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    values = {"model_type": "llama", "vocab_size": 32, "tie_word_embeddings": True, "id2label": {"0": "a", "1": "b"}}
    values |= {"architectures": ["LlamaForSequenceClassification"], **sizes}
    pet.save_pretrained(pet.AutoModel.from_config(values, seed=1), base)
    model = pet.AutoModel.from_pretrained(base)
    with pytest.raises(pet.InputError, match="'lm_head' matches no cell"):
        pet.apply_lora(model, rank=2, targets=["q_proj", "lm_head"])
    pet.apply_lora(model, rank=2, targets=["q_proj"])
    pet.save_adapter(model, tmp_path)
    where = tmp_path / "adapter_config.json"
    where.write_text(json.dumps({**json.loads(where.read_text()), "target_modules": ".*q_proj|lm_head"}))
    loaded = pet.AutoModel.from_pretrained(base)
    pet.load_adapter(loaded, tmp_path)
    assert len(pet.trainable_parameters(loaded)) == 4


def test_a_language_models_head_saved_beside_a_classifiers_is_passed_over(fixtures, tmp_path):
    """As in PEFT, whose classifier has none that could be saved."""
    add_head(model := pet.apply_lora(pet.AutoModel.from_pretrained(fixtures / "llama_gqa"), rank=2), Labels.plain(2))
    pet.save_adapter(model, tmp_path)
    where = tmp_path / "adapter_config.json"
    where.write_text(json.dumps({**json.loads(where.read_text()), "modules_to_save": ["lm_head", "score"]}))
    said = "modules_to_save: 'lm_head' matches nothing here"
    loaded = pet.AutoModel.from_pretrained(fixtures / "llama_gqa")
    with pytest.warns(UserWarning, match=said):
        pet.load_adapter(loaded, tmp_path)
    assert {one.name for one in pet.trainable_parameters(loaded)} == {p.name for p in pet.trainable_parameters(model)}
    with pytest.warns(UserWarning, match=said):
        pet.merge_checkpoint(fixtures / "llama_gqa", tmp_path, tmp_path / "merged")


@pytest.mark.parametrize("config", [{"method": "lora"}, pet.LoRAConfig, "lora", None])
def test_what_is_no_configuration_is_an_error(model, config):
    with pytest.raises(ValueError, match=r"an adapter's configuration was expected, as pet\.LoRAConfig\(rank=8\)"):
        pet.apply(model, config)
    with pytest.raises(ValueError, match="an adapter's configuration was expected"):
        pet.add_adapter(model, config, "second")
    with pytest.raises(ValueError, match="name is of the type LoRAConfig; a text was expected"):  # PEFT's order
        pet.add_adapter(model, "second", pet.LoRAConfig(rank=2))
    assert pet.list_adapters(model) == []


def test_rows_of_several_adapters_over_a_tied_base_in_bfloat16(tmp_path):
    """Which MindSpore cannot compile on a CPU: it is said, and computed by operators."""
    config = {**pet.AutoConfig.from_pretrained("llama_tiny").to_dict(), "num_hidden_layers": 1}
    made = pet.AutoModel.from_config({**config, "tie_word_embeddings": True})
    pet.save_pretrained(made, tmp_path, dtype="bfloat16")
    model = pet.AutoModel.from_pretrained(str(tmp_path), dtype="auto")
    pet.apply_lora(model, rank=2)
    for name, weight in model.parameters_dict().items():
        if "lora_B" in name:
            weight.set_data(ms.Tensor(np.random.default_rng(1).normal(0, 1, weight.shape).astype(np.float32)))
    ids = np.array([[5, 6, 7], [5, 6, 7]], np.int32)
    with pet.adapter_names(model, ["default", "__base__"]):
        both = model.generate(ids, max_new_tokens=4, eos_token_id=None)
    tuned = model.generate(ids[:1], max_new_tokens=4, eos_token_id=None)
    with pet.disable_adapters(model):
        plain = model.generate(ids[:1], max_new_tokens=4, eos_token_id=None)
    assert np.array_equal(both, np.concatenate([tuned, plain])) and not np.array_equal(tuned, plain)
