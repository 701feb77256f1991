"""Several adapters on one model: adding, choosing, mixing, combining, exchanging; errors leave the model as it was."""

from __future__ import annotations

import json

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops

import pet
from adapters.registry import registry
from adapters.score import add_head
from adapters.sites import weight_array
from model_zoo.labels import Labels

IDS = np.random.default_rng(0).integers(3, 120, (3, 6))


@pytest.fixture(scope="module")
def base(fixtures):
    return pet.AutoModel.from_pretrained(fixtures / "llama_gqa")


@pytest.fixture
def model(base):
    yield base
    if registry(base).merged_names:
        pet.unmerge(base)
    for name in pet.list_adapters(base):
        pet.delete_adapter(base, name)


def logits(model):
    return model(IDS).asnumpy()


def add(model, name, seed, rank=2, targets=("q_proj",), **settings):
    """A LoRA whose B is not zero."""
    pet.add_adapter(model, pet.LoRAConfig(rank=rank, targets=list(targets), seed=seed, **settings), name)
    generator = np.random.default_rng(seed)
    for parameter in registry(model).get(name).parameters():
        value = parameter.asnumpy() + 0.1 * generator.standard_normal(parameter.shape)
        ops.assign(parameter, ms.Tensor(value.astype(np.float32)))


def snapshot(model):
    """Everything that an error must not change."""
    state = registry(model)
    values = {parameter.name: parameter.asnumpy().copy() for parameter in model.get_parameters()}
    return values, state.active, tuple(state.adapters), state.merged_names, model.adapter_state


def same(first, second):
    assert first[1:] == second[1:]
    assert first[0].keys() == second[0].keys()
    for name, value in first[0].items():
        np.testing.assert_array_equal(value, second[0][name])


def deltas(model, name):
    """{path: ΔW as (out, in)} from the factors, in float64, by the formula alone."""
    adapter = registry(model).get(name)
    found = {}
    for path, module in adapter.modules.items():
        a, b = (module.tensors()[f"lora_{part}.weight"].asnumpy().astype(np.float64) for part in "AB")
        found[path] = adapter.config.alpha / adapter.config.rank * b @ a
    return found


def test_names_status_and_list(model):
    before = logits(model)
    add(model, "first", 1)
    add(model, "second", 2, rank=3, targets=["v_proj"])
    assert pet.list_adapters(model) == ["first", "second"]
    np.testing.assert_array_equal(logits(model), before)  # added, not active
    pet.set_adapter(model, "first")
    only_first = logits(model)
    status = pet.adapter_status(model)
    assert status["first"] == {"method": "lora", "active": True, "merged": False, "cells": 3, "parameters": 3 * 2 * 128}
    assert not status["second"]["active"]
    pet.set_adapter(model, ["first", "second"])
    assert np.abs(logits(model) - only_first).max() > 1e-3
    pet.delete_adapter(model, "second")
    np.testing.assert_array_equal(logits(model), only_first)
    pet.delete_adapter(model, "first")
    np.testing.assert_array_equal(logits(model), before)


def test_the_last_adapter_that_goes_leaves_what_was_trained_before(model):
    for parameter in model.get_parameters():
        parameter.requires_grad = "norm" in parameter.name
    try:
        for name in ("first", "second"):
            add(model, name, 1)
            assert not any(
                parameter.requires_grad for parameter in model.get_parameters() if "lora" not in parameter.name
            )
        pet.delete_adapter(model, "first")
        assert not model.model.norm.weight.requires_grad
        pet.delete_adapter(model, "second")
        assert all(parameter.requires_grad == ("norm" in parameter.name) for parameter in model.get_parameters())
    finally:
        for parameter in model.get_parameters():
            parameter.requires_grad = True


