"""The table of operations: every kernel's gradient rule against the row's plain column, that against the cells' own
operators, both against finite differences; fast models against their references."""

from __future__ import annotations

import ctypes
import inspect
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from model_zoo import activations, engine, layers, norms, rotary
from model_zoo.engine import cells, loss as engine_loss, plain as kernels
from model_zoo.engine.build import library
from model_zoo.engine.ops import OPS, ROWS

sys.path.insert(0, str(Path(__file__).parent))

from native_kernels import LOW as IN_BFLOAT16, bf16
from operations import Weighted, check, needs_kernels, numbers

IGNORED = -100
SIZES = {"B": 2, "S": 6, "T": 6, "C": 6, "h": 4, "g": 2, "d": 8, "w": 4, "b": 2}
SIZES |= {"N": 12, "H": 10, "K": 7, "M": 9, "R": 3, "O": 9, "I": 7, "E": 5, "k": 2, "V": 9, "*": (12, 10)}
NUMBERS = {"eps": 1e-5, "scale": 0.5, "factor": 1.75, "transposed": False, "causal": True, "d": 8, "w": 4}
NUMBERS |= {"window": 4, "cap": 1.5, "offset": 1.0, "chosen": 2, "normed": False, "padding": -1, "taken": False}
IN_PROGRAMS = {"take_columns", "join_columns", "dropout"}
"""Rows whose gradients need other instructions, or that have no plain column: `test_whole_layers.py` holds these to the
cells' own operators."""


def arguments_of(op) -> list[np.ndarray]:
    """Arrays for the tensors of a signature. Integers are, in this order: where a row's interval starts, where it ends
    (it is causal), and who sees a key."""
    found, integers = [], []
    for field in op.inputs:
        if field.constant or field.optional:
            continue
        shape = field.shape(SIZES)
        if field.floats:
            values = numbers(*shape, seed=len(found))
            if field.axes[-1] == "w":  # cosines and sines: alike for both members of a pair
                values = np.repeat(values[..., :1], shape[-1], -1)
            found.append(values + 0.1 * np.sign(values))  # away from where a function has no slope
        else:
            integers.append(np.zeros(shape, np.int32) if not integers else np.tile(np.arange(1, 7), (2, 1)))
            if len(integers) == 3:
                integers[-1] = np.ones(shape)
            found.append(integers[-1].astype(np.int32))
    return found


LOW = {op.name for op in ROWS if op.name.endswith("_bf16")}
"""Rows that round their factors, and so have no slope to be compared with differences."""


@needs_kernels
@pytest.mark.parametrize("name", [op.name for op in ROWS if op.vjp and op.name not in IN_PROGRAMS | LOW])
def test_gradient_rules_are_those_of_the_plain_column(name):
    op = OPS[name]
    parameters = inspect.signature(op.plain).parameters.values()
    given = {one.name: NUMBERS[one.name] for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD}
    native, plain, arrays = cells.native(name, **given), op.plain(**given), arguments_of(op)
    if name == "dora":  # its fifth input is the norm of its second one's rows
        arrays[4] = np.linalg.norm(arrays[1], axis=1)
    if name == "rows_of":  # some several times, and one never
        arrays[1] = np.random.default_rng(3).integers(8, size=arrays[1].shape).astype(np.int32)
    if "experts" in name or name == "sum_by_share":  # as the choice says: rows, their experts, their tokens
        chosen = np.sort(np.argsort(numbers(12, 5), -1)[:, :2], -1)
        order = np.argsort(chosen.reshape(-1), kind="stable")
        rows, experts, tokens = np.argsort(order), chosen.reshape(-1)[order], order // 2
        given = (tokens, rows) if name == "rows_to_experts" else (rows, experts)
        arrays[-2:] = [array.reshape(12, 2).astype(np.int32) for array in given]
    constant = {"dora": (1, 2, 3, 4)}.get(name, [index for index, field in enumerate(op.inputs) if "w" in field.axes])
    check(native, plain, arrays, None, 1e-5, constant)


@needs_kernels
def test_every_row_is_a_function_in_c():
    compiled = ctypes.CDLL(str(library()))
    assert [op.name for op in ROWS if not hasattr(compiled, op.name)] == []


def test_kernels_are_checked_with_numbers_in_bfloat16_where_the_table_allows_it():
    """And the gradient of an operation takes what the operation may leave in bfloat16."""
    marked = {}
    for op in ROWS:
        fields = [tuple(i for i, field in enumerate(some) if field.low) for some in (op.inputs, op.outputs)]
        if any(fields):
            marked[op.name] = tuple(fields)
    assert marked == IN_BFLOAT16
    for name, (inputs, outputs) in marked.items():
        gradient = f"{name}_gradient"
        if gradient in OPS:
            assert set(inputs) <= set(marked[gradient][0]), name
            assert len(marked[gradient][0]) > len(inputs) or not outputs, name


