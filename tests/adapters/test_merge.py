"""Merging: exact sums, rounded once, undone bit for bit."""

from __future__ import annotations

import itertools
import threading

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from waiting import HANGING

import pet
from adapters.registry import registry
from model_zoo.checkpoint.dtypes import from_bfloat16, to_bfloat16
from model_zoo.layers import Linear, name_parameters

IDS = np.random.default_rng(0).integers(3, 120, (2, 6))


def randomise(model, name="default", scale=0.1, seed=3):
    generator = np.random.default_rng(seed)
    for parameter in registry(model).get(name).parameters():
        value = parameter.asnumpy() + scale * generator.standard_normal(parameter.shape)
        ops.assign(parameter, ms.Tensor(value.astype(np.float32)))


def weights(model):
    """Bits of every base parameter, by the cell that uses it."""
    found = {}
    for path, cell in model.cells_and_names():
        if ".adapter_" in f".{path}":
            continue
        for name, parameter in cell._params.items():
            if parameter is not None:
                found[f"{path}.{name}"] = parameter.asnumpy().tobytes()
    return found


@pytest.mark.parametrize("family", ["gpt2", "llama_gqa", "glm"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_dora": True, "targets": "all-linear"},
        {"init": "pissa", "use_rslora": True, "targets": "mlp"},
    ],
    ids=["lora", "dora", "pissa"],
)
def test_merged_equals_unmerged_and_back(fixtures, family, settings):
    model = pet.AutoModel.from_pretrained(fixtures / family)
    bare, base = weights(model), model(IDS).asnumpy()
    pet.apply_lora(model, rank=4, **settings)
    randomise(model, scale=0.02)  # as far as training goes: sums of larger parts round more coarsely
    adapted = model(IDS).asnumpy()
    assert np.abs(adapted - base).max() > 0.5
    report = pet.merge(model)
    assert report.names == ("default",) and 0 < report.error < 1e-6
    scale = np.abs(adapted).max()
    np.testing.assert_allclose(model(IDS).asnumpy(), adapted, rtol=0, atol=1e-6 * scale)
    assert pet.adapter_status(model)["default"]["merged"]
    with pet.disable_adapters(model):
        np.testing.assert_array_equal(model(IDS).asnumpy(), base)
    merged = model(IDS).asnumpy()
    np.testing.assert_allclose(merged, adapted, rtol=0, atol=1e-6 * scale)
    pet.unmerge(model)
    np.testing.assert_array_equal(model(IDS).asnumpy(), adapted)
    pet.delete_adapter(model, "default")
    assert weights(model) == bare


class Half(nn.Cell):
    def __init__(self, dtype):
        super().__init__()
        self.cell = Linear(96, 80, True, dtype)
        name_parameters(self)
        values = np.random.default_rng(0).standard_normal((80, 96)).astype(np.float32)
        if dtype == ms.bfloat16:
            values = from_bfloat16(to_bfloat16(values))
        from model_zoo.checkpoint.parameters import write_parameter

        write_parameter(self.cell.weight, values)