def test_disabling_restores_any_state(model):
    before = logits(model)
    add(model, "first", 1)
    add(model, "second", 2)
    pet.set_adapter(model, ["second", "first"])
    both = logits(model)
    with pytest.raises(KeyError), pet.disable_adapters(model):
        np.testing.assert_array_equal(logits(model), before)
        raise KeyError
    np.testing.assert_array_equal(logits(model), both)
    pet.merge(model, "first")
    merged = logits(model)
    with pet.disable_adapters(model):
        np.testing.assert_array_equal(logits(model), before)
    np.testing.assert_array_equal(logits(model), merged)
    assert registry(model).merged_names == ("first",)
    assert registry(model).active == ("second",)


@pytest.mark.parametrize("settings", [{}, {"use_dora": True}])
def test_rows_of_a_batch_go_through_their_own_adapters(model, settings):
    before = logits(model)
    add(model, "first", 1, **settings)
    add(model, "second", 2, targets=["v_proj", "down_proj"])
    alone = {}
    for name in ("first", "second"):
        pet.set_adapter(model, name)
        alone[name] = logits(model)
    with pet.adapter_names(model, ["second", "__base__", "first"]):
        mixed = logits(model)
    np.testing.assert_allclose(mixed[0], alone["second"][0], atol=1e-5)
    np.testing.assert_allclose(mixed[1], before[1], atol=1e-5)
    np.testing.assert_allclose(mixed[2], alone["first"][2], atol=1e-5)
    np.testing.assert_array_equal(logits(model), alone["second"])


def wrong_calls():
    return {
        "unknown": (lambda m: pet.set_adapter(m, "frist"), "did you mean 'first'"),
        "unknown in a batch": (lambda m: pet.adapter_names(m, ["nobody"]).__enter__(), "nobody"),
        "taken": (lambda m: pet.apply_lora(m, rank=2, name="first"), "already"),
        "path as name": (lambda m: pet.apply_lora(m, rank=2, name="../x"), "letters, digits"),
        "base as name": (lambda m: pet.apply_lora(m, rank=2, name="__base__"), "letters, digits"),
        "delete unknown": (lambda m: pet.delete_adapter(m, "third"), "third"),
        "set twice": (lambda m: pet.set_adapter(m, ["first", "first"]), "twice"),
        "no such target": (lambda m: pet.apply_lora(m, targets=["q_prj"], name="new"), "q_proj"),
        "no such method": (lambda m: pet.combine_adapters(m, ["first"], method="sdv"), "did you mean 'svd'"),
        "none to combine": (lambda m: pet.combine_adapters(m, []), "no adapter is named"),
        "combine twice": (lambda m: pet.combine_adapters(m, ["first", "first"]), "names an adapter twice"),
        "wrong weights": (lambda m: pet.combine_adapters(m, ["first"], [1.0, 2.0]), "2 weights"),
        "weight nan": (lambda m: pet.combine_adapters(m, ["first"], [float("nan")]), "weight is nan"),
        "weight too large": (lambda m: pet.combine_adapters(m, ["first"], [10**400]), "weight is 1"),
        "seed": (lambda m: pet.combine_adapters(m, ["first"], method="dare_ties", seed=-1), "seed is -1"),
        "density": (lambda m: pet.combine_adapters(m, ["first"], method="ties", density=0.0), "density"),
        "rank of cat": (lambda m: pet.combine_adapters(m, ["first"], rank=2), "rank"),
        "taken by a combination": (lambda m: pet.combine_adapters(m, ["first"], new_name="first"), "already"),
        "merge unknown": (lambda m: pet.merge(m, "secnd"), "secnd"),
    }


@pytest.mark.parametrize("name", wrong_calls())
def test_an_error_leaves_the_model_as_it_was(model, name):
    add(model, "first", 1)
    pet.set_adapter(model, "first")
    before = snapshot(model)
    call, message = wrong_calls()[name]
    with pytest.raises(pet.InputError, match=message):
        call(model)
    same(before, snapshot(model))


