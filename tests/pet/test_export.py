"""Merging on disk: equal to the references and to merging in memory, in the memory of one tensor, all or nothing."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from mindspore import Tensor

import pet
from adapters.methods import METHODS
from adapters.registry import registry
from model_zoo.checkpoint.dtypes import convert, from_bfloat16
from model_zoo.checkpoint.fingerprint import fingerprint
from model_zoo.checkpoint.reading import Checkpoint, read_config
from model_zoo.checkpoint.safetensors_io import header_bytes, read_file, write_file, write_stream
from model_zoo.counting import config_of, parameter_shapes
from model_zoo.errors import InputError
from model_zoo.unwritable import CannotWrite
from pet.export import merge_checkpoint

FIXTURES = ("chatglm1", "chatglm2", "glm", "glm4_0414", "gpt2", "llama_gqa", "llama_mha")


def tensors(directory):
    with Checkpoint(directory) as checkpoint:
        return {name: checkpoint.read(name) for name in checkpoint}


def raw(directory):
    with Checkpoint(directory) as checkpoint:
        return {name: (checkpoint.dtype(name), checkpoint.raw(name).tobytes()) for name in checkpoint}


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


def lora_directory(path, entries, tensors, **config):
    """An adapter directory with the given arrays under PEFT's prefix."""
    path.mkdir()
    values = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": entries, **config}
    (path / "adapter_config.json").write_text(json.dumps(values))
    write_file(path / "adapter_model.safetensors", {f"base_model.model.{key}": value for key, value in tensors.items()})
    return path


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


def random_lora(module, out, into, rank=2, seed=0):
    generator = np.random.default_rng(seed)
    return {
        f"{module}.lora_A.weight": generator.standard_normal((rank, into)).astype(np.float32),
        f"{module}.lora_B.weight": generator.standard_normal((out, rank)).astype(np.float32),
    }


LAYER = "model.layers.1.self_attn.q_proj"


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


# Against PEFT's own merge ---

CASES = {
    "rslora": ("LoraConfig", {"r": 4, "lora_alpha": 6, "use_rslora": True}),
    "dora": ("LoraConfig", {"r": 4, "lora_alpha": 8, "use_dora": True}),
    "patterns": ("LoraConfig", {"r": 4, "rank_pattern": {"0.*": 2}, "alpha_pattern": {r".*\.1\..*": 32}}),
    "head": ("LoraConfig", {"r": 4, "modules_to_save": ["NORM"]}),
    "bias": ("LoraConfig", {"r": 4, "bias": "all"}),
    "tokens": ("LoraConfig", {"r": 4, "trainable_token_indices": [3, 5]}),
    "embedding": ("LoraConfig", {"r": 4, "target_modules": ["embed_tokens"]}),
    "dora_embedding": ("LoraConfig", {"r": 4, "use_dora": True, "target_modules": ["embed_tokens"]}),
    "ia3": ("IA3Config", {}),
}
TARGETS = {
    "gpt2": (["c_attn", "mlp.c_proj"], ["mlp.c_proj"], "ln_f"),
    "llama_gqa": (["k_proj", "v_proj", "down_proj"], ["down_proj"], "norm"),
    "glm": (["k_proj", "v_proj", "down_proj"], ["down_proj"], "norm"),
}


def covers(name: str, case: str) -> tuple:
    """Each case on GPT-2, which stores its matrices transposed, and on another family; but for what PEFT cannot do."""
    on_gpt2 = name == "gpt2"
    return () if on_gpt2 and case.endswith("embedding") else (name, (on_gpt2, case))


@pytest.mark.cover(by=covers)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", TARGETS)
def test_equals_peft(name, case, fixtures, tmp_path):
    torch = pytest.importorskip("torch", reason="the live comparison needs torch")
    transformers = pytest.importorskip("transformers", reason="the live comparison needs transformers")
    peft = pytest.importorskip("peft", reason="the live comparison needs peft")
    torch.manual_seed(0)
    base = transformers.AutoModelForCausalLM.from_pretrained(fixtures / name, dtype=torch.float32)
    targets, feedforward, norm = TARGETS[name]
    kind, options = CASES[case]
    options = {key: [norm] if value == ["NORM"] else value for key, value in options.items()}
    if kind == "IA3Config":
        options["feedforward_modules"] = feedforward
    if name == "gpt2" and case.endswith("embedding"):
        pytest.skip("PEFT's merge of a tied embedding changes the head, which its adapter did not")
    options = {"target_modules": targets, **options}
    config = getattr(peft, kind)(task_type="CAUSAL_LM", **options)
    model = peft.get_peft_model(base, config)
    with torch.no_grad():
        for _, parameter in model.named_parameters():
            if parameter.requires_grad:  # away from the values that change nothing
                parameter.add_(0.1 * torch.rand_like(parameter))
    model.save_pretrained(tmp_path / "adapter")
    expected = {key: value.numpy() for key, value in model.merge_and_unload().state_dict().items()}
    merge_checkpoint(fixtures / name, tmp_path / "adapter", tmp_path / "out")
    merged, before = tensors(tmp_path / "out"), tensors(fixtures / name)
    assert merged.keys() <= expected.keys()
    for key in merged:
        np.testing.assert_allclose(merged[key], expected[key], rtol=0, atol=2e-6, err_msg=key)
    assert any(not np.array_equal(merged[key], before[key]) for key in before)


