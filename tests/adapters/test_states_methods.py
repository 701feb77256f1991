"""Several methods on one cell: merged, activated and replaced."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from adapter_states import add, logits, lora
from mindspore import nn

import pet
from adapters.registry import registry


def ia3(**settings):
    return pet.IA3Config(**{"targets": ["k_proj", "down_proj"], **settings})


# Several methods on one cell ------------------------------------------------------------------------------------------


KINDS = {
    "lora": pet.LoRAConfig(rank=2, targets=["cell"]),
    "dora": pet.LoRAConfig(rank=2, targets=["cell"], use_dora=True),
    "scaled output": pet.IA3Config(targets=["cell"], feedforward=[]),
    "scaled input": pet.IA3Config(targets=["cell"], feedforward=["cell"]),
    "bottleneck": pet.BottleneckConfig(size=4, targets=["cell"]),
    "parallel": pet.BottleneckConfig(size=4, targets=["cell"], placement="parallel"),
    "low rank": pet.LowRankAdapterConfig(targets=["cell"]),
    "bias": pet.BitFitConfig(targets=["cell"]),
}
MERGEABLE = {"lora", "dora", "scaled output", "scaled input"}
READS_OUTPUT = {"scaled output", "bottleneck", "low rank"}


def refused(first, second, which):
    """Whether no weight can stand for what is merged of two kinds that are active in this order."""
    merged = {"one": {first}, "two": {second}, "both": {first, second}}[which]
    if not merged <= MERGEABLE:
        return True
    if which == "both":  # DoRA's norm is of a weight that reads the input as it is
        return merged == {"dora", "scaled input"}
    if {first, second} == {"scaled input", "scaled output"}:  # a row of the weight by one number, a column by another
        return False
    stays = {"one": second, "two": first}[which]
    if stays == "dora" or merged == {"scaled input"}:
        return stays == "dora"
    moves = which == "two" and (first in READS_OUTPUT or second in READS_OUTPUT)
    return moves or stays == "scaled input"


class One(nn.Cell):
    def __init__(self, has_bias):
        super().__init__()
        self.cell = nn.Dense(6, 8, has_bias=has_bias)

    def construct(self, x):
        return self.cell(x)


@pytest.mark.parametrize("second", KINDS)
@pytest.mark.parametrize("first", KINDS)
def test_merging_beside_another_method_is_right_or_refused(first, second):
    """The output is what it was, or the merge is refused and nothing has changed."""
    own, x = One(has_bias="bias" not in (first, second)), np.random.default_rng(5).standard_normal((4, 6))
    if own.cell.bias is not None:
        own.cell.bias.set_data(ms.Tensor(np.arange(8.0, dtype=np.float32)))
    x = ms.Tensor(x.astype(np.float32))
    add(own, "one", KINDS[first], 1)
    add(own, "two", KINDS[second], 2)
    pet.set_adapter(own, ["one", "two"])
    before, state = own(x).asnumpy(), own.adapter_state
    for which, names in {"one": ["one"], "two": ["two"], "both": ["one", "two"]}.items():
        if refused(first, second, which):
            with pytest.raises(pet.InputError):
                pet.merge(own, names)
            assert own.adapter_state == state and registry(own).merged_names == ()
        else:
            pet.merge(own, names)
            np.testing.assert_allclose(own(x).asnumpy(), before, rtol=0, atol=1e-5 * np.abs(before).max())
            pet.unmerge(own)
        np.testing.assert_array_equal(own(x).asnumpy(), before)


def test_what_is_not_selected_is_merged_in_front(model):
    add(model, "a", lora(), 1)
    add(model, "s", ia3(feedforward=[]), 2)
    pet.set_adapter(model, ["a", "s"])
    scaled = logits(model)
    for names in (["a", "s"], ["s", "a"]):
        pet.set_adapter(model, "s")
        pet.merge(model, names)
        np.testing.assert_allclose(logits(model), scaled, rtol=0, atol=1e-4)
        pet.unmerge(model)


def test_the_order_of_activation_counts_where_a_method_scales(model):
    add(model, "l", lora(), 1)
    add(model, "s", ia3(feedforward=[]), 2)
    found = {}
    for order in ("ls", "sl"):
        pet.set_adapter(model, list(order))
        active_logits = logits(model)
        pet.set_adapter(model, [])
        for name in order:  # merging what is not active comes to the same as activating it in this order
            pet.merge(model, name)
        np.testing.assert_allclose(logits(model), active_logits, rtol=0, atol=2e-5 * np.abs(active_logits).max())
        pet.unmerge(model)
        found[order] = active_logits
    assert np.abs(found["ls"] - found["sl"]).max() > 0.1


def test_the_reason_names_both_adapters_and_the_cell(model):
    add(model, "l", lora(), 1)
    add(model, "s", ia3(feedforward=[]), 2)
    pet.set_adapter(model, ["l", "s"])
    with pytest.raises(pet.InputError, match=r"'l' is active at model\.layers\.0\..*_proj.*'s'.*merge both"):
        pet.merge(model, "s")


def whole(**settings):
    return lora(targets=["q_proj"], modules_to_save=["lm_head"], **settings)


@pytest.mark.parametrize("order", [["w", "o"], ["o", "w"]])
@pytest.mark.parametrize(
    ("other", "right"),
    [
        (lambda: lora(targets=["lm_head"]), {"w", "wo"}),
        (lambda: lora(targets=["lm_head"], use_dora=True), {"w"}),
        (lambda: ia3(targets=["lm_head"], feedforward=[]), {"w", "wo"}),
        (lambda: lora(trainable_tokens={"lm_head": [5, 9]}), {"w"}),
    ],
    ids=["lora", "dora", "ia3", "tokens"],
)
def test_a_head_that_one_adapter_replaces_and_another_adapts(model, other, right, order):
    add(model, "w", whole(), 1)
    add(model, "o", other(), 2)
    pet.set_adapter(model, order)
    before = logits(model)
    for names in ("w", "o", "wo"):
        if names in right:
            pet.merge(model, list(names))
            np.testing.assert_allclose(logits(model), before, rtol=0, atol=2e-5 * np.abs(before).max())
            pet.unmerge(model)
        else:
            with pytest.raises(pet.InputError, match="lm_head"):
                pet.merge(model, list(names))
        np.testing.assert_array_equal(logits(model), before)


def test_a_tied_head_keeps_the_copy_that_an_active_adapter_trains(fixtures):
    model = pet.AutoModel.from_pretrained(fixtures / "gpt2")
    add(model, "e", lora(targets=["wte"]), 1)
    add(model, "w", lora(targets=["c_attn"], modules_to_save=["lm_head"]), 2)
    pet.set_adapter(model, ["e", "w"])
    before = logits(model)
    pet.merge(model, "e")
    np.testing.assert_allclose(logits(model), before, rtol=0, atol=2e-5 * np.abs(before).max())
    pet.unmerge(model)
    np.testing.assert_array_equal(logits(model), before)


def test_biases_that_one_adapter_replaces_and_another_scales(fixtures):
    model = pet.AutoModel.from_pretrained(fixtures / "gpt2")
    add(model, "b", pet.BitFitConfig(add_missing=False), 1)
    add(model, "s", pet.IA3Config(targets=["c_attn"], feedforward=[]), 2)
    pet.set_adapter(model, ["b", "s"])
    before = logits(model)
    pet.merge(model)
    np.testing.assert_allclose(logits(model), before, rtol=0, atol=2e-5 * np.abs(before).max())
    pet.unmerge(model)
    with pytest.raises(pet.InputError, match=r"'b'.*c_attn\.bias"):
        pet.merge(model, "s")
    np.testing.assert_array_equal(logits(model), before)