def test_what_is_merged_can_be_neither_deleted_nor_changed(model):
    add(model, "first", 1)
    add(model, "second", 2)
    pet.set_adapter(model, "first")
    pet.merge(model)
    before = snapshot(model)
    for call in (
        lambda: pet.delete_adapter(model, "first"),
        lambda: pet.set_adapter(model, "second"),
        lambda: pet.apply_lora(model, rank=2, name="third"),
        lambda: pet.combine_adapters(model, ["first", "second"]),
        lambda: pet.adapter_names(model, ["second"] * 3).__enter__(),
    ):
        with pytest.raises(pet.InputError, match="merged"):
            call()
    same(before, snapshot(model))


# Combinations --------------------------------------------------------------------------------------------------------


def test_cat_is_the_weighted_sum(model, capsys):
    add(model, "first", 1, rank=2, targets=["q_proj", "v_proj"])
    add(model, "second", 2, rank=3, targets=["q_proj"], alpha=5)
    expected = {path: 0.7 * delta for path, delta in deltas(model, "first").items()}
    for path, delta in deltas(model, "second").items():
        expected[path] = expected[path] - 1.5 * delta
    report = pet.combine_adapters(model, ["first", "second"], [0.7, -1.5], "both")
    assert "exact" in capsys.readouterr().out and report.error == 0
    assert registry(model).active == ()
    found = registry(model).get("both")
    assert {module.lora_A.weight.shape[0] for module in found.modules.values()} == {5, 2}
    for path, module in found.modules.items():
        np.testing.assert_allclose(module.delta(None), expected[path], rtol=0, atol=1e-6 * np.abs(expected[path]).max())


def trimmed(delta, density):
    """The largest entries, by a sort of their own."""
    order = sorted(np.ndindex(*delta.shape), key=lambda place: -abs(delta[place]))
    kept = np.zeros_like(delta)
    for place in order[: int(density * delta.size)]:
        kept[place] = delta[place]
    return kept


def elected(parts, majority):
    """Ties, entry by entry."""
    result = np.zeros_like(parts[0])
    for place in np.ndindex(*result.shape):
        values = [part[place] for part in parts]
        vote = sum(np.sign(values)) if majority == "frequency" else sum(values)
        sign = -1 if vote < 0 else 1
        agreeing = [value for value in values if value * sign > 0]
        result[place] = sum(agreeing) / len(agreeing) if agreeing else 0
    return result


def cut(matrix, rank):
    left, values, right = np.linalg.svd(matrix)
    return (left[:, :rank] * values[:rank]) @ right[:rank]


@pytest.mark.parametrize(
    ("method", "majority"),
    [("svd", "total"), ("magnitude_prune", "total"), ("ties", "total"), ("ties", "frequency")],
)
def test_truncated_combinations_against_an_oracle(model, capsys, method, majority):
    weights = {"a": 1.0, "b": 0.5, "c": -2.0}
    for seed, name in enumerate(weights):
        add(model, name, seed, layers=["0"])
    parts = [deltas(model, name) for name in weights]
    report = pet.combine_adapters(
        model, list(weights), list(weights.values()), "new", method, rank=3, density=0.3, majority=majority
    )
    lost = whole = 0.0
    for path, module in registry(model).get("new").modules.items():
        full = [weight * part[path] for weight, part in zip(weights.values(), parts, strict=True)]
        if method != "svd":
            full = [trimmed(part, 0.3) for part in full]
        mixed = elected(full, majority) if method == "ties" else sum(full)
        expected = cut(mixed, 3)
        np.testing.assert_allclose(module.delta(None), expected, rtol=0, atol=1e-5 * np.abs(expected).max())
        lost, whole = lost + ((mixed - expected) ** 2).sum(), whole + (mixed**2).sum()
    assert report.error == pytest.approx(np.sqrt(lost / whole), rel=1e-6) and report.error > 0.01
    assert f"truncation error {report.error:.2e}" in capsys.readouterr().out


