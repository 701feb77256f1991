"""Merging on disk: equal to the references and to merging in memory, all or nothing."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from merged_adapters import LAYER, lora_directory, random_lora, raw, refused, tensors
from mindspore import Tensor

import pet
from adapters.methods import METHODS
from adapters.registry import registry
from model_zoo.checkpoint.dtypes import convert, from_bfloat16
from model_zoo.checkpoint.reading import Checkpoint, read_config
from model_zoo.checkpoint.safetensors_io import read_file, write_stream
from model_zoo.counting import config_of, parameter_shapes
from model_zoo.errors import InputError
from pet.export import merge_checkpoint

FIXTURES = ("chatglm1", "chatglm2", "glm", "glm4_0414", "gpt2", "llama_gqa", "llama_mha")


@pytest.mark.parametrize("name", FIXTURES)
def test_lora_equals_the_reference(name, fixtures, tmp_path):
    report = merge_checkpoint(fixtures / name, fixtures / name / "lora", tmp_path / "out")
    merged, expected, base = (
        tensors(path) for path in (tmp_path / "out", fixtures / name / "lora_merged", fixtures / name)
    )
    assert merged.keys() == base.keys() >= expected.keys()
    changed = {key for key in base if not np.array_equal(merged[key], base[key])}
    assert len(changed) == report.changed > 0
    for key in base:
        np.testing.assert_allclose(merged[key], expected.get(key, base[key]), rtol=0, atol=1e-7)
    assert 0 < report.error < 1e-6 and report.untied is None
    assert "tensors merged" in str(report)


@pytest.mark.parametrize("kept", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", FIXTURES)
def test_bit_equal_to_merging_in_memory(name, kept, fixtures, tmp_path):
    from adapters.merge import merge
    from adapters.saving import load_adapter
    from model_zoo.auto import AutoModel
    from model_zoo.checkpoint.saving import save_pretrained

    base = tmp_path / "base"
    save_pretrained(AutoModel.from_pretrained(fixtures / name), base, dtype=kept, max_shard_size="100KB")
    model = AutoModel.from_pretrained(base, dtype=kept)
    load_adapter(model, fixtures / name / "lora")
    merge(model)
    save_pretrained(model, tmp_path / "memory")
    merge_checkpoint(base, fixtures / name / "lora", tmp_path / "disk", max_shard_size="100KB")
    assert raw(tmp_path / "disk") == raw(tmp_path / "memory")
    assert raw(tmp_path / "disk") != raw(base)


def test_shards_and_types(fixtures, tmp_path):
    merge_checkpoint(fixtures / "glm", fixtures / "glm" / "lora", tmp_path / "whole")
    report = merge_checkpoint(
        fixtures / "glm", fixtures / "glm" / "lora", tmp_path / "out", dtype="bf16", max_shard_size="50KB"
    )
    assert report.error > 1e-5
    whole = tensors(tmp_path / "whole")
    with Checkpoint(tmp_path / "out") as checkpoint:
        assert len(checkpoint.files) > 1
        for key in checkpoint:
            assert checkpoint.dtype(key) == "bfloat16"
            spacing = np.abs(whole[key]) * 2.0**-8
            assert (np.abs(checkpoint.read(key) - whole[key]) <= spacing + 1e-30).all()
    assert read_config(tmp_path / "out")["dtype"] == "bfloat16"
    assert (tmp_path / "out" / "generation_config.json").exists()


MEMORY = {
    "two": (
        "llama_mha",
        [("a", {"r": 2}, ["model.layers.0.mlp.up_proj"]), ("b", {"r": 3}, ["model.layers.0.mlp.up_proj"])],
    ),
    "tied_head": ("gpt2", [("a", {"r": 2}, ["lm_head"])]),
    "rslora": (
        "gpt2",
        [("a", {"r": 3, "use_rslora": True}, ["transformer.h.0.mlp.c_fc", "transformer.h.1.attn.c_attn"])],
    ),
    "dora": ("gpt2", [("a", {"r": 3, "use_dora": True}, ["transformer.h.0.mlp.c_fc", "transformer.h.1.attn.c_attn"])]),
    "dora_dense": ("chatglm1", [("a", {"r": 3, "use_dora": True}, ["transformer.layers.0.attention.dense"])]),
    "whole": ("glm", [("a", {"r": 2, "modules_to_save": ["norm"]}, ["model.layers.0.self_attn.q_proj"])]),
    "embedding": ("llama_mha", [("a", {"r": 2}, ["model.embed_tokens"])]),
    "dora_embedding": ("llama_mha", [("a", {"r": 2, "use_dora": True}, ["model.embed_tokens"])]),
    "tied_embedding": ("gpt2", [("a", {"r": 2}, ["transformer.wte"])]),
}


def random_adapter(path, base, config, modules, seed):
    """A LoRA directory for these modules, with what its configuration asks for besides."""
    generator = np.random.default_rng(seed)
    shapes, cells = parameter_shapes(read_config(base)), config_of(read_config(base)).cells()
    found = {}
    for module in modules:
        rows, columns = shapes.get(f"{module}.weight", shapes.get("transformer.wte.weight"))
        if module.endswith(("embed_tokens", "wte")):
            found[f"{module}.lora_embedding_A"] = generator.standard_normal((config["r"], rows)).astype(np.float32)
            found[f"{module}.lora_embedding_B"] = generator.standard_normal((columns, config["r"])).astype(np.float32)
            if config.get("use_dora"):
                found[f"{module}.lora_magnitude_vector"] = generator.uniform(0.5, 2, columns).astype(np.float32)
            continue
        out, into = (columns, rows) if module in cells and cells[module].transposed else (rows, columns)
        found |= random_lora(module, out, into, config["r"], seed)
        if config.get("use_dora"):
            found[f"{module}.lora_magnitude_vector"] = generator.uniform(0.5, 2, out).astype(np.float32)
    for module in config.get("modules_to_save", []):
        full = f"model.{module}.weight"
        found[full] = generator.standard_normal(shapes[full]).astype(np.float32)
    config = {**config, "fan_in_fan_out": "gpt2" in str(base)}
    return lora_directory(path, modules, found, **config)


SAVED_HERE = {
    "ia3": {},
    "bitfit": {"add_missing": False},
    "lora": {"targets": "all-linear", "bias": "all", "trainable_tokens": [3, 5], "rank": 3},
}


@pytest.mark.parametrize("method", SAVED_HERE)
@pytest.mark.parametrize("name", ["chatglm1", "glm", "gpt2"])
def test_what_is_saved_here_merges_on_disk_as_in_memory(name, method, fixtures, tmp_path):
    from adapters.apply import apply, trainable_parameters
    from adapters.merge import merge
    from adapters.saving import save_adapter
    from model_zoo.auto import AutoModel
    from model_zoo.checkpoint.parameters import write_parameter
    from model_zoo.checkpoint.saving import save_pretrained

    model = apply(AutoModel.from_pretrained(fixtures / name), METHODS[method](**SAVED_HERE[method]))
    generator = np.random.default_rng(0)
    for parameter in trainable_parameters(model):
        write_parameter(parameter, generator.uniform(0.2, 0.6, parameter.shape).astype(np.float32))
    save_adapter(model, tmp_path / "adapter")
    merge(model)
    save_pretrained(model, tmp_path / "memory")
    report = merge_checkpoint(fixtures / name, tmp_path / "adapter", tmp_path / "disk")
    assert report.changed >= 2
    memory, disk = tensors(tmp_path / "memory"), tensors(tmp_path / "disk")
    assert {key for key in disk if not key.endswith("inv_freq")} == set(memory)
    for key in memory:
        np.testing.assert_array_equal(disk[key], memory[key], err_msg=key)


@pytest.mark.parametrize("case", MEMORY)
def test_every_kind_is_bit_equal_to_merging_in_memory(case, fixtures, tmp_path):
    from adapters.merge import merge
    from adapters.saving import load_adapter
    from model_zoo.auto import AutoModel
    from model_zoo.checkpoint.saving import save_pretrained

    name, adapters = MEMORY[case]
    model = AutoModel.from_pretrained(fixtures / name)
    directories = []
    for seed, (label, config, modules) in enumerate(adapters):
        directories.append(random_adapter(tmp_path / label, fixtures / name, config, modules, seed))
        load_adapter(model, directories[-1], label)
    merge(model, [label for label, _, _ in adapters])
    save_pretrained(model, tmp_path / "memory")
    report = merge_checkpoint(fixtures / name, directories, tmp_path / "disk")
    assert report.changed >= 1
    before, memory, disk = tensors(fixtures / name), tensors(tmp_path / "memory"), tensors(tmp_path / "disk")
    assert {key for key in disk if not key.endswith("inv_freq")} == set(memory)
    assert any(not np.array_equal(before[key], disk[key]) for key in before) or report.untied
    for key in memory:
        np.testing.assert_array_equal(disk[key], memory[key], err_msg=key)


def test_several_adapters_with_weights_in_any_order(fixtures, tmp_path):
    base = tensors(fixtures / "llama_mha")
    out, into = base[f"{LAYER}.weight"].shape
    a, b = random_lora(LAYER, out, into, seed=1), random_lora(LAYER, out, into, seed=2)
    first, second = lora_directory(tmp_path / "a", [LAYER], a), lora_directory(tmp_path / "b", [LAYER], b)
    merge_checkpoint(fixtures / "llama_mha", [first, second], tmp_path / "ab", weights=[0.5, -2])
    merge_checkpoint(fixtures / "llama_mha", [second, first], tmp_path / "ba", weights=[-2, 0.5])
    assert raw(tmp_path / "ab") == raw(tmp_path / "ba")
    runs = [shutil.copytree(one, tmp_path / f"run{one.name}" / "adapter") for one in (first, second)]
    for name, order in (("12", runs), ("21", runs[::-1])):
        merge_checkpoint(fixtures / "llama_mha", order, tmp_path / name, "float64")
    assert raw(tmp_path / "12") == raw(tmp_path / "21")

    def product(part):
        return (
            2.0 * part[f"{LAYER}.lora_B.weight"].astype(np.float64) @ part[f"{LAYER}.lora_A.weight"].astype(np.float64)
        )

    exact = base[f"{LAYER}.weight"] + 0.5 * product(a) - 2 * product(b)
    np.testing.assert_allclose(tensors(tmp_path / "ab")[f"{LAYER}.weight"], exact, rtol=1e-7, atol=0)


PAIRS = {
    "factors behind what is saved whole": ("ia3", "whole"),
    "factors of what LoRA adds": ("lora", "ia3"),
    "LoRA behind factors": ("ia3", "lora"),
    "factors twice": ("ia3", "other ia3"),
    "DoRA behind what is saved whole": ("dora", "whole"),
    "DoRA whose input is scaled": ("dora", "ia3"),
    "DoRA beside LoRA": ("dora", "lora"),
    "rows beside rows": ("rows", "other rows"),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_two_adapters_of_one_weight_are_merged_as_in_memory(fixtures, tmp_path, pair):
    """In the order that is given, or refused with the same reason."""
    configs = {
        "lora": pet.LoRAConfig(rank=2, targets=["k_proj", "down_proj"]),
        "dora": pet.LoRAConfig(rank=2, targets=["k_proj", "down_proj"], use_dora=True),
        "whole": pet.LoRAConfig(rank=2, targets=["q_proj"], modules_to_save=["k_proj", "down_proj"]),
        "ia3": pet.IA3Config(targets=["k_proj", "down_proj"]),
        "other ia3": pet.IA3Config(targets=["k_proj", "v_proj"]),
        "rows": pet.LoRAConfig(rank=2, trainable_tokens=[5, 9]),
        "other rows": pet.LoRAConfig(rank=2, trainable_tokens=[9, 7]),
    }
    model, generator = pet.AutoModel.from_pretrained(fixtures / "llama_gqa"), np.random.default_rng(0)
    for number, name in enumerate(PAIRS[pair]):
        pet.add_adapter(model, configs[name], f"a{number}")
        for parameter in registry(model).get(f"a{number}").parameters():
            parameter.set_data(parameter + Tensor(generator.normal(0, 0.2, parameter.shape).astype(np.float32)))
        pet.save_adapter(model, tmp_path / f"{'zy'[number]}", f"a{number}")  # not in the order of their names
    directories = [tmp_path / "z", tmp_path / "y"]
    pet.set_adapter(model, ["a0", "a1"])
    try:
        pet.merge(model)
    except InputError as error:
        assert "these two cannot be merged together" in str(error)
        refused(fixtures / "llama_gqa", directories, tmp_path / "out", "these two cannot be merged together")
        return
    merge_checkpoint(fixtures / "llama_gqa", directories, tmp_path / "out")
    ids = [[5, 9, 7, 3, 8]]
    merged = pet.AutoModel.from_pretrained(tmp_path / "out")
    np.testing.assert_allclose(merged(ids).asnumpy(), model(ids).asnumpy(), atol=1e-4)


def test_half_precision_is_rounded_once(fixtures, tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    shutil.copy(fixtures / "llama_mha" / "config.json", base)
    values = tensors(fixtures / "llama_mha")
    with open(base / "model.safetensors", "wb") as file:
        write_stream(file, {key: ("bfloat16", value.shape) for key, value in values.items()}, values.__getitem__)
    adapter = fixtures / "llama_mha" / "lora"
    merge_checkpoint(base, adapter, tmp_path / "out")
    parts = read_file(adapter / "adapter_model.safetensors")
    config = json.loads((adapter / "adapter_config.json").read_text())
    scale = config["lora_alpha"] / config["r"]
    merged, stored, checked = tensors(tmp_path / "out"), tensors(base), 0
    for key in stored:
        prefix = f"base_model.model.{key.removesuffix('.weight')}"
        if f"{prefix}.lora_A.weight" in parts:
            product = parts[f"{prefix}.lora_B.weight"].astype(np.float64) @ parts[f"{prefix}.lora_A.weight"]
            exact = stored[key].astype(np.float64) + scale * product
            np.testing.assert_array_equal(merged[key], from_bfloat16(convert(exact, "float64", "bfloat16")))
            checked += 1
    assert checked > 0


def test_head_is_untied_when_only_one_of_the_two_changes(fixtures, tmp_path):
    base = tensors(fixtures / "gpt2")
    embedding = base["transformer.wte.weight"]
    assert "lm_head.weight" not in base
    on_head = lora_directory(tmp_path / "h", ["lm_head"], random_lora("lm_head", *embedding.shape))
    report = merge_checkpoint(fixtures / "gpt2", on_head, tmp_path / "head")
    assert report.untied == "lm_head.weight" and "no longer tied" in str(report)
    merged = tensors(tmp_path / "head")
    np.testing.assert_array_equal(merged["transformer.wte.weight"], embedding)
    assert np.abs(merged["lm_head.weight"] - embedding).max() > 0.1
    assert read_config(tmp_path / "head")["tie_word_embeddings"] is False
    generator = np.random.default_rng(3)
    vocabulary, width = embedding.shape
    a = generator.standard_normal((2, vocabulary)).astype(np.float32)
    b = generator.standard_normal((width, 2)).astype(np.float32)
    on_embedding = lora_directory(
        tmp_path / "e",
        ["wte"],
        {"transformer.wte.lora_embedding_A": a, "transformer.wte.lora_embedding_B": b},
    )
    merge_checkpoint(fixtures / "gpt2", on_embedding, tmp_path / "embedding")
    merged = tensors(tmp_path / "embedding")
    np.testing.assert_array_equal(merged["lm_head.weight"], embedding)
    np.testing.assert_allclose(merged["transformer.wte.weight"], embedding + 2 * (b @ a).T, rtol=1e-5, atol=1e-5)


def test_chatglm_cannot_untie(fixtures, tmp_path):
    shape = tensors(fixtures / "chatglm1")["lm_head.weight"].shape
    adapter = lora_directory(tmp_path / "h", ["lm_head"], random_lora("lm_head", *shape))
    with pytest.raises(InputError, match="no place for a head of its own"):
        merge_checkpoint(fixtures / "chatglm1", adapter, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_published_gpt2_layout_keeps_its_names_and_buffers(fixtures, tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    shutil.copy(fixtures / "gpt2" / "config.json", base)
    shutil.copy(fixtures / "gpt2" / "model.hub_layout.safetensors", base / "model.safetensors")
    merge_checkpoint(base, fixtures / "gpt2" / "lora", tmp_path / "out", dtype="float16")
    before, after = tensors(base), tensors(tmp_path / "out")
    assert after.keys() == before.keys() and "h.0.attn.bias" in after
    np.testing.assert_array_equal(after["h.0.attn.bias"], before["h.0.attn.bias"])
    expected = tensors(fixtures / "gpt2" / "lora_merged")["transformer.h.0.attn.c_attn.weight"]
    np.testing.assert_array_equal(after["h.0.attn.c_attn.weight"], expected.astype(np.float16))


def test_files_of_torch_are_merged_to_the_same_bytes(fixtures, tmp_path):
    torch = pytest.importorskip("torch")
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    for source, copy, old, new in (
        (fixtures / "gpt2", base, "model.safetensors", "pytorch_model.bin"),
        (fixtures / "gpt2" / "lora", adapter, "adapter_model.safetensors", "adapter_model.bin"),
    ):
        copy.mkdir()
        shutil.copy(source / ("config.json" if copy == base else "adapter_config.json"), copy)
        torch.save({name: torch.from_numpy(value) for name, value in read_file(source / old).items()}, copy / new)
    merge_checkpoint(base, adapter, tmp_path / "ours")
    merge_checkpoint(fixtures / "gpt2", fixtures / "gpt2" / "lora", tmp_path / "theirs")
    ours, theirs = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("ours", "theirs"))
    assert ours == theirs


@pytest.mark.parametrize("differ", [True, False])
def test_embedding_and_tied_head_of_an_adapter_are_two_weights_where_they_differ(fixtures, tmp_path, differ):
    model = pet.AutoModel.from_pretrained(fixtures / "gpt2")
    pet.apply_lora(model, rank=2, targets=["c_attn"], modules_to_save=["wte", "lm_head"])
    own = {item.saved_name: item.own for item in registry(model).get("default").replaced}
    table, head = own["transformer.wte.weight"], own["lm_head.weight"]
    table.set_data(table * 1.5)
    head.set_data(table * (2.0 if differ else 1.0))
    pet.save_adapter(model, tmp_path / "adapter")
    pet.merge_checkpoint(fixtures / "gpt2", tmp_path / "adapter", tmp_path / "merged")
    merged = pet.AutoModel.from_pretrained(tmp_path / "merged")
    np.testing.assert_array_equal(merged.transformer.wte.weight.asnumpy(), table.asnumpy())
    np.testing.assert_array_equal(merged.lm_head.weight.asnumpy(), head.asnumpy())
    assert (merged.lm_head.weight is merged.transformer.wte.weight) is not differ