@pytest.mark.parametrize("dtype", [ms.float16, ms.bfloat16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("dora", [False, True])
def test_narrow_weights_are_rounded_once(dtype, dora):
    net = Half(dtype)
    base = net.cell.weight.astype(ms.float32).asnumpy().astype(np.float64)
    pet.apply_lora(net, rank=4, alpha=3, targets=["cell"], use_dora=dora)
    randomise(net)
    module = registry(net).get("default").modules["cell"]
    a, b = module.lora_A.weight.asnumpy().astype(np.float64), module.lora_B.weight.asnumpy().astype(np.float64)
    exact = base + 0.75 * b @ a
    if dora:
        exact *= (module.lora_magnitude_vector.asnumpy() / np.linalg.norm(exact, axis=1))[:, None]
    report = pet.merge(net)
    found = net.cell.weight.astype(ms.float32).asnumpy()
    bits = 10 if dtype == ms.float16 else 7
    ulp = 2.0 ** (np.floor(np.log2(np.abs(exact))) - bits)
    # rounding once to the nearest leaves at most half a unit in the last place; a hair for the order of float64 sums
    assert (np.abs(found - exact) / ulp).max() <= 0.5 + 1e-6
    assert report.error == pytest.approx(np.abs(found - exact).max(), rel=1e-6)
    assert f"{report.error:.2e}" in str(report)
    pet.unmerge(net)
    np.testing.assert_array_equal(net.cell.weight.astype(ms.float32).asnumpy(), base.astype(np.float32))


def test_the_order_of_merging_does_not_matter(fixtures):
    model = pet.AutoModel.from_pretrained(fixtures / "llama_gqa")
    bare = weights(model)
    configs = {
        "a": {"targets": ["q_proj", "v_proj"]},
        "b": {"targets": ["q_proj", "down_proj"], "use_dora": True},
        "c": {"targets": ["v_proj"], "modules_to_save": ["lm_head"]},
    }
    for seed, (name, settings) in enumerate(configs.items()):
        pet.add_adapter(model, pet.LoRAConfig(rank=2, **settings), name)
        randomise(model, name, seed=seed)
    results = {}
    for order in itertools.permutations("abc"):
        for name in order:
            pet.merge(model, name)
        results["".join(order)] = weights(model)
        pet.unmerge(model)
        with pet.disable_adapters(model):
            assert weights(model) == bare
    pet.merge(model, ["c", "a", "b"])
    together = weights(model)
    assert all(result == together for result in results.values())
    # W + ΔA + ΔB, by the formula
    pet.unmerge(model)
    state = registry(model)
    path = "model.layers.1.self_attn.q_proj"
    weight = model.parameters_dict()[f"{path}.weight"]
    base = weight.asnumpy().astype(np.float64)
    expected = base + sum(state.get(name).modules[path].delta(base) for name in "ab")
    pet.merge(model, ["a", "b"])
    np.testing.assert_array_equal(weight.asnumpy(), expected.astype(np.float32))
    assert state.merged_names == ("a", "b")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_safe_merge_refuses_what_is_not_finite(fixtures, bad):
    model = pet.AutoModel.from_pretrained(fixtures / "llama_gqa")
    pet.add_adapter(model, pet.LoRAConfig(rank=2), "good")
    pet.apply_lora(model, rank=2, name="bad")
    randomise(model, "good")
    randomise(model, "bad")
    factor = registry(model).get("bad").modules["model.layers.2.self_attn.v_proj"].lora_B.weight
    values = factor.asnumpy().copy()
    values[3, 1] = bad
    ops.assign(factor, ms.Tensor(values))
    bare = weights(model)
    with pytest.raises(pet.InputError, match=r"layers\.2\.self_attn\.v_proj.*nothing was merged"):
        pet.merge(model, safe=True)
    assert weights(model) == bare and registry(model).merged_names == () and registry(model).active == ("bad",)
    with pytest.warns(UserWarning, match=r"layers\.2\.self_attn\.v_proj\.weight holds NaN or Inf") as warned:
        pet.merge(model)
    assert warned[0].filename == __file__
    pet.unmerge(model)
    pet.merge(model, "good", safe=True)
    merged = weights(model)
    with pytest.raises(pet.InputError, match="NaN or Inf"):
        pet.merge(model, "bad", safe=True)
    assert weights(model) == merged and registry(model).merged_names == ("good",)
    assert pet.merge(model, "bad").names == ("good", "bad"), "nobody asked"
    assert pet.merge(model).names == ("good", "bad"), "they are in the weights already"
    pet.unmerge(model)
    assert weights(model) == bare


@pytest.mark.parametrize(("dtype", "value"), [(ms.float16, 1e7), (ms.bfloat16, np.nan), (ms.bfloat16, 3e38)], ids=str)
def test_values_beyond_the_range_of_the_type_are_not_finite(dtype, value):
    net = Half(dtype)
    pet.apply_lora(net, rank=2, targets=["cell"])
    factor = registry(net).get("default").modules["cell"].lora_B.weight
    ops.assign(factor, ms.Tensor(np.full(factor.shape, value, np.float32)))
    with pytest.raises(pet.InputError, match="NaN or Inf"):
        pet.merge(net, safe=True)


@pytest.mark.parametrize(
    ("settings", "changed"),
    [
        ({"targets": ["lm_head"]}, {"lm_head.weight"}),
        ({"targets": ["wte"]}, {"transformer.wte.weight"}),
        ({"targets": ["wte", "lm_head"]}, {"transformer.wte.weight", "lm_head.weight"}),
        ({"targets": ["c_attn"], "modules_to_save": ["lm_head"]}, {"lm_head.weight"}),
    ],
    ids=["head", "embedding", "both", "whole head"],
)
def test_a_tied_head_unties_once_and_says_so(fixtures, tmp_path, settings, changed):
    model = pet.AutoModel.from_pretrained(fixtures / "gpt2")
    bare, tied = weights(model), model.transformer.wte.weight
    assert model.lm_head.weight is tied
    pet.apply_lora(model, rank=2, **settings)
    randomise(model)
    adapted = model(IDS).asnumpy()
    report = pet.merge(model)
    assert report.untied == ("lm_head.weight",) and "own" in str(report)
    assert model.config.tie_word_embeddings is False
    now = weights(model)
    assert {name for name in bare if now[name] != bare[name] and "c_attn" not in name} == changed
    np.testing.assert_allclose(model(IDS).asnumpy(), adapted, rtol=0, atol=1e-6 * np.abs(adapted).max())
    with pet.disable_adapters(model):
        assert weights(model) == bare and model.lm_head.weight is tied
    pet.save_pretrained(model, tmp_path)
    reopened = pet.AutoModel.from_pretrained(tmp_path)
    np.testing.assert_allclose(reopened(IDS).asnumpy(), adapted, rtol=0, atol=1e-6 * np.abs(adapted).max())
    pet.unmerge(model)
    assert model.config.tie_word_embeddings is True
    randomise(model, scale=0.02)
    adapted = model(IDS).asnumpy()
    pet.merge(model)  # a graph of the first merge holds that one's weight
    np.testing.assert_allclose(model(IDS).asnumpy(), adapted, rtol=0, atol=1e-5 * np.abs(adapted).max())
    pet.unmerge(model)
    pet.delete_adapter(model, "default")
    assert weights(model) == bare and model.lm_head.weight is tied


@pytest.mark.parametrize("changed", ["wte", "lm_head"])
def test_a_tied_head_in_bfloat16_unties_with_the_same_bits(fixtures, changed):
    model = pet.AutoModel.from_pretrained(fixtures / "gpt2", dtype="bfloat16")
    cells = {"wte": model.transformer.wte, "lm_head": model.lm_head}
    base = cells["wte"].weight.astype(ms.float32).asnumpy().astype(np.float64)
    pet.apply_lora(model, rank=2, targets=[changed])
    randomise(model)
    (module,) = registry(model).get("default").modules.values()
    expected = {**dict.fromkeys(cells, base), changed: base + module.delta(base)}
    pet.merge(model)
    for name, cell in cells.items():
        assert cell.weight.dtype == ms.bfloat16
        found = cell.weight.astype(ms.float32).asnumpy()
        np.testing.assert_array_equal(found, from_bfloat16(to_bfloat16(expected[name])))


class Shared(nn.Cell):
    """Two cells of a user's own with one weight."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Dense(6, 6), nn.Dense(6, 6)
        self.second.weight = self.first.weight

    def construct(self, x):
        return self.second(self.first(x))


@pytest.mark.parametrize("target", ["first", "second"])
def test_a_weight_that_two_cells_of_ones_own_share(target):
    own, x = Shared(), ms.Tensor(np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32))
    bare = own(x).asnumpy()
    pet.apply_lora(own, rank=2, targets=[target])
    randomise(own, scale=0.5)
    adapted = own(x).asnumpy()
    assert pet.merge(own).untied == ("second.weight",)
    np.testing.assert_allclose(own(x).asnumpy(), adapted, rtol=0, atol=1e-5)
    with pet.disable_adapters(own):
        np.testing.assert_array_equal(own(x).asnumpy(), bare)
    pet.unmerge(own)
    np.testing.assert_array_equal(own(x).asnumpy(), adapted)
    assert own.second.weight is own.first.weight
    assert pet.merge_and_unload(own) is own and own.second.weight is not own.first.weight
    np.testing.assert_allclose(own(x).asnumpy(), adapted, rtol=0, atol=1e-5)
    assert all(parameter.requires_grad for parameter in own.get_parameters())


def test_graphs_that_mindspore_keeps_follow_the_adapters():
    """In GRAPH_MODE a cell's call is a graph, compiled at the first one."""
    own, x = Shared(), ms.Tensor(np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32))
    bare = own(x).asnumpy()
    pet.apply_lora(own, rank=2, targets=["second"])
    randomise(own, scale=0.5)
    adapted = own(x).asnumpy()
    randomise(own, scale=0.5, seed=4)
    again = own(x).asnumpy()
    randomise(own, scale=-0.5, seed=4)
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        for expected, seed, scale in ((adapted, 4, 0.5), (again, 4, -0.5)):
            np.testing.assert_allclose(own(x).asnumpy(), expected, rtol=0, atol=1e-5)
            with pet.disable_adapters(own):
                np.testing.assert_allclose(own(x).asnumpy(), bare, rtol=0, atol=1e-5)
            pet.merge(own)
            np.testing.assert_allclose(own(x).asnumpy(), expected, rtol=0, atol=1e-5)
            with pet.disable_adapters(own):
                np.testing.assert_allclose(own(x).asnumpy(), bare, rtol=0, atol=1e-5)
            pet.unmerge(own)
            randomise(own, scale=scale, seed=seed)
        pet.merge_and_unload(own)
        np.testing.assert_allclose(own(x).asnumpy(), adapted, rtol=0, atol=1e-5)
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)


