"""Layers as one operator each way: gradients against the plain path's, whatever is trained, and what they keep."""

from __future__ import annotations

import pytest
from adapted_layers import FAMILIES, batch_of, disturb, gradients, same

import pet
from adapters.apply import apply
from adapters.bitfit import BitFitConfig
from adapters.bottleneck import BottleneckConfig
from adapters.ia3 import IA3Config
from adapters.lora import LoRAConfig, LoRALinear
from adapters.low_rank_adapter import LowRankAdapterConfig
from adapters.prefix import PrefixConfig
from model_zoo.auto import AutoModel
from model_zoo.engine import available, run as whole
from model_zoo.quantization import Quantization
from pet.train.precision import set_recompute

pytestmark = pytest.mark.skipif(not available(), reason="there are no C kernels here")


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_every_matrix_adapted_are_those_of_the_plain_path(family, fixtures, groups):
    model = AutoModel.from_pretrained(fixtures / family)
    apply(model, LoRAConfig(rank=3, targets="all-linear"))
    disturb(model)
    same(model.set_train(True), batch_of(model))
    assert groups == [[model.config.dims.layers]]


MOE = {
    "dropout": LoRAConfig(rank=3, targets="all-linear", dropout=0.4),
    "dora": LoRAConfig(rank=3, targets="all-linear", use_dora=True, dropout=0.3),
    "ia3": IA3Config(),
    "behind": BottleneckConfig(size=5, non_linearity="relu", dropout=0.3),
    "router": LoRAConfig(rank=3, targets=["mlp.gate", "down_proj"]),
    "ranks": LoRAConfig(rank=3, targets="all-linear", dropout=0.4, rank_pattern={r"experts\.[02]\.up_proj": 5}),
    "some": LoRAConfig(
        rank=3, targets=["model.layers.0.mlp.experts.1.up_proj", "model.layers.1.mlp.experts.3.down_proj"]
    ),
}


@pytest.mark.cover(pairs=False)
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", MOE)
def test_gradients_of_adapted_experts_are_those_of_the_plain_path(name, recompute, fixtures, groups):
    """What is dropped of a token does not depend on who chose it; experts may differ in what is on them."""
    model = AutoModel.from_pretrained(fixtures / "qwen3_moe")
    apply(model, MOE[name])
    disturb(model)
    same(model.set_train(True), batch_of(model), set_recompute if recompute else lambda model: None)
    layers = model.config.dims.layers
    assert groups == [[1] * layers if recompute else [layers]]


HEAD_NORMS = {
    "model_type": "qwen3",
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "max_position_embeddings": 64,
}


@pytest.mark.parametrize("adapter", [None, LoRAConfig(rank=3, targets="all-linear", dropout=0.2)])
def test_gradients_through_norms_of_heads_are_those_of_the_plain_path(adapter, groups):
    model = AutoModel.from_config(HEAD_NORMS, seed=1)
    if adapter is not None:
        apply(model, adapter)
    disturb(model)
    same(model.set_train(True), batch_of(model))
    assert groups == [[1, 1] if adapter is None else [2]]


OTHERS = {"dropout": LoRAConfig(rank=3, targets="all-linear", dropout=0.4), "ia3": IA3Config()}
OTHERS |= {"biases": BitFitConfig()}
OTHERS |= {"relu": BottleneckConfig(size=5, layer_norm=True, scaling=0.5, non_linearity="relu")}
OTHERS |= {name: BottleneckConfig(size=5, non_linearity=name) for name in ("silu", "tanh")}
OTHERS |= {"low rank": LowRankAdapterConfig(reduction_factor=4, rank=2)}
OTHERS |= {"gelu": BottleneckConfig(size=5, placement="parallel", non_linearity="gelu", dropout=0.3)}
OTHERS |= {"behind": BottleneckConfig(size=5, non_linearity="relu", dropout=0.3)}


@pytest.mark.parametrize("name", OTHERS)
def test_gradients_of_other_adapters_are_those_of_the_plain_path(name, fixtures, groups):
    """The same numbers are dropped, in the backward pass too; IA3 scales outputs and, in the feed-forward, inputs."""
    model = AutoModel.from_pretrained(fixtures / "llama_gqa")
    apply(model, OTHERS[name])
    disturb(model)
    same(model.set_train(True), batch_of(model))
    assert groups == [[model.config.dims.layers]]


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_prefixes_are_those_of_the_plain_path(family, fixtures, groups):
    model = apply(AutoModel.from_pretrained(fixtures / family), PrefixConfig(length=3))
    disturb(model)
    same(model.set_train(True), batch_of(model))
    assert groups == [[model.config.dims.layers]]


@pytest.mark.parametrize("init", ["default", "pissa", "olora"])
@pytest.mark.parametrize("family", ["llama_gqa", "gpt2", "chatglm2"])
def test_gradients_of_dora_are_those_of_the_plain_path(family, init, fixtures, groups):
    """Whether there is a bias, whichever way the weight lies, and wherever its factors start."""
    model = AutoModel.from_pretrained(fixtures / family)
    apply(model, LoRAConfig(rank=3, targets="all-linear", use_dora=True, init=init, dropout=0.3))
    disturb(model)
    same(model.set_train(True), batch_of(model))
    assert groups == [[model.config.dims.layers]]