def test_every_cell_gets_the_largest_rank_among_the_adapters(model):
    """As in PEFT, also a cell that the adapter of that rank leaves alone: what is pruned has more than its own."""
    for name, rank, layer in (("low", 1, "0"), ("high", 4, "1")):
        add(model, name, seed=rank, rank=rank, layers=[layer])
    pet.combine_adapters(model, ["low", "high"], new_name="new", method="magnitude_prune")
    assert ranks_of(model, "new") == [4, 4]


def test_a_rank_of_single_cells_is_one_of_the_adapters(model):
    """As in PEFT: the sum of two of rank 2 is whole where another cell of them has 4."""
    for seed, name in enumerate(("a", "b")):
        add(model, name, seed, layers=["0", "1"], rank_pattern={r"layers\.1\..*q_proj": 4} if name == "b" else None)
    report = pet.combine_adapters(model, ["a", "b"], new_name="new", method="svd")
    assert ranks_of(model, "new") == [4, 4]
    parts, whole = [deltas(model, name) for name in ("a", "b")], deltas(model, "new")
    first = min(whole)
    np.testing.assert_allclose(whole[first], parts[0][first] + parts[1][first], rtol=0, atol=1e-5)
    name, error = report.worst
    wanted = sum(registry(model).get(one).modules[name].delta(None) for one in "ab")
    assert name != first and report.error > 0.01
    assert error == pytest.approx(np.linalg.norm(whole[name] - wanted) / np.linalg.norm(wanted), rel=1e-5)


def ranks_of(model, name):
    return [module.factors()[1].shape[0] for module in registry(model).get(name).modules.values()]