class Plain(nn.Cell):
    """A plain cell as a function of its inputs and weights."""

    def __init__(self, kind, eps):
        super().__init__()
        self.kind, self.eps = kind, eps

    def construct(self, x, weight, bias=None):
        if self.kind == "rms":
            return x * ops.rsqrt((x * x).mean(-1, keep_dims=True) + self.eps) * weight
        centred = x - x.mean(-1, keep_dims=True)
        return centred * ops.rsqrt((centred * centred).mean(-1, keep_dims=True) + self.eps) * weight + bias


@pytest.mark.parametrize("shape, compiled", [((12, 8), True), ((1, 5), False), ((7, 33), False)])
def test_norms(shape, compiled):
    x, weight, bias = numbers(*shape), numbers(shape[1]), numbers(shape[1], seed=3)
    check(kernels.rms_norm(1e-6, 0.0), Plain("rms", 1e-6), (x, weight), compiled=compiled)
    moved = Plain("rms", 1e-6)
    check(kernels.rms_norm(1e-6, 1.0), lambda x, weight: moved(x, weight + 1.0), (x, weight), compiled=compiled)
    check(kernels.layer_norm(1e-5), Plain("layer", 1e-5), (x, weight, bias), tolerance=1e-5, compiled=compiled)


def test_plain_norms_are_the_cells_own():
    x = Tensor(numbers(6, 16))
    rms, layer = norms.RMSNorm(16, 1e-6), norms.LayerNorm(16, 1e-5)
    rms.weight.set_data(Tensor(numbers(16)))
    layer.bias.set_data(Tensor(numbers(16)))
    for cell, extra in ((rms, ()), (layer, (layer.bias,))):
        plain = cell(x).asnumpy()
        cell.fast = True
        np.testing.assert_allclose(ms.jit(cell)(x).asnumpy(), plain, atol=1e-6)
        assert len(extra) == len(cell.trainable_params()) - 1


@pytest.mark.parametrize("shape, compiled", [((12, 8), True), ((3, 11), False)])
def test_activations(shape, compiled):
    swiglu, geglu, gelu = activations.SwiGLU(), activations.GeGLU(), activations.GeluTanh()
    check(kernels.swiglu(), swiglu, (numbers(*shape), numbers(*shape, seed=1)), compiled=compiled)
    check(kernels.gelu_tanh(), gelu, (numbers(*shape) * 2,), compiled=compiled)
    check(kernels.geglu(), geglu, (numbers(*shape) * 2, numbers(*shape, seed=1)), compiled=compiled)
    check(cells.native("gelu"), activations.Activation("gelu"), (numbers(*shape) * 2,), compiled=compiled)


@needs_kernels
@pytest.mark.parametrize("transposed", [False, True])
def test_products(transposed):
    primitive = ops.MatMul(transpose_b=transposed)
    cell = nn.Cell()
    cell.product = primitive
    engine.set_kernels(cell, True)
    assert layers.is_product(cell.product) and cell.product is not primitive
    right = numbers(5, 33, seed=1) if transposed else numbers(33, 5, seed=1)
    check(cell.product, primitive, (numbers(19, 33), right), tolerance=1e-5)


@pytest.mark.skipif(bool(engine.no_bf16()), reason=engine.no_bf16())
@pytest.mark.parametrize("name", sorted(name for name in LOW if "product" in name and OPS[name].vjp))
def test_products_of_rounded_factors(name):
    """The kernel's are the plain column's; their gradients, where the gradient of the product needs no rounding."""
    native, plain = cells.native(name), OPS[name].plain()
    arrays = numbers(45, 33), numbers(*((7, 33) if "rows" in name else (33, 7)), seed=1)

    inputs = [Tensor(array) for array in arrays]
    np.testing.assert_allclose(ms.jit(native)(*inputs).asnumpy(), plain(*inputs).asnumpy(), atol=1e-5)
    direction = Tensor(bf16(numbers(45, 7, seed=2)))
    found, expected = (
        ms.jit(ops.grad(Weighted(cell, direction), (0, 1), has_aux=True))(*inputs)[0] for cell in (native, plain)
    )
    for mine, theirs in zip(found, expected, strict=True):
        assert np.abs(theirs.asnumpy()).max() > 1
        np.testing.assert_allclose(mine.asnumpy(), theirs.asnumpy(), atol=1e-4)
    plain = Weighted(ops.MatMul(transpose_b="rows" in name), direction)
    single = ms.jit(ops.grad(plain, (0, 1), has_aux=True))(*inputs)[0]
    assert np.abs(single[0].asnumpy() - found[0].asnumpy()).max() > 1e-3, "not rounded at all"


