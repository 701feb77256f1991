"""Every method over packed weights: the same gradients as over float32 weights of the same numbers."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
from sets import some

import pet
from adapters.bitfit import BitFitConfig
from adapters.bottleneck import BottleneckConfig
from adapters.ia3 import IA3Config
from adapters.lora import LoRAConfig
from adapters.low_rank_adapter import LowRankAdapterConfig
from adapters.merge import merge, merge_and_unload, unmerge
from adapters.prefix import PrefixConfig
from adapters.prompt import PromptConfig, PTuningConfig
from adapters.ptuning import PTuningV2Config
from adapters.registry import registry
from adapters.sites import weight_array
from model_zoo.checkpoint.safetensors_io import SafetensorsFile, read_file, write_file
from model_zoo.errors import InputError
from model_zoo.quantization import Quantization
from model_zoo.quantization.cells import quantized_cells
from pet.cli.main import main
from pet.planning.room import types_of
from pet.train.trainer import Trainer

FAMILIES = ("gpt2", "llama_gqa", "chatglm1", "chatglm2", "glm", "glm4_0414", "qwen3")
CONFIGS = {
    "lora": LoRAConfig(rank=4, dropout=0.2),
    "dora": LoRAConfig(rank=4, use_dora=True),
    "ia3": IA3Config(),
    "bitfit": BitFitConfig(),
    "adapter": BottleneckConfig(size=4),
    "low_rank_adapter": LowRankAdapterConfig(),
    "prefix": PrefixConfig(length=3),
    "ptuning2": PTuningV2Config(length=3),
    "prompt": PromptConfig(length=3),
    "p_tuning": PTuningConfig(length=3, projection_hidden=8),
}
NF4 = Quantization("nf4", double=True)


def loaded(fixtures, family, quantization=NF4):
    return pet.AutoModel.from_pretrained(str(fixtures / family), quantization=quantization)


def unpacked(fixtures, family, packed):
    """A float32 model of a packed one's numbers."""
    model = pet.AutoModel.from_pretrained(str(fixtures / family))
    parameters = {parameter.name: parameter for parameter in model.get_parameters()}
    for name, cell in quantized_cells(packed).items():
        parameters[name].asnumpy()[...] = cell.published()
    return model


def trained(fixtures, family, model, config, compiled=True, **settings):
    """The trainer after a step by the gradient alone, and its weights."""
    pet.apply(model, copy.deepcopy(config))
    ids = np.load(fixtures / family / "ref.npz")["input_ids"]
    mask = np.ones_like(ids)
    mask[0, -3:] = 0
    batch = {"input_ids": ids, "attention_mask": mask}
    chosen = {"steps": 2, "batch_size": 2, "learning_rate": 0.01, "schedule": "constant", "warmup": 0, **settings}
    trainer = Trainer(model, [batch, batch], compiled=compiled, **chosen)
    trainer.train()
    return trainer, {parameter.name: parameter.asnumpy().copy() for parameter in pet.trainable_parameters(model)}


def same_training(fixtures, family, config, compiled, quantization=NF4):
    packed = loaded(fixtures, family, quantization)
    wide = unpacked(fixtures, family, packed)
    # two steps of a tenth of the gradient, so that gradients are alike to 1e-5
    how = {"optimizer": "sgd", "learning_rate": 0.1, "clip_norm": None, "weight_decay": 0.0, "compiled": compiled}
    (mine, ours), (other, theirs) = (trained(fixtures, family, one, config, **how) for one in (packed, wide))
    for step, reference in zip(mine.history, other.history, strict=True):
        assert step["loss"] == pytest.approx(reference["loss"], abs=1e-5)
        assert step["gradient_norm"] == pytest.approx(reference["gradient_norm"], rel=1e-4)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_allclose(value, theirs[name], atol=1e-6, err_msg=name)


@pytest.mark.parametrize("method", some(CONFIGS, ("lora", "dora", "bitfit", "adapter", "prefix")))
def test_every_method_trains_as_over_the_same_numbers_in_float32(shortened, method):
    base = shortened("llama_gqa")
    same_training(base.parent, base.name, CONFIGS[method], compiled=False)