def test_a_trained_bias_beneath_dora_has_its_gradient(fixtures):
    """Which no rule of the engine gives: MindSpore's graph does."""
    model = AutoModel.from_pretrained(fixtures / "gpt2")
    apply(model, LoRAConfig(rank=3, targets="all-linear", use_dora=True, bias="lora_only"))
    disturb(model)
    same(model.set_train(True), batch_of(model), graph=True)


@pytest.mark.parametrize(
    ("form", "settings"),
    [
        ("nf4", {"init": "pissa", "use_dora": True}),
        ("int8", {"init": "olora", "use_dora": True}),
        ("int8", {"init": "pissa", "use_dora": True, "dropout": 0.3}),
        ("nf4", {"init": "olora", "use_dora": True, "dropout": 0.3}),
        ("nf4", {"init": "pissa", "dropout": 0.3}),
    ],
)
def test_gradients_over_what_first_factors_left_are_those_of_the_plain_path(form, settings, fixtures, groups):
    """The cell adds what was taken off its packed weight, unless the adapter would subtract the same."""
    model = AutoModel.from_pretrained(fixtures / "llama_gqa", quantization=Quantization(form))
    apply(model, LoRAConfig(rank=3, targets="all-linear", **settings))
    modules = [module for _, module in model.cells_and_names() if isinstance(module, LoRALinear)]
    assert {module.taken for module in modules} == {True}
    assert {module.cancelled for module in modules} == {"dropout" not in settings}
    disturb(model)
    same(model.set_train(True), batch_of(model))
    assert groups == [[model.config.dims.layers]]


@pytest.mark.parametrize("init", ["default", "pissa", "olora"])
def test_a_fresh_dora_gives_the_bits_of_lora(init, fixtures):
    totals = []
    for use_dora in (False, True):
        model = AutoModel.from_pretrained(fixtures / "gpt2")
        apply(model, LoRAConfig(rank=3, targets="all-linear", use_dora=use_dora, init=init))
        totals.append(gradients(model, batch_of(model), True)[0])
    assert totals[0] == totals[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_all_weights_are_those_of_the_plain_path(family, fixtures, groups):
    model = AutoModel.from_pretrained(fixtures / family)
    for parameter in model.get_parameters():
        parameter.requires_grad = True
    same(model.set_train(True), batch_of(model))
    assert groups == [[1] * model.config.dims.layers]  # so that not all gradients are there with the first


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("chatglm1", "lora"),
        ("glm4_0414", "gelu"),
        *(("llama_gqa", name) for name in ("lora", "dropout", "ia3", "behind")),
    ],
)
def test_layers_that_are_computed_again_give_the_same(family, name, fixtures, groups):
    model = AutoModel.from_pretrained(fixtures / family)
    apply(model, {"lora": LoRAConfig(rank=3, targets="all-linear"), **OTHERS}[name])
    disturb(model)
    same(model.set_train(True), batch_of(model), set_recompute)
    assert groups == [[1] * model.config.dims.layers]
    ids = frozenset(id(parameter) for parameter in model.get_parameters() if parameter.requires_grad)
    layer, width = model.layer_list[0], model.config.dims.hidden
    keeps, forgets = (whole.FusedLayers([layer], width, ids, True, again).program for again in (False, True))
    assert keeps.saved > 8 * width and forgets.saved == 0


def test_a_layer_that_is_not_traceable_stays_between_those_that_are(fixtures, groups):
    """DoRA behind another adapter in one layer: what the base alone gave is not a value any more."""
    model = AutoModel.from_pretrained(fixtures / "llama_mha")
    layers = model.config.dims.layers
    assert layers > 1
    target = "model.layers.0.self_attn.q_proj"
    pet.add_adapter(model, LoRAConfig(rank=2, targets=[target]), "first")
    pet.add_adapter(model, LoRAConfig(rank=3, targets=[target], use_dora=True), "front")
    pet.add_adapter(model, LoRAConfig(rank=3, targets=[f"model.layers.{layers - 1}.self_attn.v_proj"]), "behind")
    pet.set_adapter(model, ["first", "front", "behind"])
    disturb(model)
    for parameter in model.get_parameters():
        parameter.requires_grad = ".lora_" in parameter.name
    same(model.set_train(True), batch_of(model), graph=True)
    assert groups == [[None, layers - 1]]


def test_layers_keep_their_order_when_the_last_alone_is_computed_again(fixtures, groups):
    model = AutoModel.from_pretrained(fixtures / "llama_mha")
    apply(model, LoRAConfig(rank=3, targets="all-linear"))
    disturb(model)
    model.layer_list[model.config.dims.layers - 1].recomputes = True
    same(model.set_train(True), batch_of(model))
    assert groups == [[model.config.dims.layers - 1, 1]]
