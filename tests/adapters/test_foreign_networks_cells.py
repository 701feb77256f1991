"""Cells of a user's own network under adapters: their statistics, biases, tables, and what else they do."""

from __future__ import annotations

import inspect

import mindspore as ms
import numpy as np
import pytest
from adapted_networks import randomise, weights
from foreign_networks import Convolutional, Derived, Small, Squared, Text, numbers
from mindspore import Tensor, mint, nn, ops
from safetensors.numpy import load_file

import pet
from model_zoo.checkpoint.parameters import write_parameter


def test_statistics_of_the_base_stay():
    network, x = Convolutional(), Convolutional.example()
    pet.apply_lora(network, rank=2, targets=["head"])
    norm, before = network.stem[1], weights(network)
    network.set_train(True)
    network(x).asnumpy()  # statistics are there when the output is
    np.testing.assert_array_equal(norm.moving_mean.asnumpy(), before[norm.moving_mean.name])
    pet.delete_adapter(network, "default")
    network(x).asnumpy()
    assert np.abs(norm.moving_mean.asnumpy() - before[norm.moving_mean.name]).max() > 1e-3
    # one that is trained whole has statistics of its own
    pet.apply_lora(network, rank=2, targets=["head"], modules_to_save=["stem.1"])
    base = norm.moving_mean.asnumpy().copy()
    network(x).asnumpy()
    assert np.abs(norm.moving_mean.asnumpy() - base).max() > 1e-3
    assert not any("moving" in one.name for one in pet.trainable_parameters(network))
    with pet.disable_adapters(network):
        np.testing.assert_array_equal(norm.moving_mean.asnumpy(), base)


@pytest.mark.parametrize(
    "config", (pet.BitFitConfig(), pet.LoRAConfig(targets=["head"], bias="all")), ids=("bitfit", "bias")
)
def test_a_norm_whose_bias_alone_is_trained_keeps_the_bases_statistics(config):
    network, x = Convolutional(), Convolutional.example()
    before = weights(network)
    pet.apply(network, config)
    network.set_train(True)
    network(x).asnumpy()
    for name in ("stem.1.moving_mean", "stem.1.moving_variance"):
        np.testing.assert_array_equal(weights(network)[name], before[name], err_msg=name)


class Shifted(nn.Cell):
    """Cells that call their biases differently."""

    def __init__(self):
        super().__init__()
        self.dense, self.norm = nn.Dense(4, 4), nn.LayerNorm((4,))
        self.recurrent = nn.LSTM(4, 4, batch_first=True)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def construct(self, x):
        x = self.recurrent(self.norm(self.dense(x)))[0]
        return self.attention(x, x, x)[0]


@pytest.mark.parametrize("config", (pet.BitFitConfig(add_missing=False), pet.LoRAConfig(targets=["dense"], bias="all")))
def test_every_bias_is_trained_whatever_its_cell_calls_it(config, tmp_path):
    network, x = Shifted(), numbers(2, 3, 4)
    pet.apply(network, config)
    pet.save_adapter(network, tmp_path)
    written = [name.replace("base_layer.", "") for name in load_file(tmp_path / "adapter_model.safetensors")]
    biases = {name.removeprefix("base_model.model.") for name in written if "lora" not in name}
    inner = {"recurrent.bias_ih_l0", "recurrent.bias_hh_l0", "attention.in_proj_bias", "attention.out_proj.bias"}
    assert biases == {"dense.bias", "norm.beta", *inner}
    trained = [one for one in pet.trainable_parameters(network) if "lora" not in one.name]
    before = [parameter.asnumpy().copy() for parameter in trained]
    nn.TrainOneStepCell(Squared(network), nn.Adam(trained, 1e-2)).set_train()(x)
    assert not any(np.array_equal(one.asnumpy(), array) for one, array in zip(trained, before, strict=True))


