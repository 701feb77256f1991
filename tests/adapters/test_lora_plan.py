"""What a configuration would do to a model, and every misspelt entry of it."""

from __future__ import annotations

import numpy as np
import pytest
from mindspore import nn

import pet
from adapters.cells import layer_index
from adapters.registry import registry


@pytest.fixture(scope="module")
def models(fixtures):
    return {name: pet.AutoModel.from_pretrained(fixtures / name) for name in ("gpt2", "llama_gqa", "glm")}


def paths(plan):
    return [entry.name for entry in plan.entries]


def test_a_plan_is_a_table(models):
    config = pet.LoRAConfig(rank=4, targets=["q_proj"], layers=["1-"], exclude=["layers.2.self_attn.q_proj"])
    plan = pet.plan(models["llama_gqa"], pet.LoRAConfig(rank=4, targets=["q_proj"], layers=["1-"]))
    assert paths(plan) == ["model.layers.1.self_attn.q_proj", "model.layers.2.self_attn.q_proj"]
    assert plan.parameters == 2 * 4 * (64 + 64) and len(plan) == 2
    lines = str(plan).splitlines()
    assert lines[0].split() == ["cell", "shape", "parameters"]
    assert lines[1].split() == ["model.layers.1.self_attn.q_proj", "(64,", "64)", "512"]
    assert lines[-1].split() == ["2", "cells", "1,024"]
    assert pet.list_adapters(models["llama_gqa"]) == []
    assert paths(pet.plan(models["llama_gqa"], config)) == ["model.layers.1.self_attn.q_proj"]


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llama_gqa", {"targets": "all-linear", "use_dora": True, "rank_pattern": {"down_proj": 3}}),
        ("gpt2", {"targets": ["wte", "c_attn"], "bias": "all", "modules_to_save": ["ln_f"]}),
        ("gpt2", {"trainable_tokens": [3, 4], "init": "pissa"}),
        ("gpt2", {"targets": ["wte", "c_attn"], "init": "pissa", "use_dora": True}),
        ("glm", {"targets": ["attention", "embed_tokens"], "use_dora": True, "layers": None}),
        ("llama_gqa", pet.IA3Config(targets=["attention", "mlp"], feedforward="mlp")),
    ],
    ids=str,
)
def test_a_plan_counts_what_training_gets(models, family, settings):
    model = models[family]
    config = pet.LoRAConfig(rank=2, **settings) if isinstance(settings, dict) else settings
    plan = pet.plan(model, config)
    pet.apply(model, config)
    try:
        assert plan.parameters == sum(parameter.size for parameter in pet.trainable_parameters(model))
        assert plan.parameters == pet.adapter_status(model)["default"]["parameters"]
    finally:
        pet.delete_adapter(model, "default")


def test_cells_of_a_model_of_ones_own():
    net = nn.SequentialCell(nn.Dense(3, 4), nn.Conv2d(3, 5, (3, 2)), nn.Conv1d(3, 5, 3), nn.Embedding(7, 2))
    plan = pet.plan(net, pet.LoRAConfig(rank=2, targets=["0", "1", "2", "3"], use_dora=True))
    assert [entry.parameters for entry in plan.entries] == [
        2 * 7 + 4,
        2 * (3 * 6 + 5) + 5,
        2 * (3 * 3 + 5) + 5,
        2 * 9 + 2,
    ]
    pet.apply_lora(net, rank=2, targets=["0", "1", "2", "3"], use_dora=True)
    assert plan.parameters == sum(parameter.size for parameter in pet.trainable_parameters(net))


