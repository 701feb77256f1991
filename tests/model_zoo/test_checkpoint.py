"""Checkpoint directories: what can be opened, what is refused, and how tensors find their parameters."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from mindspore.common.np_dtype import bfloat16
from stacks import stacked

from model_zoo.checkpoint.dtypes import STORAGE, convert
from model_zoo.checkpoint.reading import Checkpoint, read_config
from model_zoo.checkpoint.safetensors_io import read_file, write_file, write_stream
from model_zoo.errors import InputError

FIXTURES = ("chatglm1", "chatglm2", "glm", "glm4_0414", "gpt2", "llama_gqa", "llama_mha")


def write_typed(path, tensors, types):
    """Writes float32 arrays in the given types, {name: type}."""
    described = {name: (types[name], value.shape) for name, value in tensors.items()}
    with open(path, "wb") as file:
        write_stream(file, described, lambda name: convert(tensors[name], "float32", types[name]), {"format": "pt"})


def copy_of(fixtures, tmp_path, name, files=("config.json", "model.safetensors")):
    target = tmp_path / name
    target.mkdir(exist_ok=True)
    for file in files:
        shutil.copy(fixtures / name / file, target / file)
    return target


def shard(directory, parts=3):
    """Splits model.safetensors into shards with an index."""
    tensors = read_file(directory / "model.safetensors")
    placed = {}
    for number in range(parts):
        file = f"model-{number + 1:05d}-of-{parts:05d}.safetensors"
        chosen = {name: value for index, (name, value) in enumerate(tensors.items()) if index % parts == number}
        write_file(directory / file, chosen, {"format": "pt"})
        placed.update(dict.fromkeys(chosen, file))
    (directory / "model.safetensors").unlink()
    index = {"metadata": {"total_size": 1}, "weight_map": placed}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return placed


@pytest.mark.parametrize("name", FIXTURES)
def test_names_shapes_types_and_data(name, fixtures):
    expected = read_file(fixtures / name / "model.safetensors")
    with Checkpoint(fixtures / name) as checkpoint:
        assert checkpoint.names == sorted(expected) and len(checkpoint) == len(expected)
        for tensor in checkpoint:
            assert checkpoint.shape(tensor) == expected[tensor].shape
            assert checkpoint.dtype(tensor) == "float32"
            np.testing.assert_array_equal(checkpoint.read(tensor), expected[tensor])
        with pytest.raises(InputError, match=r"no tensor 'wat'"):
            checkpoint.read("wat")


def test_shards_read_as_one(fixtures, tmp_path):
    directory = copy_of(fixtures, tmp_path, "glm")
    expected = read_file(directory / "model.safetensors")
    shard(directory)
    for index in (True, False):  # a complete numbered set needs no index
        if not index:
            (directory / "model.safetensors.index.json").unlink()
        with Checkpoint(directory) as checkpoint:
            assert len(checkpoint.files) == 3
            assert checkpoint.names == sorted(expected)
            for name in checkpoint:
                np.testing.assert_array_equal(checkpoint.read(name), expected[name])


def test_types_are_converted_exactly_or_rounded_once(tmp_path):
    array = np.random.default_rng(0).standard_normal((33, 9)).astype(np.float32)
    types = {"a": "float32", "b": "float16", "c": "bfloat16"}
    write_typed(tmp_path / "model.safetensors", dict.fromkeys(types, array), types)
    with Checkpoint(tmp_path) as checkpoint:
        for name, word in types.items():
            assert checkpoint.dtype(name) == word
            stored = convert(array, "float32", word)
            wide = convert(stored, word, "float32")
            np.testing.assert_array_equal(checkpoint.read(name, dtype="float32"), wide)
            np.testing.assert_array_equal(checkpoint.read(name, (slice(4, 9), slice(1, 3))), wide[4:9, 1:3])
            out = np.empty(array.shape, bfloat16)
            checkpoint.read_into(name, out)
            expected = convert(stored, word, "bfloat16")
            np.testing.assert_array_equal(out.view(np.uint16), expected)
            as_bfloat16 = checkpoint.read(name, dtype="bf16")
            assert as_bfloat16.dtype == bfloat16
            np.testing.assert_array_equal(as_bfloat16.view(np.uint16), expected)
            half = checkpoint.read(name, dtype="float16")
            assert half.dtype == STORAGE["float16"]
            np.testing.assert_array_equal(half, convert(stored, word, "float16"))


def test_arrays_stay_valid_after_closing(fixtures):
    with Checkpoint(fixtures / "gpt2") as checkpoint:
        array = checkpoint.read("transformer.wte.weight")
    np.testing.assert_array_equal(array, read_file(fixtures / "gpt2" / "model.safetensors")["transformer.wte.weight"])


# What is refused ------------------------------------------------------------------------------------------------------


def refused(directory, *parts):
    with pytest.raises(InputError) as caught:
        Checkpoint(directory)
    for part in parts:
        assert part in str(caught.value), str(caught.value)


def test_no_directory(tmp_path):
    refused(tmp_path / "nowhere", "nowhere", "no such directory")
    (tmp_path / "file").write_text("x")
    refused(tmp_path / "file", "file: is a file")


def test_no_weights(tmp_path):
    refused(tmp_path, "holds no weights", "model.safetensors")


@pytest.mark.parametrize("file", ["model.pt", "weights.ckpt", "tf_model.h5"])
def test_other_files_are_refused_with_the_way_out(file, tmp_path):
    (tmp_path / file).write_bytes(b"\x80\x02cos\nsystem\n")
    refused(tmp_path, file, "a framework's own format", "save_pretrained")


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("model-Q4_0.gguf", ("in llama.cpp's own format", "gguf_file=")),
        ("consolidated.00.pth", ("in Meta's own format", "get model.safetensors")),
        ("zero_pp_rank_0_mp_rank_00_model_states.pt", ("in parts by ZeRO 3", "zero_to_fp32.py")),
        ("__0_0.distcp", ("in parts by torch.distributed", "merge-weights")),
    ],
)
def test_formats_of_others_are_named(fixtures, tmp_path, file, words):
    shutil.copy(fixtures / "torch_save" / "archive.bin", tmp_path / file)
    refused(tmp_path, file, *words)


@pytest.mark.parametrize("name", ["last.ckpt", "mp_rank_00_model_states.pt", "model.pth"])
def test_a_training_state_opens_whatever_it_is_called(fixtures, tmp_path, name):
    stored = fixtures / "torch_save" / "archive.bin"
    for beside in ("training_args.bin", "optimizer.pt", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", name):
        shutil.copy(stored, tmp_path / beside)
    with Checkpoint(tmp_path) as checkpoint:
        assert list(checkpoint.files) == [name] and "whole" in checkpoint
    shutil.copy(stored, tmp_path / "epoch=1.ckpt")
    refused(tmp_path, f"which of epoch=1.ckpt, {name} belong together is unknown")


WRAPPED = {  # what stands in front of all names, and what within them
    "DDP": ("module.", "", ""),
    "compiled DDP": ("module._orig_mod.", "", ""),
    "Lightning": ("model.", "", ""),
    "PEFT": ("base_model.model.", "", ""),
    "a user's own": ("net.llm.", "", ""),
    "compiled layers": ("", ".self_attn.", ".self_attn._orig_mod."),
    "FSDP": ("_fsdp_wrapped_module.", ".mlp.", "._fsdp_wrapped_module.mlp._checkpoint_wrapped_module."),
}


@pytest.mark.parametrize("wrapper", WRAPPED)
@pytest.mark.parametrize("name", ["llama_gqa", "gpt2", "chatglm1"])
def test_what_wrappers_put_in_front_of_names_is_taken_off(fixtures, tmp_path, name, wrapper):
    directory = copy_of(fixtures, tmp_path, name)
    expected, (front, within, become) = read_file(directory / "model.safetensors"), WRAPPED[wrapper]
    heads = ("", "transformer.") if name == "gpt2" else ("",)  # of GPT2Model: without the first part
    for head in heads:
        bare = {stored.removeprefix(head): value for stored, value in expected.items()}
        wrapped = {front + (stored.replace(within, become) if within else stored): bare[stored] for stored in bare}
        write_file(directory / "model.safetensors", wrapped)
        with Checkpoint(directory) as checkpoint:
            assert checkpoint.names == sorted(bare)
            for stored in bare:
                np.testing.assert_array_equal(checkpoint.read(stored), bare[stored])


def test_experts_that_lie_in_one_tensor_are_read_one_by_one(fixtures, tmp_path):
    directory = copy_of(fixtures, tmp_path, "qwen3_moe")
    expected = read_file(directory / "model.safetensors")
    held = stacked(expected)
    write_file(directory / "model.safetensors", held)
    with Checkpoint(directory) as checkpoint:
        assert checkpoint.names == sorted(expected)
        for name, value in expected.items():
            np.testing.assert_array_equal(checkpoint.read(name), value)
    odd = next(name for name in held if name.endswith("gate_up_proj"))
    write_file(directory / "model.safetensors", {**held, odd: held[odd][:, 1:].copy()})
    with Checkpoint(directory) as checkpoint:
        assert checkpoint.shape(odd) == held[odd][:, 1:].shape


def test_an_adapter_among_the_weights_is_refused(fixtures, tmp_path):
    directory = copy_of(fixtures, tmp_path, "llama_gqa")
    held = {f"base_model.model.{name}": value for name, value in read_file(directory / "model.safetensors").items()}
    held["base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"] = np.zeros((2, 64), np.float32)
    write_file(directory / "model.safetensors", held)
    refused(directory, "lora_A.default.weight: an adapter lies among the model's weights", "merge_and_unload")


def test_adapter_directory(fixtures):
    refused(fixtures / "gpt2" / "lora", "holds an adapter, not a model")


def test_missing_shards_are_all_named(fixtures, tmp_path):
    directory = copy_of(fixtures, tmp_path, "glm")
    shard(directory)
    (directory / "model-00001-of-00003.safetensors").unlink()
    (directory / "model-00003-of-00003.safetensors").unlink()
    refused(directory, "model-00001-of-00003.safetensors, which is missing", "model-00003-of-00003.safetensors")
    (directory / "model.safetensors.index.json").unlink()
    refused(directory, "shards [1, 3] of 3 are missing")


@pytest.mark.parametrize(
    "text, part",
    [
        ("{", "line 1, column 2: not valid JSON"),
        ("[]", "it holds a list"),
        ("{}", "no weight_map"),
        ('{"weight_map": {"a": 3}}', "no weight_map"),
        ('{"weight_map": {"a": "../model.safetensors"}}', "not a .safetensors file of this directory"),
        ('{"weight_map": {"a": "model.bin"}}', "not a .safetensors file of this directory"),
        ("[" * 200_000, "not valid JSON"),
    ],
)
def test_bad_index(text, part, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    refused(tmp_path, "model.safetensors.index.json", part)


def test_index_that_contradicts_its_shards(fixtures, tmp_path):
    directory = copy_of(fixtures, tmp_path, "glm")
    placed = shard(directory)
    placed["model.norm.extra"] = "model-00002-of-00003.safetensors"
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    refused(directory, "lacks model.norm.extra")


def test_several_files_without_an_index(tmp_path):
    for name in ("one.safetensors", "two.safetensors"):
        write_file(tmp_path / name, {"a": np.zeros(2, np.float32)})
    refused(tmp_path, "one.safetensors, two.safetensors", "unknown")


def test_every_damaged_shard_is_named(fixtures, tmp_path):
    directory = copy_of(fixtures, tmp_path, "glm")
    shard(directory)
    for number in (1, 2):
        path = directory / f"model-0000{number}-of-00003.safetensors"
        path.write_bytes(path.read_bytes()[:-100])
    refused(directory, "2 problems", "model-00001-of-00003", "model-00002-of-00003", "(100 are missing)")


@pytest.mark.parametrize(
    "text, part",
    [(None, "config.json: not found"), ('{"a": 1,}', "not valid JSON"), ("3", "it holds a int"), (b"\xff", "JSON")],
)
def test_bad_config(text, part, tmp_path):
    if text is not None:
        (tmp_path / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=r"config\.json") as caught:
        read_config(tmp_path)
    assert part in str(caught.value)


def test_config_of_no_directory(tmp_path):
    with pytest.raises(InputError, match="no such directory"):
        read_config(tmp_path / "nowhere")
