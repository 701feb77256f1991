"""LoRA on embeddings and convolutions, and trained token rows: formulas in float64, gradients by finite differences."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops

import pet
from adapters.registry import registry
from model_zoo.layers import Embedding, name_parameters

IDS = np.array([[3, 5, 3, 8], [0, 8, 8, 1]])


def randomise(model, scale=0.3):
    generator = np.random.default_rng(3)
    for parameter in registry(model).get("default").parameters():
        value = parameter.asnumpy() + scale * generator.standard_normal(parameter.shape)
        ops.assign(parameter, ms.Tensor(value.astype(np.float32)))


def check_gradients(net, inputs, formula, shape):
    """Compares the gradients of Σ c·y with central differences of a float64 formula of the adapter's tensors."""
    c = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    adapter = registry(net).get("default")
    tensors = adapter.tensors()
    parts = {key: value.asnumpy().astype(np.float64) for key, value in tensors.items()}
    np.testing.assert_allclose(net(inputs).asnumpy(), formula(parts, parts), rtol=0, atol=2e-5)

    def loss(inputs):
        return (net(inputs) * ms.Tensor(c)).sum()

    gradients = ms.grad(loss, None, ms.ParameterTuple(list(tensors.values())))(inputs)
    for key, gradient in zip(tensors, gradients, strict=True):
        expected = np.zeros(parts[key].shape)
        for place in np.ndindex(*expected.shape):
            sides = []
            for step in (1e-6, -1e-6):
                moved = {name: value.copy() for name, value in parts.items()}
                moved[key][place] += step
                sides.append((formula(moved, parts) * c).sum())
            expected[place] = (sides[0] - sides[1]) / 2e-6
        assert np.abs(expected).max() > 0.01
        np.testing.assert_allclose(gradient.asnumpy(), expected, rtol=0, atol=3e-5 * np.abs(expected).max())


class Table(nn.Cell):
    def __init__(self, ours):
        super().__init__()
        self.table = Embedding(9, 4) if ours else nn.Embedding(9, 4)
        name_parameters(self)
        weight = next(iter(self.get_parameters()))
        ops.assign(weight, ms.Tensor(np.random.default_rng(5).standard_normal((9, 4)).astype(np.float32)))

    def construct(self, ids):
        return self.table(ids)


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("ours", [True, False], ids=["Embedding", "nn.Embedding"])
def test_embedding(ours, dora):
    net, ids = Table(ours), ms.Tensor(IDS.astype(np.int32))
    before = net(ids).asnumpy()
    weight = next(iter(net.get_parameters())).asnumpy().astype(np.float64)
    pet.apply_lora(net, rank=2, alpha=3, targets=["table"], use_dora=dora)
    module = registry(net).get("default").modules["table"]
    assert not module.lora_embedding_A.asnumpy().any() and module.lora_embedding_B.asnumpy().any()
    assert module.lora_embedding_A.shape == (2, 9) and module.lora_embedding_B.shape == (4, 2)
    np.testing.assert_array_equal(net(ids).asnumpy(), before)
    randomise(net)

    def table(parts, held):
        def whole(p):
            return weight + 1.5 * (p["table.lora_embedding_B"] @ p["table.lora_embedding_A"]).T

        merged = whole(parts)
        if dora:
            merged = merged * parts["table.lora_magnitude_vector"] / np.linalg.norm(whole(held), axis=0)
        return merged

    check_gradients(net, ids, lambda parts, held: table(parts, held)[IDS], before.shape)
    parts = {key: value.asnumpy().astype(np.float64) for key, value in registry(net).get("default").tensors().items()}
    pet.merge(net)
    np.testing.assert_allclose(next(iter(net.get_parameters())).asnumpy(), table(parts, parts), atol=1e-6)
    pet.unmerge(net)
    with pet.disable_adapters(net):
        np.testing.assert_array_equal(net(ids).asnumpy(), before)


