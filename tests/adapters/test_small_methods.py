"""Bottleneck and low-rank adapters, IA3 and BitFit: their formulas, PEFT's files, and cells of the user's own."""

from __future__ import annotations

import json
import os

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

import pet
from adapters.bottleneck import BottleneckConfig
from adapters.registry import registry
from model_zoo.errors import InputError

os.environ.setdefault("HF_HUB_OFFLINE", "1")
IDS = np.random.default_rng(0).integers(3, 120, (2, 9))
X = Tensor(np.random.default_rng(1).standard_normal((3, 6)).astype(np.float32))


class Own(nn.Cell):
    """A user's own cell."""

    def __init__(self):
        super().__init__()
        self.first = nn.Dense(6, 5)
        self.second = nn.Dense(5, 4, has_bias=False)
        self.norm = nn.LayerNorm((4,))

    def construct(self, x):
        return self.norm(self.second(ms.ops.relu(self.first(x))))


def tensors(cell, name: str = "default") -> dict[str, np.ndarray]:
    return {key: value.asnumpy() for key, value in registry(cell).get(name).tensors().items()}


def scatter(cell) -> None:
    """Random values in every trained parameter."""
    generator = np.random.default_rng(3)
    for parameter in pet.trainable_parameters(cell):
        parameter.set_data(Tensor(generator.standard_normal(parameter.shape).astype(np.float32)))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def dense_of(cell, x):
    bias = 0 if cell.bias is None else cell.bias.asnumpy()
    return x @ cell.weight.asnumpy().T + bias


@pytest.mark.parametrize("placement", ("houlsby", "parallel"))
def test_bottleneck_formula_on_a_users_dense(placement):
    own, x = Own(), X.asnumpy()
    plain = own.first(X).asnumpy()
    pet.apply_adapter(own, size=3, placement=placement, targets=["first"], scaling=2.0)
    assert np.array_equal(own.first(X).asnumpy(), plain)
    scatter(own)
    made = tensors(own)
    source = x if placement == "parallel" else plain
    inner = gelu(source @ made["first.bottleneck_down.weight"].T + made["first.bottleneck_down.bias"])
    change = inner @ made["first.bottleneck_up.weight"].T + made["first.bottleneck_up.bias"]
    assert np.abs(own.first(X).asnumpy() - (plain + 2 * change)).max() < 1e-4
    with pytest.raises(InputError, match="non-linear"):
        pet.merge(own)


def test_low_rank_formula_on_a_users_dense():
    own = Own()
    plain = own.first(X).asnumpy()
    pet.apply_low_rank_adapter(own, reduction_factor=2, rank=2, non_linearity="relu", targets="first")
    assert np.array_equal(own.first(X).asnumpy(), plain)
    scatter(own)
    made = {key.removeprefix("first.low_rank_"): value for key, value in tensors(own).items()}
    assert made["down_b.weight"].shape == (2, 2)
    down = made["down_b.weight"] @ made["down_a.weight"]
    up = made["up_b.weight"] @ made["up_a.weight"]
    expected = plain + np.maximum(plain @ down.T + made["down.bias"], 0) @ up.T + made["up.bias"]
    assert np.abs(own.first(X).asnumpy() - expected).max() < 1e-4
    with pytest.raises(InputError, match="rank 9 is above the bottleneck's width 2"):
        pet.apply_low_rank_adapter(own, reduction_factor=2, rank=9, targets="first", name="wide")
    assert pet.list_adapters(own) == ["default"]


def test_ia3_and_bitfit_on_a_users_cell():
    own = Own()
    plain, names = own(X).asnumpy(), [parameter.name for parameter in own.get_parameters()]
    pet.apply_ia3(own, targets=["first", "second"], feedforward=["second"])
    assert np.array_equal(own(X).asnumpy(), plain)
    scatter(own)
    made = tensors(own)
    assert made["first.ia3_l"].shape == (5, 1) and made["second.ia3_l"].shape == (1, 5)
    first = np.maximum(dense_of(own.first, X.asnumpy()) * made["first.ia3_l"].reshape(-1), 0)
    expected = (first * made["second.ia3_l"]) @ own.second.weight.asnumpy().T
    assert np.abs(own.second(ms.ops.relu(own.first(X))).asnumpy() - expected).max() < 1e-5
    pet.merge(own)
    assert np.abs(own.second(ms.ops.relu(own.first(X))).asnumpy() - expected).max() < 1e-5
    pet.unmerge(own)
    pet.delete_adapter(own, "default")
    pet.apply_bitfit(own)
    assert sorted(key for key in tensors(own)) == ["first.bias", "norm.beta", "second.bias"]
    assert np.array_equal(own(X).asnumpy(), plain)
    scatter(own)
    assert np.abs(own(X).asnumpy() - plain).max() > 0.1
    with pytest.raises(InputError, match="add_missing=False"):
        pet.merge(own)
    pet.delete_adapter(own, "default")
    assert np.array_equal(own(X).asnumpy(), plain)
    assert [parameter.name for parameter in own.get_parameters()] == names


