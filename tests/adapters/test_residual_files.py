"""Packed bases that first factors were taken from: saved, merged, loaded again."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
from sets import some

import pet
from adapters.merge import merge, merge_and_unload, unmerge
from adapters.registry import registry
from adapters.sites import weight_array
from model_zoo.checkpoint.safetensors_io import SafetensorsFile, write_file
from model_zoo.errors import InputError
from model_zoo.quantization.cells import quantized_cells
from pet.cli.info import adapter_facts

os.environ.setdefault("HF_HUB_OFFLINE", "1")
from first_factors import BASE, codes, input_ids, loaded, modules, moved, originals, same_codes, started, train

DORA = {"use_dora": True, "targets": ["q_proj", "v_proj", "embed_tokens"]}


@pytest.mark.parametrize("settings", some([{}, DORA], [DORA]), ids=str)
def test_a_saved_adapter_opens_as_it_was_trained_and_can_be_trained_on(fixtures, tmp_path, settings):
    settings = {"rank_pattern": {"v_proj": 2}, "alpha_pattern": {"q_proj": 5.0}, "use_rslora": True, **settings}
    model, ids = started(loaded(fixtures), **settings), input_ids(fixtures)
    train(model, ids)
    pet.save_adapter(model, tmp_path / "one")
    assert adapter_facts(tmp_path / "one")["init"] == "pissa"  # what it was made on, by `pet info`
    again = loaded(fixtures)
    assert pet.load_adapter(again, tmp_path / "one") == []
    assert same_codes(again, codes(model))
    np.testing.assert_allclose(again(ids).asnumpy(), model(ids).asnumpy(), atol=1e-5)
    pet.save_adapter(again, tmp_path / "two")
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    started_there = {path: module for path, module in modules(again).items() if path != "model.embed_tokens"}
    first = {path: module.initial_A.weight.asnumpy().copy() for path, module in started_there.items()}
    train(again, ids)
    for path, module in started_there.items():
        assert np.array_equal(module.initial_A.weight.asnumpy(), first[path])
        assert not np.array_equal(module.lora_A.weight.asnumpy(), first[path])
    pet.save_adapter(again, tmp_path / "three")
    third = loaded(fixtures)
    pet.load_adapter(third, tmp_path / "three")
    np.testing.assert_allclose(third(ids).asnumpy(), again(ids).asnumpy(), atol=1e-5)


@pytest.mark.parametrize("change", [lambda array: None, np.ravel], ids=["lacking", "misshapen"])
def test_a_file_without_a_whole_pair_of_factors_is_refused(fixtures, tmp_path, change):
    pet.save_adapter(started(loaded(fixtures), targets=["q_proj"]), tmp_path)
    file, name = (
        tmp_path / "adapter_model.safetensors",
        "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight",
    )
    with SafetensorsFile(file) as stored:
        arrays, metadata = {key: stored.read(key) for key in stored.tensors}, stored.metadata
    arrays[name] = change(arrays[name])
    write_file(file, {key: array for key, array in arrays.items() if array is not None}, metadata)
    model = loaded(fixtures)
    with pytest.raises(InputError, match=r"layers\.1\.self_attn\.q_proj\.lora_B\.weight (is missing|has shape)"):
        pet.load_adapter(model, tmp_path)
    assert pet.list_adapters(model) == []


@pytest.mark.parametrize("dora", [False, True])
def test_another_alpha_packs_what_the_factors_leave_at_that_scale(fixtures, tmp_path, dora):
    """As in the file that is saved then: the base is what it is beneath a loaded one, near the unpacked one."""
    ids, model = input_ids(fixtures), started(loaded(fixtures), use_dora=dora)
    for parameter in registry(model).get("default").parameters():
        parameter.set_data(parameter * 1.05)

    def bare(model):
        with pet.disable_adapters(model):
            return model(ids).asnumpy()

    before = bare(model)
    pet.set_alpha(model, 10)
    pet.save_adapter(model, tmp_path)
    again = loaded(fixtures)
    pet.load_adapter(again, tmp_path)
    np.testing.assert_allclose(model(ids).asnumpy(), again(ids).asnumpy(), atol=1e-4)
    np.testing.assert_array_equal(bare(model), bare(again))
    unpacked = pet.AutoModel.from_pretrained(str(fixtures / BASE))(ids).asnumpy()
    assert np.abs(bare(model) - unpacked).mean() < 1.5 * np.abs(before - unpacked).mean()


@pytest.mark.parametrize("dora", [False, True])
def test_it_merges_exactly_into_the_unquantised_base_and_into_what_it_was_trained_on(fixtures, tmp_path, dora):
    model, ids = moved(started(loaded(fixtures), use_dora=dora)), input_ids(fixtures)
    pet.save_adapter(model, tmp_path / "adapter")
    pet.merge_checkpoint(fixtures / BASE, tmp_path / "adapter", tmp_path / "exact")
    pet.merge_checkpoint(fixtures / BASE, tmp_path / "adapter", tmp_path / "trained", dequantize=True)
    weights = originals(fixtures, model)
    for which, bases in (("exact", weights), ("trained", None)):
        with SafetensorsFile(tmp_path / which / "model.safetensors") as file:
            for path, module in modules(model).items():
                base = weight_array(registry(model).get("default").sites[path]) if bases is None else bases[path]
                expected = (base + module.delta(base)).astype(np.float32)
                assert np.array_equal(file.read(f"{path}.weight"), expected), (which, path)
    merged = pet.AutoModel.from_pretrained(str(tmp_path / "trained"))
    np.testing.assert_allclose(merged(ids).asnumpy(), model(ids).asnumpy(), atol=1e-4)
    shutil.copytree(tmp_path / "adapter", tmp_path / "copy")
    with pytest.raises(InputError, match=r"two adapters took their first factors off it; merge them one by one"):
        twice = [tmp_path / "adapter", tmp_path / "copy"]
        pet.merge_checkpoint(fixtures / BASE, twice, tmp_path / "both", dequantize=True)


def test_merging_in_memory_is_undone_bit_for_bit_and_can_be_kept(fixtures):
    model, ids = moved(started(loaded(fixtures))), input_ids(fixtures)
    before, active = codes(model), model(ids).asnumpy()
    exact = {path: weight_array(s) + modules(model)[path].delta(None) for path, s in sites_of(model).items()}
    report = merge(model, requantize=True)
    for path, values in exact.items():
        difference = quantized_cells(model)[f"{path}.weight"].dequantized() - values
        assert 0 < np.abs(difference).max() <= report.error * (1 + 1e-6)
    merged = model(ids).asnumpy()
    unmerge(model)
    assert same_codes(model, before)
    assert np.array_equal(model(ids).asnumpy(), active)
    merge_and_unload(model, requantize=True)
    assert np.array_equal(model(ids).asnumpy(), merged)


def sites_of(model):
    return registry(model).get("default").sites
