"""Adapters that are not merged on disk, each with its reason."""

from __future__ import annotations

import contextlib
import json
import shutil

import numpy as np
import pytest
from merged_adapters import LAYER, lora_directory, random_lora, raw, refused, tensors

import pet
from adapters.methods import METHODS
from model_zoo.checkpoint.fingerprint import fingerprint
from model_zoo.checkpoint.reading import Checkpoint, read_config
from model_zoo.checkpoint.safetensors_io import read_file, write_file
from model_zoo.errors import InputError
from model_zoo.unwritable import CannotWrite
from pet.export import merge_checkpoint


@pytest.mark.parametrize("kind", ["prefix", "prefix_proj"])
def test_prefix_cannot_be_merged(kind, fixtures, tmp_path):
    parts = "PREFIX_TUNING cannot be merged", "keys and values in front"
    refused(fixtures / "glm", fixtures / "glm" / kind, tmp_path / "out", *parts)


@pytest.mark.parametrize("kind", ["PROMPT_TUNING", "P_TUNING", "POLY", "OFT", "LOHA", 3, None])
def test_other_methods_cannot_be_merged(kind, fixtures, tmp_path):
    adapter = lora_directory(tmp_path / "a", ["q_proj"], random_lora(LAYER, 64, 64), peft_type=kind)
    known = kind in ("PROMPT_TUNING", "P_TUNING")
    parts = ("cannot be merged",) if known else (f"peft_type is {kind!r}; supported: BITFIT",)
    message = refused(fixtures / "llama_mha", adapter, tmp_path / "out", *parts)
    assert "did you mean" not in message, "another method is no misspelling"
    way = {"LOHA": "save_as_lora", "OFT": "merge_and_unload", "POLY": "PEFT's alone"}.get(kind, "")
    assert way in message


def test_what_only_says_that_it_is_of_adalora(fixtures, tmp_path):
    adapter = lora_directory(tmp_path / "a", ["q_proj"], random_lora(LAYER, 64, 64), peft_type="ADALORA")
    refused(fixtures / "llama_mha", adapter, tmp_path / "out", "peft_type is 'ADALORA', but", "holds no lora_E")


def test_another_base_is_refused_unless_told(fixtures, tmp_path):
    base = fixtures / "llama_mha"
    with Checkpoint(base) as checkpoint:
        right = fingerprint(read_config(base), checkpoint)
    values = read_file(base.parent / "llama_mha" / "lora" / "adapter_model.safetensors")
    adapter = tmp_path / "adapter"
    shutil.copytree(base / "lora", adapter)
    write_file(adapter / "adapter_model.safetensors", values, {"format": "pt", "base_fingerprint": "0" * 32})
    refused(base, adapter, tmp_path / "out", "another base", f"{base} has {right[:8]}", "strict=False")
    merge_checkpoint(base, adapter, tmp_path / "told", strict=False)
    write_file(adapter / "adapter_model.safetensors", values, {"format": "pt", "base_fingerprint": right})
    merge_checkpoint(base, adapter, tmp_path / "right")
    assert raw(tmp_path / "told") == raw(tmp_path / "right")


def test_adapter_of_another_model_lists_everything(fixtures, tmp_path):
    refused(
        fixtures / "llama_mha",
        fixtures / "gpt2" / "lora",
        tmp_path / "out",
        "2 problems",
        "the base has no transformer.h.0.attn.c_attn.weight",
        "the base has no transformer.h.1.attn.c_attn.weight",
    )


def test_an_adapter_of_which_nothing_fits_is_one_line(fixtures, tmp_path):
    message = refused(fixtures / "gpt2", fixtures / "llama_mha" / "lora", tmp_path / "out", "another model")
    assert len(message.splitlines()) == 1 and len(message) < 400


def edit(directory, **changes) -> None:
    path = directory / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


LEFT_OUT = {
    "excluded": {"exclude_modules": ["q_proj"]},
    "other layers": {"layers_to_transform": [0]},
    "a layer by its number": {"layers_to_transform": 0},
    "other targets": {"target_modules": ["q_proj", "up_proj"]},
    "the family's targets": {"target_modules": None},
    "an expression": {"target_modules": r".*\.1\..*q_proj"},
    "saved whole": {"modules_to_save": ["mlp"]},
    "other biases": {"bias": "none"},
    "no magnitudes": {"use_dora": False},
}


