"""Adapter directories of LoRA: the fixtures' own, what does not fit, and what should never be opened."""

from __future__ import annotations

import json
import re
import shutil
import tracemalloc
import warnings

import mindspore as ms
import numpy as np
import pytest
from mindspore import ops
from safetensors.numpy import load_file, save_file

import pet
from adapters.registry import registry
from model_zoo.checkpoint.fingerprint import fingerprint
from model_zoo.checkpoint.parameters import write_parameter
from model_zoo.errors import InputError

IDS = np.random.default_rng(0).integers(3, 120, (2, 6))
FAMILIES = ["gpt2", "llama_mha", "llama_gqa", "glm", "chatglm1", "chatglm2", "glm4_0414"]
NAMES = ("adapter_config.json", "adapter_model.safetensors")
SETS = ("target_modules", "modules_to_save", "exclude_modules")


@pytest.fixture(scope="module")
def models(fixtures):
    made = {}

    def model(name):
        if name not in made:
            made[name] = pet.AutoModel.from_pretrained(fixtures / name)
        return made[name]

    return model


@pytest.fixture
def llama(models):
    model = models("llama_gqa")
    yield model
    for name in pet.list_adapters(model):
        pet.delete_adapter(model, name)


def as_values(path):
    values = json.loads(path.read_text())
    return {key: sorted(value) if key in SETS and isinstance(value, list) else value for key, value in values.items()}


def randomise(model, name="default"):
    generator = np.random.default_rng(3)
    for parameter in registry(model).get(name).parameters():
        value = parameter.asnumpy() + 0.05 * generator.standard_normal(parameter.shape)
        ops.assign(parameter, ms.Tensor(value.astype(np.float32)))


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


# What does not fit ----------------------------------------------------------------------------------------------------


@pytest.fixture
def directory(fixtures, tmp_path):
    target = tmp_path / "adapter"
    shutil.copytree(fixtures / "llama_gqa" / "lora", target)
    return target


def edit(directory, **changes):
    path = directory / NAMES[0]
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def refuse(model, directory, message, **settings):
    """Loading is one InputError, allocates next to nothing, and leaves the model alone."""
    before = [(p.name, id(p)) for p in model.get_parameters()]
    tracemalloc.start()
    with pytest.raises(pet.InputError, match=message) as error:
        pet.load_adapter(model, directory, **settings)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 2**20
    assert [(p.name, id(p)) for p in model.get_parameters()] == before and pet.list_adapters(model) == []
    return str(error.value)


