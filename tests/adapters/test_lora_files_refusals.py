"""Adapters' files that are damaged, absurd or of another kind are refused by name."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from adapter_files import NAMES, PART, change_tensors, edit, refuse

import pet
from adapters.registry import registry

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


@pytest.mark.parametrize(
    ("parts", "message"),
    [("qv", "enable_lora is 'qv'"), ([False], r"enable_lora is \[False\]"), ([True, True], "chooses 2 parts$")],
)
def test_parts_that_do_not_describe_the_file(llama, directory, parts, message):
    edit(directory, enable_lora=parts)
    refuse(llama, directory, message)


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
