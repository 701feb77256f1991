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
from model_zoo.auto import AutoModel
from model_zoo.engine import cells, loss as engine_loss, plain as kernels, plain_attention
from model_zoo.engine.build import library
from model_zoo.engine.ops import OPS, ROWS
from model_zoo.graph import Graph

sys.path.insert(0, str(Path(__file__).parent))

from native_checks import LOW as IN_BFLOAT16, bf16

from pet.train.precision import set_precision

IGNORED = -100


needs_kernels = pytest.mark.skipif(not engine.available(), reason="there is no C compiler")


def numbers(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


class Weighted(nn.Cell):
    """A scalar whose gradient reaches every output differently."""

    def __init__(self, function, direction):
        super().__init__()
        self.function, self.direction = function, direction

    def construct(self, *inputs):
        output = self.function(*inputs)
        return (output * self.direction).sum(), output


def value_and_gradients(function, inputs, direction, compiled):
    """Output, and the gradients by all float inputs of its product with a direction."""
    cell = Weighted(function, Tensor(direction.astype(np.float32)))
    floats = tuple(index for index, tensor in enumerate(inputs) if tensor.dtype == ms.float32)
    differentiate = ops.value_and_grad(cell, floats, has_aux=True)
    (_, output), gradients = (Graph(differentiate) if compiled else differentiate)(*inputs)
    gradients = gradients if isinstance(gradients, tuple) else (gradients,)
    return output.asnumpy(), [gradient.asnumpy() for gradient in gradients]


def check(fast, plain, arrays, rows=None, tolerance=3e-6, constant=(), compiled=True):
    """Same output, same gradients, and gradients that finite differences of the plain path agree with; none for those
    inputs whose places are `constant`. ``rows`` weighs rows of the output, 0 where nobody looks. `compiled`: whether a
    graph computes `fast`, or the same operators one by one, where another case has a graph of the same code."""
    inputs = [Tensor(array) for array in arrays]
    direction = numbers(*plain(*inputs).shape, seed=7) * (1.0 if rows is None else rows)
    with cells.Eagerly():
        mine, my_gradients = value_and_gradients(fast, inputs, direction, compiled)
    theirs, their_gradients = value_and_gradients(plain, inputs, direction, compiled=False)
    seen = np.ones_like(mine, bool) if rows is None else np.broadcast_to(rows != 0, mine.shape)
    np.testing.assert_allclose(mine[seen], theirs[seen], atol=tolerance, rtol=tolerance)
    floats = [index for index, array in enumerate(arrays) if array.dtype == np.float32]
    for index, gradient, expected in zip(floats, my_gradients, their_gradients, strict=True):
        if index in constant:
            assert not gradient.any() and not expected.any()
            continue
        assert np.abs(expected).max() > 1e-3, "a gradient that is zero would prove nothing"
        np.testing.assert_allclose(gradient, expected, atol=tolerance * max(1, np.abs(expected).max()))
        step = numbers(*arrays[index].shape, seed=11) * 1e-2
        ends = []
        for sign in (1, -1):
            moved = [array + sign * step if i == index else array for i, array in enumerate(arrays)]
            out = plain(*[Tensor(array) for array in moved]).asnumpy().astype(np.float64)
            ends.append((out * direction).sum())
        slope = float((gradient.astype(np.float64) * step).sum())
        assert (ends[0] - ends[1]) / 2 == pytest.approx(slope, rel=2e-3, abs=2e-3)


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


def causal(batch, length):
    rows = np.arange(length, dtype=np.int32)[None].repeat(batch, 0)
    return np.zeros_like(rows), rows + 1


def packed(batch, length):
    """Documents of three tokens."""
    _, end = causal(batch, length)
    return (end - 1) // 3 * 3, end


def prefix_mask(batch, length):
    """GLM's: the first four see each other whole."""
    start, end = causal(batch, length)
    return start, np.maximum(end, 4).astype(np.int32)


ATTENTION = [
    # batch, heads, kv_heads, length, extra, layout, padding
    (2, 4, 4, 7, 0, causal, 0),
    (2, 4, 2, 7, 0, packed, 0),
    (1, 6, 1, 9, 0, causal, 0),
    (2, 4, 2, 8, 0, prefix_mask, 0),
    (2, 4, 2, 7, 3, packed, 0),
    (2, 2, 2, 7, 0, causal, 2),
    (2, 4, 1, 9, 2, prefix_mask, 3),
    (1, 2, 2, 1, 0, causal, 0),
]


@pytest.mark.parametrize(
    "index, block, shared",
    [*((index, 256, 1024) for index in range(len(ATTENTION))), (1, 4, 1024), (3, 4, 4), (4, 4, 4)],
)
def test_attention_of_operators(monkeypatch, index, block, shared):
    """Graphs have one block or several, causal or not, each with a mask of its own or not, and keys in front."""
    monkeypatch.setattr(plain_attention, "BLOCK", block)
    monkeypatch.setattr(plain_attention, "SHARED", shared)
    compiled = block == 4 or index in (4, 6, 7)
    check_attention(plain_attention.JoinedAttention, *ATTENTION[index], compiled=compiled)


WINDOWED = {"window": 3, "cap": 1.5, "scale": 0.5}


@pytest.mark.parametrize("case, compiled", [(ATTENTION[1], False), ((1, 2, 1, 12, 3, packed, 2), True)])
def test_windows_and_caps_of_operators(case, compiled, monkeypatch):
    monkeypatch.setattr(plain_attention, "BLOCK", 5)
    check_attention(plain_attention.JoinedAttention, *case, **WINDOWED, compiled=compiled)


@needs_kernels
@pytest.mark.parametrize("case, compiled", [(ATTENTION[1], False), ((1, 2, 1, 53, 3, packed, 2), True)])
def test_windows_and_caps_in_c(case, compiled):
    check_attention(native_attention, *case, **WINDOWED, compiled=compiled)


@needs_kernels
@pytest.mark.parametrize("case", [*ATTENTION[:2], ATTENTION[4], ATTENTION[6], (1, 2, 1, 53, 3, packed, 2)])
def test_attention_in_c(case):
    """A graph of it is one operator each way, whatever the case."""
    check_attention(native_attention, *case, compiled=case is ATTENTION[6])


def native_attention(causal, scale, window, cap):
    return cells.native("attention", causal=causal, scale=scale, window=window, cap=cap)


def check_attention(
    make,
    batch,
    heads,
    kv_heads,
    length,
    extra,
    layout,
    padding,
    scale=8**-0.5,
    window=0,
    cap=0.0,
    compiled=True,
):
    """Attention against the plain core; ``make(causal, scale, window, cap)`` gives the kernel."""
    start, end = (Tensor(array.astype(np.int32)) for array in layout(batch, length))
    keep = np.ones((batch, length), np.int32)
    keep[0, :padding] = 0
    keep[-1, 0] = -1  # seen by every later row, whatever document it is of
    columns = Tensor(np.concatenate([np.ones((batch, extra), np.int32), keep], 1))
    keep_rows, keep = (keep != 0).astype(np.float32).reshape(batch, 1, length, 1), Tensor(keep)
    kernel = make(layout is not prefix_mask, scale, window, cap)
    core = layers.AttentionCore(heads, kv_heads, 8, scale=scale, window=window, cap=cap)

    def fast(query, keys, values):
        return layers.split_heads(kernel(query, keys, values, start, end, columns), batch, heads)

    def plain(query, keys, values):
        return layers.split_heads(core.attend(query, keys, values, start, end, keep, extra, None), batch, heads)

    arrays = [numbers(batch, heads, length, 8)]
    arrays += [numbers(batch, kv_heads, length + extra, 8, seed=seed) for seed in (1, 2)]
    if length == 1:  # one key: no score matters
        mine = ms.jit(fast)(*map(Tensor, arrays)).asnumpy()
        np.testing.assert_allclose(mine, arrays[2], atol=1e-6)
        return
    check(fast, plain, arrays, rows=keep_rows, compiled=compiled)


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


@pytest.mark.skipif(bool(engine.no_bf16()), reason=engine.no_bf16())
@pytest.mark.parametrize("name", ["llama_gqa", "gpt2", "chatglm1"])
def test_layers_in_bfloat16_have_the_gradients_of_the_plain_path(fixtures, monkeypatch, name):
    """Of every parameter, to what rounding changes: that of factors, and with it that of what lies between products, of
    which the plain path knows nothing."""
    model = AutoModel.from_pretrained(fixtures / name)
    ids = Tensor(np.load(fixtures / name / "ref.npz")["input_ids"].astype(np.int32))
    position_ids, start, end, _ = model.layout(ids)
    direction = Tensor(numbers(ids.size, model.config.dims.hidden))
    weights = ms.ParameterTuple([weight for weight in model.layer_list.get_parameters() if weight.ndim == 2])

    def gradients(fast):
        def scalar(ids, position_ids, start, end):
            return (model.hidden_states(ids, position_ids, start, end, None) * direction).sum()

        model.set_fast(fast)
        function = ms.grad(scalar, None, weights)
        if not fast:
            return [gradient.asnumpy() for gradient in function(ids, position_ids, start, end)]
        with engine.fuse_layers(model, list(weights)):
            return [gradient.asnumpy() for gradient in function(ids, position_ids, start, end)]

    single = gradients(False)
    set_precision(model, "bf16")
    low, fast = gradients(False), gradients(True)
    monkeypatch.setattr(engine.run, "round_between_products", lambda instructions: None)
    unrounded = gradients(True)
    for one, plain, mine, wide in zip(single, low, fast, unrounded, strict=True):
        scale = np.linalg.norm(one)
        assert 1e-4 < np.linalg.norm(plain - one) / scale < 0.03
        assert np.linalg.norm(wide - plain) / scale < 0.02
        assert 1e-4 < np.linalg.norm(mine - wide) / scale < 0.03 > np.linalg.norm(mine - one) / scale


@pytest.mark.skipif(bool(engine.no_bf16()), reason=engine.no_bf16())
@pytest.mark.parametrize("name", ["llama_gqa", "gpt2", "glm4_0414"])
def test_what_lies_between_products_in_bfloat16_takes_half(fixtures, name):
    """All but what norms read and statistics, also of a fused projection, whose columns are taken apart."""
    model = AutoModel.from_pretrained(fixtures / name)
    model.set_train(True)
    found = {}
    for precision in ("fp32", "bf16"):
        set_precision(model, precision)
        found[precision] = engine.memory_profile(model, False)
    assert 0.5 < found["bf16"].saved / found["fp32"].saved < 0.75
    assert found["bf16"].backward < found["fp32"].backward


# Layers are held to the plain path in test_whole_layers.py, and that to its reference in test_families.py. Here is a
# graph of the whole, which takes seconds to compile: of two with little in common, one with kernels and one without.
ALIKE = ("glm", "llama_mha", "gpt2", "glm4_0414", "chatglm1", "chatglm2")


@pytest.mark.parametrize(
    "name, in_c",
    [("llama_gqa", True), ("chatglm1", False)]
    + [pytest.param(name, True, marks=pytest.mark.full) for name in ALIKE]
    + [pytest.param("llama_gqa", False, marks=pytest.mark.full)],
)
def test_fast_models_meet_their_references(fixtures, shortened, monkeypatch, name, in_c):
    """Logits of the reference implementation to 1e-4; of the first layer, in a graph, the plain path's logits and its
    gradient of every parameter."""
    if not in_c:  # as without a compiler
        monkeypatch.setattr(engine, "available", lambda: False)
    reference = np.load(fixtures / name / "ref.npz")
    ids = Tensor(reference["input_ids"].astype(np.int32))
    whole = AutoModel.from_pretrained(fixtures / name).set_fast(True)
    np.testing.assert_allclose(whole(ids).asnumpy(), reference["logits"], atol=1e-4)
    model = AutoModel.from_pretrained(shortened(name))
    position_ids, start, end, _ = model.layout(ids)
    direction = Tensor(numbers(*reference["logits"].shape))
    weights = ms.ParameterTuple(model.trainable_params())

    def scalar(ids, position_ids, start, end):
        logits = model.head(model.hidden_states(ids, position_ids, start, end, None)).reshape(direction.shape)
        return (logits * direction).sum(), logits

    inputs = (ids, position_ids, start, end)
    differentiate = ms.value_and_grad(scalar, None, weights, has_aux=True)
    (_, expected), plain = differentiate(*inputs)
    model.set_fast(True)
    (_, logits), fast = Graph(differentiate)(*inputs)
    np.testing.assert_allclose(logits.asnumpy(), expected.asnumpy(), atol=1e-4)
    for weight, mine, expected in zip(weights, fast, plain, strict=True):
        expected = expected.asnumpy()
        scale = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(mine.asnumpy(), expected, atol=1e-4 * scale, err_msg=weight.name)