def test_numbers_that_no_optimizer_trains_are_none_of_its_parameters(tmp_path):
    def make():
        return nn.SequentialCell(mint.nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1))

    network = make()
    pet.apply_lora(network, rank=2, targets=["1"], modules_to_save=["0"])
    trained = [one.name.rpartition(".")[2] for one in pet.trainable_parameters(network) if "lora" not in one.name]
    assert trained == ["weight", "bias"]
    for name in trained + ["running_mean"]:
        write_parameter(getattr(network[0], name), np.full(4, 3, np.float32))
    pet.save_adapter(network, tmp_path)
    fresh = make()
    pet.load_adapter(fresh, tmp_path)
    assert all(getattr(fresh[0], name).asnumpy().tolist() == [3] * 4 for name in trained + ["running_mean"])


@pytest.mark.parametrize("exchanged", ["head", "stem.1"])
def test_a_cell_that_is_exchanged_beneath_an_adapter_is_not_lost_in_silence(exchanged, tmp_path):
    network = Convolutional()
    pet.apply_lora(network, rank=2, targets=["head"], modules_to_save=["stem.1"])
    before = network.head, network.stem[1]
    if exchanged == "head":
        network.head = nn.Dense(6, 5)
    else:
        network.stem[1] = nn.BatchNorm2d(6)
    said = f"'default' is on the cell that was {exchanged} when it was applied, which is no part of the network"
    for act in (
        lambda: pet.trainable_parameters(nn.WithLossCell(network, nn.MSELoss())),
        lambda: pet.save_adapter(network, tmp_path / "adapter"),
        lambda: pet.merge(network),
    ):
        with pytest.raises(pet.InputError, match=said):
            act()
    assert not (tmp_path / "adapter").exists()
    network.head, network.stem[1] = before
    pet.save_adapter(network, tmp_path / "adapter")
    network.head = nn.Dense(6, 5)
    pet.delete_adapter(network, "default")
    pet.load_adapter(network, tmp_path / "adapter")
    assert pet.list_adapters(network) == ["default"]


@pytest.mark.parametrize("settings", ({}, {"use_reentrant": False}), ids=("reentrant", "hooks"))
@pytest.mark.parametrize("whole", (False, True), ids=("cell", "network"))
def test_recomputation_that_was_asked_for_before_adapters_came(whole, settings):
    network, x = Small(), Small.example()
    if settings and "use_reentrant" not in str(inspect.signature(nn.Cell.recompute)) + nn.Cell.recompute.__doc__:
        pytest.skip("this MindSpore has one way of recomputing")
    (network if whole else network.first).recompute(**settings)
    pet.apply_lora(network, rank=2, targets=list(Small.targets))
    randomise(network)
    network.set_train()
    found, expected = (
        ms.grad(Squared(one), None, ms.ParameterTuple(pet.trainable_parameters(one)))(x)
        for one in (network, like(network))
    )
    for gradient, right in zip(found, expected, strict=True):
        assert np.abs(right.asnumpy()).max() > 1e-6
        np.testing.assert_allclose(gradient.asnumpy(), right.asnumpy(), rtol=1e-6, atol=1e-8)
    pet.delete_adapter(network, "default")
    gradients = ms.grad(Squared(network), None, ms.ParameterTuple(network.trainable_params()))(x)
    assert len(gradients) == 3 and all(np.abs(gradient.asnumpy()).max() > 1e-6 for gradient in gradients)


def test_recomputation_that_was_asked_for_while_another_adapter_was_trained():
    network, x = Small(), Small.example()
    for name in ("default", "first"):
        pet.apply_lora(network, rank=2, targets=list(Small.targets), name=name)
    randomise(network)
    network.set_train().first.recompute()
    pet.set_adapter(network, "default")
    gradients = ms.grad(Squared(network), None, ms.ParameterTuple(pet.trainable_parameters(network)))(x)
    assert gradients and all(np.abs(gradient.asnumpy()).max() > 1e-6 for gradient in gradients)