# What is refused ---


def refused(base, adapter, output, *parts, **options):
    with pytest.raises(InputError) as caught:
        merge_checkpoint(base, adapter, output, **options)
    for part in parts:
        assert part in str(caught.value), str(caught.value)
    assert not output.exists()
    assert not [path for path in output.parent.iterdir() if "unfinished" in path.name]
    return str(caught.value)


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
    import pet

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
    import pet

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
    import pet

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
    import pet

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


# Memory ---

LARGE = {
    "model_type": "llama",
    "num_hidden_layers": 5,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "intermediate_size": 8192,
    "vocab_size": 32768,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}

MEASURE = textwrap.dedent("""
    import json, sys
    from pet.export import merge_checkpoint
    base, adapter, output, dtype = sys.argv[1:]
    report = merge_checkpoint(base, adapter, output, dtype=dtype or None, max_shard_size="400MB")
    peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
    print(json.dumps({"peak": peak, "changed": report.changed, "mindspore": "mindspore" in sys.modules}))
""")


def sparse_checkpoint(directory, config, kept):
    """A checkpoint of zeros that takes no room on the disk."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    shapes = parameter_shapes(config)
    head, _ = header_bytes({name: (kept, shape) for name, shape in shapes.items()}, {"format": "pt"})
    with open(directory / "model.safetensors", "wb") as file:
        file.write(head)
        file.truncate(
            len(head) + sum(int(np.prod(shape)) for shape in shapes.values()) * (4 if kept == "float32" else 2)
        )
    assert (directory / "model.safetensors").stat().st_size >= 10**9
    return shapes


@pytest.mark.slow
@pytest.mark.parametrize(
    "kept, dtype, layers, marked",
    [
        pytest.param("float32", "", 3, True, marks=pytest.mark.full),
        pytest.param("bfloat16", "", 8, False, marks=pytest.mark.full),
        ("float32", "bfloat16", 3, False),
    ],
)
def test_peak_memory(kept, dtype, layers, marked, tmp_path):
    if not sys.platform.startswith("linux"):
        pytest.skip("peak memory is read from /proc")
    config = {**LARGE, "num_hidden_layers": layers}
    shapes = sparse_checkpoint(tmp_path / "base", config, kept)
    parts = {}
    for name, shape in shapes.items():
        if name.endswith(("q_proj.weight", "down_proj.weight")) or name == "lm_head.weight":
            parts |= random_lora(name.removesuffix(".weight"), *shape, rank=8)
    metadata = {"format": "pt"}
    if marked:
        with Checkpoint(tmp_path / "base") as checkpoint:
            metadata["base_fingerprint"] = fingerprint(config, checkpoint)
    adapter = lora_directory(tmp_path / "adapter", ["q_proj", "down_proj", "lm_head"], {}, r=8)
    prefixed = {f"base_model.model.{key}": value for key, value in parts.items()}
    write_file(adapter / "adapter_model.safetensors", prefixed, metadata)
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "base"), str(adapter), str(tmp_path / "out"), dtype]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert measured["changed"] == len(parts) // 2 and not measured["mindspore"]
    with Checkpoint(tmp_path / "out") as checkpoint:
        assert len(checkpoint.files) > 1
        exact = 4 / 8 * parts["lm_head.lora_B.weight"][-4:] @ parts["lm_head.lora_A.weight"]
        np.testing.assert_allclose(checkpoint.read("lm_head.weight", slice(-4, None)), exact, rtol=0.01, atol=0.01)
    largest = max(np.prod(shape) for shape in shapes.values()) * (4 if kept == "float32" else 2) / 2**20
    assert measured["peak"] <= 3 * largest + 200, measured
    shutil.rmtree(tmp_path)  # more than a gigabyte


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
