"""LoRA and its variants on one linear cell, against their formulas in float64, and on whole models."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops

import pet
from adapters.dropout import set_dropout_key
from adapters.registry import registry
from model_zoo.layers import Conv1D, Linear, name_parameters

IDS = np.random.default_rng(0).integers(3, 120, (2, 6))
WIDE = np.float64


def weights_of(shape, seed):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Net(nn.Cell):
    """One linear cell of each kind that LoRA knows."""

    def __init__(self, kind, into=7, out=5):
        super().__init__()
        if kind == "dense":
            self.cell = nn.Dense(into, out)
        elif kind == "linear":
            self.cell = Linear(into, out, bias=True)
        elif kind == "no bias":
            self.cell = Linear(into, out, bias=False)
        else:
            self.cell = Conv1D(into, out)
        name_parameters(self)
        for seed, parameter in enumerate(self.get_parameters()):
            ops.assign(parameter, ms.Tensor(weights_of(parameter.shape, seed + 10)))

    def construct(self, x):
        return self.cell(x)


def randomise(model, name="default", scale=0.3, seed=3):
    generator = np.random.default_rng(seed)
    for parameter in registry(model).get(name).parameters():
        value = parameter.asnumpy() + scale * generator.standard_normal(parameter.shape)
        ops.assign(parameter, ms.Tensor(value.astype(np.float32)))


def exact(net, kind, parts, scale, dora, held=None):
    """x ↦ y in float64 from the paper's formula; `held` keeps DoRA's norm at these parts, as the gradient sees it."""
    weight = net.cell.weight.asnumpy().astype(WIDE)
    weight = weight.T if kind == "conv1d" else weight
    bias = net.cell.bias.asnumpy().astype(WIDE) if net.cell.bias is not None else 0.0

    def whole(parts):
        return weight + scale * parts["lora_B.weight"] @ parts["lora_A.weight"]

    merged = whole(parts)
    if dora:
        norm = np.linalg.norm(whole(held or parts), axis=1)
        merged = (parts["lora_magnitude_vector"] / norm)[:, None] * merged
    return lambda x: x.astype(WIDE) @ merged.T + bias


KINDS = ["dense", "linear", "no bias", "conv1d"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", [{}, {"use_rslora": True}, {"use_dora": True}], ids=["lora", "rslora", "dora"])
def test_forward_and_gradients_against_the_formula(kind, settings):
    net, x = Net(kind), weights_of((6, 7), 1)
    before = net(ms.Tensor(x)).asnumpy()
    pet.apply_lora(net, rank=3, alpha=2, targets=["cell"], **settings)
    np.testing.assert_array_equal(net(ms.Tensor(x)).asnumpy(), before)
    randomise(net)
    tensors = registry(net).get("default").modules["cell"].tensors()
    parts = {key: value.asnumpy().astype(WIDE) for key, value in tensors.items()}
    scale = 2 / np.sqrt(3) if settings.get("use_rslora") else 2 / 3
    dora = settings.get("use_dora", False)
    np.testing.assert_allclose(net(ms.Tensor(x)).asnumpy(), exact(net, kind, parts, scale, dora)(x), rtol=0, atol=1e-5)
    # the loss Σ c·y, by central differences of the float64 formula
    c = weights_of(before.shape, 2)
    parameters = registry(net).get("default").parameters()
    assert {id(p) for p in parameters} == {id(p) for p in tensors.values()}

    def loss(x):
        return (net(x) * ms.Tensor(c)).sum()

    gradients = ms.grad(loss, grad_position=None, weights=ms.ParameterTuple(parameters))(ms.Tensor(x))
    for parameter, gradient in zip(parameters, gradients, strict=True):
        key = next(key for key, value in tensors.items() if value is parameter)
        expected = np.zeros(parameter.shape)
        for place in np.ndindex(*parameter.shape):
            sides = []
            for step in (1e-6, -1e-6):
                moved = {name: value.copy() for name, value in parts.items()}
                moved[key][place] += step
                sides.append((exact(net, kind, moved, scale, dora, held=parts)(x) * c).sum())
            expected[place] = (sides[0] - sides[1]) / 2e-6
        assert np.abs(expected).max() > 0.01
        np.testing.assert_allclose(gradient.asnumpy(), expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("init", ["pissa", "olora"])
@pytest.mark.parametrize("kind", ["linear", "conv1d"])
def test_dora_starts_from_the_weight_as_lora_does(kind, init):
    """Bit by bit as the base; afterwards by the formula over the unchanged base."""
    net, x = Net(kind, 40, 30), weights_of((4, 40), 1)
    before = net(ms.Tensor(x)).asnumpy()
    pet.apply_lora(net, rank=4, alpha=8, targets=["cell"], init=init, use_dora=True)
    module = registry(net).get("default").modules["cell"]
    first = [module.lora_B.weight.asnumpy().astype(WIDE), module.lora_A.weight.asnumpy().astype(WIDE)]
    np.testing.assert_array_equal(net(ms.Tensor(x)).asnumpy(), before)
    randomise(net)
    b, a = (factor.weight.asnumpy().astype(WIDE) for factor in (module.lora_B, module.lora_A))
    weight = net.parameters_dict()["cell.weight"].asnumpy().astype(WIDE)
    direction = (weight.T if kind == "conv1d" else weight) + 2 * (b @ a - first[0] @ first[1])
    matrix = (module.lora_magnitude_vector.asnumpy() / np.linalg.norm(direction, axis=1))[:, None] * direction
    expected = x.astype(WIDE) @ matrix.T + net.parameters_dict()["cell.bias"].asnumpy()
    np.testing.assert_allclose(net(ms.Tensor(x)).asnumpy(), expected, atol=2e-5)


@pytest.mark.parametrize("init", ["default", "gaussian", "pissa", "olora"])
@pytest.mark.parametrize("kind", ["linear", "conv1d"])
def test_starting_points(kind, init):
    net, x = Net(kind, 40, 30), weights_of((4, 40), 1)
    base = {p.name: p.asnumpy().copy() for p in net.get_parameters()}
    before = net(ms.Tensor(x)).asnumpy()
    pet.apply_lora(net, rank=4, alpha=8, targets=["cell"], init=init)
    module = registry(net).get("default").modules["cell"]
    a, b = module.lora_A.weight.asnumpy().astype(WIDE), module.lora_B.weight.asnumpy().astype(WIDE)
    np.testing.assert_array_equal(net(ms.Tensor(x)).asnumpy(), before)
    for name, value in base.items():
        np.testing.assert_array_equal(net.parameters_dict()[name].asnumpy(), value)
    weight = base["cell.weight"].T if kind == "conv1d" else base["cell.weight"]
    if init == "pissa":  # the best approximation of rank 4
        left, values, right = np.linalg.svd(weight.astype(WIDE))
        np.testing.assert_allclose(2 * b @ a, left[:, :4] * values[:4] @ right[:4], atol=1e-5)
    elif init == "olora":
        q, r = np.linalg.qr(weight.astype(WIDE))
        np.testing.assert_allclose(b @ a, q[:, :4] @ r[:4], atol=1e-5)
        np.testing.assert_allclose(b.T @ b, np.eye(4), atol=1e-6)
    else:
        assert not b.any()
        if init == "gaussian":
            assert a.std() == pytest.approx(1 / 4, rel=0.2) and np.abs(a).max() > 0.4
        else:
            assert np.abs(a).max() <= 1 / np.sqrt(40) and a.std() == pytest.approx(1 / np.sqrt(120), rel=0.2)
    randomise(net)
    b2, a2 = module.lora_B.weight.asnumpy().astype(WIDE), module.lora_A.weight.asnumpy().astype(WIDE)
    expected = x.astype(WIDE) @ (weight + 2 * (b2 @ a2 - b @ a)).T + base["cell.bias"]
    np.testing.assert_allclose(net(ms.Tensor(x)).asnumpy(), expected, atol=2e-5)
    assert len(pet.trainable_parameters(net)) == 2


def test_a_start_from_more_directions_than_there_are():
    net = Net("linear", 3, 2)
    pet.apply_lora(net, rank=5, targets=["cell"], init="pissa")
    module = registry(net).get("default").modules["cell"]
    np.testing.assert_allclose(
        module.factors()[0][:, :5] @ module.factors()[1][:5], net.cell.weight.asnumpy(), atol=1e-6
    )


def test_every_cell_starts_from_a_stream_of_its_own():
    def first(seed):
        net = nn.SequentialCell(nn.Dense(8, 8), nn.Dense(8, 8))
        pet.apply_lora(net, rank=2, targets=["0", "1"], seed=seed)
        return [module.lora_A.weight.asnumpy() for module in registry(net).get("default").modules.values()]

    one, again, other = first(1), first(1), first(2)
    np.testing.assert_array_equal(one[0], again[0])
    assert (one[0] != one[1]).any() and (one[0] != other[0]).any()


@pytest.mark.cover(pairs=False)  # what the type changes is in the adapter, what the family changes in the cells
@pytest.mark.parametrize("family", ["gpt2", "llama_gqa"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_dora_is_the_base_at_the_start_compiled_or_not(shortened, family, dtype):
    model = pet.AutoModel.from_pretrained(shortened(family), dtype=dtype)
    ids = ms.Tensor(IDS.astype(np.int32))

    def forward(ids):
        return model.construct(ids)

    plain, compiled = model(IDS).asnumpy(), ms.jit(forward)(ids).asnumpy() if dtype == "float32" else None
    pet.apply_lora(model, rank=4, use_dora=True, use_rslora=True)
    np.testing.assert_array_equal(model(IDS).asnumpy(), plain)
    if compiled is None:
        return

    def adapted(ids):
        return model.construct(ids)

    np.testing.assert_array_equal(ms.jit(adapted)(ids).asnumpy(), compiled)
    randomise(model)

    def changed(ids):
        return model.construct(ids)

    np.testing.assert_allclose(ms.jit(changed)(ids).asnumpy(), model(IDS).asnumpy(), atol=2e-5)


def test_dora_of_a_row_of_zeros_is_finite():
    net = Net("linear")
    ops.assign(net.cell.weight, ms.Tensor(np.zeros((5, 7), np.float32)))
    pet.apply_lora(net, rank=2, targets=["cell"], use_dora=True)
    x = ms.Tensor(weights_of((3, 7), 1))

    def loss(x):
        return net(x).sum()

    gradients = ms.grad(loss, None, ms.ParameterTuple(pet.trainable_parameters(net)))(x)
    assert np.isfinite(net(x).asnumpy()).all()
    assert all(np.isfinite(gradient.asnumpy()).all() for gradient in gradients)
    before = net(x).asnumpy()
    pet.merge(net, safe=True)
    np.testing.assert_allclose(net(x).asnumpy(), before, atol=1e-6)


def test_two_adapters_add_up_whatever_comes_first():
    """DoRA rescales what the base computed, not what another adapter has added to it."""
    net, x = Net("linear"), ms.Tensor(weights_of((3, 7), 1))
    pet.add_adapter(net, pet.LoRAConfig(rank=2, targets=["cell"], use_dora=True), "dora")
    pet.add_adapter(net, pet.LoRAConfig(rank=2, targets=["cell"]), "plain")
    for name in ("dora", "plain"):
        randomise(net, name)
    base, results = net(x).asnumpy(), {}
    for names in (["dora"], ["plain"], ["dora", "plain"], ["plain", "dora"]):
        pet.set_adapter(net, names)
        results[tuple(names)] = net(x).asnumpy() - base
    expected = results[("dora",)] + results[("plain",)]
    np.testing.assert_allclose(results[("dora", "plain")], expected, atol=1e-5)
    np.testing.assert_allclose(results[("plain", "dora")], expected, atol=1e-5)
    with pytest.raises(pet.InputError, match="rescales cell"):
        pet.merge(net, "plain")
    pet.merge(net)
    np.testing.assert_allclose(net(x).asnumpy() - base, expected, atol=1e-5)


def test_dropout_is_a_function_of_its_key():
    net = Net("linear", 400, 1)
    pet.apply_lora(net, rank=1, alpha=1, dropout=0.3, targets=["cell"])
    module = registry(net).get("default").modules["cell"]
    x, sums, kept = ms.Tensor(np.ones((20, 400), np.float32)), [], []
    net.set_train(False)
    np.testing.assert_array_equal(module.dropout(x).asnumpy(), x.asnumpy())
    net.set_train(True)
    masks = {}
    for key in range(30):
        set_dropout_key(net, key)
        out = module.dropout(x).asnumpy()
        masks[key] = out
        assert set(np.unique(out)) <= {0.0, np.float32(1 / 0.7)}
        kept.append((out != 0).mean())
        sums.append(out.mean())
    set_dropout_key(net, 7)
    np.testing.assert_array_equal(module.dropout(x).asnumpy(), masks[7])
    assert (masks[7] != masks[8]).mean() == pytest.approx(2 * 0.3 * 0.7, abs=0.03)
    # 240,000 draws: five standard deviations are 0.0047
    assert np.mean(kept) == pytest.approx(0.7, abs=0.005) and np.mean(sums) == pytest.approx(1.0, abs=0.007)
    # neither columns nor rows are drawn together
    assert np.std([masks[0][:, i].mean() for i in range(400)]) == pytest.approx((0.3 / 0.7 / 20) ** 0.5, rel=0.25)
    net.set_train(False)
    np.testing.assert_array_equal(module.dropout(x).asnumpy(), x.asnumpy())


def test_dropout_acts_on_the_adapter_alone():
    net = Net("linear")
    x = ms.Tensor(weights_of((3, 7), 1))
    before = net(x).asnumpy()
    pet.apply_lora(net, rank=2, dropout=0.9, targets=["cell"], use_dora=True)
    net.set_train(True)
    np.testing.assert_array_equal(net(x).asnumpy(), before)


def test_lora_plus_reaches_the_optimizer():
    from pet.train.segments import make_segments

    net = nn.SequentialCell(nn.Dense(4, 4), nn.Embedding(9, 4), nn.Conv2d(2, 2, 3))
    pet.apply_lora(net, rank=2, targets=["0", "1", "2"], learning_rate_ratio=16.0)
    ratios = {
        name: segment.learning_rate_ratio
        for segment in make_segments(pet.trainable_parameters(net))
        for name in segment.names
    }
    assert ratios == {
        "0.lora_A.weight": 1.0,
        "0.lora_B.weight": 16.0,
        "1.lora_embedding_A": 1.0,
        "1.lora_embedding_B": 16.0,
        "2.lora_A.weight": 1.0,
        "2.lora_B.weight": 16.0,
    }


@pytest.mark.parametrize(("bias", "who"), [("all", "the model has"), ("lora_only", "the targets have")])
def test_biases_that_are_not_there_are_told(fixtures, caplog, bias, who):
    pet.apply_lora(pet.AutoModel.from_pretrained(fixtures / "gpt2"), targets=["c_attn"], bias=bias)
    assert "bias" not in caplog.text
    pet.apply_lora(pet.AutoModel.from_pretrained(fixtures / "llama_mha"), targets=["q_proj"], bias=bias)
    assert f"bias: {bias!r} has no effect: {who} no bias" in caplog.text


def test_biases_and_whole_cells_are_copies(fixtures):
    model = pet.AutoModel.from_pretrained(fixtures / "gpt2")
    base = {p.name: p.asnumpy().copy() for p in model.get_parameters()}
    before = model(IDS).asnumpy()
    for settings, count in (
        ({"bias": "lora_only"}, 2),
        ({"bias": "all"}, 2 * 6 + 1),
        ({"modules_to_save": ["ln_f"]}, 2),
        ({"modules_to_save": ["lm_head"]}, 1),
    ):
        pet.apply_lora(model, rank=2, targets=["c_attn"], **settings)
        assert len(pet.trainable_parameters(model)) == 4 + count
        np.testing.assert_array_equal(model(IDS).asnumpy(), before)
        randomise(model)
        assert np.abs(model(IDS).asnumpy() - before).max() > 0.01
        with pet.disable_adapters(model):
            np.testing.assert_array_equal(model(IDS).asnumpy(), before)
        pet.delete_adapter(model, "default")
        assert {p.name: None for p in model.get_parameters()}.keys() == base.keys()
        for name, value in base.items():
            np.testing.assert_array_equal(model.parameters_dict()[name].asnumpy(), value)
    assert model.lm_head.weight is model.transformer.wte.weight


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, "rank is 0"),
        ({"rank": -3}, "rank is -3"),
        ({"rank": 2.5}, "rank is 2.5"),
        ({"rank": 10**9}, "rank is 1000000000"),
        ({"alpha": 0}, "alpha is 0"),
        ({"alpha": float("nan")}, "alpha is nan"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"init": "pisa"}, "init is 'pisa'"),
        ({"bias": "some"}, "bias is 'some'"),
        ({"learning_rate_ratio": 0}, "learning_rate_ratio"),
        ({"trainable_tokens": ["a"]}, "token ids"),
        ({"trainable_tokens": [3, 3]}, "twice"),
        ({"rnak": 3}, "did you mean 'rank'"),
        ({"r": 3}, "'r' .did you mean 'rank'"),
        ({"lora_alpha": 3}, "'lora_alpha' .did you mean 'alpha'"),
        ({"target_modules": ["cell"], "lora_dropout": 0.1}, "(?s)did you mean 'targets'.*did you mean 'dropout'"),
    ],
)
def test_settings_that_make_no_sense(settings, message):
    net = Net("linear")
    with pytest.raises(pet.InputError, match=message):
        pet.apply_lora(net, targets=["cell"], **settings)
    with pytest.raises(pet.InputError, match=message):
        pet.apply(net, pet.LoRAConfig(targets=["cell"], **settings))
    assert type(net.cell) is Linear and pet.list_adapters(net) == []


def test_adapters_stand_before_the_activation_of_a_cell():
    net, x = nn.SequentialCell(nn.Dense(3, 4, activation="relu")), ms.Tensor(np.float32([[1, -2, 3], [-3, 1, 0.5]]))
    weight, bias = (parameter.asnumpy().astype(np.float64) for parameter in net.get_parameters())
    before = net(x).asnumpy()
    pet.apply_lora(net, rank=2, alpha=2, targets=["0"])
    np.testing.assert_array_equal(net(x).asnumpy(), before)
    b, a = np.float32([[1, -1], [0, 2], [-3, 1], [0, 0]]), np.float32([[0, 1, 1], [1, 0, -1]])
    ops.assign(net[0].adapter_default.lora_A.weight, ms.Tensor(a))
    ops.assign(net[0].adapter_default.lora_B.weight, ms.Tensor(b))
    expected = np.maximum(x.asnumpy() @ (weight + b @ a).T + bias, 0)
    assert (expected > 0).any() and (expected == 0).any()
    np.testing.assert_allclose(net(x).asnumpy(), expected, atol=1e-5)
    pet.merge(net)
    np.testing.assert_allclose(net(x).asnumpy(), expected, atol=1e-5)
    pet.unmerge(net)
    with pet.disable_adapters(net):
        np.testing.assert_array_equal(net(x).asnumpy(), before)
    pet.delete_adapter(net, "default")
    np.testing.assert_array_equal(net(x).asnumpy(), before)
