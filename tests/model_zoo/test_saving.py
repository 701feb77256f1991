"""Saving: bit-identical on the way back, whole or absent, and read by Hugging Face transformers."""

from __future__ import annotations

import json

import mindspore as ms
import numpy as np
import pytest
from safetensors import safe_open

from model_zoo.auto import AutoModel
from model_zoo.checkpoint.dtypes import convert
from model_zoo.checkpoint.fingerprint import fingerprint, same_base
from model_zoo.checkpoint.reading import Checkpoint, read_config
from model_zoo.checkpoint.safetensors_io import read_file
from model_zoo.checkpoint.saving import parse_size, save_pretrained
from model_zoo.errors import InputError

FIXTURES = ("chatglm1", "chatglm2", "glm", "glm4_0414", "gpt2", "llama_gqa", "llama_mha")


def bits(model):
    return {name: value.asnumpy().tobytes() for name, value in model.parameters_dict().items()}


@pytest.mark.parametrize("size", ["5GB", "100KB"])
@pytest.mark.parametrize("name", FIXTURES)
def test_loads_back_bit_identical(name, size, fixtures, tmp_path):
    model = AutoModel.from_pretrained(fixtures / name)
    save_pretrained(model, tmp_path / "out", max_shard_size=size)
    again = AutoModel.from_pretrained(tmp_path / "out")
    assert bits(again) == bits(model)
    before, after = model.config.to_dict(), again.config.to_dict()
    assert {key: after.get(key) for key, value in before.items() if value is not None} == {
        key: value for key, value in before.items() if value is not None
    }
    with Checkpoint(tmp_path / "out") as checkpoint:
        assert (len(checkpoint.files) > 1) == (size == "100KB")
        for file in checkpoint.files.values():
            assert file.metadata == {"format": "pt"}
    if size == "100KB":
        index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
        total = sum(info.nbytes for file in checkpoint.files.values() for info in file.tensors.values())
        assert index["metadata"]["total_size"] == total
        for file in checkpoint.files.values():
            assert len(file.tensors) == 1 or sum(info.nbytes for info in file.tensors.values()) <= 100_000


@pytest.mark.parametrize("name", FIXTURES)
def test_the_names_in_the_file_are_those_of_the_published_one(name, fixtures, tmp_path):
    save_pretrained(AutoModel.from_pretrained(fixtures / name), tmp_path / "out")
    with safe_open(fixtures / name / "model.safetensors", "np") as published:
        expected = {key for key in published.keys() if not key.endswith("inv_freq")}  # noqa: SIM118
    with safe_open(tmp_path / "out" / "model.safetensors", "np") as saved:
        assert set(saved.keys()) == expected


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_saving_in_another_type_rounds_once(dtype, fixtures, tmp_path):
    model = AutoModel.from_pretrained(fixtures / "llama_gqa")
    save_pretrained(model, tmp_path / "out", dtype=dtype)
    assert read_config(tmp_path / "out")["dtype"] == dtype
    with Checkpoint(tmp_path / "out") as checkpoint:
        for name, value in model.parameters_dict().items():
            assert checkpoint.dtype(name) == dtype
            np.testing.assert_array_equal(checkpoint.raw(name), convert(value.asnumpy(), "float32", dtype))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_model_held_in_half_precision_loads_back_bit_identical(dtype, fixtures, tmp_path):
    model = AutoModel.from_pretrained(fixtures / "glm", dtype=dtype)
    save_pretrained(model, tmp_path / "out")
    again = AutoModel.from_pretrained(tmp_path / "out", dtype=dtype)
    assert {str(value.dtype).lower() for value in again.get_parameters()} == {dtype}
    assert bits(again) == bits(model)


