"""Names, expressions and patterns in adapters' files, of whichever PEFT wrote them."""

from __future__ import annotations

import json
import re
import shutil

import mindspore as ms
import numpy as np
import pytest
from adapter_files import IDS, NAMES, PART, as_values, change_tensors, edit, randomise, refuse
from safetensors.numpy import save_file

import pet
from adapters.registry import registry
from model_zoo.checkpoint.parameters import write_parameter
from model_zoo.errors import InputError


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