def test_merging_nothing_is_an_error(fixtures):
    model = pet.AutoModel.from_pretrained(fixtures / "glm")
    with pytest.raises(pet.InputError, match="no active adapter"):
        pet.merge(model)
    pet.unmerge(model)  # nothing merged: nothing to do


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llama_gqa", {"targets": ["embed_tokens", "q_proj"], "use_rslora": True}),
        ("llama_gqa", {"use_dora": True, "modules_to_save": ["norm"], "trainable_tokens": [5, 77]}),
        ("gpt2", {"init": "pissa", "bias": "all"}),
        ("gpt2", {"use_dora": True, "bias": "lora_only", "targets": ["c_attn", "c_fc"]}),
        ("gpt2", {"targets": ["lm_head"]}),
    ],
    ids=["embedding", "dora", "pissa", "biases", "tied head"],
)
def test_merging_on_disk_gives_the_same_bits(fixtures, tmp_path, family, settings):
    from pet.export import merge_checkpoint

    model = pet.AutoModel.from_pretrained(fixtures / family)
    pet.apply_lora(model, rank=2, **settings)
    randomise(model)
    pet.save_adapter(model, tmp_path / "adapter")
    pet.merge(model)
    merged = {name: value.asnumpy().copy() for name, value in model.parameters_dict().items()}
    merge_checkpoint(fixtures / family, tmp_path / "adapter", tmp_path / "merged")
    reopened = pet.AutoModel.from_pretrained(tmp_path / "merged")
    for name, value in reopened.parameters_dict().items():
        np.testing.assert_array_equal(value.asnumpy(), merged[name], err_msg=name)


@pytest.mark.parametrize("change", ["disable", "unmerge", "delete"])
def test_a_change_from_another_thread_waits_for_the_answer_that_is_being_written(fixtures, change):
    model = pet.AutoModel.from_pretrained(fixtures / "llama_gqa")
    pet.apply_lora(model, rank=4)
    randomise(model)
    if change == "unmerge":
        pet.merge(model)
    expected = model.generate(IDS[:1], max_new_tokens=6, eos_token_id=None)
    changed, threads = [], []

    def switch():
        if change == "disable":
            pet.disable_adapters(model).__enter__()
        else:
            pet.unmerge(model) if change == "unmerge" else pet.delete_adapter(model, "default")
        changed.append(True)

    class Streamer:
        def put(self, value):
            if not threads:
                threads.append(threading.Thread(target=switch))
                threads[0].start()
                threads[0].join(0.5)
                assert not changed

        def end(self):
            assert not changed

    answer = model.generate(IDS[:1], max_new_tokens=6, eos_token_id=None, streamer=Streamer())
    threads[0].join(HANGING)
    assert changed and (answer == expected).all()