def test_companions_are_copied_and_old_weights_removed(fixtures, tmp_path):
    source = tmp_path / "source"
    model = AutoModel.from_pretrained(fixtures / "glm")
    save_pretrained(model, source)
    for name in ("tokenizer.json", "ice_text.model", "modeling_x.py", "MODEL_LICENSE", "README.md", "optimizer.bin"):
        (source / name).write_text(name)
    model = AutoModel.from_pretrained(source)
    out = tmp_path / "out"
    save_pretrained(model, out, max_shard_size="100KB")
    (out / "notes.txt").write_text("mine")
    save_pretrained(model, out, max_shard_size="60KB")
    with Checkpoint(out) as checkpoint:
        shards = set(checkpoint.files)
    assert {path.name for path in out.glob("*.safetensors")} == shards
    for name in ("tokenizer.json", "ice_text.model", "modeling_x.py", "MODEL_LICENSE"):
        assert (out / name).read_text() == name
    assert not (out / "README.md").exists() and not (out / "optimizer.bin").exists()
    assert (out / "notes.txt").read_text() == "mine"
    save_pretrained(model, out)
    assert [path.name for path in out.glob("*.safetensors*")] == ["model.safetensors"]
    assert bits(AutoModel.from_pretrained(out)) == bits(model)


@pytest.mark.parametrize("existing", [True, False])
def test_a_failing_save_changes_nothing(existing, fixtures, tmp_path, monkeypatch):
    model = AutoModel.from_pretrained(fixtures / "gpt2")
    out = tmp_path / "sub" / "out"
    if existing:
        save_pretrained(model, out)
    before = {path.name: path.read_bytes() for path in out.glob("*")}
    calls = []

    def failing(path, value, **options):
        calls.append(path)
        raise OSError("the disk is full")

    monkeypatch.setattr("model_zoo.checkpoint.saving.write_json", failing)
    model.transformer.wte.weight.asnumpy()[:] = 7
    with pytest.raises(OSError, match="disk is full"):
        save_pretrained(model, out)
    assert calls
    assert {path.name: path.read_bytes() for path in out.glob("*")} == before
    assert not list(tmp_path.rglob("*unfinished*"))


def test_adapter_parameters_are_not_written(fixtures, tmp_path):
    model = AutoModel.from_pretrained(fixtures / "gpt2")
    extra = ms.Parameter(ms.Tensor(np.ones((2, 2), np.float32)), name="transformer.h.0.attn.c_attn.lora_A.weight")
    model.transformer.h[0].attn.c_attn.lora_A = extra
    extra.name = "transformer.h.0.attn.c_attn.lora_A.weight"
    assert extra.name in model.parameters_dict()
    save_pretrained(model, tmp_path / "out")
    assert not any("lora" in name for name in read_file(tmp_path / "out" / "model.safetensors"))


@pytest.mark.parametrize(
    "text, value", [("5GB", 5 * 10**9), ("500MiB", 500 * 2**20), ("1.5kb", 1500), (12, 12), ("7 B", 7), ("1e3", None)]
)
def test_sizes(text, value):
    if value is None:
        with pytest.raises(InputError, match="is not a size"):
            parse_size(text)
    else:
        assert parse_size(text) == value
    for wrong in ("0GB", "-5GB", "5 apples", "", "GB", 10**400):
        with pytest.raises(InputError):
            parse_size(wrong)


def test_output_that_is_a_file(fixtures, tmp_path):
    (tmp_path / "out").write_text("x")
    with pytest.raises(InputError, match="is a file"):
        save_pretrained(AutoModel.from_pretrained(fixtures / "gpt2"), tmp_path / "out")