def convolve(x, weight, bias, stride, padding, dilation):
    """A convolution by its definition: x (B, in, H, W), weight (out, in, kh, kw)."""
    x = np.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
    high, wide = weight.shape[2:]
    rows = (x.shape[2] - dilation[0] * (high - 1) - 1) // stride[0] + 1
    columns = (x.shape[3] - dilation[1] * (wide - 1) - 1) // stride[1] + 1
    y = np.zeros((x.shape[0], weight.shape[0], rows, columns))
    for i in range(rows):
        for j in range(columns):
            top, left = i * stride[0], j * stride[1]
            patch = x[
                :, :, top : top + dilation[0] * high : dilation[0], left : left + dilation[1] * wide : dilation[1]
            ]
            y[:, :, i, j] = np.einsum("bchw,ochw->bo", patch[:, :, :high, :wide], weight)
    return y + bias.reshape(1, -1, 1, 1)


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("flat", [False, True], ids=["Conv2d", "Conv1d"])
def test_convolution(flat, dora):
    generator = np.random.default_rng(1)
    if flat:
        cell = nn.Conv1d(3, 4, 3, stride=2, pad_mode="pad", padding=2, dilation=2, has_bias=True)
        x, place = generator.standard_normal((2, 3, 9)), ((1, 2), (0, 2), (1, 2))
    else:
        cell = nn.Conv2d(3, 4, (3, 2), stride=2, pad_mode="pad", padding=1, has_bias=True)
        x, place = generator.standard_normal((2, 3, 6, 5)), ((2, 2), (1, 1), (1, 1))
    net = nn.SequentialCell(cell)
    name_parameters(net)
    ops.assign(cell.bias, ms.Tensor(generator.standard_normal(4).astype(np.float32)))
    x = x.astype(np.float32)
    before = net(ms.Tensor(x)).asnumpy()
    weight, bias = cell.weight.asnumpy().astype(np.float64), cell.bias.asnumpy().astype(np.float64)
    pet.apply_lora(net, rank=2, alpha=3, targets=["0"], use_dora=dora)
    np.testing.assert_array_equal(net(ms.Tensor(x)).asnumpy(), before)
    module = registry(net).get("default").modules["0"]
    # PEFT's shapes: A a convolution with the kernel, B one of width 1
    assert module.lora_A.weight.shape == ((2, 3, 3) if flat else (2, 3, 3, 2))
    assert module.lora_B.weight.shape == ((4, 2, 1) if flat else (4, 2, 1, 1))
    randomise(net)

    def merged(parts, held):
        def whole(p):
            product = p["0.lora_B.weight"].reshape(4, 2) @ p["0.lora_A.weight"].reshape(2, -1)
            return weight + 1.5 * product.reshape(weight.shape)

        result = whole(parts)
        if dora:
            norm = np.sqrt((whole(held) ** 2).sum((1, 2, 3)))
            result = result * (parts["0.lora_magnitude_vector"].reshape(-1) / norm)[:, None, None, None]
        return result

    def formula(parts, held):
        inputs = x.astype(np.float64)
        y = convolve(inputs[:, :, None] if flat else inputs, merged(parts, held), bias, *place)
        return y.reshape(before.shape)

    check_gradients(net, ms.Tensor(x), formula, before.shape)
    parts = {key: value.asnumpy().astype(np.float64) for key, value in registry(net).get("default").tensors().items()}
    pet.merge(net)
    np.testing.assert_allclose(cell.weight.asnumpy(), merged(parts, parts), atol=1e-6)
    pet.unmerge(net)
    np.testing.assert_array_equal(cell.weight.asnumpy(), weight.astype(np.float32))


@pytest.mark.parametrize("mode", ["same", "valid"])
def test_convolution_with_dropout_and_padding_modes(mode):
    net = nn.SequentialCell(nn.Conv2d(2, 3, 3, pad_mode=mode))
    x = ms.Tensor(np.random.default_rng(0).standard_normal((1, 2, 6, 6)).astype(np.float32))
    pet.apply_lora(net, rank=2, dropout=0.5, targets=["0"])
    randomise(net)
    net.set_train(False)
    quiet = net(x).asnumpy()
    net.set_train(True)
    assert np.abs(net(x).asnumpy() - quiet).max() > 1e-3
    net.set_train(False)
    pet.merge(net)
    np.testing.assert_allclose(net(x).asnumpy(), quiet, atol=1e-5)


def test_a_grouped_convolution_is_refused():
    net = nn.SequentialCell(nn.Conv2d(4, 4, 3, group=2))
    with pytest.raises(pet.InputError, match="2 groups"):
        pet.apply_lora(net, rank=2, targets=["0"])
    with pytest.raises(pet.InputError, match="linear cells"):
        pet.apply_lora(nn.SequentialCell(nn.Conv2d(4, 4, 3)), rank=2, targets=["0"], init="pissa")


# Trained tokens ------------------------------------------------------------------------------------------------------

TEXT = np.array([[3, 5, 77, 8], [5, 90, 77, 77]])