@pytest.mark.parametrize("case", LEFT_OUT)
def test_what_the_configuration_leaves_out_is_refused_as_loading_refuses_it(case, fixtures, tmp_path):
    """PEFT passes over such tensors, so that the merge would be another model."""

    name = "gpt2" if case == "other biases" else "llama_gqa"
    settings = {"bias": "all"} if name == "gpt2" else {"use_dora": True} if case == "no magnitudes" else {}
    settings["targets"] = ["c_attn", "c_fc"] if name == "gpt2" else ["q_proj", "v_proj", "up_proj"]
    model = pet.apply_lora(pet.AutoModel.from_pretrained(fixtures / name), rank=2, **settings)
    pet.save_adapter(model, tmp_path / "adapter")
    merge_checkpoint(fixtures / name, tmp_path / "adapter", tmp_path / "whole")
    edit(tmp_path / "adapter", **LEFT_OUT[case])
    said = refused(
        fixtures / name, tmp_path / "adapter", tmp_path / "out", "belongs to no cell of this model's adapter"
    )
    with pytest.raises(InputError) as caught:
        pet.load_adapter(pet.AutoModel.from_pretrained(fixtures / name), tmp_path / "adapter")

    def odd(text):
        return {line.partition(" belongs")[0].rpartition(" ")[2] for line in text.splitlines() if "belongs" in line}

    assert odd(said) == odd(str(caught.value)) != set()


@pytest.mark.parametrize("given", [None, ["q_proj", "v_proj"], "all-linear", r"(?=.).*\.[qv]_proj"])
def test_targets_that_mean_what_the_file_holds(given, fixtures, tmp_path):

    model = pet.apply_lora(pet.AutoModel.from_pretrained(fixtures / "llama_gqa"), rank=2, targets=["q_proj", "v_proj"])
    pet.save_adapter(model, tmp_path / "adapter")
    edit(tmp_path / "adapter", target_modules=given)
    said = "the tensors name the cells" if isinstance(given, str) else None
    plain = pet.AutoModel.from_pretrained(fixtures / "llama_gqa")
    for read in (
        lambda: merge_checkpoint(fixtures / "llama_gqa", tmp_path / "adapter", tmp_path / "out"),
        lambda: pet.load_adapter(plain, tmp_path / "adapter"),
    ):
        with pytest.warns(UserWarning, match=said) if said else contextlib.nullcontext():
            read()
    assert pet.adapter_status(plain)["default"]["cells"] == pet.adapter_status(model)["default"]["cells"]


CONTRADICTED = {
    "inputs scaled": (
        "ia3",
        {},
        {"feedforward_modules": []},
        lambda tensors: None,
        "has shape (1, 256), expected",
    ),
    "a bias": ("bitfit", {"add_missing": False}, {}, lambda tensors: tensors.pop(min(tensors)), "bias is missing"),
    "a cell": (
        "bitfit",
        {"add_missing": False},
        {"modules_to_save": ["ln_f"]},
        lambda tensors: None,
        "ln_f.weight is",
    ),
    "magnitudes": ("lora", {}, {"use_dora": True}, lambda tensors: None, "lora_magnitude_vector is missing"),
    "rows": ("lora", {}, {"trainable_token_indices": [3]}, lambda tensors: None, "trainable_tokens_delta is missing"),
    "factors": ("lora", {}, {}, lambda tensors: tensors.pop(max(tensors)), "lora_B.weight is missing"),
}


@pytest.mark.parametrize("case", CONTRADICTED)
def test_what_the_file_lacks_is_said_as_loading_says_it(case, fixtures, tmp_path):

    method, settings, changes, change, part = CONTRADICTED[case]
    model = pet.apply(pet.AutoModel.from_pretrained(fixtures / "gpt2"), METHODS[method](**settings))
    pet.save_adapter(model, tmp_path / "adapter")
    edit(tmp_path / "adapter", **changes)
    path = tmp_path / "adapter" / "adapter_model.safetensors"
    values = read_file(path)
    change(values)
    write_file(path, values)
    said = refused(fixtures / "gpt2", tmp_path / "adapter", tmp_path / "out", part)
    with pytest.raises(InputError) as caught:
        pet.load_adapter(pet.AutoModel.from_pretrained(fixtures / "gpt2"), tmp_path / "adapter")
    assert str(caught.value).replace(".token_adapter.", ".") == said


def test_what_means_nothing_on_the_base_is_said(fixtures, tmp_path):
    adapter = tmp_path / "adapter"
    shutil.copytree(fixtures / "llama_mha" / "lora", adapter)
    edit(adapter, rank_pattern={"nothing": 3}, exclude_modules=["nowhere"])
    said = "exclude: 'nowhere' matches nothing here; rank_pattern: 'nothing' matches nothing here"
    with pytest.warns(UserWarning, match=f"adapter_config.json: {said}"):
        merge_checkpoint(fixtures / "llama_mha", adapter, tmp_path / "out")


def test_biases_that_the_base_lacks_are_named(fixtures, tmp_path):

    pet.save_adapter(pet.apply_bitfit(pet.AutoModel.from_pretrained(fixtures / "llama_mha")), tmp_path / "adapter")
    parts = "the base has no bias at this cell to add it to", "add_missing=False merges"
    refused(fixtures / "llama_mha", tmp_path / "adapter", tmp_path / "out", *parts)


def test_wrong_shapes(fixtures, tmp_path):
    adapter = lora_directory(tmp_path / "a", ["q_proj"], random_lora(LAYER, 65, 64))
    refused(fixtures / "llama_mha", adapter, tmp_path / "out", "lora_B.weight has shape (65, 2), expected (64, 2)")
    parts = random_lora(LAYER, 64, 64)
    del parts[f"{LAYER}.lora_B.weight"]
    adapter = lora_directory(tmp_path / "b", ["q_proj"], parts)
    refused(fixtures / "llama_mha", adapter, tmp_path / "out", f"{LAYER}.lora_B.weight is missing")


