"""Bytes and tensors that no ``.ckpt`` file or no model has."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from model_zoo.checkpoint.ckpt_io import CkptFile, write_ckpt
from model_zoo.checkpoint.safetensors_io import read_file, write_file
from model_zoo.errors import InputError
from pet.compat.ckpt.doors import find_ckpt, to_directory, to_file
from pet.compat.ckpt.lora import to_adapter

REMARK = b"\x0a\x0e\x0a\x01a\x12\x09\x12\x03str\x1a\x02hi"
"""A checkpoint that holds a text alone."""
HALF = b"\x08\x80\x80\x80\x80\x10"
"""An extent of 2³²: two make 0 where a product has 64 bits."""
EMPTY = b"\x0a\x1c\x0a\x01w\x12\x17" + 2 * HALF + b"\x12\x07Float32\x1a\x00"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (bytes(1000), "byte 0 begins no field"),
        (bytes(1), "it ends at byte 1"),
        (b"\x12\x02ab", "byte 2 belongs to no value"),
        (b"\x0a\x00", "a value has no name"),
        (b"\x08\x01", "byte 1 begins no field"),
        (b"\x0a", "it ends at byte 1"),
        (b"\x0a\x80", "it ends at byte 2"),
        (REMARK, "it holds no tensors"),
        (EMPTY, "takes 73786976294838206464 bytes, 0 are there"),
    ],
)
def test_bytes_that_are_no_checkpoint(tmp_path, content, why):
    (tmp_path / "a.ckpt").write_bytes(content)
    with pytest.raises(InputError, match=rf"a\.ckpt: not a whole MindSpore checkpoint \(.*{why}"):
        CkptFile(tmp_path / "a.ckpt")


def test_tensors_that_the_model_does_not_have_are_refused_both_ways(fixtures, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(fixtures / "llama_gqa", source)
    tensors = read_file(source / "model.safetensors")
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)}
    write_file(source / "model.safetensors", {**tensors, **buffer}, {"format": "pt"})
    to_file(source, tmp_path / "a.ckpt")
    odd = {"model.layers.0.self_attn.q_norm.weight": np.ones(16, np.float32)}
    write_file(source / "model.safetensors", {**tensors, **odd}, {"format": "pt"})
    with pytest.raises(InputError, match=r"q_norm\.weight .* is no parameter of the model"):
        to_file(source, tmp_path / "b.ckpt")
    parts = {"model.layers.0.attention.wq.mindpet_delta_lora_a": (2, 64)}
    parts |= {"model.layers.0.attention.wq.mindpet_delta_lora_b": (64, 2), "model.layers.0.attention.q_norm": (16,)}
    described = {name: ("float32", shape) for name, shape in parts.items()}
    write_ckpt(tmp_path / "lora.ckpt", described, lambda name: np.ones(parts[name], np.float32))
    with pytest.raises(InputError, match="q_norm is no parameter of this model"):
        to_adapter(tmp_path / "lora.ckpt", tmp_path / "adapter", 8, source)
    assert not (tmp_path / "b.ckpt").exists() and not (tmp_path / "adapter").exists()


def test_an_array_of_another_size_is_not_written(tmp_path):
    with pytest.raises(ValueError, match=r"w: 3 elements were given, \(2,\) takes more or fewer"):
        write_ckpt(tmp_path / "a.ckpt", {"w": ("float32", (2,))}, lambda name: np.zeros(3, np.float32))
    assert not list(tmp_path.iterdir())


def test_what_does_not_fit_is_listed(fixtures, tmp_path):
    file = tmp_path / "a.ckpt"
    to_file(fixtures / "llama_gqa", file)
    with CkptFile(file) as there:
        tensors, arrays = dict(there.tensors), {name: there.read(name) for name in there.tensors}
    name = "model.layers.0.attention.wq.weight"
    tensors = {old.replace("layers.0.attention.wq", "layers.0.attention.qw"): value for old, value in tensors.items()}
    arrays["model.layers.0.attention.qw.weight"] = arrays[name]
    del tensors["model.norm_out.weight"]
    write_ckpt(file, tensors, arrays.__getitem__)
    with pytest.raises(InputError) as error:
        to_directory(file, tmp_path / "out", fixtures / "llama_gqa")
    assert f"{name} is missing" in str(error.value)
    assert "model.norm_out.weight is missing" in str(error.value)
    assert f"attention.qw.weight is no parameter of this model (did you mean {name!r}" in str(error.value)
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match=r"has shape .*, this model needs"):
        to_directory(file, tmp_path / "out", fixtures / "llama_mha")
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(InputError, match="not a whole MindSpore checkpoint"):
        CkptFile(file)
    with pytest.raises(InputError, match="MindFormers has no names for model_type 'glm'"):
        to_file(fixtures / "glm", tmp_path / "b.ckpt")
    with pytest.raises(InputError, match=r"no names for model_type 'qwen3'$"):
        to_file(fixtures / "qwen3", tmp_path / "b.ckpt")
    (tmp_path / "ranks/rank_0").mkdir(parents=True)
    to_file(fixtures / "gpt2", tmp_path / "ranks/rank_0/gpt2.ckpt")
    assert find_ckpt(tmp_path / "ranks").name == "gpt2.ckpt"
    (tmp_path / "ranks/rank_1").mkdir()
    with pytest.raises(InputError, match="pet transform"):
        find_ckpt(tmp_path / "ranks")
