"""Cells of other libraries: which an adapter fits, and what is said of those that none fits."""

from __future__ import annotations

import ast

import mindspore as ms
import numpy as np
import pytest
from foreign_networks import Derived, Matrix, Table, Text
from mindspore import Parameter, mint, nn, ops

import pet
from adapters.cell_forms import definition_of, definitions, form_of
from adapters.registry import registry


class Zero(Matrix):
    """Zeros say neither which way a matrix lies nor what is done with it."""

    def __init__(self):
        super().__init__(4, 4)
        self.weight = Parameter(ms.Tensor(np.zeros((4, 4), np.float32)), name="weight")


class Gate(Matrix):
    """Has a matrix, but is no linear cell."""

    def construct(self, x, groups=None):
        return mint.nn.functional.sigmoid(super().construct(x))


class Half(nn.Cell):
    """Computes in float16, whatever it is given."""

    def __init__(self):
        super().__init__()
        self.weight = Parameter(ms.Tensor(np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)))

    def construct(self, x):
        return mint.matmul(x.astype(ms.float16), self.weight.astype(ms.float16).T).astype(x.dtype)


@pytest.mark.parametrize(
    ("cell", "kind", "transposed"),
    [
        (nn.Dense(4, 3), "linear", False),
        (mint.nn.Linear(4, 3), "linear", False),
        (Derived(4, 4), "linear", False),
        (Matrix(4, 4), "linear", True),
        (Zero(), "linear", True),
        (Half(), "linear", False),
        (Table(5, 4), "embedding", False),
        (mint.nn.Embedding(5, 4), "embedding", False),
        (nn.Conv1d(2, 3, 3), "conv", False),
        (Gate(4, 4), "none", False),
        (nn.LayerNorm((4,)), None, False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Cell) else None,
)
def test_a_cell_is_known_by_what_it_gives(cell, kind, transposed):
    before = [parameter.asnumpy().copy() for parameter in cell.get_parameters()]
    cell.set_train()
    form = form_of(cell)
    assert (None if form is None else (form.kind, form.transposed)) == (kind and (kind, transposed))
    assert cell.training and all(
        np.array_equal(parameter.asnumpy(), array)
        for parameter, array in zip(cell.get_parameters(), before, strict=True)
    )


class Scaled(nn.Dense):
    def construct(self, x):
        return super().construct(x) * 2.0


class Reader(nn.Cell):
    """Hands the weight of one cell on, and reads the type of another one's before it calls it."""

    def __init__(self):
        super().__init__()
        self.read, self.called = nn.Dense(4, 4), nn.Dense(4, 4)

    def construct(self, x):
        return self.called(ops.matmul(x, self.read.weight) + self.read.bias).astype(self.called.weight.dtype)


class Through(nn.Cell):
    """Reads a weight in a method that its forward calls."""

    def __init__(self):
        super().__init__()
        self.read, self.called = nn.Dense(4, 4), nn.Dense(4, 4)

    def construct(self, x):
        return self.called(self.product(x))

    def product(self, x):
        return ops.matmul(x, self.read.weight)


class Straight(nn.Cell):
    """Has a gradient of its own."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Dense(4, 4)

    def construct(self, x):
        return self.inner(x)

    def bprop(self, x, out, dout):
        return (dout,)


class Replaced(nn.Dense):
    """Its forward is set on it, not on its class."""

    def __init__(self):
        super().__init__(4, 4)
        self.construct = ms.jit(self.construct)


class Odd(nn.Cell):
    def __init__(self):
        super().__init__()
        self.reader = Reader()
        self.attention = nn.MultiheadAttention(4, 2)
        self.recurrent = nn.LSTM(4, 4)
        self.channels = nn.Conv2d(4, 4, 3, group=4)
        self.plane = nn.Conv2d(4, 4, 3)
        self.layout = mint.nn.Conv2d(4, 4, 3)
        self.scaled = Scaled(4, 4)
        self.zero = nn.Dense(4, 4, weight_init="zeros")
        self.pair = nn.SequentialCell(nn.Dense(4, 4), nn.ReLU())
        self.through, self.straight, self.replaced = Through(), Straight(), Replaced()


@pytest.mark.parametrize(
    ("apply", "targets", "message"),
    [
        (
            pet.apply_lora,
            ["out_proj"],
            "out_proj is not called by MultiheadAttention, which reads its weight",
        ),
        (pet.apply_lora, ["reader.read"], "reader.read is not called by Reader, which reads its weight"),
        (pet.apply_lora, ["through.read"], "through.read is not called by Through, which reads its weight"),
        (pet.apply_lora, ["inner"], "straight.inner gets its gradient by Straight.bprop, which knows of no adapter"),
        (pet.apply_lora, ["replaced"], "replaced has had its construct replaced, so an adapter would not act"),
        (pet.apply_lora, ["recurrent"], "recurrent is a LSTM, which no adapter fits"),
        (pet.apply_lora, ["channels"], "channels is a convolution in 4 groups; one group was expected"),
        (pet.apply_lora, ["layout"], r"layout is a mindspore\.mint\.nn\..*Conv2d, whose weight has 4 axes"),
        (pet.apply_lora, ["scaled"], "scaled is a Scaled, whose output is not x·Wᵀ"),
        (
            pet.apply_lora,
            ["pair"],
            r"pair is a SequentialCell, .*; name cells within it, such as pair.0, or",
        ),
        (pet.apply_lora, None, "no known family; name its cells .there is: called, plane, zero, pair.0., or 'all"),
        (pet.apply_ia3, ["plane"], "plane is of kind conv; ia3 fits linear"),
        (pet.apply_adapter, ["plane"], "plane is of kind conv; adapter fits linear"),
        (pet.apply_bitfit, ["plane"], "plane is of kind conv; bitfit fits linear"),
    ],
)
def test_what_does_not_fit_is_one_line(apply, targets, message):
    network = Odd()
    with pytest.raises(pet.InputError, match=message) as caught:
        apply(network, targets=targets)
    assert "\n" not in str(caught.value)
    assert pet.list_adapters(network) == [] and all(one.requires_grad for one in network.get_parameters())


def test_a_foreign_network_has_no_config_json(tmp_path):
    with pytest.raises(
        pet.InputError, match=r"a Text is of no known family.*mindspore.save_checkpoint writes its weights"
    ):
        pet.save_pretrained(Text(), tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_patterns_pass_over_what_does_not_fit():
    network = pet.apply_lora(Odd(), targets=["re:.*"])
    assert set(registry(network).get("default").sites) == {"reader.called", "plane", "zero", "pair.0", "through.called"}


@pytest.mark.parametrize("make", (Reader, Through, Straight))
def test_the_network_itself_may_be_such_a_cell(make):
    name = "inner" if make is Straight else "read"
    with pytest.raises(
        pet.InputError, match=rf"targets: {name} (is not called by|gets its gradient by) {make.__name__}"
    ):
        pet.apply_lora(make(), targets=[name])


@pytest.mark.parametrize("apply", (pet.apply_prefix, pet.apply_ptuning, pet.apply_prompt, pet.apply_p_tuning))
def test_prompts_need_a_known_family(apply):
    with pytest.raises(pet.InputError, match="needs a model of a known family; this is a Text"):
        apply(Text())


def test_a_network_without_a_cell_that_fits():
    with pytest.raises(pet.InputError, match="the network has no cell that lora fits"):
        pet.apply_lora(nn.SequentialCell(nn.LSTM(2, 2), nn.ReLU()))
    assert pet.print_trainable_parameters(nn.ReLU()) == "trainable params: 0 || all params: 0 || trainable%: 0.0000"


def test_a_network_of_convolutions_has_biases_to_train():
    network = nn.SequentialCell(nn.Conv2d(3, 4, 3, has_bias=True), nn.BatchNorm2d(4))
    pet.apply_bitfit(network)
    assert {parameter.shape for parameter in pet.trainable_parameters(network)} == {(4,)}
    assert len(pet.trainable_parameters(network)) == 2  # of the convolution, and the norm's beta
    with pytest.raises(pet.InputError, match=r"bitfit: there is no bias to train$"):
        pet.apply_bitfit(nn.SequentialCell(nn.Conv2d(3, 4, 3, has_bias=False)))
    with pytest.raises(pet.InputError, match=r"no known family; name its cells \(there is: 0\)$"):
        pet.apply_lora(nn.SequentialCell(nn.Conv2d(3, 4, 3)))


def test_a_module_is_parsed_once_for_all_of_its_classes(monkeypatch):
    """It took a twentieth of a short run to parse modules for each of their classes."""

    class Gate:  # as one of this module is called
        class Inner:
            pass

    parsed, parse = [], ast.parse
    monkeypatch.setattr(ast, "parse", lambda *given: parsed.append(given) or parse(*given))
    definitions.cache_clear()
    theirs, ours, inner, half = map(definition_of, (globals()["Gate"], Gate, Gate.Inner, Half))
    assert len(parsed) == 1
    assert [each.name for each in (theirs, ours, inner, half)] == ["Gate", "Gate", "Inner", "Half"]
    assert [type(each.body[-1]) for each in (theirs, ours, half)] == [ast.FunctionDef, ast.ClassDef, ast.FunctionDef]
    assert definition_of(nn.Dense).name == "Dense" and len(parsed) == 2
    with pytest.raises(TypeError):
        definition_of(int)
