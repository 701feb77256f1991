"""PEFT's LoRA on stacked experts, by NumPy: what each expert's matrix gets, and files that do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from stacks import stacked

import pet
from adapters.patterns import pattern_value
from adapters.registry import registry
from adapters.stacked import settings
from adapters.stored import Delta, StoredAdapter
from model_zoo.auto import AutoModel
from model_zoo.checkpoint.parameters import write_parameter
from model_zoo.checkpoint.safetensors_io import read_file, write_file
from model_zoo.errors import InputError
from pet.meta_model import MetaModel
from pet.serving import ENGINES, check_served

BASE = Path(__file__).parents[1] / "fixtures" / "qwen3_moe"
RANK, ALPHA = 2, 6
VALUES = {
    "peft_type": "LORA",
    "r": RANK,
    "lora_alpha": ALPHA,
    "target_modules": [],
    "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
}


@pytest.fixture
def sizes():
    config = json.loads((BASE / "config.json").read_text())
    return [config[key] for key in ("num_hidden_layers", "num_local_experts", "hidden_size", "moe_intermediate_size")]


@pytest.fixture
def written(tmp_path, sizes):
    """Writes an adapter on every layer's experts; returns its directory and its factors by name."""
    layers, experts, hidden, ffn = sizes

    def write(change=None, **values):
        generator, tensors = np.random.default_rng(1), {}
        for layer in range(layers):
            at = f"base_model.model.model.layers.{layer}.mlp.experts."
            for where, into, out in ((at + "base_layer.", hidden, 2 * ffn), (at, ffn, hidden)):
                shapes = {"A": (experts * RANK, into), "B": (out, RANK * experts)}
                for factor, shape in shapes.items():
                    tensors[f"{where}lora_{factor}.weight"] = generator.standard_normal(shape).astype(np.float32)
        if change:
            change(tensors)
        (tmp_path / "adapter_config.json").write_text(json.dumps({**VALUES, **values}))
        write_file(tmp_path / "adapter_model.safetensors", tensors)
        return tmp_path, tensors

    return write


@pytest.mark.parametrize("modules", [[], r".*\.gate", None], ids=str)
def test_each_matrix_gets_its_expert_s_part(written, sizes, modules):
    layers, experts, *_ = sizes
    directory, tensors = written(target_modules=modules)
    model = AutoModel.from_pretrained(BASE)
    before = {name: parameter.asnumpy().copy() for name, parameter in model.parameters_dict().items()}
    stored = StoredAdapter(directory)
    changes = stored.changes(MetaModel(model.config))
    on_disk = {change.name: Delta(stored, change, False).block(None, slice(None)) for change in changes}
    assert len(on_disk) == 3 * layers * experts
    pet.load_adapter(model, directory)
    pet.merge(model)
    after = {name: parameter.asnumpy() for name, parameter in model.parameters_dict().items()}
    for layer in range(layers):
        at = f"model.layers.{layer}.mlp.experts"
        for where, halves in ((f"{at}.base_layer", ("gate_proj", "up_proj")), (at, ("down_proj",))):
            a, b = (tensors[f"base_model.model.{where}.lora_{one}.weight"].astype(np.float64) for one in "AB")
            # as PEFT's ParamWrapper: experts are the slower index of A, the faster one of B
            whole = np.einsum("ore,eri->eoi", b.reshape(len(b), RANK, experts), a.reshape(experts, RANK, -1))
            for expert in range(experts):
                for name, part in zip(halves, np.split(whole[expert], len(halves)), strict=True):
                    weight, expected = f"{at}.{expert}.{name}.weight", part * ALPHA / RANK
                    assert np.allclose(on_disk[weight], expected, rtol=1e-12, atol=1e-12)
                    assert np.allclose(after[weight], before[weight] + expected, rtol=1e-6, atol=1e-5)


def test_names_from_within_a_wrapper(written):
    """These are put right before the experts are told apart."""

    def change(tensors):
        for key in list(tensors):
            tensors["module." + key.replace(".weight", ".default.weight")] = tensors.pop(key)

    found = []
    for changed in (None, change):
        stored = StoredAdapter(written(changed)[0])
        changes = stored.changes(MetaModel(AutoModel.from_pretrained(BASE).config))
        found.append({one.name: Delta(stored, one, False).block(None, slice(None)) for one in changes})
    assert found[0].keys() == found[1].keys() and len(found[0]) > 1
    assert all(np.array_equal(found[0][name], found[1][name]) for name in found[0])