ABSURD = {
    "negative rank": ({"r": -8}, "rank is -8"),
    "huge rank": ({"r": 10**9}, "rank is 1000000000"),
    "large rank": ({"r": 4096}, "the configuration says rank 4096"),
    "rank as text": ({"r": "8"}, "rank is '8'"),
    "rank as boolean": ({"r": True}, "rank is True"),
    "no rank": ({"r": None}, "rank is None"),
    "rank pattern": ({"rank_pattern": {"v_proj": 10**9}}, "1000000000"),
    "rank pattern list": ({"rank_pattern": ["v_proj"]}, "rank_pattern is"),
    "alpha": ({"lora_alpha": "16"}, "alpha is '16'"),
    "alpha infinite": ({"lora_alpha": float("inf")}, "alpha is inf"),
    "alpha nan": ({"lora_alpha": float("nan")}, "alpha is nan"),
    "dropout": ({"lora_dropout": 7}, "dropout is 7"),
    "targets of numbers": ({"target_modules": ["q_proj", 3]}, "target_modules is"),
    "targets a dictionary": ({"target_modules": {"q_proj": 1}}, "target_modules is"),
    "targets no expression": ({"target_modules": "q_proj("}, "no valid regular expression"),
    "more targets than tensors": (
        {"target_modules": ["q_proj", "v_proj", "o_proj"], "rank_pattern": {"o_proj": 60000}},
        "no factors for model.layers.0.self_attn.o_proj",
    ),
    "no target anywhere": ({"target_modules": ["w_proj", "x_proj"]}, "(?s)'w_proj' matches no cell.*'x_proj'"),
    "no layer anywhere": ({"layers_to_transform": [98, 99]}, "layers: 98"),
    "layers text": ({"layers_to_transform": "all"}, "layers_to_transform is 'all'"),
    "layers below 0": ({"layers_to_transform": [-1]}, "layers_to_transform is"),
    "scale as text": ({"use_rslora": "false"}, "use_rslora is 'false'"),
    "invocation tokens": ({"alora_invocation_tokens": [4]}, "alora_invocation_tokens"),
    "expression nowhere": ({"target_modules": r".*\.w_proj"}, "matches no cell"),
    "look-around in a pattern": ({"rank_pattern": {"(?<!x)v_proj": 8}}, "bounded time"),
    "endless pattern": ({"alpha_pattern": {"q" * 20_000: 3}}, "bounded time"),
    "vast pattern": ({"alpha_pattern": {"(?:.{0,500}){0,500}": 3}}, "bounded time"),
    "pattern no expression": ({"alpha_pattern": {"(": 3}}, "no valid regular expression"),
    "bias": ({"bias": 3}, "bias is 3"),
    "dora as text": ({"use_dora": "no"}, "use_dora is 'no'"),
    "saved text": ({"modules_to_save": "lm_head"}, "modules_to_save is 'lm_head'"),
    "saved numbers": ({"modules_to_save": [1]}, "modules_to_save is"),
    "tokens": ({"trainable_token_indices": [10**12]}, "id 1000000000000"),
    "tokens text": ({"trainable_token_indices": "all"}, "trainable_tokens"),
    "lost start": ({"init_lora_weights": "loftq"}, "changed base"),
    "start of a number": ({"init_lora_weights": 3}, "init_lora_weights is 3"),
    "tied as text": ({"ensure_weight_tying": "yes"}, "ensure_weight_tying is 'yes'"),
    "unsupported": ({"layer_replication": [[0, 2]]}, "layer_replication is not supported: layers of the base"),
    "later variant": ({"use_something_new": True}, "use_something_new not known here"),
    "later table": ({"something_config": {"use": True}}, "something_config not known here"),
    "kind": ({"peft_type": "LOAR"}, "did you mean 'LORA'"),
    "kind a list": ({"peft_type": ["LORA"]}, "peft_type"),
}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", ABSURD)
def test_absurd_configurations(llama, directory, name, strict):
    changes, message = ABSURD[name]
    edit(directory, **changes)
    assert str(directory) in refuse(llama, directory, message, strict=strict)