@pytest.mark.parametrize("method", ["dare_linear", "dare_ties"])
def test_dare_keeps_a_random_share_scaled_up(model, method):
    add(model, "a", 1, layers=["0"])
    add(model, "b", 2, layers=["0"])
    pet.combine_adapters(model, ["a"], new_name="one", method=method, density=0.25, rank=64)
    pet.combine_adapters(model, ["a"], new_name="again", method=method, density=0.25, rank=64)
    pet.combine_adapters(model, ["a"], new_name="other", method=method, density=0.25, rank=64, seed=1)
    ((path, whole),) = deltas(model, "a").items()
    kept = registry(model).get("one").modules[path].delta(None)
    there = np.abs(kept) > 1e-4 * np.abs(whole).max()
    assert there.mean() == pytest.approx(0.25, abs=0.03)
    np.testing.assert_allclose(kept[there], whole[there] / 0.25, rtol=1e-3, atol=1e-5)
    np.testing.assert_array_equal(kept, registry(model).get("again").modules[path].delta(None))
    assert (np.abs(registry(model).get("other").modules[path].delta(None) - kept) > 1e-3).any()
    pet.combine_adapters(model, ["a", "b"], [1.0, 2.0], "mix", method, density=1.0, rank=64)
    full = [deltas(model, "a")[path], 2 * deltas(model, "b")[path]]
    expected = elected(full, "total") if method == "dare_ties" else sum(full)
    mixed = registry(model).get("mix").modules[path].delta(None)
    np.testing.assert_allclose(mixed, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_factors_added_up_are_far_from_the_sum_and_of_one_rank(model, capsys):
    for name, rank in (("a", 2), ("b", 2), ("c", 3)):
        add(model, name, seed=ord(name), rank=rank, layers=["0"])
    report = pet.combine_adapters(model, ["a", "b"], [1.0, -2.0], "new", "linear")
    whole = lost = 0.0
    for path, module in registry(model).get("new").modules.items():
        exact = deltas(model, "a")[path] - 2 * deltas(model, "b")[path]
        lost, whole = lost + ((exact - module.delta(None)) ** 2).sum(), whole + (exact**2).sum()
    assert report.rank == 2 and report.error == pytest.approx(np.sqrt(lost / whole), rel=1e-6)
    assert f"distance from the weighted sum {report.error:.2e}" in capsys.readouterr().out
    for given, words in (
        ({"names": ["a", "c"]}, r"linear adds up factors of one rank; .* has \[2, 3\]; choose svd"),
        ({"names": ["a"], "rank": 1}, "linear keeps every rank"),
        ({"names": ["a"], "method": "knots"}, r"'knots' is not known \(there is: cat, dare_linear, .*ties_svd"),
        ({"names": ["a"], "svd_rank": 2}, "svd_rank is rank"),
    ):
        with pytest.raises(pet.InputError, match=words):
            pet.combine_adapters(model, new_name="no", **{"method": "linear", **given})
    assert pet.list_adapters(model) == ["a", "b", "c", "new"]


def test_weights_may_be_numpys_and_what_no_float32_holds_is_refused(model):
    add(model, "a", 1, layers=["0"])
    pet.combine_adapters(model, ["a"], np.array([2]), "twice")
    for weight, words in ((1e300, "a number in float32 was expected"), (3e38, "larger than float32")):
        with pytest.raises(pet.InputError, match=words):
            pet.combine_adapters(model, ["a"], [weight], "huge")
    assert pet.list_adapters(model) == ["a", "twice"]


def test_what_a_combination_does_not_read_is_said(model, caplog):
    add(model, "first", 1)
    pet.combine_adapters(model, ["first"], method="dare_linear", density=0.3, majority="frequency", seed=1)
    pet.combine_adapters(model, ["first"], new_name="again", density=0.3, seed=0)
    said = [record.getMessage().removeprefix("combine_adapters: ") for record in caplog.records]
    assert said[0] == "majority has no effect with dare_linear, only with ties, dare_ties, ties_svd, dare_ties_svd"
    assert len(said) == 2 and said[1].startswith("density has no effect with cat, only with ties, dare_linear")


def test_pissa_and_dora_combine_by_what_they_change(model):
    add(model, "pissa", 1, rank=2, init="pissa", layers=["1"])
    add(model, "dora", 2, rank=2, use_dora=True, layers=["1"])
    site = next(iter(registry(model).get("pissa").sites.values()))
    base = weight_array(site)
    parts = [next(iter(registry(model).get(name).modules.values())).delta(base) for name in ("pissa", "dora")]
    pet.combine_adapters(model, ["pissa"], [3.0], "exact")
    found = next(iter(registry(model).get("exact").modules.values()))
    assert found.lora_A.weight.shape[0] == 4
    np.testing.assert_allclose(found.delta(base), 3 * parts[0], atol=1e-5)
    with pytest.raises(pet.InputError, match="DoRA"):
        pet.combine_adapters(model, ["dora", "pissa"], new_name="no")
    pet.combine_adapters(model, ["dora", "pissa"], new_name="cut", method="svd", rank=64)
    np.testing.assert_allclose(
        next(iter(registry(model).get("cut").modules.values())).delta(base), sum(parts), atol=1e-5
    )


def test_embeddings_and_convolutions_combine(model):
    add(model, "a", 1, targets=["embed_tokens"])
    add(model, "b", 2, targets=["embed_tokens"])
    table = np.zeros((128, 64))
    expected = sum(registry(model).get(name).modules["model.embed_tokens"].delta(table) for name in "ab")
    for name, method in (("cat", "cat"), ("svd", "svd")):
        pet.combine_adapters(model, ["a", "b"], new_name=name, method=method, rank=4 if method == "svd" else None)
        np.testing.assert_allclose(
            registry(model).get(name).modules["model.embed_tokens"].delta(table), expected, atol=1e-5
        )
    cell = nn.SequentialCell(nn.Conv2d(3, 5, 3, has_bias=True))
    for seed, name in enumerate("ab"):
        add(cell, name, seed, targets=["0"])
    kernel = np.zeros((5, 3, 3, 3))
    expected = sum(registry(cell).get(name).modules["0"].delta(kernel) for name in "ab")
    for method, rank in (("cat", None), ("svd", 4)):
        pet.combine_adapters(cell, ["a", "b"], new_name=method, method=method, rank=rank)
        np.testing.assert_allclose(registry(cell).get(method).modules["0"].delta(kernel), expected, atol=1e-6)


def test_what_is_more_than_a_change_of_low_rank_is_not_combined(model):
    add(model, "whole", 1, modules_to_save=["lm_head"])
    add(model, "tokens", 2, trainable_tokens=[7])
    for name, part in (("whole", "lm_head"), ("tokens", "embed_tokens")):
        with pytest.raises(pet.InputError, match=part):
            pet.combine_adapters(model, [name])


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda model, place: pet.set_alpha(model, 3.0), "only LoRA has an alpha"),
        (lambda model, place: pet.combine_adapters(model, ["default"]), "only LoRA can be combined"),
        (lambda model, place: pet.hotswap_adapter(model, place), "only LoRA can be exchanged"),
        (lambda model, place: pet.save_ptuning(model, place / "prefix.bin"), "only ptuning2 has ChatGLM's form"),
    ],
    ids=["alpha", "combine", "hotswap", "ptuning"],
)
def test_what_one_method_has_is_refused_of_others(model, tmp_path, call, words):
    pet.apply_ia3(model)
    with pytest.raises(pet.InputError, match=f"adapter 'default' is of method ia3; {words}"):
        call(model, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_head_that_judges_texts_belongs_to_one_adapter(model):
    labels = Labels.plain(2)
    for name in ("first", "second"):
        add(model, name, 1)
    for active in ([], ["first", "second"]):
        pet.set_adapter(model, active)
        with pytest.raises(pet.InputError, match="belongs to one adapter"):
            add_head(model, labels)
    with pytest.raises(pet.InputError, match="only a model of a known family gets a head"):
        add_head(nn.Dense(2, 2), labels)


def test_what_a_caller_does_with_its_lists_later_is_none_of_the_adapters(model, tmp_path):
    targets, ranks = {"q_proj": 8}, {"q_proj": 3}
    pet.apply_lora(model, targets=targets.keys(), rank_pattern=ranks, trainable_tokens=[np.int64(5)])
    targets["for_the_next_one"] = 8
    ranks["q_proj"] = 5
    pet.save_adapter(model, tmp_path)
    written = json.loads((tmp_path / "adapter_config.json").read_text())
    assert written["target_modules"] == ["q_proj"] and written["rank_pattern"] == {"q_proj": 3}


def test_a_configuration_is_as_it_was_given_after_a_head_was_added(fixtures):
    config = pet.LoRAConfig(rank=2)
    for _ in range(2):
        model = pet.apply(pet.AutoModel.from_pretrained(fixtures / "llama_gqa"), config)
        add_head(model, Labels.plain(2))
        assert config == pet.LoRAConfig(rank=2)
        assert registry(model).get("default").config.modules_to_save == ["score"]


def test_a_classifier_has_no_head_of_a_language_model_to_adapt(tmp_path):
    """An adapter on it would do nothing; a file that names it beside other cells means those, as in PEFT."""
    base = tmp_path / "base"
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    values = {"model_type": "llama", "vocab_size": 32, "tie_word_embeddings": True, "id2label": {"0": "a", "1": "b"}}
    values |= {"architectures": ["LlamaForSequenceClassification"], **sizes}
    pet.save_pretrained(pet.AutoModel.from_config(values, seed=1), base)
    model = pet.AutoModel.from_pretrained(base)
    with pytest.raises(pet.InputError, match="'lm_head' matches no cell"):
        pet.apply_lora(model, rank=2, targets=["q_proj", "lm_head"])
    pet.apply_lora(model, rank=2, targets=["q_proj"])
    pet.save_adapter(model, tmp_path)
    where = tmp_path / "adapter_config.json"
    where.write_text(json.dumps({**json.loads(where.read_text()), "target_modules": ".*q_proj|lm_head"}))
    loaded = pet.AutoModel.from_pretrained(base)
    pet.load_adapter(loaded, tmp_path)
    assert len(pet.trainable_parameters(loaded)) == 4


def test_cells_whose_names_end_alike_are_combined_at_their_own_ranks():
    network = nn.CellList([nn.SequentialCell(nn.Dense(4, 4), nn.Dense(4, 4)), nn.Dense(4, 4)])  # 0.0, 0.1 and 1
    x = ms.Tensor(np.random.default_rng(0).standard_normal((2, 4)), ms.float32)
    pet.add_adapter(network, pet.LoRAConfig(rank=2, targets=["0.0", "0.1"]), "first")
    pet.add_adapter(network, pet.LoRAConfig(rank=3, targets=["re:1"]), "second")
    for name in ("first", "second"):
        for parameter in registry(network).get(name).parameters():
            parameter.set_data(parameter + 0.3)
    pet.set_adapter(network, ["first", "second"])
    expected = network[1](network[0](x)).asnumpy()
    pet.combine_adapters(network, ["first", "second"], method="cat")
    pet.set_adapter(network, "combined")
    np.testing.assert_allclose(network[1](network[0](x)).asnumpy(), expected, atol=1e-5)


# Exchange in place ----------------------------------------------------------------------------------------------------


def test_hotswap_reaches_a_compiled_graph(model, tmp_path):
    add(model, "a", 1, rank=3)
    add(model, "b", 2, rank=3)
    for name in "ab":
        pet.save_adapter(model, tmp_path / name, name)
    pet.set_adapter(model, "b")
    expected = logits(model)
    pet.delete_adapter(model, "b")
    pet.set_adapter(model, "a")

    @ms.jit
    def forward(ids):
        return model.construct(ids)

    ids = ms.Tensor(IDS.astype(np.int32))
    np.testing.assert_allclose(forward(ids).asnumpy(), logits(model), atol=1e-5)
    parameters, state = [id(p) for p in model.get_parameters()], model.adapter_state
    pet.hotswap_adapter(model, tmp_path / "b", "a")
    np.testing.assert_allclose(forward(ids).asnumpy(), expected, atol=1e-5)
    np.testing.assert_array_equal(logits(model), expected)
    assert [id(p) for p in model.get_parameters()] == parameters and model.adapter_state == state
    pet.save_adapter(model, tmp_path / "again", "a")
    first, again = (tmp_path / part / "adapter_model.safetensors" for part in ("b", "again"))
    assert first.read_bytes() == again.read_bytes()


@pytest.mark.parametrize(
    "settings",
    [
        {"alpha": 4, "init": "gaussian"},
        {"rank": 2, "use_rslora": True},
        {"rank_pattern": {"1.*q_proj": 1}, "alpha_pattern": {"2.*q_proj": 5}},
        {"layers": ["0-1"], "rank": 1},
        {"targets": ["embed_tokens"], "rank": 2},
        {"use_dora": True, "alpha": 7, "rank": 1},
    ],
    ids=str,
)
def test_hotswap_takes_smaller_ranks_fewer_cells_and_another_scale(model, tmp_path, settings):
    """The change of the weights is the same, also after saving."""
    own = {"targets": ["embed_tokens"]} if "targets" in settings else {}
    add(model, "b", 2, **settings)
    pet.save_adapter(model, tmp_path / "b", "b")
    pet.set_adapter(model, "b")
    expected = logits(model)
    pet.delete_adapter(model, "b")
    add(model, "a", 1, rank=3, use_dora="use_dora" in settings, **own)
    pet.set_adapter(model, "a")
    state = model.adapter_state
    assert np.abs(logits(model) - expected).max() > 0.01
    pet.hotswap_adapter(model, tmp_path / "b", "a")
    assert model.adapter_state == state
    np.testing.assert_allclose(logits(model), expected, rtol=0, atol=1e-4)
    pet.save_adapter(model, tmp_path / "again", "a")
    pet.delete_adapter(model, "a")
    pet.load_adapter(model, tmp_path / "again")
    np.testing.assert_allclose(logits(model), expected, rtol=0, atol=1e-4)


def test_hotswap_takes_the_names_of_labels_along(fixtures, tmp_path):
    for names in (("good", "bad"), ("yes", "no")):
        made = pet.apply_lora(pet.AutoModel.from_pretrained(fixtures / "llama_gqa"), rank=2)
        add_head(made, Labels(names))
        pet.save_adapter(made, tmp_path / names[0])
    model = pet.AutoModel.from_pretrained(fixtures / "llama_gqa")
    pet.load_adapter(model, tmp_path / "good")
    assert model.labels.names == ("good", "bad")
    pet.hotswap_adapter(model, tmp_path / "yes")
    assert model.labels.names == ("yes", "no")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 4, "alpha": 32}, "rank 4"),
        ({"targets": ["v_proj"]}, "v_proj"),
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["norm"]}, "norm.weight"),
    ],
)
def test_hotswap_refuses_what_needs_another_graph(model, tmp_path, settings, message):
    add(model, "a", 1)
    add(model, "b", 2, **settings)
    pet.save_adapter(model, tmp_path, "b")
    pet.delete_adapter(model, "b")
    pet.set_adapter(model, "a")
    before = snapshot(model)
    with pytest.raises(pet.InputError, match=message):
        pet.hotswap_adapter(model, tmp_path, "a")
    same(before, snapshot(model))


