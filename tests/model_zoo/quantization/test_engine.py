"""Packed weights in the engine: what the float32 model of the dequantised weights computes."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

import pet
from adapters.apply import apply
from adapters.lora import LoRAConfig
from model_zoo.auto import AutoModel
from model_zoo.engine import available, run as whole
from model_zoo.quantization import Quantization
from model_zoo.quantization.cells import quantized_cells
from pet.data.packing import collate
from pet.quantize import quantize_checkpoint
from pet.train.objectives.causal import CausalLM
from pet.train.optimizers import AdamW
from pet.train.segments import make_segments
from pet.train.step import TrainStep

pytestmark = pytest.mark.skipif(not available(), reason="there are no C kernels here")

FORMS = {
    "nf4": (Quantization("nf4"), {}),
    "double, DoRA": (Quantization("nf4", 64, True), {"use_dora": True}),
    "int8, dropout": (Quantization("int8"), {"dropout": 0.2}),
    "int4": (Quantization("int4", 32, skip=("down_proj", "lm_head")), {}),
}


def dequantised(directory, quantization):
    """The packed model, and the float32 model of the same numbers."""
    packed = AutoModel.from_pretrained(directory, quantization=quantization)
    wide = AutoModel.from_pretrained(directory)
    parameters = {parameter.name: parameter for parameter in wide.get_parameters()}
    cells = quantized_cells(packed)
    assert cells
    for name, cell in cells.items():
        parameters[name].asnumpy()[...] = cell.published()
    return packed, wide


@pytest.mark.parametrize("name", FORMS)
def test_training_is_that_on_the_dequantised_weights(name, fixtures, monkeypatch, tmp_path):
    """Bit for bit, all layers one operator; single tokens, and DoRA's product with its few rows of A, to rounding."""
    groups, found = [], []
    replace = whole.replace_layers
    monkeypatch.setattr(whole, "replace_layers", lambda old, new: groups.append(list(new)) or replace(old, new))
    quantization, settings = FORMS[name]
    for index, model in enumerate(dequantised(fixtures / "llama_gqa", quantization)):
        apply(model, LoRAConfig(rank=3, targets="all-linear", **settings))
        ids = [np.random.default_rng(seed).integers(10, 60, (2, 17)).astype(np.int32) for seed in range(3)]
        batches = [{"input_ids": one, "labels": one} for one in ids]
        trainer = pet.Trainer(model, batches, steps=3, learning_rate=1e-2, batch_size=2)
        trainer.train()
        pet.save_adapter(model, tmp_path / str(index))
        tensors = (tmp_path / str(index) / "adapter_model.safetensors").read_bytes()
        start = tensors[8 : 8 + int.from_bytes(tensors[:8], "little")]
        found.append(([record["loss"] for record in trainer.history], tensors[8 + len(start) :]))
        found[-1] += (model.generate(ids[0][:, :9], max_new_tokens=5).tolist(),)
        (decoder,) = model._decoders.values()
        assert decoder.whole_prompt is not None and decoder.token is not None
    if "use_dora" in settings:
        assert found[0][0] == pytest.approx(found[1][0], rel=1e-6) and found[0][2] == found[1][2]
    else:
        assert found[0] == found[1]
    assert len(set(found[0][0])) == 3
    assert {type(cell) for group in groups for cell in group} == {whole.FusedLayers}


EXPERTS = {
    "model_type": "qwen3_moe",
    "vocab_size": 61,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
IDS = np.random.default_rng(2).integers(3, 60, (2, 19))


def gradients_of(model) -> dict[str, np.ndarray]:
    """Of LoRA at every projection, B not 0, the experts' among them."""
    apply(model, LoRAConfig(rank=2, targets="all-linear"))
    generator = np.random.default_rng(1)
    for parameter in model.trainable_params():
        parameter.set_data(Tensor(generator.normal(0, 0.2, parameter.shape).astype(np.float32)))
    model.set_fast(True)
    model.set_train(True)
    segments = make_segments(list(model.trainable_params()))
    batch = collate([[(row, np.ones(19, bool))] for row in IDS], 19)
    _, vectors = TrainStep(model, AdamW(segments), CausalLM()).accumulate([batch], 0, Tensor(0.05, ms.float32))
    found = {}
    for segment, vector in zip(segments, vectors, strict=True):
        found.update(segment.split(vector.asnumpy()))
    return found


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    directory = tmp_path_factory.mktemp("experts")
    AutoModel.from_config(EXPERTS, seed=4).save_pretrained(directory)
    return directory


@pytest.mark.parametrize("form", [Quantization("nf4"), Quantization("int8"), Quantization("int4", 32)], ids=str)
def test_experts_are_packed_one_by_one(form, experts):
    """Logits and the adapters' gradients are those of the dequantised weights; the router is not packed."""
    packed, wide = dequantised(experts, form)
    cells = quantized_cells(packed)
    assert len(cells) == 4 + 3 * 3 and not any("mlp.gate." in name for name in cells)
    plain = AutoModel.from_pretrained(experts)(IDS).asnumpy()
    assert np.abs(packed(IDS).asnumpy() - wide(IDS).asnumpy()).max() < 1e-4
    assert np.abs(packed(IDS).asnumpy() - plain).max() > 1e-3
    here, there = gradients_of(packed), gradients_of(wide)
    assert here.keys() == there.keys() and len(here) == 2 * len(cells)
    for name, gradient in there.items():
        assert np.abs(here[name] - gradient).max() < 1e-5 * max(1.0, np.abs(gradient).max()), name
    assert sum("experts" in name and np.abs(gradient).max() > 1e-4 for name, gradient in there.items()) > 12


def test_experts_in_bitsandbytes_files(experts, tmp_path, caplog):
    """transformers 5 has the experts of a layer as one tensor, which bitsandbytes does not pack. So do files written
    here without the experts; with them, which is said, they open here alone."""
    transformers = pytest.importorskip("transformers", reason="the live comparison needs transformers")
    bitsandbytes, torch = pytest.importorskip("bitsandbytes"), pytest.importorskip("torch")
    form = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        experts, quantization_config=form, dtype=torch.float32, device_map="cpu"
    )
    theirs.save_pretrained(tmp_path / "theirs")
    mine = quantized_cells(AutoModel.from_pretrained(experts, quantization=Quantization("nf4")))
    cells = quantized_cells(AutoModel.from_pretrained(tmp_path / "theirs"))
    assert set(cells) == {name for name in mine if "self_attn" in name}
    for name, cell in cells.items():
        assert np.array_equal(cell.dequantized(), mine[name].dequantized())
    some = Quantization("nf4", skip=("lm_head", "gate", "experts"))
    for form, name in ((Quantization("nf4"), "each"), (some, "some")):
        quantize_checkpoint(experts, tmp_path / name, form)
        assert ("open here alone" in caplog.text) == (name == "each")
        caplog.clear()
        loaded = AutoModel.from_pretrained(tmp_path / name)(IDS).asnumpy()
        assert np.array_equal(loaded, AutoModel.from_pretrained(experts, quantization=form)(IDS).asnumpy())
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "some", device_map="cpu", dtype=torch.float32)
    packed = {name: one for name, one in again.named_modules() if type(one).__name__ == "Linear4bit"}
    assert {f"{name}.weight" for name in packed} == set(cells)
    for name, one in packed.items():
        there = bitsandbytes.functional.dequantize_4bit(one.weight.data, one.weight.quant_state)
        assert np.array_equal(there.numpy(), cells[f"{name}.weight"].dequantized())
