"""Adapters combined into one: every way against an oracle."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from adapter_sets import add
from mindspore import nn

import pet
from adapters.registry import registry
from adapters.sites import weight_array


def deltas(model, name):
    """{path: ΔW as (out, in)} from the factors, in float64, by the formula alone."""
    adapter = registry(model).get(name)
    found = {}
    for path, module in adapter.modules.items():
        a, b = (module.tensors()[f"lora_{part}.weight"].asnumpy().astype(np.float64) for part in "AB")
        found[path] = adapter.config.alpha / adapter.config.rank * b @ a
    return found


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