def test_names_that_match_nothing_and_values_out_of_range(fixtures):
    own = Own()
    for apply, settings, text in (
        (pet.apply_ia3, {"targets": ["first"], "feedforward": ["secnd"]}, "feedforward: 'secnd'"),
        (pet.apply_ia3, {"targets": ["frist"]}, "did you mean|first"),
        (pet.apply_adapter, {"targets": ["first"], "placement": "Houlsby"}, "placement"),
        (pet.apply_adapter, {"targets": ["first"], "size": 0}, "size"),
        (pet.apply_adapter, {"targets": ["first"], "non_linearity": "gleu"}, "gelu"),
        (pet.apply_adapter, {"targets": ["first"], "dropout": 1.0}, "dropout"),
        (pet.apply_adapter, {}, "no known family"),
        (pet.apply_low_rank_adapter, {"targets": ["first"], "reduction_factor": 0}, "reduction_factor"),
    ):
        with pytest.raises(InputError, match=text):
            apply(own, **settings)
    assert pet.list_adapters(own) == []


@pytest.mark.parametrize("family", ("gpt2", "llama_gqa", "glm4_0414"))
def test_parallel_adapters_read_the_sublayers_input(fixtures, family):
    model = pet.AutoModel.from_pretrained(str(fixtures / family))
    config = BottleneckConfig(size=4, placement="parallel")
    entries = pet.plan(model, config).entries
    assert len(entries) == model.config.dims.layers
    hidden = model.config.dims.hidden
    assert all(entry.parameters == 4 * (hidden + 1) + hidden * 5 for entry in entries)


@pytest.mark.parametrize("family", ("gpt2", "llama_gqa", "glm"))
def test_peft_and_we_read_each_others_ia3(fixtures, tmp_path, family):
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
    peft = pytest.importorskip("peft", reason="peft is not installed: nothing to compare with")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: nothing to compare with")
    model = pet.AutoModel.from_pretrained(str(fixtures / family))
    model.set_train(False)
    base = transformers.AutoModelForCausalLM.from_pretrained(fixtures / family)
    if family == "gpt2":
        targets, feedforward = ["c_attn", "mlp.c_proj"], ["mlp.c_proj"]
    else:
        targets, feedforward = ["k_proj", "v_proj", "down_proj"], ["down_proj"]
    config = peft.IA3Config(task_type="CAUSAL_LM", target_modules=targets, feedforward_modules=feedforward)
    theirs = peft.get_peft_model(base, config).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for key, value in theirs.named_parameters():
            if "ia3_l" in key:
                value.copy_(1 + 0.3 * torch.randn_like(value))
        expected = theirs(torch.tensor(IDS)).logits.numpy()
    theirs.save_pretrained(tmp_path / "theirs")
    pet.load_adapter(model, tmp_path / "theirs")
    assert np.abs(model(IDS).asnumpy() - expected).max() < 1e-4
    pet.save_adapter(model, tmp_path / "back")
    file = "adapter_model.safetensors"
    assert (tmp_path / "back" / file).read_bytes() == (tmp_path / "theirs" / file).read_bytes()
    given, written = (json.loads((tmp_path / name / "adapter_config.json").read_text()) for name in ("theirs", "back"))
    for key in ("target_modules", "feedforward_modules"):
        given[key], written[key] = sorted(given[key]), sorted(written[key])
    assert given == written
    pet.merge(model)
    assert np.abs(model(IDS).asnumpy() - expected).max() < 1e-4
    pet.unmerge(model)
    pet.delete_adapter(model, "default")
    pet.apply_ia3(model)
    for parameter in pet.trainable_parameters(model):
        parameter.set_data(
            Tensor(1 + 0.3 * np.random.default_rng(0).standard_normal(parameter.shape).astype(np.float32))
        )
    ours = model(IDS).asnumpy()
    pet.save_adapter(model, tmp_path / "ours")
    base = transformers.AutoModelForCausalLM.from_pretrained(fixtures / family)
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "ours").eval()
    with torch.no_grad():
        assert np.abs(theirs(torch.tensor(IDS)).logits.numpy() - ours).max() < 1e-4


def test_rows_mix_any_of_them(fixtures):
    model = pet.AutoModel.from_pretrained(str(fixtures / "chatglm2"))
    model.set_train(False)
    ids = np.repeat(IDS[:1], 4, 0)
    expected = [model(ids[:1]).asnumpy()[0]]
    for apply, name in ((pet.apply_adapter, "bottleneck"), (pet.apply_ia3, "ia3"), (pet.apply_low_rank_adapter, "low")):
        apply(model, name=name)
        scatter(model)
        expected.append(model(ids[:1]).asnumpy()[0])
    pet.apply_bitfit(model, name="bias")
    with pet.adapter_names(model, ["__base__", "bottleneck", "ia3", "low"]):
        mixed = model(ids).asnumpy()
    assert np.abs(mixed - np.stack(expected)).max() < 1e-3
    with (
        pytest.raises(InputError, match="replaces whole weights"),
        pet.adapter_names(model, ["bias", "low", "ia3", "low"]),
    ):
        pass