@pytest.mark.parametrize(
    "change, part",
    [
        ({"r": -1}, "rank is -1"),
        ({"r": 4096}, "expected (4096, 64)"),
        ({"r": 10**9}, "rank is 1000000000"),
        ({"r": "8"}, "rank is '8'"),
        ({"r": True}, "rank is True"),
        ({"lora_alpha": "big"}, "alpha is 'big'"),
        ({"lora_alpha": 1e999}, "alpha is inf"),
        ({"rank_pattern": {"(": 2}}, "'(' is no valid regular expression"),
        ({"rank_pattern": 3}, "rank_pattern is 3"),
    ],
)
def test_absurd_configuration(change, part, fixtures, tmp_path):
    adapter = lora_directory(tmp_path / "a", ["q_proj"], random_lora(LAYER, 64, 64), **change)
    refused(fixtures / "llama_mha", adapter, tmp_path / "out", part)


@pytest.mark.parametrize("indices", [3, {"wte": 3}, [-1], [0.5], [10**9], "wte", {"wte": {"a": 1}}])
def test_absurd_token_indices(indices, fixtures, tmp_path):
    rows = {"transformer.wte.token_adapter.trainable_tokens_delta": np.zeros((1, 64), np.float32)}
    adapter = lora_directory(tmp_path / "a", ["c_attn"], rows, trainable_token_indices=indices)
    part = "has ids 0 … 127" if indices == [10**9] else "a list of token ids was expected"
    refused(fixtures / "gpt2", adapter, tmp_path / "out", part)


def test_tensors_of_no_floating_point_type(fixtures, tmp_path):
    parts = {key: value.astype(np.int64) for key, value in random_lora(LAYER, 64, 64).items()}
    adapter = lora_directory(tmp_path / "a", ["q_proj"], parts)
    refused(fixtures / "llama_mha", adapter, tmp_path / "out", "lora_A.weight: dtype 'int64' is not a supported")


def test_directories_that_are_none(fixtures, tmp_path):
    base, adapter = fixtures / "llama_mha", fixtures / "llama_mha" / "lora"
    refused(tmp_path / "x", adapter, tmp_path / "out", "no such directory")
    refused(base, tmp_path / "x", tmp_path / "out", "an adapter directory was expected")
    refused(base, [], tmp_path / "out", "no adapter directory was given")
    refused(base, [adapter, adapter.parent / "." / adapter.name], tmp_path / "out", "lora is given twice")
    refused(base, base, tmp_path / "out", "holds no adapter_config.json itself; adapter directories in it are ")
    for taken in (base, adapter):
        with pytest.raises(InputError, match="is an input of the merge"):
            merge_checkpoint(base, adapter, taken)


def test_weights_that_make_no_sense(fixtures, tmp_path):
    base, adapter = fixtures / "llama_mha", fixtures / "llama_mha" / "lora"
    refused(base, adapter, tmp_path / "out", "2 given for 1 adapters", weights=[1, 2])
    refused(base, adapter, tmp_path / "out", "weights is nan; a number was expected", weights=[float("nan")])


def test_two_adapters_that_replace_the_same_tensor(fixtures, tmp_path):
    norm = {"model.norm.weight": np.ones(64, np.float32), **random_lora(LAYER, 64, 64)}
    first, second = (lora_directory(tmp_path / one, [LAYER], norm, modules_to_save=["norm"]) for one in "ab")
    refused(fixtures / "llama_mha", [first, second], tmp_path / "out", "both replace model.norm.weight")
    merge_checkpoint(fixtures / "llama_mha", first, tmp_path / "one")
    assert (tensors(tmp_path / "one")["model.norm.weight"] == 1).all()


@pytest.mark.parametrize("value, dtype", [(np.nan, None), (np.inf, None), (1e30, "float16")])
def test_safe_merge_refuses_what_is_not_finite(value, dtype, fixtures, tmp_path):
    parts = random_lora(LAYER, 64, 64)
    parts[f"{LAYER}.lora_B.weight"][3, 1] = value
    adapter = lora_directory(tmp_path / "a", [LAYER], parts)
    refused(fixtures / "llama_mha", adapter, tmp_path / "out", "NaN or Inf", f"{LAYER}.weight", safe=True, dtype=dtype)
    report = merge_checkpoint(fixtures / "llama_mha", adapter, tmp_path / "out", dtype=dtype)
    assert report.not_finite == (f"{LAYER}.weight",) and "NaN or Inf in" in str(report)


def test_no_room_on_the_disk(fixtures, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    with pytest.raises(CannotWrite, match=r"/out: cannot be written: .* 0\.0 MB are free, 0\.\d MB are needed"):
        merge_checkpoint(fixtures / "gpt2", fixtures / "gpt2" / "lora", tmp_path / "out")
    assert not list(tmp_path.iterdir())