MISSPELT = {
    "target": ({"targets": ["q_proj", "v_porj"]}, "targets: 'v_porj'.*did you mean 'v_proj'"),
    "glob": ({"targets": ["*.atn.*"]}, r"targets: '\*\.atn\.\*' matches no cell"),
    "another kind": ({"targets": ["layers.0.self_attn.core"]}, "is of kind attention"),
    "a glob of another kind": ({"targets": ["*.core"]}, "is of kind attention"),
    "expression": ({"targets": [r"re:.*\.w_proj"]}, "matches no cell"),
    "bad expression": ({"targets": ["re:("]}, "no valid regular expression"),
    "expression without re:": ({"targets": r".*\.(q|v)_proj"}, r"did you mean 're:\.\*"),
    "anchored without re:": ({"targets": [r"model\.layers\.\d+\..*q_proj"]}, "did you mean 're:model"),
    "no expression either": ({"targets": ["w_proj|x_proj"]}, "there is:|did you mean '[^r]"),
    "empty": ({"targets": [""]}, "no name"),
    "exclude": ({"exclude": ["q_pro"]}, "exclude: 'q_pro'.*did you mean 'q_proj'"),
    "layer": ({"layers": [0, 7]}, "layers: 7 names a layer that does not exist"),
    "range": ({"layers": ["1-5"]}, "layers: '1-5'.*there is: 0-2"),
    "no layer": ({"layers": ["last"]}, "layers: 'last'; an index"),
    "no layer left": ({"targets": ["q_proj", "lm_head"], "layers": [1]}, "targets: layers leaves nothing of 'lm_head'"),
    "other layers": ({"targets": ["q_proj", "0.self_attn.k_proj"], "layers": [1]}, "nothing of '0.self_attn.k_proj'"),
    "rank pattern": ({"rank_pattern": {"q_porj": 2}}, "rank_pattern: 'q_porj'.*did you mean 'q_proj'"),
    "rank pattern elsewhere": ({"rank_pattern": {"down_proj": 2}}, "rank_pattern: 'down_proj' matches no target"),
    "alpha pattern": ({"alpha_pattern": {"v_prj": 2}}, "alpha_pattern: 'v_prj'.*did you mean 'v_proj'"),
    "bad pattern": ({"alpha_pattern": {"(": 2}}, "no valid regular expression"),
    "modules to save": ({"modules_to_save": ["lm_haed"]}, "modules_to_save: 'lm_haed'.*did you mean 'lm_head'"),
    "saved and adapted": ({"modules_to_save": ["q_proj"]}, "is a target too"),
    "tokens": ({"trainable_tokens": {"embed": [1]}}, "trainable_tokens: 'embed' matches no embedding.*embed_tokens"),
    "tokens and saved": (
        {"trainable_tokens": [1], "modules_to_save": ["embed_tokens"]},
        "trainable_tokens: model.embed_tokens is in modules_to_save too",
    ),
    "nothing left": ({"exclude": ["q_proj", "v_proj"]}, "nothing is left"),
}


@pytest.mark.parametrize("name", MISSPELT)
@pytest.mark.parametrize("call", ["plan", "apply"])
def test_every_misspelt_entry_is_an_error(models, name, call):
    settings, message = MISSPELT[name]
    model = models["llama_gqa"]
    config = pet.LoRAConfig(**{"rank": 2, "targets": ["q_proj", "v_proj"], **settings})
    with pytest.raises(pet.InputError, match=message):
        pet.plan(model, config) if call == "plan" else pet.apply(model, config)
    assert pet.list_adapters(model) == [] and not hasattr(type(model.model.layers[0].self_attn.q_proj), "plain")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"exclude": ["down_proj"]}, "exclude: 'down_proj' has no effect: no target is of these cells"),
        ({"rank_pattern": {"q_proj": 1, "self_attn.q_proj": 4}}, "rank_pattern: 'self_attn.q_proj' has no effect"),
        ({"exclude": ["1.self_attn.q_proj"], "alpha_pattern": {"0.self_attn.q_proj": 1, "q_proj": 2}}, ""),
    ],
)
def test_entries_that_change_nothing_are_told(models, caplog, settings, said):
    pet.plan(models["llama_gqa"], pet.LoRAConfig(rank=2, targets=["q_proj", "v_proj"], **settings))
    assert said in caplog.text and bool(said) == bool(caplog.text)


def test_tokens_of_a_shared_weight_are_the_same_ones(models):
    tokens = {"wte": [1], "lm_head": [2]}
    with pytest.raises(pet.InputError, match=r"lm_head shares transformer\.wte's weight; same ids expected"):
        pet.plan(models["gpt2"], pet.LoRAConfig(rank=2, targets=["c_attn"], trainable_tokens=tokens))


def test_a_pattern_sweeps_over_what_the_method_does_not_fit(models):
    for target in ("*layers.0.self_attn*", r"re:.*layers\.0\.self_attn.*"):
        plan = pet.plan(models["llama_gqa"], pet.LoRAConfig(rank=2, targets=[target]))
        assert [path.rsplit(".", 1)[-1] for path in paths(plan)] == ["q_proj", "k_proj", "v_proj", "o_proj"]


