"""Norms, rotation and activation by Ascend's operators, against the cells' plain paths: a NumPy model of each
operator's documented semantics stands in for it, and refuses what its documentation refuses."""

import functools
import inspect

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, ops

from adapters import dropout
from model_zoo import activations, layers, norms, rotary
from model_zoo.auto import AutoModel
from model_zoo.engine import set_kernels
from model_zoo.generation import cache, decoders
from model_zoo.graph import Graph

B, S = 2, 6
FLOATS = (ms.float16, ms.bfloat16, ms.float32)


def as_array(x) -> np.ndarray:
    return x.astype(ms.float32).asnumpy().astype(np.float64)


def rms_norm_operator(epsilon=1e-6):
    """``ops.RmsNorm`` by its documentation."""

    def norm(x, gamma):
        assert x.dtype in FLOATS and x.dtype == gamma.dtype and 0 < epsilon <= 1
        assert gamma.shape == x.shape[-len(gamma.shape) :]
        wide = as_array(x)
        deviation = 1 / np.sqrt((wide * wide).mean(-1, keepdims=True) + epsilon)
        return Tensor((wide * deviation * as_array(gamma)).astype(np.float32)).astype(x.dtype), Tensor(deviation)

    return norm


def rotary_operator(x, cos, sin, mode=0):
    """``ops.rotary_position_embedding`` by its documentation."""
    assert x.dtype in FLOATS and x.dtype == cos.dtype == sin.dtype and cos.shape == sin.shape
    assert len(x.shape) == 4 and x.shape[3] < 896 and x.shape[3] % 2 == 0
    batch, first, second, width = x.shape
    tokens_first = {(1, first, 1, width)}
    heads_first = {(1, 1, second, width)}
    if mode == 0:
        tokens_first |= {(batch, first, 1, width), (batch, first, second, width)}
        heads_first |= {(batch, 1, second, width), (batch, first, second, width)}
    assert cos.shape in tokens_first | heads_first
    assert batch < 1000 and (second if cos.shape in tokens_first else first) < 1000
    wide = as_array(x)
    if mode == 0:
        turned = np.concatenate((-wide[..., width // 2 :], wide[..., : width // 2]), -1)
    else:
        turned = np.stack((-wide[..., 1::2], wide[..., ::2]), -1).reshape(wide.shape)
    return Tensor((wide * as_array(cos) + turned * as_array(sin)).astype(np.float32)).astype(x.dtype)


def swiglu_operator(input, dim=-1):
    """``ops.swiglu`` by its documentation."""
    assert input.dtype in FLOATS and input.shape[dim] % 2 == 0
    a, b = np.split(as_array(input), 2, dim)
    return Tensor((a / (1 + np.exp(-a)) * b).astype(np.float32)).astype(input.dtype)


@pytest.fixture
def device(monkeypatch):
    """Cells that are made within have the device's operators, by their stand-ins."""
    for module in ("norms", "rotary", "activations"):
        monkeypatch.setattr(f"model_zoo.{module}.has_operators", lambda: True)
    monkeypatch.setattr(ops, "RmsNorm", rms_norm_operator)
    monkeypatch.setattr(ops, "rotary_position_embedding", rotary_operator)
    monkeypatch.setattr(ops, "swiglu", swiglu_operator)


def test_the_stand_ins_take_what_mindspore_takes():
    primitive, operators = (
        inspect.signature(ops.RmsNorm.__init__),
        (
            (rotary_operator, ops.rotary_position_embedding),
            (swiglu_operator, ops.swiglu),
        ),
    )
    assert list(primitive.parameters)[1:] == list(inspect.signature(rms_norm_operator).parameters)
    for stand_in, operator in operators:
        assert inspect.signature(stand_in) == inspect.signature(operator)


def without_device(cell):
    """The same cell by its plain path."""
    for _, each in cell.cells_and_names():
        if getattr(each, "device", None) is not None:
            delattr(each, "device")
            each.device = None
    return cell


def both_ways(cell, *inputs) -> None:
    """Asserts that the operator is used, and gives what the plain path gives."""
    found = cell(*inputs)
    expected = without_device(cell)(*inputs)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    limit = 1e-5 if inputs[0].dtype == ms.float32 else 1e-2  # the plain path rounds on its way to a wider weight
    assert np.abs(as_array(found) - as_array(expected)).max() <= limit * np.abs(as_array(expected)).max()


def normal(*shape, dtype=ms.float32):
    return Tensor(np.random.default_rng(11).normal(size=shape).astype(np.float32)).astype(dtype)


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("types", [(ms.float32, ms.float32), (ms.float16, ms.float16), (ms.float16, ms.float32)])
def test_rms_norm(device, types, offset):
    cell = norms.RMSNorm(24, 1e-6, types[1], offset)
    cell.weight.set_data(normal(24, dtype=types[1]))
    assert cell.device is not None
    both_ways(cell, normal(5, 24, dtype=types[0]))


@pytest.mark.parametrize("types", [(ms.float32, ms.float32), (ms.float16, ms.float16), (ms.float16, ms.float32)])
def test_layer_norm(device, types):
    cell = norms.LayerNorm(24, 1e-5, types[1])
    cell.weight.set_data(normal(24, dtype=types[1]))
    cell.bias.set_data(normal(24, dtype=types[1]))
    assert cell.device is not None
    both_ways(cell, normal(5, 24, dtype=types[0]))  # this one MindSpore has on every device


@pytest.mark.parametrize("form", ["half", "interleaved"])
@pytest.mark.parametrize("width", [16, 8])
@pytest.mark.parametrize("dtype", [ms.float32, ms.float16])
def test_rotated_heads(device, form, width, dtype):
    table = rotary.RotaryTable(rotary.rotary_frequencies(width), form)
    cell = layers.SplitRotary(rotary.Rotary(form, width, 16), 16)
    start = np.zeros((B, S), np.int32)
    positions = Tensor(np.stack([np.arange(S), np.arange(S)[::-1]]).astype(np.int32))  # other ones in each row
    both_ways(cell, normal(B * S, 3 * 16, dtype=dtype), *table(positions), Tensor(start))


@pytest.mark.parametrize(("form", "batch"), [("half", 2), ("interleaved", 1), ("interleaved", 2)])
def test_rotation_of_heads(device, form, batch):
    table = rotary.RotaryTable(rotary.rotary_frequencies(16), form)
    positions = Tensor(np.tile(np.arange(S), (batch, 1)).astype(np.int32))
    both_ways(rotary.Rotary(form, 16, 16), normal(batch, 3, S, 16), *table(positions))


@pytest.mark.parametrize("form", ["half", "interleaved"])
def test_the_gradient_of_a_rotation(device, form):
    table = rotary.RotaryTable(rotary.rotary_frequencies(16), form)
    cosine, sine = table(Tensor(np.arange(S)[None].astype(np.int32)))
    cell, x, slope = rotary.Rotary(form, 16, 16), normal(1, 3, S, 16), normal(1, 3, S, 16) * 2 + 1
    (found,) = cell.device.bprop(x, cosine, sine, None, slope)[:1]
    without_device(cell)
    expected = ms.grad(lambda x: (cell(x, cosine, sine) * slope).sum())(x)
    assert np.abs(as_array(found) - as_array(expected)).max() < 1e-5


@pytest.mark.parametrize("dtype", [ms.float32, ms.float16])
def test_swiglu(device, dtype):
    both_ways(activations.SwiGLU(), normal(5, 24, dtype=dtype), normal(5, 24, dtype=dtype) + 1)
    cell = activations.Joined(activations.SwiGLU())
    assert cell.device is not None
    both_ways(cell, normal(5, 48, dtype=dtype))


def test_a_gate_without_an_operator_is_plain(device):
    assert activations.Joined(activations.GeGLU()).device is None


def test_compiled_kernels_do_not_take_the_place_of_operators(device):
    with_operator, without = activations.SwiGLU(), activations.GeGLU()
    for cell in (with_operator, without):
        set_kernels(cell, True)
    assert without.fast and not with_operator.fast


# Operators that Ascend has slowly, or not for all types ---------------------------------------------------------------


def test_bits_are_moved_down_without_an_operator_for_it():
    ends = [0, 1, -1, 0x7FFFFFFF, -0x80000000, 0xFFFF, 0x10000, -0x10000, -0x10001]
    words = np.concatenate([ends, np.random.default_rng(0).integers(-(2**31), 2**31, 4096)]).astype(np.int32)
    for count in (13, 16):
        for by_product in (False, True):
            found = Graph(functools.partial(dropout.shifted, count=count, by_product=by_product))(Tensor(words))
            assert found.dtype == ms.int32
            np.testing.assert_array_equal(found.asnumpy(), words.view(np.uint32) >> count)


def test_a_bias_is_added_by_the_operator_for_all_types(monkeypatch):
    monkeypatch.setattr(layers, "on_ascend", lambda: True)
    cell, x = layers.Linear(8, 4), normal(3, 8)
    assert isinstance(cell.add_bias, ops.Add)
    cell.weight.set_data(normal(4, 8))
    cell.bias.set_data(normal(4))
    np.testing.assert_allclose(
        cell(x).asnumpy(), x.asnumpy() @ cell.weight.asnumpy().T + cell.bias.asnumpy(), 1e-5, 1e-5
    )
    gradient = ms.grad(lambda x: cell(x).sum(), None, cell.bias)(x)
    np.testing.assert_array_equal(gradient.asnumpy(), np.full(4, 3.0))


def test_a_cache_is_written_by_points(monkeypatch):
    config = {"model_type": "mistral", "sliding_window": 4, "hidden_size": 32, "intermediate_size": 48}
    config |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    config |= {"vocab_size": 64, "max_position_embeddings": 64}
    prompt, found = np.arange(10, 22).reshape(2, 6), []
    monkeypatch.setattr("model_zoo.engine.switched_off", lambda: True)
    monkeypatch.setattr(decoders, "available", lambda: False)
    for on_ascend in (False, True):
        monkeypatch.setattr(cache, "on_ascend", lambda on_ascend=on_ascend: on_ascend)
        model = AutoModel.from_config(config, seed=3)
        found.append(model.generate(prompt, max_new_tokens=4, eos_token_id=None))
    np.testing.assert_array_equal(*found)
