"""Ascend's product with a weight in 8 or 4 bits behind `PackedProduct`, against its plain path: a NumPy model of the
operator's documented semantics stands in for it, and refuses what its documentation refuses."""

from __future__ import annotations

import inspect
from typing import ClassVar

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn
from mindspore.ops.auto_generate import WeightQuantBatchMatmul

from model_zoo.ascend import product as ascend_product
from model_zoo.layers import Linear
from model_zoo.quantization import Storage, codec
from model_zoo.quantization.cells import quantize_cell
from pet.train.precision import set_precision

IN, OUT = 128, 48


class Operator:
    """``WeightQuantBatchMatmul`` by aclnnWeightQuantBatchMatmulV2's documentation, for the Atlas A2 and A3."""

    calls: ClassVar[list] = []

    def __init__(self, transpose_x=False, transpose_weight=False, antiquant_group_size=0):
        self.transpose_x, self.transpose_weight, self.group = transpose_x, transpose_weight, antiquant_group_size

    def __call__(
        self, x, weight, antiquant_scale, antiquant_offset=None, quant_scale=None, quant_offset=None, bias=None
    ):
        assert x.dtype in (ms.float16, ms.bfloat16) and x.ndim == 2 and not self.transpose_x
        assert (quant_scale, quant_offset, bias) == (None,) * 3
        codes = weight.asnumpy().view(np.int8)
        assert weight.dtype in (ms.int8, ms.qint4x2) and codes.ndim == 2
        if weight.dtype == ms.qint4x2:  # along the inner axis, the even one in the low half, two's complement
            pairs = np.stack((codes << 4 >> 4, codes >> 4), -1)
            codes = pairs.reshape(codes.shape[0], -1)
        codes = codes.T if self.transpose_weight else codes  # (k, n)
        k, n = codes.shape
        assert x.shape[1] == k and 1 <= k <= 65535 and 1 <= n <= 65535
        if self.group:
            assert 32 <= self.group <= k - 1 and self.group % 32 == 0
            assert antiquant_scale.shape == (-(-k // self.group), n)
        else:
            assert antiquant_scale.shape in ((n,), (1, n))
        wide = codes.astype(np.float32)
        for values, act in ((antiquant_offset, np.add), (antiquant_scale, np.multiply)):
            if values is not None:
                assert values.dtype == x.dtype and values.shape == antiquant_scale.shape
                numbers = values.astype(ms.float32).asnumpy().reshape(-1, n)
                wide = act(wide, np.repeat(numbers, self.group or k, 0)[:k])
        self.calls.append(weight.dtype)
        return Tensor(x.astype(ms.float32).asnumpy() @ wide).astype(x.dtype)


@pytest.fixture
def calls(monkeypatch) -> list:
    """The operator's stand-in, on what says it is Ascend; every call is noted."""
    monkeypatch.setattr(ascend_product, "WeightQuantBatchMatmul", Operator)
    monkeypatch.setattr(ascend_product, "has_operators", lambda: True)
    monkeypatch.setattr(Operator, "calls", [])
    return Operator.calls


def test_the_stand_in_takes_what_mindspore_takes():
    for name in ("__init__", "__call__"):
        mine, theirs = (
            list(inspect.signature(getattr(one, name)).parameters) for one in (Operator, WeightQuantBatchMatmul)
        )
        assert mine == theirs


def packed(storage, shape=(OUT, IN)):
    """A cell with random numbers in this form, and zero points where the form has them."""
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32) * np.float32(0.1)
    cell = Linear(shape[1], shape[0])
    quantize_cell(cell, "some.place", storage)
    plain = Storage(storage.kind, storage.block)
    arrays = codec.quantize(plain, shape, lambda rows: values[rows])
    if storage.zeros:
        arrays["zeros"] = np.random.default_rng(1).integers(0, 16, plain.blocks(shape)).astype(np.uint8)
    cell.put(arrays)
    return cell


FORMS = [
    Storage("int8"),
    Storage("int4", 32),
    Storage("int4", 64),
    Storage("int4", IN),  # one group per output
    Storage("int4", 64, zeros=True),
]


class Squares(nn.Cell):
    """The sum of the squares of an output, and the output."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def construct(self, x):
        y = self.cell.multiply(x)
        return (y.astype(ms.float32) ** 2).sum(), y


@pytest.mark.parametrize("storage", FORMS, ids=lambda one: f"{one.kind}-{one.block}{'-zeros' * one.zeros}")
def test_it_is_the_plain_path(calls, storage):
    before = ms.get_context("mode")
    try:
        ms.set_context(mode=ms.PYNATIVE_MODE)
        cell = packed(storage)
        x = np.random.default_rng(2).standard_normal((5, IN)).astype(np.float16)
        right = x.astype(np.float64) @ cell.dequantized().astype(np.float64).T
        model, largest = Squares(cell), np.abs(right).max()
        for dtype, limit in ((ms.float16, 2e-3), (ms.bfloat16, 2e-2)):
            y = model(Tensor(x).astype(dtype))[1]
            assert y.dtype == dtype
            assert np.abs(y.astype(ms.float32).asnumpy() - right).max() < limit * largest
        assert calls == [ms.int8 if storage.kind == "int8" else ms.qint4x2] * 2
        gradient = ms.grad(model, 0, has_aux=True)(Tensor(x))[0].asnumpy()
        expected = 2 * right @ cell.dequantized()
        assert np.abs(gradient - expected).max() < 5e-3 * np.abs(expected).max()
    finally:
        ms.set_context(mode=before)


def test_the_type_of_the_product_counts(calls):
    model = Squares(packed(Storage("int4", 32)))
    x = Tensor(np.random.default_rng(2).standard_normal((5, IN)).astype(np.float32))
    plain = model(x)[1].asnumpy()
    assert calls == []  # float32 is none of its types
    set_precision(model, "fp16")
    y = model(x)[1]
    assert calls == [ms.qint4x2] and y.dtype == ms.float32
    assert 0 < np.abs(y.asnumpy() - plain).max() < 5e-3 * np.abs(plain).max()


@pytest.mark.parametrize(
    ("target", "storage", "shape", "has"),
    [
        ("Ascend", Storage("int8"), (48, 30), True),
        ("Ascend", Storage("int8"), (65536, 64), False),
        ("Ascend", Storage("int4", 64), (48, 128), True),
        ("Ascend", Storage("int4", 16), (48, 128), False),  # a part of a matrix that was cut
        ("Ascend", Storage("int4", 64), (47, 128), False),
        ("Ascend", Storage("nf4"), (48, 128), False),
        ("CPU", Storage("int8"), (48, 30), False),
    ],
    ids=str,
)
def test_device_form_and_sizes_decide(monkeypatch, target, storage, shape, has):
    monkeypatch.setattr(ms, "get_context", lambda name: target)
    assert ascend_product.has_quantized_product(storage, shape) == has