@pytest.mark.parametrize("family", ["gpt2", "llama_gqa"])
def test_trained_tokens(fixtures, family):
    """Equal to a model whose table, and tied head, has these rows."""
    model = pet.AutoModel.from_pretrained(fixtures / family)
    name = model.family.embedding
    before = model(TEXT).asnumpy()
    pet.apply_lora(model, rank=2, trainable_tokens=[77, 5])
    np.testing.assert_array_equal(model(TEXT).asnumpy(), before)
    adapter = registry(model).get("default")
    rows = adapter.tensors()[f"{name}.token_adapter.trainable_tokens_delta"]
    table = model.parameters_dict()[f"{name}.weight"]
    np.testing.assert_array_equal(rows.asnumpy(), table.asnumpy()[[77, 5]])
    assert sum(p is rows for p in pet.trainable_parameters(model)) == 1
    new = rows.asnumpy() + np.random.default_rng(0).standard_normal(rows.shape).astype(np.float32)
    ops.assign(rows, ms.Tensor(new))
    found, base = model(TEXT).asnumpy(), table.asnumpy().copy()
    with pet.disable_adapters(model):
        changed = base.copy()
        changed[[77, 5]] = new
        ops.assign(table, ms.Tensor(changed))
        expected = model(TEXT).asnumpy()
        ops.assign(table, ms.Tensor(base))
    assert np.abs(found - before).max() > 0.1
    np.testing.assert_allclose(found, expected, atol=2e-5)
    report = pet.merge(model)
    assert report.untied == ()  # the head takes part in the change, so it stays tied
    np.testing.assert_array_equal(table.asnumpy(), changed)
    np.testing.assert_allclose(model(TEXT).asnumpy(), expected, atol=1e-6)
    pet.unmerge(model)
    np.testing.assert_array_equal(table.asnumpy(), base)
    np.testing.assert_allclose(model(TEXT).asnumpy(), found, atol=0)


def test_the_gradient_of_tied_token_rows(fixtures):
    """Rows that both the table and the head use get the sum of both gradients."""
    model = pet.AutoModel.from_pretrained(fixtures / "gpt2")
    pet.apply_lora(model, rank=2, trainable_tokens=[77, 5])
    rows = registry(model).get("default").tensors()["transformer.wte.token_adapter.trainable_tokens_delta"]
    generator = np.random.default_rng(0)
    ops.assign(rows, ms.Tensor(rows.asnumpy() + 0.1 * generator.standard_normal(rows.shape).astype(np.float32)))
    c = generator.standard_normal((2, 4, 128)).astype(np.float32)

    def loss(ids):
        return (model.construct(ids) * ms.Tensor(c)).mean()

    ids = ms.Tensor(TEXT.astype(np.int32))
    (gradient,) = ms.grad(loss, None, ms.ParameterTuple([rows]))(ids)
    start, direction = rows.asnumpy().copy(), generator.standard_normal(rows.shape)
    sides = []
    for step in (3e-3, -3e-3):
        ops.assign(rows, ms.Tensor((start + step * direction).astype(np.float32)))
        sides.append((model.construct(ids).asnumpy().astype(np.float64) * c).mean())
    expected = (sides[0] - sides[1]) / 6e-3
    assert abs(expected) > 1e-4
    assert (gradient.asnumpy() * direction).sum() == pytest.approx(expected, rel=5e-3)


def test_token_settings_that_do_not_fit(fixtures):
    model = pet.AutoModel.from_pretrained(fixtures / "llama_gqa")
    for settings, message in (
        ({"trainable_tokens": [128]}, "id 128"),
        ({"trainable_tokens": {"embed_token": [1]}}, "did you mean 'embed_tokens'"),
        ({"trainable_tokens": [1], "targets": ["embed_tokens"]}, "a target too"),
    ):
        with pytest.raises(pet.InputError, match=message):
            pet.apply_lora(model, rank=2, **settings)
    assert pet.list_adapters(model) == []
    # rows of an untied head are its own
    pet.apply_lora(model, rank=2, trainable_tokens={"embed_tokens": [1, 2], "lm_head": [4]})
    shapes = {key: tuple(p.shape) for key, p in registry(model).get("default").tensors().items() if "token" in key}
    assert shapes == {
        "model.embed_tokens.token_adapter.trainable_tokens_delta": (2, 64),
        "lm_head.token_adapter.trainable_tokens_delta": (1, 64),
    }