def test_hotswap_leaves_an_adapter_with_first_factors_of_its_own(model, tmp_path):
    add(model, "a", 1, init="pissa")
    pet.save_adapter(model, tmp_path, "a")
    with pytest.raises(pet.InputError, match=r"first factors \(pissa\) are subtracted, which each adapter has"):
        pet.hotswap_adapter(model, tmp_path, "a")


@pytest.mark.parametrize("config", [{"method": "lora"}, pet.LoRAConfig, "lora", None])
def test_what_is_no_configuration_is_an_error(model, config):
    with pytest.raises(ValueError, match=r"an adapter's configuration was expected, as pet\.LoRAConfig\(rank=8\)"):
        pet.apply(model, config)
    with pytest.raises(ValueError, match="an adapter's configuration was expected"):
        pet.add_adapter(model, config, "second")
    with pytest.raises(ValueError, match="name is of the type LoRAConfig; a text was expected"):  # PEFT's order
        pet.add_adapter(model, "second", pet.LoRAConfig(rank=2))
    assert pet.list_adapters(model) == []


def test_rows_of_several_adapters_over_a_tied_base_in_bfloat16(tmp_path):
    """Which MindSpore cannot compile on a CPU: it is said, and computed by operators."""
    config = {**pet.AutoConfig.from_pretrained("llama_tiny").to_dict(), "num_hidden_layers": 1}
    made = pet.AutoModel.from_config({**config, "tie_word_embeddings": True})
    pet.save_pretrained(made, tmp_path, dtype="bfloat16")
    model = pet.AutoModel.from_pretrained(str(tmp_path), dtype="auto")
    pet.apply_lora(model, rank=2)
    for name, weight in model.parameters_dict().items():
        if "lora_B" in name:
            weight.set_data(ms.Tensor(np.random.default_rng(1).normal(0, 1, weight.shape).astype(np.float32)))
    ids = np.array([[5, 6, 7], [5, 6, 7]], np.int32)
    with pet.adapter_names(model, ["default", "__base__"]):
        both = model.generate(ids, max_new_tokens=4, eos_token_id=None)
    tuned = model.generate(ids[:1], max_new_tokens=4, eos_token_id=None)
    with pet.disable_adapters(model):
        plain = model.generate(ids[:1], max_new_tokens=4, eos_token_id=None)
    assert np.array_equal(both, np.concatenate([tuned, plain])) and not np.array_equal(tuned, plain)
