"""Several adapters at once, merged, combined and mixed beside PEFT itself."""

from __future__ import annotations

import copy
import os

import numpy as np
import pytest
from peers import imported
from peft_pairs import IDS, LIMIT, randomise, their_logits

import pet
from adapters.registry import registry

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = peft = transformers = None
peers = imported(globals(), "torch", "peft", "transformers")
pytestmark = pytest.mark.usefixtures("quiet")

# The states of several adapters -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two(pairs, tmp_path_factory):
    """One base with the adapters ``a`` (LoRA) and ``b`` (rsLoRA) in both libraries, neither of them active here."""
    pair, directory = pairs("llama_gqa"), tmp_path_factory.mktemp("two")
    for seed, (name, settings) in enumerate({"a": {}, "b": {"use_rslora": True}}.items()):
        pet.add_adapter(pair.ours, pet.LoRAConfig(rank=2, targets=["q_proj", "down_proj"], seed=seed, **settings), name)
        randomise(registry(pair.ours).get(name).parameters(), seed)
        pet.save_adapter(pair.ours, directory / name, name)
    theirs = peft.PeftModel.from_pretrained(copy.deepcopy(pair.theirs), directory / "a", adapter_name="a").eval()
    theirs.load_adapter(directory / "b", "b")
    yield pair.ours, theirs
    for name in "ab":
        pet.delete_adapter(pair.ours, name)


def equal(two):
    """Both models' logits, which must agree."""
    found, expected = two[0](IDS).asnumpy(), their_logits(two[1])
    np.testing.assert_allclose(found, expected, rtol=0, atol=LIMIT)
    return found


def test_merging_and_unmerging_beside_peft(two):
    ours, theirs = two
    for chosen, merged in ((["a"], ["b"]), (["a"], ["a"]), (["a", "b"], ["a", "b"]), (["b", "a"], ["a", "b"])):
        pet.set_adapter(ours, chosen)
        theirs.base_model.set_adapter(chosen)
        before = equal(two)
        for name in merged:
            pet.merge(ours, name)
        theirs.merge_adapter(merged)
        if set(merged) == set(chosen) == {"a"}:  # theirs takes each ΔW over what is merged, and leaves out the others
            np.testing.assert_allclose(equal(two), before, rtol=0, atol=LIMIT)
        pet.unmerge(ours)
        theirs.unmerge_adapter()
        assert list(registry(ours).active) == list(theirs.active_adapters) == chosen
        np.testing.assert_array_equal(equal(two), before)


@pytest.mark.parametrize(
    "method, density",
    [
        *((method, 0.3) for method in ("cat", "svd", "linear", "ties_svd", "magnitude_prune_svd")),
        *((method, 1.0) for method in ("dare_linear_svd", "dare_ties_svd")),  # below 1 a share by chance
    ],
)
def test_combining_beside_peft(two, method, density):
    """Of rank 2, so that none of the truncated ones is the whole sum."""
    pytest.importorskip("peft", "0.21")  # before, ΔW is scaled twice
    ours, theirs = two
    for majority in ("total", "frequency") if "ties" in method else ("total",):
        theirs.add_weighted_adapter(
            ["a", "b"], [0.7, -1.3], "mix", method, density=density, majority_sign_method=majority
        )
        report = pet.combine_adapters(ours, ["a", "b"], [0.7, -1.3], "mix", method, density=density, majority=majority)
        try:
            pet.set_adapter(ours, "mix")
            theirs.set_adapter("mix")
            np.testing.assert_allclose(ours(IDS).asnumpy(), their_logits(theirs), rtol=0, atol=LIMIT)
            assert (report.error > 0.01) == (method != "cat")
        finally:
            pet.delete_adapter(ours, "mix")
            theirs.delete_adapter("mix")


def test_disabling_beside_peft(two):
    ours, theirs = two
    pet.set_adapter(ours, "a")
    theirs.set_adapter("a")
    adapted = equal(two)
    with pet.disable_adapters(ours), theirs.disable_adapter():
        bare = equal(two)
        pet.set_adapter(ours, "b")
        theirs.set_adapter("b")
        np.testing.assert_array_equal(equal(two), bare)
    assert np.abs(equal(two) - adapted).max() > 0.01 < np.abs(equal(two) - bare).max()


def test_mixed_batches_beside_peft(two):
    ours, theirs = two
    names = ["b", "__base__"]
    with pet.adapter_names(ours, names), torch.no_grad():
        expected = theirs(torch.tensor(IDS), adapter_names=names).logits.numpy()
        np.testing.assert_allclose(ours(IDS).asnumpy(), expected, rtol=0, atol=LIMIT)
    for wrong in (names[:1], names * 2):
        with pytest.raises(ValueError, match="adapter_names"):
            copy.deepcopy(theirs)(torch.tensor(IDS), adapter_names=wrong)  # after an error it keeps the names
        with pytest.raises(pet.InputError, match="adapter_names"), pet.adapter_names(ours, wrong):
            ours(IDS)


def test_another_scale_beside_peft(two):
    ours, theirs = two
    for name in "ab":
        pet.set_adapter(ours, name)
        theirs.set_adapter(name)
        before = equal(two)
        layers = [layer for layer in theirs.modules() if isinstance(layer, peft.tuners.lora.LoraLayer)]
        for factor in (3, 1):
            pet.set_alpha(ours, 16 * factor, name)
            for layer in layers:
                if name in layer.scaling:
                    layer.set_scale(name, factor)
            changed = equal(two)
            assert factor == 1 or np.abs(changed - before).max() > 0.01
        np.testing.assert_array_equal(changed, before)


def test_merge_and_unload_beside_peft(pairs, tmp_path):
    theirs = pairs("llama_gqa").theirs
    ours = pet.AutoModel.from_pretrained(theirs.config._name_or_path)
    pet.apply_lora(ours, rank=2, use_dora=True, modules_to_save=["norm"])
    randomise(registry(ours).get("default").parameters(), 4)
    pet.save_adapter(ours, tmp_path)
    theirs = peft.PeftModel.from_pretrained(copy.deepcopy(theirs), tmp_path).merge_and_unload(safe_merge=True)
    ours = pet.merge_and_unload(ours, safe=True)
    equal((ours, theirs))
    assert ours.parameters_dict().keys() == dict(theirs.named_parameters()).keys()
