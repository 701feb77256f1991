"""Adapter directories of LoRA: the fixtures' own, what does not fit, and what should never be opened."""

from __future__ import annotations

import json
import shutil
import warnings

import numpy as np
import pytest
from adapter_files import IDS, NAMES, as_values, change_tensors, edit, randomise
from safetensors.numpy import load_file

import pet
from adapters.registry import registry

FAMILIES = ["gpt2", "llama_mha", "llama_gqa", "glm", "chatglm1", "chatglm2", "glm4_0414"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("adapter", ["lora", "lora_train_final"])
def test_loading_then_saving_gives_the_same_files(models, fixtures, tmp_path, family, adapter):
    directory = fixtures / family / adapter
    if not directory.is_dir():
        pytest.skip(f"{family} has no {adapter}")
    model = models(family)
    pet.load_adapter(model, directory)
    try:
        pet.save_adapter(model, tmp_path)
    finally:
        pet.delete_adapter(model, "default")
    config, tensors = NAMES
    assert (tmp_path / tensors).read_bytes() == (directory / tensors).read_bytes()
    assert as_values(tmp_path / config) == as_values(directory / config)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_merged_weights_are_those_of_the_reference(models, fixtures, family):
    model, reference = models(family), np.load(fixtures / family / "lora_ref.npz")
    pet.load_adapter(model, fixtures / family / "lora")
    try:
        found = model(reference["input_ids"]).asnumpy()
        pet.merge(model)
        merged = {name: parameter.asnumpy() for name, parameter in model.parameters_dict().items()}
        stored = load_file(fixtures / family / "lora_merged" / "model.safetensors")
        changed = 0
        for name, value in stored.items():
            if name in merged and "lora_" not in name:
                np.testing.assert_allclose(merged[name], value, rtol=0, atol=1e-6, err_msg=name)
                changed += 1
        assert changed > 10
    finally:
        if registry(model).merged_names:
            pet.unmerge(model)
        pet.delete_adapter(model, "default")
    np.testing.assert_allclose(found, reference["lora_logits"], rtol=0, atol=1e-4)


def test_what_was_trained_after_loading_is_saved_with_the_other_settings_kept(llama, fixtures, tmp_path):
    pet.load_adapter(llama, fixtures / "llama_gqa" / "lora")
    randomise(llama)
    expected = llama(IDS).asnumpy()
    pet.save_adapter(llama, tmp_path)
    pet.delete_adapter(llama, "default")
    before, after = (as_values(path / NAMES[0]) for path in (fixtures / "llama_gqa" / "lora", tmp_path))
    assert after == {key: value for key, value in before.items() if key in {*OF_ALL, *OLDEST["LORA"]}}
    pet.load_adapter(llama, tmp_path)
    np.testing.assert_array_equal(llama(IDS).asnumpy(), expected)


# The settings in PEFT 0.4's classes. Up to 0.13 it refuses a file for a key that it does not know.
OF_ALL = ("auto_mapping", "base_model_name_or_path", "inference_mode", "peft_type", "revision", "task_type")
OF_PROMPTS = ("num_attention_heads", "num_layers", "num_transformer_submodules", "num_virtual_tokens", "token_dim")
OLDEST = {
    "LORA": (
        *("bias", "fan_in_fan_out", "init_lora_weights", "layers_pattern", "layers_to_transform", "lora_alpha"),
        *("lora_dropout", "modules_to_save", "r", "target_modules"),
    ),
    "IA3": ("fan_in_fan_out", "feedforward_modules", "init_ia3_weights", "modules_to_save", "target_modules"),
    "PREFIX_TUNING": (*OF_PROMPTS, "encoder_hidden_size", "prefix_projection"),
    "PROMPT_TUNING": (*OF_PROMPTS, "prompt_tuning_init", "prompt_tuning_init_text", "tokenizer_name_or_path"),
    "P_TUNING": (
        *(*OF_PROMPTS, "encoder_dropout", "encoder_hidden_size", "encoder_num_layers"),
        "encoder_reparameterization_type",
    ),
}
LATER = {  # what a file of a later PEFT has besides where nothing is asked for
    "LORA": {"alora_invocation_tokens": None, "exclude_modules": None, "loftq_config": {}, "lora_bias": False}
    | {"megatron_core": "megatron.core", "peft_version": "0.21.2", "qalora_group_size": 16, "rank_pattern": {}},
    "IA3": {"exclude_modules": None, "peft_version": "0.21.2"},
    "PREFIX_TUNING": {"init_weights": None, "modules_to_save": None, "peft_version": "0.21.2"},
    "PROMPT_TUNING": {"modules_to_save": None, "peft_version": "0.21.2", "tokenizer_kwargs": None},
    "P_TUNING": {"modules_to_save": None, "peft_version": "0.21.2"},
}
ASKED_FOR = {
    "lora": (pet.LoRAConfig(rank=2, layers=[1], exclude=["q_proj"], init="gaussian"), {}),
    "dora": (pet.LoRAConfig(rank=2, use_dora=True), {"use_dora": True}),
    "rslora": (pet.LoRAConfig(rank=2, use_rslora=True), {"use_rslora": True}),
    "tokens": (pet.LoRAConfig(rank=2, trainable_tokens=[3]), {"trainable_token_indices": [3]}),
    "patterns": (pet.LoRAConfig(rank=2, rank_pattern={"q_proj": 3}), {"rank_pattern": {"q_proj": 3}}),
    "ia3": (pet.IA3Config(), {}),
    "prefix": (pet.PrefixConfig(length=2), {}),
    "prompt": (pet.PromptConfig(length=2), {}),
    "p_tuning": (pet.PTuningConfig(length=2, projection_hidden=4), {}),
}


@pytest.mark.parametrize("name", ASKED_FOR)
def test_a_file_has_a_setting_of_a_later_peft_only_where_it_is_used(llama, tmp_path, name):
    """Also where a file of a later PEFT was loaded, trained further, and saved again."""
    config, used = ASKED_FOR[name]
    pet.apply(llama, config)
    pet.save_adapter(llama, tmp_path)
    values = as_values(tmp_path / NAMES[0])
    kind = values["peft_type"]
    assert values.keys() == {*OF_ALL, *OLDEST[kind], *used}
    assert {key: values[key] for key in used} == used
    pet.delete_adapter(llama, "default")
    (tmp_path / NAMES[0]).write_text(json.dumps({**LATER[kind], **values}))
    pet.load_adapter(llama, tmp_path)
    randomise(llama)
    pet.save_adapter(llama, tmp_path)
    assert as_values(tmp_path / NAMES[0]) == values


@pytest.mark.parametrize(
    "settings",
    [
        {"use_dora": True, "use_rslora": True},
        {"init": "olora", "rank_pattern": {"v_proj": 3}, "alpha_pattern": {"q_proj": 7}},
        {"init": "pissa", "use_rslora": True, "alpha_pattern": {"q_proj": 7}},
        {"init": "pissa", "use_dora": True, "targets": ["q_proj", "embed_tokens"], "alpha_pattern": {".*": 7}},
        {"targets": ["embed_tokens", "*.1.self_attn.*"], "exclude": ["k_proj"]},
        {"targets": "mlp", "layers": ["1-"], "modules_to_save": ["norm"], "trainable_tokens": [4, 9]},
    ],
    ids=["dora", "olora", "pissa", "pissa_dora", "globs", "mixed"],
)
def test_saved_and_loaded_again(llama, tmp_path, settings):
    pet.apply_lora(llama, rank=2, **settings)
    randomise(llama)
    expected = llama(IDS).asnumpy()
    pet.save_adapter(llama, tmp_path)
    pet.delete_adapter(llama, "default")
    assert pet.load_adapter(llama, tmp_path, "again") == []
    np.testing.assert_allclose(llama(IDS).asnumpy(), expected, atol=1e-5)
    pet.save_adapter(llama, tmp_path / "twice", "again")
    assert (tmp_path / "twice" / NAMES[1]).read_bytes() == (tmp_path / NAMES[1]).read_bytes()


@pytest.mark.parametrize("config", [pet.LoRAConfig(modules_to_save=["norm"]), pet.IA3Config(modules_to_save=["norm"])])
def test_what_is_trained_whole_is_written_in_full_where_peft_would_find_more(llama, tmp_path, config):
    """It takes a name for every cell whose path ends so, input_layernorm's too."""
    pet.apply(llama, config)
    pet.save_adapter(llama, tmp_path)
    assert as_values(tmp_path / NAMES[0])["modules_to_save"] == ["model.norm"]


def test_settings_that_are_numpys_or_read_but_once_are_saved_as_they_were_meant(llama, tmp_path):
    settings = {"rank": np.int16(2), "targets": np.array(["q_proj"]), "rank_pattern": {"q_proj": np.int64(3)}}
    pet.apply_lora(llama, **settings, layers=iter([0]), modules_to_save=iter(["lm_head"]))
    pet.save_adapter(llama, tmp_path)
    saved = json.loads((tmp_path / "adapter_config.json").read_text())
    assert saved["r"] == 2 and saved["modules_to_save"] == ["lm_head"]


def test_pissa_is_written_as_plain_lora_of_twice_the_rank(llama, tmp_path):
    pet.apply_lora(llama, rank=2, alpha=6, targets=["q_proj"], init="pissa")
    randomise(llama)
    path = "model.layers.0.self_attn.q_proj"
    change = registry(llama).get("default").modules[path].delta(None)
    pet.save_adapter(llama, tmp_path)
    values, tensors = as_values(tmp_path / NAMES[0]), load_file(tmp_path / NAMES[1])
    assert (values["r"], values["lora_alpha"], values["init_lora_weights"]) == (4, 12, True)
    a, b = (tensors[f"base_model.model.{path}.lora_{part}.weight"].astype(np.float64) for part in "AB")
    np.testing.assert_allclose(12 / 4 * b @ a, change, atol=1e-6)


MEANINGLESS = {
    "rank pattern": {"rank_pattern": {"w_proj": 4}},
    "alpha pattern": {"alpha_pattern": {"w_proj": 4}},
    "target": {"target_modules": ["q_proj", "v_proj", "w_proj"]},
    "exclude": {"exclude_modules": ["w_proj"]},
    "exclude expression": {"exclude_modules": r".*\.w_proj"},
    "layer": {"layers_to_transform": [0, 1, 2, 99]},
    "saved": {"modules_to_save": ["score"]},
    "several": {"modules_to_save": ["score"], "exclude_modules": ["w_proj"], "rank_pattern": {"w_proj": 4}},
    "look-around": {"target_modules": r"(?!.*k_proj).*\.[qkv]_proj"},
    "no layers": {"layers_to_transform": []},
}


@pytest.mark.parametrize("name", MEANINGLESS)
def test_what_means_nothing_in_a_file_is_one_warning(llama, directory, tmp_path, name):
    pet.load_adapter(llama, directory)
    expected = llama(IDS).asnumpy()
    pet.delete_adapter(llama, "default")
    edit(directory, **MEANINGLESS[name])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert pet.load_adapter(llama, directory) == []
    assert len([one for one in seen if str(directory) in str(one.message)]) == (name != "no layers")
    np.testing.assert_array_equal(llama(IDS).asnumpy(), expected)
    pet.save_adapter(llama, tmp_path / "same")
    assert json.loads((tmp_path / "same" / NAMES[0]).read_text()) == json.loads((directory / NAMES[0]).read_text())
    randomise(llama)
    expected = llama(IDS).asnumpy()
    pet.save_adapter(llama, tmp_path / "trained")
    pet.delete_adapter(llama, "default")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pet.load_adapter(llama, tmp_path / "trained")
    np.testing.assert_array_equal(llama(IDS).asnumpy(), expected)


def test_a_target_that_a_classifier_lacks_is_passed_over(fixtures, directory, tmp_path):
    """As PEFT does; who adapts the language model's head, too, names it for a classifier as well."""
    head = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    edit(directory, task_type="SEQ_CLS", modules_to_save=["classifier", "score"])
    change_tensors(directory, lambda tensors: tensors.update({"base_model.model.score.weight": head}))
    found = []
    for targets in (["q_proj", "v_proj"], ["q_proj", "v_proj", "lm_head"]):
        edit(directory, target_modules=targets)
        model = pet.AutoModel.from_pretrained(fixtures / "llama_gqa")
        pet.load_adapter(model, directory)
        pet.merge_checkpoint(fixtures / "llama_gqa", directory, tmp_path / str(len(targets)))
        found.append(
            [model(IDS).asnumpy(), (tmp_path / str(len(targets)) / NAMES[1].replace("adapter_", "")).read_bytes()]
        )
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


def test_biases_of_targets_that_peft_left_out_are_the_bases(models, fixtures, tmp_path):
    """PEFT 0.7 to 0.20 looked for them beside the factors, where an adapted cell has none."""
    model, adapter = models("gpt2"), tmp_path / "adapter"
    shutil.copytree(fixtures / "gpt2" / "lora", adapter)
    pet.load_adapter(model, adapter)
    expected = model(IDS).asnumpy()
    pet.delete_adapter(model, "default")
    edit(adapter, bias="lora_only")
    with pytest.warns(UserWarning, match="bias: the file holds none"):
        pet.load_adapter(model, adapter)
    np.testing.assert_array_equal(model(IDS).asnumpy(), expected)
    pet.delete_adapter(model, "default")
    with pytest.warns(UserWarning, match="bias: the file holds none"):
        pet.merge_checkpoint(fixtures / "gpt2", adapter, tmp_path / "merged")
    merged = pet.AutoModel.from_pretrained(tmp_path / "merged")(IDS).asnumpy()
    np.testing.assert_allclose(merged, expected, rtol=0, atol=1e-5)
