"""What a network does with a cell besides plain calls: the merged network must not silently give other numbers."""

from __future__ import annotations

import types

import mindspore as ms
import numpy as np
import pytest
from foreign_networks import Text, numbers
from mindspore import Tensor, mint, nn, ops

import pet
from adapters.registry import registry


def randomise(network) -> None:
    generator = np.random.default_rng(3)
    for parameter in registry(network).get("default").parameters():
        ops.assign(parameter, Tensor(generator.standard_normal(parameter.shape).astype(np.float32) * 0.3))


class Words(nn.Embedding):
    def attend(self, x):
        return ops.matmul(x, self.embedding_table.T)


class Part(nn.Cell):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 8)

    def construct(self, ids):
        return self.words(ids)

    def table(self):
        return self.words.embedding_table


def head_of(words, x):
    return ops.matmul(x, words.embedding_table.T)


class Tied(nn.Cell):
    """Reads its table as its head, in the ways in which that is written. Others of its methods read it, too."""

    def __init__(self):
        super().__init__()
        self.words, self.listed, self.part, self.inner = (
            Words(20, 8),
            nn.CellList([Words(20, 8)]),
            Part(),
            nn.Dense(8, 8),
        )
        self.config = types.SimpleNamespace(parts=1)

    def tie(self):
        return self.words.embedding_table.asnumpy(), self.part.table().asnumpy()

    def get_input_embeddings(self):
        return self.words

    def construct(self, ids):
        return self.inner(self.words(ids))


class ByMethod(Tied):
    def construct(self, ids):
        return self.words.attend(self.inner(self.words(ids)))


class ByName(Tied):
    def construct(self, ids):
        words = self.words
        return ops.matmul(self.inner(words(ids)), words.embedding_table.T)


class InList(Tied):
    def construct(self, ids):
        return ops.matmul(self.inner(self.listed[0](ids)), self.listed[0].embedding_table.T)


class InLoop(Tied):
    def construct(self, ids):
        x = self.inner(self.listed[0](ids))
        for words in self.listed:
            x = ops.matmul(x, words.embedding_table.T)
        return x


class OfPart(Tied):
    def construct(self, ids):
        return ops.matmul(self.inner(self.part(ids)), self.part.table().T)


class ByFunction(Tied):
    def construct(self, ids):
        return head_of(self.words, self.inner(self.words(ids)))


class ByGetter(Tied):
    def construct(self, ids):
        return ops.matmul(self.inner(self.words(ids)), self.get_input_embeddings().embedding_table.T)


class Regular(Tied):
    """Of a linear cell, which is called as well."""

    def construct(self, ids):
        return self.inner(self.words(ids)) + self.inner.weight.mean()


@pytest.mark.parametrize("make", (ByMethod, ByName, InList, InLoop, OfPart, ByFunction, ByGetter, Regular))
def test_a_weight_that_is_read_besides_is_not_merged(make):
    target = {InList: "listed.0", InLoop: "listed.0", OfPart: "part.words", Regular: "inner"}.get(make, "words")
    network, ids = make(), Text.example()
    pet.apply_lora(network, rank=2, targets=[target])
    randomise(network)
    changed = network(ids).asnumpy()
    with pytest.raises(pet.InputError, match=f"cannot be merged: .* reads the weight of {target} besides"):
        pet.merge(network)
    np.testing.assert_array_equal(network(ids).asnumpy(), changed)


class Getter(Tied):
    def construct(self, ids):
        if self.config.parts > 1:
            return ops.matmul(self.get_input_embeddings()(ids), self.inner.weight.T)
        x = self.get_input_embeddings()(ids)
        dtype = getattr(self.inner.weight, "dtype", None)
        return self.inner(x.astype(dtype)) if self.words is not None else x.astype(self.inner.weight.dtype)


@pytest.mark.parametrize("make", (Tied, Getter))
def test_what_no_forward_reads_is_merged(make):
    """Other methods, closed branches, and questions for a type are none of it."""
    network, ids = make(), Text.example()
    pet.apply_lora(network, rank=2, targets=["words", "inner"])
    randomise(network)
    changed = network(ids).asnumpy()
    pet.merge_and_unload(network)
    np.testing.assert_allclose(network(ids).asnumpy(), changed, atol=1e-5)