@pytest.mark.parametrize("name", sorted({*ABSURD} - {"no target anywhere", "no layer anywhere", "expression nowhere"}))
def test_merging_on_disk_refuses_what_loading_refuses(fixtures, directory, tmp_path, name):
    """But for what the tensors say: which cells, whatever the names of the configuration are."""
    changes, _ = ABSURD[name]
    edit(directory, **changes)
    with pytest.raises(pet.InputError, match=str(directory)):
        pet.merge_checkpoint(fixtures / "llama_gqa", directory, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize("name", ["lora_A", "v_proj"])
def test_neither_loads_nor_merges_a_part_of_an_adapter(llama, fixtures, directory, tmp_path, name):
    def cut(tensors):
        for key in [key for key in tensors if "layers.1." in key and name in key]:
            del tensors[key]

    change_tensors(directory, cut)
    refuse(llama, directory, r"layers\.1\.self_attn.*missing")
    with pytest.raises(pet.InputError, match=r"layers\.1\.self_attn"):
        pet.merge_checkpoint(fixtures / "llama_gqa", directory, tmp_path / "merged")


TASKS = {  # task_type, and tensors that its models alone have
    "labels": ("SEQ_CLS", {"classifier.weight": (3, 64)}),
    "labels of tokens": ("TOKEN_CLS", {"score.weight": (2, 64), "score.bias": (2,)}),
    "classifier": ("TOKEN_CLS", {"classifier.weight": (2, 64)}),
    "answers in a text": ("QUESTION_ANS", {"qa_outputs.weight": (2, 64)}),
    "no head": ("FEATURE_EXTRACTION", {"layers.0.self_attn.q_proj.lora_A.weight": (8, 64)}),
}


@pytest.mark.parametrize("name", TASKS)
def test_adapters_for_other_tasks_are_refused_by_name(llama, fixtures, directory, tmp_path, name):
    task, shapes = TASKS[name]
    edit(directory, task_type=task)
    further = {f"base_model.model.{name}": np.zeros(shape, np.float32) for name, shape in shapes.items()}
    change_tensors(directory, lambda tensors: tensors.update(further))
    assert "\n" not in refuse(llama, directory, f"task_type is {task}: .* is part of no model for text generation")
    with pytest.raises(pet.InputError, match=r"cannot be merged|is part of no model"):
        pet.merge_checkpoint(fixtures / "llama_gqa", directory, tmp_path / "merged")


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


# Each keeps Python's engine busy for hours with one of this model's names.
CATASTROPHIC = [
    r"(\w|\.|\w)*!",
    r"((.*)+.?)*(.*)*x",
    r"(?:(?:\w+\.?)+)+!",
    r"(.+.+)+!",
    r"(?:.?){60}.{60}!",
    r"(\w+|\.)+\b!",
]


def test_a_head_beside_an_adapter_is_not_passed_over_in_silence(llama, directory, caplog):
    (directory / "value_head.safetensors").touch()
    pet.load_adapter(llama, directory)
    assert [record.message for record in caplog.records if "value_head.safetensors: is not read" in record.message]


@pytest.mark.parametrize("expression", CATASTROPHIC)
def test_an_expression_in_a_file_cannot_keep_the_reader_busy(llama, fixtures, directory, tmp_path, expression):
    edit(directory, exclude_modules=expression, rank_pattern={expression: 3}, alpha_pattern={expression: 3})
    with pytest.warns(UserWarning, match="matches nothing here"):
        pet.load_adapter(llama, directory)
    pet.delete_adapter(llama, "default")
    assert pet.merge_checkpoint(fixtures / "llama_gqa", directory, tmp_path / "merged").changed == 6
    edit(directory, target_modules=expression)
    refuse(llama, directory, "matches no cell")


def test_an_expression_that_finds_more_in_peft_is_written_as_cells(llama, tmp_path):
    """PEFT fails at what is no matrix: whole sublayers, and activations, which are no cells here."""
    for targets, found in (("re:.*(q|v)_proj", 0), (r"re:.*layers\.[01]\..*", 14), (r"re:.*\.mlp\..*", 9)):
        adapter = registry(pet.apply_lora(llama, rank=2, targets=targets)).get("default")
        pet.save_adapter(llama, tmp_path)
        written = as_values(tmp_path / NAMES[0])["target_modules"]
        assert written == (sorted(adapter.modules) if found else targets.removeprefix("re:"))
        assert not found or len(written) == found
        pet.delete_adapter(llama, "default")


def test_patterns_of_older_files_are_read_as_they_were_trained(llama, tmp_path):
    """PEFT before 0.14 looked for one key in both patterns: here that of the rank, which has no alpha."""
    pet.apply_lora(llama, rank=2, alpha=6, targets=["q_proj", "v_proj"], rank_pattern={"q_proj": 3})
    randomise(llama)
    expected = llama(IDS).asnumpy()
    pet.save_adapter(llama, tmp_path)
    pet.delete_adapter(llama, "default")
    edit(tmp_path, alpha_pattern={"layers.1.self_attn.q_proj": 60}, megatron_core="megatron.core")
    for later, same in (({}, True), ({"exclude_modules": None}, False)):
        edit(tmp_path, **later)
        pet.load_adapter(llama, tmp_path)
        assert np.allclose(llama(IDS).asnumpy(), expected, atol=1e-5) is same
        pet.delete_adapter(llama, "default")


@pytest.mark.parametrize(
    "patterns",
    [
        {"rank_pattern": {"q_proj": 3}, "alpha_pattern": {"layers.1.self_attn.q_proj": 60}},
        {"rank_pattern": {"layers.1.self_attn.q_proj": 5, "q_proj": 3}},
        {"alpha_pattern": {"layers.1.self_attn.q_proj": 7, ".*layers.[12].*": 60}, "rank_pattern": {"v_proj": 2}},
        {"rank_pattern": {"embed_tokens": 3, "q_proj": 2}, "init": "pissa"},
        {"alpha_pattern": {r"^model\.layers\.1\.self_attn\.q_proj": 60}},
        {"rank_pattern": {"q_proj|v_proj": 3}},
        {"alpha_pattern": {"model.layers.1.self_attn.q_proj": 60, "(q|v)_proj": 5}},
    ],
)
def test_patterns_mean_the_same_to_every_peft(llama, tmp_path, patterns):
    """Before 0.15 it looked for keys behind a dot alone, before 0.14 for one key in both patterns."""
    adapter = registry(pet.apply_lora(llama, rank=4, targets=["q_proj", "v_proj", "embed_tokens"], **patterns))
    pet.save_adapter(llama, tmp_path)
    values = as_values(tmp_path / NAMES[0])
    ranks, alphas = (values.get(f"{name}_pattern", {}) for name in ("rank", "alpha"))
    for path, module in adapter.get("default").modules.items():
        found = next((key for key in (*ranks, *alphas) if re.match(rf".*\.{key}$", path)), path)
        rank, alpha = ranks.get(found, values["r"]), alphas.get(found, values["lora_alpha"])
        first = next(iter(module.tensors().values()))
        assert (rank, alpha / rank) == (first.shape[0] * (1 + hasattr(module, "initial_A")), module.scale), path


@pytest.mark.parametrize("init", ["default", "pissa"])
def test_the_order_of_patterns_survives_the_file(llama, tmp_path, init):
    """The first match counts, in PEFT too, which sorts the keys of what it saves."""
    patterns = {"layers.1.self_attn.q_proj": 5, "q_proj": 3, ".*layers.[12].*": 4}
    assert list(patterns) != sorted(patterns)
    pet.apply_lora(
        llama, rank=2, targets=["q_proj", "v_proj"], rank_pattern=patterns, alpha_pattern=patterns, init=init
    )
    randomise(llama)
    expected = llama(IDS).asnumpy()
    pet.save_adapter(llama, tmp_path)
    pet.delete_adapter(llama, "default")
    values = json.loads((tmp_path / NAMES[0]).read_text())
    for key in ("rank_pattern", "alpha_pattern"):
        for order in (sorted, lambda items: sorted(items, reverse=True)):
            values[key] = dict(order(values[key].items()))
            (tmp_path / NAMES[0]).write_text(json.dumps(values, indent=2))
            pet.load_adapter(llama, tmp_path)
            np.testing.assert_allclose(llama(IDS).asnumpy(), expected, atol=1e-5)
            pet.save_adapter(llama, tmp_path / "again")
            pet.delete_adapter(llama, "default")
            again = json.loads((tmp_path / "again" / NAMES[0]).read_text())
            assert list(again[key].items()) == list(values[key].items())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "adapter_config.json"),
        (b"[1, 2]", "adapter_config.json"),
        (b"\xff\xfe", "adapter_config.json"),
        (b"[" * 200_000, "adapter_config.json"),
        (b'{"r": ' + b"9" * 10_000 + b', "peft_type": "LORA"}', "adapter_config.json"),
    ],
    ids=["empty", "a list", "no text", "deep", "long number"],
)
def test_files_that_are_no_configuration(llama, directory, content, message):
    (directory / NAMES[0]).write_bytes(content)
    refuse(llama, directory, message)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8 + b"{}",
        (10**12).to_bytes(8, "little") + b"{}",
        (90_000_000).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (74).to_bytes(8, "little")
        + b'{"base_model.model.x":{"dtype":"F32","shape":[9999999999],"data_offsets":[0,4]}}'[:74],
    ],
    ids=["empty", "huge header", "long header", "cut header", "no dictionary", "cut"],
)
def test_files_that_hold_no_tensors(llama, directory, content):
    (directory / NAMES[1]).write_bytes(content)
    refuse(llama, directory, "adapter_model.safetensors")


