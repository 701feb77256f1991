"""Adapters' files and the bases that they were trained on."""

from __future__ import annotations

import json

import mindspore as ms
import numpy as np
import pytest
from adapter_files import IDS, NAMES, change_tensors, randomise, refuse

import pet
from adapters.registry import registry
from model_zoo.checkpoint.fingerprint import fingerprint
from model_zoo.checkpoint.parameters import write_parameter
from model_zoo.errors import InputError


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