class Asked(nn.Dense):
    def construct(self, x, residual=None, scale=1.0, unused=None):
        y = super().construct(x)
        return y * scale if residual is None else y * scale + residual


class Asking(nn.Cell):
    def __init__(self, *given, **named):
        super().__init__()
        self.inner, self.given, self.named = Asked(8, 8), given, named

    def construct(self, x):
        return self.inner(x, x, *self.given, **self.named)


@pytest.fixture(params=(ms.PYNATIVE_MODE, ms.GRAPH_MODE), ids=("pynative", "graph"))
def mode(request):
    ms.set_context(mode=request.param)
    yield
    ms.set_context(mode=ms.PYNATIVE_MODE)


def test_an_argument_that_scales_what_the_weight_gives_is_refused(mode):
    for network in (Asking(0.5), Asking(scale=0.5)):
        network(numbers(2, 8))
        pet.apply_lora(network, rank=2, targets=["inner"])
        with pytest.raises(ValueError, match="called with the argument scale"):
            network(numbers(2, 8))
        pet.delete_adapter(network, "default")
        network(numbers(2, 8))
    for network in (Asking(), Asking(1.0), Asking(unused=0.5)):
        pet.apply_lora(network, rank=2, targets=["inner"])
        randomise(network)
        changed = network(numbers(2, 8)).asnumpy()
        pet.merge_and_unload(network)
        np.testing.assert_allclose(network(numbers(2, 8)).asnumpy(), changed, atol=1e-5)


def test_a_residual_is_refused_where_an_adapter_would_rescale_it(mode):
    network, x = Asking(), numbers(2, 8)
    for config in (pet.LoRAConfig(rank=2, targets=["inner"], use_dora=True), pet.IA3Config(targets=["inner"])):
        pet.apply(network, config)
        with pytest.raises(ValueError, match="called with the argument residual"):
            network(x)
        with pet.disable_adapters(network):
            network(x)
        pet.delete_adapter(network, "default")


def test_an_embedding_that_scales_its_rows_is_no_target():
    for make in (nn.EmbeddingLookup, mint.nn.Embedding):
        with pytest.raises(pet.InputError, match="is an embedding with max_norm"):
            pet.apply_lora(nn.SequentialCell(make(20, 8, max_norm=0.5)), rank=2, targets=["0"])


class Arranged(nn.Cell):
    """Has the batch as the first axis, in rows of batch × length, or behind the length."""

    def __init__(self, way: str):
        super().__init__()
        self.way, self.inner = way, nn.Dense(8, 8)

    def construct(self, x):
        if self.way == "swapped":
            return self.inner(x.swapaxes(0, 1)).swapaxes(0, 1)
        if self.way == "rows":
            return self.inner(x.reshape(-1, 8)).reshape(x.shape)
        return self.inner(x)


def test_rows_of_mixed_batches_that_cannot_be_told_apart_are_refused(mode):
    x, names = numbers(2, 4, 8), ["default", "__base__"]
    for way in ("first", "rows", "swapped"):
        network = Arranged(way)
        base = network(x).asnumpy()
        pet.apply_lora(network, rank=2, targets=["inner"])
        randomise(network)
        changed = network(x).asnumpy()
        with pet.adapter_names(network, names):
            if way == "swapped":
                with pytest.raises(ValueError, match="an adapted cell got 4 rows for a batch of 2"):
                    network(x)
            else:
                np.testing.assert_allclose(network(x).asnumpy(), np.stack([changed[0], base[1]]), atol=1e-5)


class Shared(nn.Cell):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(20, 8), nn.Dense(8, 20, has_bias=False)
        self.head.weight = self.words.embedding_table

    def construct(self, ids):
        return self.head(self.words(ids))


def test_a_shared_parameter_that_becomes_two_is_named():
    network = pet.apply_lora(Shared(), rank=2, targets=["words"])
    randomise(network)
    assert network.head.weight is network.words.embedding_table
    with pytest.warns(UserWarning, match=r"head\.weight: shared a Parameter with another cell"):
        pet.merge_and_unload(network)
    assert network.head.weight is not network.words.embedding_table