def test_a_tensor_larger_than_its_file(llama, directory):
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    header = json.dumps({name: {"dtype": "F32", "shape": [8, 2**40], "data_offsets": [0, 2**45]}}).encode()
    (directory / NAMES[1]).write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 64)
    refuse(llama, directory, "adapter_model.safetensors")


@pytest.mark.parametrize("name", ["../up", "a/b", "", "x" * 65, "__base__", 3])
def test_paths_as_names(llama, directory, name):
    refuse(llama, directory, "adapter name" if isinstance(name, str) else "name is 3; a text was", name=name)


def test_no_such_directory_and_missing_files(llama, fixtures, directory, tmp_path):
    refuse(llama, tmp_path / "nowhere", "an adapter directory was expected$")
    refuse(llama, "owner/adapter", r"no such directory; .* from a hub it is fetched first: hf download owner/adapter")
    (directory / NAMES[1]).unlink()
    refuse(llama, directory, "holds no adapter_model.safetensors$")
    (directory / NAMES[0]).unlink()
    refuse(llama, directory, "adapter_config.json")
    shutil.copytree(fixtures / "llama_gqa" / "lora", directory / "sft")  # as PEFT saves an adapter that has a name
    refuse(
        llama, directory, rf"holds no adapter_config\.json itself; adapter directories in it are {directory / 'sft'}$"
    )


