"""The cell of a packed weight: its plain path against the unpacked matrix."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from model_zoo.engine import available, no_bf16, set_kernels
from model_zoo.engine.cells import Eagerly
from model_zoo.errors import InputError
from model_zoo.graph import Graph
from model_zoo.layers import Conv1D, Linear
from model_zoo.quantization import Storage, codec
from model_zoo.quantization.cells import Unpack, is_quantized, quantize_cell
from pet.train.precision import set_precision

STORAGES = [Storage("nf4"), Storage("fp4", 32, True), Storage("nf4", 64, True), Storage("int8"), Storage("int4", 32)]


def packed(storage, shape, kind=Linear):
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32) * np.float32(0.1)
    cell = kind(shape[1], shape[0])
    quantize_cell(cell, "some.place", storage)
    codec.quantize(storage, shape, lambda rows: values[rows], cell.arrays())
    return cell


class Squares(nn.Cell):
    """The sum of the squares of an output, and the matrix."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def construct(self, x):
        y = self.cell(x)
        return (y * y).sum(), y, self.cell.matrix()


@pytest.mark.cover(pairs=False)
@pytest.mark.parametrize("way", ["graph", "eager", "kernels"])
@pytest.mark.parametrize("storage", STORAGES, ids=str)
def test_the_plain_path_is_that_of_the_unpacked_matrix(storage, way):
    before = ms.get_context("mode")
    try:
        ms.set_context(mode=ms.PYNATIVE_MODE if way == "eager" else ms.GRAPH_MODE)
        # in a graph the operators are the same: one shape, as each is compiled
        for shape in [(33, 64)] if way == "graph" else [(40, 96), (33, 64), (5, 32)]:
            cell = packed(storage, shape)
            set_kernels(cell, way == "kernels")
            matrix = cell.dequantized()
            x = np.random.default_rng(1).standard_normal((5, shape[1])).astype(np.float32)
            (_, y, unpacked), gradient = ms.value_and_grad(Squares(cell), 0, has_aux=True)(Tensor(x))
            assert np.array_equal(unpacked.asnumpy(), matrix)
            right = x.astype(np.float64) @ matrix.astype(np.float64).T
            np.testing.assert_allclose(y.asnumpy(), right, atol=2e-6)
            np.testing.assert_allclose(gradient.asnumpy(), 2 * right @ matrix, atol=2e-5)
    finally:
        ms.set_context(mode=before)


class Output(nn.Cell):
    """The sum of the squares of an output, and the output."""

    runs_fast = True

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def construct(self, x):
        y = self.cell(x)
        return (y * y).sum(), y


@pytest.mark.skipif(not available(), reason="there are no C kernels here")
@pytest.mark.cover(pairs=False)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("storage", STORAGES, ids=str)
def test_a_kernel_reads_it_as_it_is(storage, precision, monkeypatch):
    """Outside of programs, as in the shares of a parallel group, too: to the bits of the unpacked matrix, which is
    never there; of few rows to rounding."""
    if precision == "bf16" and no_bf16():
        pytest.skip(no_bf16())
    cell, wide = packed(storage, (40, 96)), Linear(96, 40)
    wide.weight.set_data(Tensor(cell.dequantized()))
    monkeypatch.delattr(Unpack, "construct")
    for rows in (30, 20, 3):
        found = []
        x = Tensor(np.random.default_rng(rows).standard_normal((rows, 96)).astype(np.float32))
        for one in (cell, wide):
            model = Output(one)
            set_precision(model, precision)
            step = ms.value_and_grad(model, 0, has_aux=True)
            if one is cell or precision == "bf16":
                step = Graph(step)
            else:  # the same kernel, and nothing to compile
                set_kernels(model, True)
            with Eagerly():
                (_, y), gradient = step(x)
            found.append((y.asnumpy(), gradient.asnumpy()))
        for mine, right in zip(*found, strict=True):
            assert np.array_equal(mine, right) if rows == 30 else np.allclose(mine, right, atol=1e-5)


@pytest.mark.parametrize("storage", [Storage("nf4"), Storage("int8")], ids=str)
def test_matrices_of_as_many_weights_are_told_apart_outside_of_graphs(storage):
    """MindSpore remembers an operator's output by the shapes of its inputs there, and these have the same ones."""
    before = ms.get_context("mode")
    try:
        ms.set_context(mode=ms.PYNATIVE_MODE)
        for shape in ((112, 64), (64, 112)):
            cell = packed(storage, shape)
            set_kernels(cell, True)
            assert np.array_equal(cell.matrix().asnumpy(), cell.dequantized())
    finally:
        ms.set_context(mode=before)


def test_half_precision_is_not_that_of_the_kernel():
    cell = packed(Storage("nf4"), (40, 96))
    x = np.random.default_rng(1).standard_normal((20, 96)).astype(np.float32)
    right, model = x @ cell.dequantized().T, Output(cell)
    for precision, low, high in (("fp16", 1e-5, 5e-3), ("fp32", 0.0, 5e-6)):
        set_precision(model, precision)
        assert low <= np.abs(Graph(model)(Tensor(x))[1].asnumpy() - right).max() < high


def test_parameters_are_named_as_in_bitsandbytes_files():
    cell = packed(Storage("nf4", 64, True), (8, 64))
    names = {parameter.name: str(parameter.dtype) for parameter in cell.parts()}
    assert names == {
        "some.place.weight": "UInt8",
        "some.place.weight.absmax": "UInt8",
        "some.place.weight.quant_map": "Float32",
        "some.place.weight.nested_absmax": "Float32",
        "some.place.weight.nested_quant_map": "Float32",
        "some.place.weight.nested_offset": "Float32",
    }
    assert [p.name for p in packed(Storage("int8"), (8, 64)).parts()] == ["some.place.weight", "some.place.SCB"]
    assert not any(parameter.requires_grad for parameter in cell.parts())


def test_a_conv1d_lies_as_a_linear_one_does():
    values = np.random.default_rng(0).standard_normal((64, 24)).astype(np.float32)
    cell = Conv1D(64, 24)
    quantize_cell(cell, "c_attn", Storage("int8"))
    codec.quantize(cell.storage, cell.shape, lambda rows: values.T[rows], cell.arrays())
    x = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    assert is_quantized(cell) and isinstance(cell, Linear) and cell.shape == (24, 64)
    np.testing.assert_allclose(cell(Tensor(x)).asnumpy(), x @ cell.dequantized().T, atol=1e-5)
    np.testing.assert_allclose(cell.dequantized().T, values, atol=0.02)


def test_a_matrix_without_such_blocks_is_refused():
    with pytest.raises(InputError, match=r"mlp\.up cannot be stored as int4, blocks of 64: its 96 inputs"):
        quantize_cell(Linear(96, 8), "mlp.up", Storage("int4", 64))