def test_what_is_saved_is_on_the_matrices(written, tmp_path):
    model = AutoModel.from_pretrained(BASE)
    directory, _ = written(rank_pattern={r".*\.down_proj": RANK})
    pet.load_adapter(model, directory)
    pet.save_adapter(model, tmp_path / "saved")
    values = json.loads((tmp_path / "saved" / "adapter_config.json").read_text())
    assert values["target_parameters"] is None
    assert values["target_modules"] == ["down_proj", "gate_proj", "up_proj"]
    assert check_served(tmp_path / "saved", BASE, ENGINES["vllm"]) == RANK
    with pytest.raises(InputError, match="it takes the matrices of each expert, not stacked ones"):
        check_served(directory, BASE, ENGINES["vllm"])


def test_experts_of_one_layer_may_be_named_by_its_number_alone(written, tmp_path, sizes):
    """PEFT takes an entry for the end of a name; ``layers_to_transform`` is of the cells beside them."""

    def only_last(tensors):
        for name in [name for name in tensors if f".layers.{sizes[0] - 1}." not in name]:
            del tensors[name]

    names = [f"{sizes[0] - 1}.mlp.experts.{stack}" for stack in ("gate_up_proj", "down_proj")]
    directory, _ = written(
        only_last, target_parameters=names, layers_to_transform=[0], layers_pattern="layers", target_modules=["k_proj"]
    )
    model = AutoModel.from_pretrained(BASE)
    pet.load_adapter(model, directory)
    named = {name.split(".experts.")[0] for name in (one.name for one in pet.trainable_parameters(model))}
    assert named == {f"model.layers.{sizes[0] - 1}.mlp"}
    pet.save_adapter(model, tmp_path / "saved")
    values = json.loads((tmp_path / "saved" / "adapter_config.json").read_text())
    assert values["layers_to_transform"] is values["layers_pattern"] is None  # PEFT refuses the second alone


def test_a_router_s_own_rank_is_found_by_both_of_its_names():
    """It is a cell here and a parameter in PEFT, also where the layers differ."""
    keys = {path: path for path in ("model.layers.0.mlp.gate", "model.layers.1.mlp.gate")}
    patterns = settings(keys, {"r": 4, "rank_pattern": {".*1.*": 2}})["rank_pattern"]
    for ending in ("", ".weight"):
        assert [pattern_value(patterns, path + ending, 4) for path in keys] == [4, 2]


def test_names_that_mean_experts_may_have_no_factors_there(tmp_path):
    """PEFT's IA3, and AdaLoRA, find no cells in the stacked experts of transformers 5, and pass over them."""
    model = pet.apply_ia3(AutoModel.from_pretrained(BASE), targets=["k_proj"], feedforward=[])
    for parameter in pet.trainable_parameters(model):
        write_parameter(parameter, np.linspace(0.5, 2, parameter.size, dtype=np.float32).reshape(parameter.shape))
    pet.save_adapter(model, tmp_path)
    where = tmp_path / "adapter_config.json"
    values = {**json.loads(where.read_text()), "target_modules": ["k_proj", "down_proj"]}
    where.write_text(json.dumps({**values, "feedforward_modules": ["down_proj"]}))
    loaded, ids = AutoModel.from_pretrained(BASE), np.arange(8)[None]
    with pytest.warns(UserWarning, match="no expert is adapted in the file"):
        pet.load_adapter(loaded, tmp_path)
    assert np.array_equal(loaded(ids).asnumpy(), model(ids).asnumpy())
    pet.merge_checkpoint(BASE, tmp_path, tmp_path / "merged")
    merged = AutoModel.from_pretrained(tmp_path / "merged")
    np.testing.assert_allclose(merged(ids).asnumpy(), model(ids).asnumpy(), atol=1e-5)


def test_halves_that_peft_cannot_open_are_said(tmp_path):
    model = pet.apply_lora(AutoModel.from_pretrained(BASE), rank=2, targets=["gate_proj", "up_proj"])
    with pytest.warns(UserWarning, match="experts' gate_proj and up_proj without down_proj: PEFT with transformers 5"):
        pet.save_adapter(model, tmp_path)