def change_tensors(directory, change):
    tensors = load_file(directory / NAMES[1])
    change(tensors)
    save_file(tensors, directory / NAMES[1], {"format": "pt"})


PART = "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"


@pytest.mark.parametrize("name", ["default", "tuned"])
def test_names_within_peft_s_model_are_read_without_the_adapter_s(llama, fixtures, directory, tmp_path, name):
    """PEFT 0.21 opens them, too, where the adapter is called as it is there."""
    pet.apply_lora(llama, rank=2, targets=["q_proj", "embed_tokens"], use_dora=True, modules_to_save=["lm_head"])
    randomise(llama)
    expected = llama(IDS).asnumpy()
    pet.save_adapter(llama, directory)
    pet.delete_adapter(llama, "default")

    def change(tensors):
        for key in list(tensors):
            part = "modules_to_save" if "lm_head" in key else key.removesuffix(".weight").rpartition(".")[2]
            before, found, after = key.partition(part)
            named = f"{before}{part}.{name}{after}" if found else key.replace("lm_head", f"lm_head.{part}.{name}")
            tensors[named] = tensors.pop(key)

    change_tensors(directory, change)
    pet.merge_checkpoint(fixtures / "llama_gqa", directory, tmp_path / "merged")
    pet.load_adapter(llama, directory)
    np.testing.assert_array_equal(llama(IDS).asnumpy(), expected)
    merged = pet.AutoModel.from_pretrained(tmp_path / "merged")(IDS).asnumpy()
    np.testing.assert_allclose(merged, expected, atol=1e-4)


def test_a_file_with_adapters_of_two_names_is_refused(llama, directory):
    def change(tensors):
        for key in list(tensors):
            tensors.update({key.replace(".weight", f".{name}.weight"): tensors[key] for name in ("one", "two")})
            del tensors[key]

    change_tensors(directory, change)
    refuse(llama, directory, r"adapter_model\.safetensors: holds adapters of several names \(one, two\)")


def test_what_does_not_begin_as_peft_s_names_do_is_not_merged_either(llama, fixtures, directory, tmp_path):
    change_tensors(directory, lambda tensors: tensors.update({PART[len("base_model.model.") :]: tensors.pop(PART)}))
    refuse(llama, directory, "q_proj.lora_B.weight does not begin with base_model.model")
    with pytest.raises(InputError, match=r"q_proj\.lora_B\.weight does not begin with base_model\.model\."):
        pet.merge_checkpoint(fixtures / "llama_gqa", directory, tmp_path / "merged")