@pytest.mark.parametrize(
    "path, layers, layer",
    [
        ("model.layers.2.mlp.up_proj", "model.layers", 2),
        ("transformer.prefix_encoder.trans.0", "transformer.layers", None),
        ("model.norm", "model.layers", None),
        ("blocks.3.heads.1", None, 3),
    ],
)
def test_the_layer_in_a_path(path, layers, layer):
    assert layer_index(path, layers) == layer


@pytest.mark.parametrize(
    "first",
    [
        pet.BottleneckConfig(size=4, layer_norm=True),
        pet.LowRankAdapterConfig(rank=2),
        pet.LoRAConfig(rank=2, dropout=0.5, use_dora=True, targets="all-linear"),
        pet.IA3Config(),
        pet.BitFitConfig(),
    ],
    ids=lambda config: config.method,
)
def test_cells_of_an_adapter_are_no_targets_of_another(models, first):
    model = models["llama_gqa"]
    later = [
        pet.BitFitConfig(),
        pet.LoRAConfig(rank=2, targets="all-linear", modules_to_save=["norm"]),
        pet.BottleneckConfig(size=4, targets=["*"]),
    ]
    alone = [pet.plan(model, config).entries for config in later]
    pet.apply(model, first)
    try:
        beside = [pet.plan(model, config).entries for config in later]
        assert [[entry.name for entry in one] for one in beside] == [[entry.name for entry in one] for one in alone]
    finally:
        pet.delete_adapter(model, "default")


@pytest.mark.parametrize(
    "method, settings",
    [
        (pet.LoRAConfig, {"rank": 2, "targets": ["q_proj", "embed_tokens"]}),
        (pet.LoRAConfig, {"rank": 2, "init": "gaussian"}),
        (pet.BottleneckConfig, {"size": 4}),
        (pet.LowRankAdapterConfig, {"rank": 2}),
        (pet.PrefixConfig, {"length": 4, "projection": True, "projection_hidden": 8}),
        (pet.PTuningV2Config, {"length": 4, "projection": True, "projection_hidden": 8}),
        (pet.PromptConfig, {"length": 4}),
        (pet.PTuningConfig, {"length": 4, "projection_hidden": 8}),
    ],
    ids=lambda value: value.method if hasattr(value, "method") else "",
)
def test_first_values_follow_the_seed_alone(models, method, settings):
    model = models["llama_gqa"]

    def first(seed):
        pet.apply(model, method(seed=seed, **settings))
        try:
            return np.concatenate([one.asnumpy().reshape(-1) for one in pet.trainable_parameters(model)])
        finally:
            pet.delete_adapter(model, "default")

    one, again, other = first(3), first(3), first(4)
    assert np.array_equal(one, again) and not np.array_equal(one, other)


def test_several_problems_are_told_at_once(models):
    with pytest.raises(pet.InputError) as error:
        pet.plan(models["gpt2"], pet.LoRAConfig(targets=["c_atn", "c_prj", "c_attn"]))
    assert "c_atn" in str(error.value) and "c_prj" in str(error.value) and "2 problems" in str(error.value)


def test_patterns_reach_their_cells(models):
    model = models["llama_gqa"]
    patterns = {"layers.1.self_attn.q_proj": 5, "q_proj": 3}
    pet.apply_lora(
        model, rank=2, alpha=6, targets=["q_proj", "v_proj"], rank_pattern=patterns, alpha_pattern={".*2.*v_proj": 9}
    )
    try:
        found = {
            path.removeprefix("model.layers."): (module.lora_A.weight.shape[0], module.scale)
            for path, module in registry(model).get("default").modules.items()
        }
    finally:
        pet.delete_adapter(model, "default")
    assert found == {
        "0.self_attn.q_proj": (3, 2.0),
        "0.self_attn.v_proj": (2, 3.0),
        "1.self_attn.q_proj": (5, 6 / 5),
        "1.self_attn.v_proj": (2, 3.0),
        "2.self_attn.q_proj": (3, 2.0),
        "2.self_attn.v_proj": (2, 4.5),
    }
    assert np.isclose(pet.LoRAConfig(rank=9, alpha=6, use_rslora=True).scale_at("x"), 2.0)


def test_a_name_is_no_model_to_plan_on():
    with pytest.raises(pet.InputError, match="model is 'llama_tiny'; an opened model"):
        pet.plan("llama_tiny", pet.LoRAConfig(rank=2))