@pytest.mark.parametrize("family", some(FAMILIES, ("llama_gqa", "chatglm1")))
def test_every_family_does_in_compiled_steps(fixtures, family):
    same_training(fixtures, family, CONFIGS["lora"], compiled=True)


@pytest.mark.parametrize(
    "quantization",
    some(
        [Quantization("int8"), Quantization("int4", 32, skip=("lm_head", "down_proj")), Quantization("fp4", 32)],
        [Quantization("int8")],
    ),
    ids=str,
)
def test_every_type_does(fixtures, quantization):
    config = LoRAConfig(rank=4)
    same_training(fixtures, "llama_mha", config, True, quantization)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_packed_matrices_are_those_of_the_file(fixtures, family):
    """Which way round they lie, too: GPT-2's are square in part."""
    model = loaded(fixtures, family, Quantization("int8"))
    parameters = {p.name: p.asnumpy() for p in pet.AutoModel.from_pretrained(str(fixtures / family)).get_parameters()}
    for name, cell in quantized_cells(model).items():
        np.testing.assert_allclose(cell.published(), parameters[name], atol=np.abs(parameters[name]).max() / 120)


def test_merging_on_request_says_what_it_costs_and_is_undone_bit_for_bit(fixtures):
    model = loaded(fixtures, "llama_gqa")
    ids = np.load(fixtures / "llama_gqa/ref.npz")["input_ids"]
    pet.apply_lora(model, rank=4, targets="all-linear")
    for parameter in pet.trainable_parameters(model):
        parameter.set_data(parameter + 0.01)
    before = {name: {part: a.copy() for part, a in c.arrays().items()} for name, c in quantized_cells(model).items()}
    active = model(ids).asnumpy()
    with pytest.raises(InputError, match=r"stored in nf4.*requantize=True"):
        merge(model)
    assert np.array_equal(model(ids).asnumpy(), active)
    exact = {
        f"{site.path}.weight": weight_array(site) + registry(model).get("default").modules[site.path].delta(None)
        for site in registry(model).get("default").sites.values()
    }
    report = merge(model, requantize=True)
    assert report.requantized == len(before) and 0 < report.rms < report.error
    differences = [cell.dequantized() - exact[name] for name, cell in quantized_cells(model).items()]
    assert max(np.abs(one).max() for one in differences) == pytest.approx(report.error, rel=1e-6)
    squares = np.concatenate([one.reshape(-1) for one in differences]) ** 2
    assert np.sqrt(squares.mean()) == pytest.approx(report.rms, rel=1e-6)
    assert f"{report.requantized} of them were quantised again" in str(report)
    merged = model(ids).asnumpy()
    assert not np.array_equal(merged, active)
    with pet.disable_adapters(model):
        same_parts(model, before)
    unmerge(model)
    same_parts(model, before)
    assert np.array_equal(model(ids).asnumpy(), active)
    merge_and_unload(model, requantize=True)
    assert np.array_equal(model(ids).asnumpy(), merged)


def same_parts(model, before):
    for name, cell in quantized_cells(model).items():
        assert all(np.array_equal(array, before[name][part]) for part, array in cell.arrays().items())


def test_an_adapter_says_what_it_was_made_on(fixtures, tmp_path, caplog):
    model = loaded(fixtures, "llama_gqa")
    pet.apply_lora(model, rank=4)
    pet.save_adapter(model, tmp_path / "adapter")
    file = SafetensorsFile(tmp_path / "adapter/adapter_model.safetensors")
    told = json.loads(file.metadata["base_quantization"])
    assert told == {"type": "nf4", "block": 64, "double": True, "skip": ["lm_head"]}
    wide = pet.AutoModel.from_pretrained(str(fixtures / "llama_gqa"))
    with caplog.at_level("INFO", "pet"):  # it fits: the fingerprint is that of the same base
        pet.load_adapter(wide, tmp_path / "adapter")
    assert "made on weights in nf4, blocks of 64, double; this model's are in 16 or 32 bits" in caplog.text