@pytest.mark.parametrize("parts", [[True, False, True], [True, True, True]], ids=["two", "three"])
def test_parts_of_a_fused_matrix_by_peft_before_0_3(fixtures, tmp_path, parts):
    """Its `MergedLinear`: B is a convolution of two groups, whose outputs go to the chosen parts in turn."""
    base, generator, count = fixtures / "gpt2", np.random.default_rng(5), sum(parts)
    changed, tensors = pet.AutoModel.from_pretrained(base), {}
    weights = {name: one for name, one in changed.parameters_dict().items() if name.endswith("attn.c_attn.weight")}
    for name, weight in weights.items():
        width, out = weight.shape[0], weight.shape[1] // 3 * count
        a = generator.normal(0, 0.3, (2 * count, width)).astype(np.float32)
        b = generator.normal(0, 0.3, (out, count, 1)).astype(np.float32)
        tensors |= {
            f"base_model.model.{name.replace('.weight', f'.lora_{key}.weight')}": x
            for key, x in zip("AB", (a, b), strict=True)
        }
        product = np.concatenate([b[: out // 2, :, 0] @ a[:count], b[out // 2 :, :, 0] @ a[count:]])
        rows = iter(np.split(product, count))
        delta = np.concatenate([next(rows) if part else np.zeros((len(product) // count, width)) for part in parts])
        write_parameter(weight, (weight.asnumpy() + 16 / 2 * delta.T).astype(np.float32))
    save_file(tensors, tmp_path / NAMES[1])
    values = {"peft_type": "LORA", "r": 2, "lora_alpha": 16, "lora_dropout": 0.1, "bias": "none", "enable_lora": parts}
    values |= {"target_modules": ["c_attn"], "fan_in_fan_out": True, "merge_weights": True, "task_type": "CAUSAL_LM"}
    (tmp_path / NAMES[0]).write_text(json.dumps(values))
    expected, model = changed(IDS).asnumpy(), pet.AutoModel.from_pretrained(base)
    pet.load_adapter(model, tmp_path)
    np.testing.assert_allclose(model(IDS).asnumpy(), expected, atol=1e-4)
    pet.merge_checkpoint(base, tmp_path, tmp_path / "merged")
    np.testing.assert_allclose(pet.AutoModel.from_pretrained(tmp_path / "merged")(IDS).asnumpy(), expected, atol=1e-4)
    pet.save_adapter(model, tmp_path / "again")
    written = json.loads((tmp_path / "again" / NAMES[0]).read_text())
    assert (written["r"], written["lora_alpha"]) == (2 * count, 16 * count) and "enable_lora" not in written


@pytest.mark.parametrize(
    ("parts", "message"),
    [("qv", "enable_lora is 'qv'"), ([False], r"enable_lora is \[False\]"), ([True, True], "chooses 2 parts$")],
)
def test_parts_that_do_not_describe_the_file(llama, directory, parts, message):
    edit(directory, enable_lora=parts)
    refuse(llama, directory, message)


@pytest.mark.parametrize(
    ("around", "within"),
    [("module.", ""), ("_orig_mod.", ""), ("", "_orig_mod."), ("module._orig_mod.", ""), ("base_model.model.", "")],
    ids=["DistributedDataParallel", "torch.compile", "compiled layers", "both", "PeftModel"],
)
def test_what_a_wrapper_puts_in_front_of_names(llama, directory, tmp_path, caplog, around, within):
    """PEFT passes over such tensors, so that a model without an adapter is left."""
    pet.load_adapter(llama, directory, name="plain")
    expected = llama(ms.Tensor(IDS)).asnumpy()
    wrapped = tmp_path / "wrapped"
    shutil.copytree(directory, wrapped)

    def change(tensors):
        for name in list(tensors):
            tensors[around + name.replace("layers.1.", f"layers.1.{within}")] = tensors.pop(name)

    change_tensors(wrapped, change)
    pet.load_adapter(llama, wrapped, name="wrapped")
    pet.set_adapter(llama, "wrapped")
    assert np.array_equal(llama(ms.Tensor(IDS)).asnumpy(), expected)
    (line,) = [record.getMessage() for record in caplog.records if "without what a wrapper adds" in record.getMessage()]
    assert line.startswith(f"{wrapped / NAMES[1]}: {around or 'base_model.model.model.layers.1._orig_mod.'}")


def test_magnitudes_under_the_name_that_they_have_within_peft_s_model(llama, fixtures, tmp_path):
    """PEFT opens both; merging on disk and loading do."""
    pet.apply_lora(llama, rank=2, use_dora=True)
    randomise(llama)
    expected = llama(IDS).asnumpy()
    pet.save_adapter(llama, tmp_path)
    pet.delete_adapter(llama, "default")

    def change(tensors):
        for name in [name for name in tensors if name.endswith("_vector")]:
            tensors[f"{name}.weight"] = tensors.pop(name)

    change_tensors(tmp_path, change)
    pet.merge_checkpoint(fixtures / "llama_gqa", tmp_path, tmp_path / "merged")
    pet.load_adapter(llama, tmp_path)
    np.testing.assert_array_equal(llama(IDS).asnumpy(), expected)
    merged = pet.AutoModel.from_pretrained(tmp_path / "merged")(IDS).asnumpy()
    np.testing.assert_allclose(merged, expected, atol=1e-4)


def test_names_that_come_to_the_same_without_a_wrapper_are_refused(llama, directory):
    change_tensors(directory, lambda tensors: tensors.update({f"module.{PART}": tensors[PART]}))
    refuse(llama, directory, "module.base_model.* does not begin with")


def test_other_shapes_missing_and_extra_tensors(llama, directory):
    def change(tensors):
        tensors[PART] = np.zeros((65, 8), np.float32)
        del tensors[PART.replace("q_proj", "v_proj")]
        tensors[PART.replace("q_proj", "k_proj")] = np.zeros((32, 8), np.float32)
        tensors["odd.name"] = np.zeros(3, np.float32)

    change_tensors(directory, change)
    refuse(llama, directory, "odd.name does not begin with")
    change_tensors(directory, lambda tensors: tensors.pop("odd.name"))
    message = refuse(llama, directory, "3 problems")
    for part in ("(65, 8)", "v_proj.lora_B.weight is missing", "k_proj.lora_B.weight belongs to no cell"):
        assert part in message
    skipped = pet.load_adapter(llama, directory, strict=False)
    assert len(skipped) == 3 and any("(65, 8)" in line for line in skipped)
    adapter = registry(llama).get("default")
    assert not adapter.modules["model.layers.1.self_attn.q_proj"].lora_B.weight.asnumpy().any()
    assert adapter.modules["model.layers.0.self_attn.q_proj"].lora_B.weight.asnumpy().any()


def test_a_shallower_and_a_deeper_base(fixtures, directory):
    values = json.loads((fixtures / "llama_gqa" / "config.json").read_text())
    for layers, word in ((2, "belongs to no cell"), (4, "no factors for|is missing")):
        model = pet.AutoModel.from_config({**values, "num_hidden_layers": layers})
        message = refuse(model, directory, word)
        assert ("layers.2" if layers == 2 else "layers.3") in message
        skipped = pet.load_adapter(model, directory, strict=False)
        assert len(skipped) == 4 and all(("layers.2" if layers == 2 else "layers.3") in line for line in skipped)


def test_another_base_of_the_same_shape(llama, fixtures, tmp_path):
    pet.apply_lora(llama, rank=2)
    randomise(llama)
    pet.save_adapter(llama, tmp_path)
    pet.delete_adapter(llama, "default")
    values = json.loads((fixtures / "llama_gqa" / "config.json").read_text())
    other = pet.AutoModel.from_config(values)
    refuse(other, tmp_path, "another base")
    assert "another base" in pet.load_adapter(other, tmp_path, strict=False)[0]


def test_a_base_weight_of_the_adapters_own(llama, directory):
    """PEFT saves the whole weight of an adapted embedding or head; it must be this model's."""
    pet.apply_lora(llama, rank=2, targets=["lm_head"])
    randomise(llama)
    expected = llama(IDS).asnumpy()
    pet.save_adapter(llama, directory)
    pet.delete_adapter(llama, "default")
    key = "base_model.model.lm_head.base_layer.weight"
    weight = llama.lm_head.weight.asnumpy().copy()
    change_tensors(directory, lambda tensors: tensors.update({key: weight}))
    pet.load_adapter(llama, directory)
    np.testing.assert_array_equal(llama(IDS).asnumpy(), expected)
    pet.delete_adapter(llama, "default")
    change_tensors(directory, lambda tensors: tensors.update({key: weight + 1}))
    refuse(llama, directory, "base weight of its own")
    values = json.loads((directory / NAMES[0]).read_text())
    (directory / NAMES[0]).write_text(json.dumps({**values, "init_lora_weights": "pissa"}))
    refuse(llama, directory, "pissa took its first factors off it; save it in PEFT as plain LoRA")


def test_unknown_settings_of_a_later_version_warn(llama, directory):
    edit(directory, new_group_size=16, use_nothing_new=False, no_config={"inner": {"use": False}, "list": []})
    with pytest.warns(UserWarning, match="json: new_group_size not known"):
        pet.load_adapter(llama, directory)


def test_merging_on_disk_refuses_a_start_that_the_base_decides(fixtures, directory):
    from adapters.stored import StoredAdapter

    edit(directory, init_lora_weights="pissa")
    with pytest.raises(pet.InputError, match="in memory"):
        StoredAdapter(directory)


def test_what_peft_alone_keeps_frozen_is_said(llama, directory):
    edit(directory, init_lora_weights="mica")
    with pytest.warns(UserWarning, match="'mica': PEFT trains A alone; training goes on with A and B here"):
        pet.load_adapter(llama, directory)


def test_whole_weights_of_a_narrow_base(fixtures, tmp_path):
    model = pet.AutoModel.from_pretrained(fixtures / "llama_gqa", dtype="bfloat16")
    pet.apply_lora(model, rank=2, modules_to_save=["norm"], trainable_tokens=[4])
    own = registry(model).get("default").tensors()["model.norm.weight"]
    assert own.dtype == ms.bfloat16
    write_parameter(own, np.linspace(-1, 1, 64, dtype=np.float32))
    before = own.astype(ms.float32).asnumpy().copy()
    pet.save_adapter(model, tmp_path)
    pet.delete_adapter(model, "default")
    pet.load_adapter(model, tmp_path)
    again = registry(model).get("default").tensors()["model.norm.weight"]
    np.testing.assert_array_equal(again.astype(ms.float32).asnumpy(), before)
    pet.save_adapter(model, tmp_path / "again")
    assert (tmp_path / "again" / NAMES[1]).read_bytes() == (tmp_path / NAMES[1]).read_bytes()


DTYPES = ("float32", "bfloat16", "float16")


@pytest.mark.parametrize("stored", DTYPES)
def test_an_adapter_fits_its_base_in_every_type(fixtures, tmp_path, stored):
    """Numbers that float16 cannot hold, and numbers that it moves across the middle between two of bfloat16's."""
    base = tmp_path / "base"
    model = pet.AutoModel.from_pretrained(fixtures / "llama_gqa")
    weight = model.model.layers[1].mlp.down_proj.weight
    values = weight.asnumpy().copy()
    values[0, :6] = 1e-9, -3e-8, 7e4, 1.00390625 - 2.0**-13, 1.01171875 + 2.0**-13, 6e-6
    weight.set_data(ms.Tensor(values))
    pet.save_pretrained(model, base, dtype=stored)
    for dtype in DTYPES:
        model = pet.AutoModel.from_pretrained(base, dtype=dtype)
        pet.apply_lora(model, rank=2)
        pet.save_adapter(model, tmp_path / dtype)
    for held in DTYPES:
        model = pet.AutoModel.from_pretrained(base, dtype=held)
        for dtype in DTYPES:
            assert pet.load_adapter(model, tmp_path / dtype, name=dtype) == []
    pet.merge_checkpoint(base, [tmp_path / dtype for dtype in DTYPES], tmp_path / "merged")
    weight = model.model.layers[0].mlp.down_proj.weight  # in float16
    values = weight.asnumpy().copy()
    values[3] += np.float16(0.5)
    write_parameter(weight, values)
    with pytest.raises(InputError, match="made on another base"):
        pet.load_adapter(model, tmp_path / "float16", name="changed")


def test_a_base_is_hashed_once_as_long_as_it_is_the_same(fixtures, tmp_path, monkeypatch):
    from adapters import saving as files

    hashed = []
    monkeypatch.setattr(files, "fingerprint", lambda *given: hashed.append(1) or fingerprint(*given))
    model = pet.AutoModel.from_pretrained(fixtures / "llama_gqa")
    pet.apply_lora(model, rank=2)
    for name in ("first", "second"):
        pet.save_adapter(model, tmp_path / name)
        pet.load_adapter(model, tmp_path / name, name=name)
    assert len(hashed) == 1
    row = model.model.layers[1].mlp.down_proj.weight
    values = row.asnumpy().copy()
    values[5] += 1.0  # one row of one matrix
    row.set_data(ms.Tensor(values))
    with pytest.raises(InputError, match="made on another base"):
        pet.load_adapter(model, tmp_path / "first", name="third")
    assert len(hashed) == 2