def test_experts_that_were_trained_whole_are_opened_one_by_one(tmp_path):
    model = pet.apply_lora(AutoModel.from_pretrained(BASE), rank=2, targets=["q_proj"], modules_to_save=["mlp"])
    for number, parameter in enumerate(pet.trainable_parameters(model)):
        change = np.random.default_rng(number).standard_normal(parameter.shape) / 8
        write_parameter(parameter, (parameter.asnumpy() + change).astype(np.float32))
    pet.save_adapter(model, tmp_path)
    tensors = read_file(tmp_path / "adapter_model.safetensors")
    held = stacked(tensors)
    assert sum(array.ndim == 3 for array in held.values()) == 2 * model.config.dims.layers
    write_file(tmp_path / "adapter_model.safetensors", held)
    loaded = AutoModel.from_pretrained(BASE)
    pet.load_adapter(loaded, tmp_path)
    ids = np.arange(8)[None]
    assert np.array_equal(loaded(ids).asnumpy(), model(ids).asnumpy())
    pet.merge_checkpoint(BASE, tmp_path, tmp_path / "merged")
    pet.merge(model)
    merged = read_file(tmp_path / "merged" / "model.safetensors")
    parameters = model.parameters_dict()
    assert all(np.array_equal(array, parameters[name].asnumpy()) for name, array in merged.items())


def cut_short(tensors):
    key = next(key for key in tensors if key.endswith("lora_A.weight"))
    tensors[key] = tensors[key][:-1].copy()


@pytest.mark.parametrize(
    "change, values, message",
    [
        (None, {"target_parameters": ["experts.other"]}, "experts.other: only experts' gate_up_proj and down_proj can"),
        (None, {"target_parameters": ["experts.down_proj"]}, "target_parameters names no parameter that this belongs"),
        (None, {"target_parameters": True}, "a value of the wrong type"),
        (None, {"r": 0}, "a value of the wrong type"),
        (None, {"r": 3}, "no LoRA of rank 3 on experts' gate_up_proj"),
        (cut_short, {}, "no LoRA of rank 2 on experts' gate_up_proj"),
        (None, {"use_dora": True}, "lora_magnitude_vector"),
    ],
)
def test_what_does_not_fit_is_refused(written, change, values, message):
    directory, _ = written(change, **values)
    model = AutoModel.from_pretrained(BASE)
    with pytest.raises(InputError, match=message):
        pet.load_adapter(model, directory)


def as_parameter(directory, name, **values):
    """An adapter that was saved here, as PEFT writes one on this parameter."""
    where = directory / "adapter_config.json"
    changed = {"target_modules": [], "target_parameters": [name], **values}
    where.write_text(json.dumps({**json.loads(where.read_text()), **changed}))


def test_a_cell_s_weight_has_the_rank_of_its_own_name(tmp_path):
    """PEFT looks for patterns' keys in the parameter's name, ``…q_proj.weight``."""
    base = BASE.parent / "llama_gqa"
    pet.save_adapter(pet.apply_lora(AutoModel.from_pretrained(base), rank=2, alpha=6, targets=["q_proj"]), tmp_path)
    patterns = {"rank_pattern": {"q_proj": 5}, "alpha_pattern": {"q_proj": 7, "q_proj.weight": 3}}
    as_parameter(tmp_path, "q_proj.weight", **patterns)
    model = AutoModel.from_pretrained(base)
    pet.load_adapter(model, tmp_path)
    config = registry(model).get("default").config
    assert (config.rank, config.alpha, config.alpha_pattern) == (2, 6, {"q_proj": 3})


def test_parameters_that_are_stored_as_in_out_are_refused(tmp_path):
    """PEFT has their factors on the opposite sides; of a square one nothing else shows it."""
    base = BASE.parent / "gpt2"
    pet.save_adapter(pet.apply_lora(AutoModel.from_pretrained(base), rank=2, targets=["attn.c_proj"]), tmp_path)
    as_parameter(tmp_path, "attn.c_proj.weight")
    said = r"attn\.c_proj\.weight .*: stored as \(in, out\); name the cell in target_modules"
    with pytest.raises(InputError, match=said):
        pet.load_adapter(AutoModel.from_pretrained(base), tmp_path)
    with pytest.raises(InputError, match=said):
        pet.merge_checkpoint(base, tmp_path, tmp_path / "merged")