@pytest.mark.parametrize("text", ["{", "null", '{"type": "nf4"}', "[" * 100_000], ids=lambda text: text[:9])
def test_what_an_adapters_file_says_of_its_base_in_vain_is_named(fixtures, tmp_path, capsys, text):
    model = loaded(fixtures, "llama_gqa")
    pet.apply_lora(model, rank=4)
    pet.save_adapter(model, tmp_path / "adapter")
    path = tmp_path / "adapter/adapter_model.safetensors"
    write_file(path, read_file(path), {**SafetensorsFile(path).metadata, "base_quantization": text})
    with pytest.raises(InputError, match=r"adapter: base_quantization .* is not understood"):
        pet.load_adapter(loaded(fixtures, "llama_gqa"), tmp_path / "adapter")
    assert main(["info", str(tmp_path / "adapter")]) == 2
    assert f"{path}: base_quantization " in capsys.readouterr().err


def test_packed_weights_are_not_trained(fixtures):
    model = loaded(fixtures, "llama_gqa")
    with pytest.raises(InputError, match=r"modules_to_save: .*q_proj is stored in nf4"):
        pet.apply_lora(model, targets="v_proj", modules_to_save=["q_proj"])
    pet.apply_lora(model, targets="v_proj", modules_to_save=["lm_head", "input_layernorm"])
    for parameter in model.get_parameters():
        parameter.requires_grad = True
    with pytest.raises(InputError, match="stored in nf4, blocks of 64, double and cannot be trained"):
        pet.trainable_parameters(model)
    pet.freeze_modules(model, include="*.weight")  # but not the factors of their blocks
    with pytest.raises(InputError, match=r"absmax is stored in nf4, blocks of 64, double and cannot be trained"):
        pet.trainable_parameters(model)


def test_packed_weights_count_as_many_as_their_matrices_have(fixtures):
    wide, packed = (loaded(fixtures, "llama_gqa", kind) for kind in (None, NF4))
    for model in (wide, packed):
        pet.apply_lora(model, rank=2)
    assert pet.print_trainable_parameters(packed) == pet.print_trainable_parameters(wide)


def test_a_base_whose_only_plain_matrices_are_trained_has_the_types_of_its_norms(fixtures):
    model = loaded(fixtures, "llama_gqa")
    assert types_of(model) == {"dtype": "float32", "stored": "float32"}
    pet.apply_lora(model, targets="v_proj", modules_to_save=["embed_tokens", "lm_head"])
    assert types_of(model) == {"dtype": "float32", "stored": None}


def test_loftq_starts_from_what_packing_left_out(fixtures, tmp_path):
    family = "llama_gqa"
    wide, packed = pet.AutoModel.from_pretrained(str(fixtures / family)), loaded(fixtures, family, Quantization("nf4"))
    ids = np.load(fixtures / family / "ref.npz")["input_ids"]
    right, before = wide(ids).asnumpy(), packed(ids).asnumpy()
    pet.apply_lora(packed, rank=16, targets="all-linear", init="loftq")
    for module in registry(packed).get("default").modules.values():
        assert np.abs(module.delta(None)).max() > 0
    assert np.square(packed(ids).asnumpy() - right).sum() < 0.6 * np.square(before - right).sum()
    pet.save_adapter(packed, tmp_path / "adapter")
    again = loaded(fixtures, family, Quantization("nf4"))
    pet.load_adapter(again, tmp_path / "adapter")
    assert np.array_equal(again(ids).asnumpy(), packed(ids).asnumpy())
    with pytest.raises(InputError, match=r"started by LoftQ.*--dequantize"):
        pet.merge_checkpoint(fixtures / family, tmp_path / "adapter", tmp_path / "out")
    pet.merge_checkpoint(fixtures / family, tmp_path / "adapter", tmp_path / "out", dequantize=True)
    merged = pet.AutoModel.from_pretrained(str(tmp_path / "out"))
    np.testing.assert_allclose(merged(ids).asnumpy(), packed(ids).asnumpy(), atol=1e-4)
    with pytest.raises(InputError, match="q_proj is not packed"):
        pet.apply_lora(wide, targets="q_proj", init="loftq")