@pytest.mark.parametrize("kept", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["gpt2", "llama_gqa", "glm", "glm4_0414"])
def test_transformers_opens_it_with_equal_logits(name, kept, fixtures, tmp_path):
    torch = pytest.importorskip("torch", reason="the live comparison needs torch")
    transformers = pytest.importorskip("transformers", reason="the live comparison needs transformers")
    model = AutoModel.from_pretrained(fixtures / name)
    save_pretrained(model, tmp_path / "out", max_shard_size="100KB", dtype=kept)
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype=torch.float32, output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    ours = AutoModel.from_pretrained(tmp_path / "out")
    ids = np.load(fixtures / name / "ref.npz")["input_ids"]
    with torch.no_grad():
        expected = theirs.eval()(torch.from_numpy(ids)).logits.numpy()
    assert np.abs(ours(ids).asnumpy() - expected).max() < 1e-4
    # and the way back
    theirs.save_pretrained(tmp_path / "back")
    assert bits(AutoModel.from_pretrained(tmp_path / "back")) == bits(ours)


# Fingerprints ---------------------------------------------------------------------------------------------------------


def on_disk(directory):
    with Checkpoint(directory) as checkpoint:
        return fingerprint(read_config(directory), checkpoint)


@pytest.mark.parametrize("name", FIXTURES)
def test_fingerprint_does_not_depend_on_how_the_base_is_kept(name, fixtures, tmp_path):
    model = AutoModel.from_pretrained(fixtures / name)
    whole = fingerprint(model.config.to_dict(), model)
    save_pretrained(model, tmp_path / "shards", max_shard_size="100KB")
    assert whole == on_disk(fixtures / name) == on_disk(tmp_path / "shards")
    assert [len(part) for part in whole.split("-")] == [32, 32]
    for dtype, part in (("bfloat16", 0), ("float16", 1)):
        save_pretrained(model, tmp_path / dtype, dtype=dtype)
        copy = on_disk(tmp_path / dtype)
        assert copy.split("-")[part] == whole.split("-")[part]
        assert same_base(copy, whole) and same_base(whole, copy)
        loaded = AutoModel.from_pretrained(tmp_path / dtype, dtype=dtype)
        assert fingerprint(loaded.config.to_dict(), loaded) == copy
    assert same_base(whole.split("-")[0], whole) and not same_base(*whole.split("-"))


def test_fingerprint_of_both_gpt2_layouts(fixtures, tmp_path):
    (tmp_path / "model.safetensors").write_bytes((fixtures / "gpt2" / "model.hub_layout.safetensors").read_bytes())
    found = set()
    for directory in (tmp_path, fixtures / "gpt2"):
        with Checkpoint(directory) as checkpoint:
            found.add(fingerprint(read_config(fixtures / "gpt2"), checkpoint))
    assert len(found) == 1


def test_fingerprint_sees_every_weight_and_the_architecture(fixtures):
    model = AutoModel.from_pretrained(fixtures / "llama_gqa")
    config = model.config.to_dict()
    seen = {*fingerprint(config, model).split("-")}
    for count, parameter in enumerate(model.get_parameters(), 2):
        parameter.asnumpy().reshape(-1)[-1] += 0.5
        seen.update(fingerprint(config, model).split("-"))
        assert len(seen) == 2 * count, parameter.name
    first = model.model.layers[0].self_attn
    a, b = first.k_proj.weight.asnumpy(), first.v_proj.weight.asnumpy()
    a[:], b[:] = b.copy(), a.copy()  # the same values elsewhere
    seen.update(fingerprint(config, model).split("-"))
    assert len(seen) == 2 * count + 2
    seen.update(fingerprint({**config, "model_type": "mistral"}, model).split("-"))
    assert len(seen) == 2 * count + 4


def test_a_model_with_another_cell_has_no_fingerprint(fixtures):
    """A matrix of another name stands there, which no file of such a model has."""
    model = AutoModel.from_pretrained(fixtures / "llama_gqa")
    for number, lacking in enumerate(("lacks model.layers.0.mlp.up_proj.weight: ", "up_proj.weight and 1 more: ")):
        mlp = model.model.layers[number].mlp
        mlp.up_proj = ms.nn.Dense(*mlp.up_proj.weight.shape[::-1], has_bias=False)
        with pytest.raises(InputError, match=lacking + "another cell stands there"):
            fingerprint(model.config.to_dict(), model)