def like(network):
    """A Small with the same weights and adapter, of which nothing is recomputed."""
    again = pet.apply_lora(Small(), rank=2, targets=list(Small.targets))
    for mine, theirs in zip(again.get_parameters(), network.get_parameters(), strict=True):
        mine.set_data(Tensor(theirs.asnumpy()))
    return again


def test_a_cell_that_is_trained_whole_reads_its_copies():
    network, x = nn.SequentialCell(nn.Dense(4, 4), nn.LSTM(4, 3)), numbers(2, 2, 4)
    before = network(x)[0].asnumpy()
    pet.apply_lora(network, rank=2, targets=["0"], modules_to_save=["1"])
    np.testing.assert_array_equal(network(x)[0].asnumpy(), before)
    randomise(network)
    assert np.abs(network(x)[0].asnumpy() - before).max() > 1e-3
    gradients = ms.grad(lambda x: network(x)[0].sum(), None, ms.ParameterTuple(pet.trainable_parameters(network)))(x)
    assert all(np.abs(gradient.asnumpy()).max() > 0 for gradient in gradients)
    pet.delete_adapter(network, "default")
    np.testing.assert_array_equal(network(x)[0].asnumpy(), before)


def test_dropout_in_a_loop_of_ones_own(mode):
    """The network is in training already when it is adapted, and nobody gives dropout a key."""
    network = Small().set_train()
    pet.apply_lora(network, rank=2, targets=["first"], dropout=0.5)
    randomise(network, 1.0)
    outputs = [network(Small.example()).asnumpy() for _ in range(8)]  # two may well drop the same
    assert np.ptp(outputs, axis=0).max() > 1e-3


class Compiled(nn.Dense):
    """Compiles its own forward."""

    @ms.jit
    def construct(self, x):
        return ops.matmul(x, self.weight.T) + self.bias


@pytest.mark.parametrize(
    "make", (Compiled, lambda *sizes: Derived(*sizes, activation="tanh")), ids=("jit", "activation")
)
def test_a_derived_dense_is_what_its_merged_weight_gives(make):
    """Whatever it is derived for: an adapter acts once, and before the activation."""
    network, x = nn.SequentialCell(make(6, 4)), Small.example()
    before = network(x).asnumpy()
    pet.apply_lora(network, rank=2, targets="all-linear")
    np.testing.assert_array_equal(network(x).asnumpy(), before)
    randomise(network)
    changed = network(x).asnumpy()
    assert np.abs(changed - before).max() > 1e-2
    pet.merge_and_unload(network)
    np.testing.assert_allclose(network(x).asnumpy(), changed, atol=1e-5)


class Tied(nn.Cell):
    """Reads the table of its embedding as its head, of another cell."""

    def __init__(self):
        super().__init__()
        self.words, self.inner = nn.Embedding(20, 8), nn.Dense(8, 8)

    def construct(self, ids):
        return ops.matmul(self.inner(self.words(ids)), self.table().T)

    def table(self):
        return self.words.embedding_table


class Held(Tied):
    """Has the table as a parameter of its own, which is the same one; asks the embedding for its type alone."""

    def __init__(self):
        super().__init__()
        self.own = self.words.embedding_table

    def table(self):
        return self.own.astype(self.words.embedding_table.dtype)


@pytest.mark.parametrize(("make", "targets"), ((Tied, ["words"]), (Tied, ["inner"]), (Held, ["words", "inner"])))
def test_a_table_that_is_a_head_too(make, targets):
    """Nothing but the lookup may change by merging."""
    network, x = make(), Text.example()
    pet.apply_lora(network, rank=2, targets=targets)
    randomise(network)
    changed = network(x).asnumpy()
    if make is Tied and targets == ["words"]:
        with pytest.raises(pet.InputError, match="cannot be merged: Tied reads the weight of words besides"):
            pet.merge(network)
    else:
        pet.merge(network)
        np.testing.assert_allclose(network(x).asnumpy(), changed, atol=1e-5)
        pet.unmerge(network)
    np.testing.assert_array_equal(network(x).asnumpy(), changed)