def test_a_softmax_of_one_number_leaves_the_gradients_of_others_alone():
    """MindSpore keeps that of the first one of so many axes, which no other test has."""
    generator = np.random.default_rng(0)
    for width in (1, 5):
        scores, dout = generator.standard_normal((2, 1, 1, 1, 1, 1, 3, width)).astype(np.float32)
        found = ms.grad(lambda x, dout: (engine.softmax(x) * dout).sum())(Tensor(scores), Tensor(dout)).asnumpy()
        shares = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        expected = shares * (dout - (shares * dout).sum(-1, keepdims=True))
        assert np.abs(found - expected).max() < 1e-6


def test_low_rank():
    def plain(y, x, a, b):
        return y + ops.matmul(ops.matmul(x, a.T), b.T) * 0.5

    arrays = numbers(50, 18), numbers(50, 7, seed=1), numbers(3, 7), numbers(18, 3)
    check(kernels.low_rank(0.5), plain, arrays, tolerance=1e-5)


@pytest.mark.parametrize(
    "batch, length, heads, width, compiled", [(2, 6, 4, 2, True), (1, 5, 3, 4, False), (3, 1, 1, 8, False)]
)
def test_heads(batch, length, heads, width, compiled):
    start = Tensor(np.zeros((batch, length), np.int32))
    split, join = kernels.split_heads(width), kernels.join_heads()

    def fast_split(x):
        return split(x, start)

    def plain_split(x):
        return layers.split_heads(x, batch, heads)

    def fast_join(x):
        return join(x, start)

    def plain_join(x):
        return x.transpose(0, 2, 1, 3).reshape(batch * length, heads * width)

    check(fast_split, plain_split, (numbers(batch * length, heads * width),), tolerance=0, compiled=compiled)
    check(fast_join, plain_join, (numbers(batch, heads, length, width),), tolerance=0, compiled=compiled)


@pytest.mark.parametrize("pairs, width, head_dim", [("half", 8, 8), ("interleaved", 4, 8), ("interleaved", 8, 8)])
@pytest.mark.parametrize("rows", [1, 2])
def test_rotary(pairs, width, head_dim, rows):
    kernel, cell = kernels.rotary(pairs == "half", width, head_dim), rotary.Rotary(pairs, width, head_dim)
    positions = np.random.default_rng(0).integers(0, 99, (rows, 5)).astype(np.int32)
    cosine, sine = rotary.RotaryTable(rotary.rotary_frequencies(width), pairs)(Tensor(positions))

    def fast(x):
        return kernel(x, cosine, sine)

    def plain(x):
        return cell(x, cosine, sine)

    check(fast, plain, (numbers(2, 3, 5, head_dim),), tolerance=1e-6, compiled=rows == 1)


@pytest.mark.parametrize("pairs, width", [("half", 8), ("interleaved", 4)])
def test_splitting_and_rotating_in_one(pairs, width):
    kernel, cell = kernels.split_rotary(pairs == "half", width, 8), rotary.Rotary(pairs, width, 8)
    positions = np.random.default_rng(0).integers(0, 99, (2, 5)).astype(np.int32)
    cosine, sine = rotary.RotaryTable(rotary.rotary_frequencies(width), pairs)(Tensor(positions))
    start = Tensor(np.zeros((2, 5), np.int32))

    def fast(x):
        return kernel(x, cosine, sine, start)

    def plain(x):
        return cell(layers.split_heads(x, 2, 3), cosine, sine)

    check(fast, plain, (numbers(10, 24),), tolerance=1e-6)


@pytest.mark.parametrize("in_c", [pytest.param(True, marks=needs_kernels), False])
@pytest.mark.parametrize("pieces, width", [(1, 8), (4, 6)])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy(monkeypatch, in_c, pieces, width, smoothing):
    rows, vocabulary = 11, 13
    monkeypatch.setattr(engine_loss, "CHUNK_ROWS", 1)
    monkeypatch.setattr(engine_loss, "CHUNK_BYTES", (rows // pieces) * 4 * vocabulary)
    weight = Tensor(numbers(vocabulary, width))
    labels = np.random.default_rng(0).integers(0, vocabulary, rows).astype(np.int32)
    labels[[2, 3, 10]] = IGNORED
    targets = Tensor(labels)
    monkeypatch.setattr(engine_loss, "available", lambda: in_c)
    kernel = engine_loss.cross_entropy(IGNORED, False, smoothing=smoothing)

    def fast(hidden):
        return kernel(hidden, weight, targets)[0].reshape(1)

    def plain(hidden):
        log_p = ops.LogSoftmax(-1)(ops.MatMul(transpose_b=True)(hidden, weight))
        losses = ops.GatherD()(log_p, 1, ops.maximum(targets, 0).reshape(-1, 1)).reshape(-1)
        losses = (1 - smoothing) * losses + smoothing * log_p.mean(-1)
        return -(losses * (targets != IGNORED).astype(ms.float32)).sum().reshape(1)

    check(fast, plain, (numbers(rows, width),), tolerance=1e-5)
