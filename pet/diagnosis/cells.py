"""The cells that all models are made of: forward and gradient against NumPy in double precision."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Sequence

import mindspore as ms
import numpy as np
from mindspore import ParameterTuple, Tensor, nn

from adapters.dropout import Dropout, set_dropout_key
from model_zoo import ascend
from model_zoo.activations import GeluTanh, Joined, QuickGelu, SwiGLU
from model_zoo.ascend.attention import document_ends
from model_zoo.layers import AttentionCore, Conv1D, Embedding, Linear, SplitRotary, name_parameters
from model_zoo.norms import LayerNorm, RMSNorm
from model_zoo.rotary import Rotary, RotaryTable, rotary_frequencies
from pet.diagnosis.report import BAD, NOTE, Section

LIMITS = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}
"""Largest differences by the largest value: a few units in the last place of each type."""
BATCH, LENGTH, HEADS, KV_HEADS, HEAD_DIM, EPS = 2, 6, 2, 1, 16, 1e-6
STEP = 1e-5
RATE, KEY, BLOCK, WORD = 0.25, 123456789, 3, 1 << 32


@dataclasses.dataclass(frozen=True)
class Subject:
    """A cell and what it must be.

    Attributes:
        cell: MindSpore's.
        reference: ``(inputs …, weights …) → output`` in NumPy.
        inputs: shapes of what it is given and differentiated by.
        call: ``(cell, inputs …) → output``.
    """

    cell: nn.Cell
    reference: Callable
    inputs: Sequence[tuple[int, ...]]
    call: Callable = lambda cell, *inputs: cell(*inputs)


def subjects(dtype) -> dict[str, Subject]:
    """The cells by name, with parameters of a type."""
    rows, width, out = BATCH * LENGTH, 32, 24
    x, heads = (rows, width), (BATCH, HEADS, LENGTH, HEAD_DIM)
    keys = (BATCH, KV_HEADS, LENGTH, HEAD_DIM)
    ids = np.arange(rows) % 7
    index = np.arange(LENGTH)
    start, end = np.zeros((BATCH, LENGTH), np.int32), np.tile(index + 1, (BATCH, 1)).astype(np.int32)
    start[1, 3:] = 3  # two documents in the second row
    seen = (index >= start[..., None]) & (index < end[..., None])
    positions = Tensor(np.tile(index, (BATCH, 1)).astype(np.int32))
    found = {
        "Linear": Subject(Linear(width, out, dtype=dtype), lambda x, w, b: x @ w.T + b, [x]),
        "Conv1D": Subject(Conv1D(width, out, dtype=dtype), lambda x, w, b: x @ w + b, [x]),
        "Embedding": Subject(
            Embedding(7, width, dtype=dtype), lambda w: w[ids], [], lambda cell: cell(Tensor(ids.astype(np.int32)))
        ),
        "RMSNorm": Subject(
            RMSNorm(width, EPS, dtype), lambda x, w: x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * w, [x]
        ),
        "RMSNorm with offset": Subject(
            RMSNorm(width, EPS, dtype, 1.0),
            lambda x, w: x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * (w + 1),
            [x],
        ),
        "LayerNorm": Subject(LayerNorm(width, EPS, dtype), _layer_norm, [x]),
        "GeluTanh": Subject(GeluTanh(), lambda x: 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3))), [x]),
        "QuickGelu": Subject(QuickGelu(), lambda x: x / (1 + np.exp(-1.702 * x)), [x]),
        "Dropout": Subject(_dropout(), _dropped, [x]),
        "SwiGLU": Subject(SwiGLU(), _swiglu, [x, x]),
        "SwiGLU of one tensor": Subject(
            Joined(SwiGLU()), lambda both: _swiglu(both[:, :out], both[:, out:]), [(rows, 2 * out)]
        ),
    }
    for name, ends in (("attention", end), ("attention by documents", document_ends(start, end))):
        found[name] = Subject(
            AttentionCore(HEADS, KV_HEADS, HEAD_DIM),
            lambda q, k, v: _attention(q, k, v, seen),
            [heads, keys, keys],
            lambda cell, q, k, v, ends=ends: cell(q, k, v, Tensor(start), Tensor(ends), None),
        )
    for form in ("half", "interleaved"):
        table = RotaryTable(rotary_frequencies(HEAD_DIM), form)
        found[f"rotary {form}"] = Subject(
            Rotary(form, HEAD_DIM, HEAD_DIM),
            lambda x, form=form: _rotate(x, form),
            [heads],
            lambda cell, x, table=table: cell(x, *table(positions)),
        )
        for name, turned in (("", HEAD_DIM), (" in part", HEAD_DIM // 2)):
            part = RotaryTable(rotary_frequencies(turned), form)
            found[f"projection, rotary {form}{name}"] = Subject(
                SplitRotary(Rotary(form, turned, HEAD_DIM), HEAD_DIM),
                lambda x, form=form, turned=turned: _rotated_heads(x, form, turned),
                [(rows, HEADS * HEAD_DIM)],
                lambda cell, x, part=part: cell(x, *part(positions), Tensor(start)),
            )
    return found


def _layer_norm(x, w, b):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + EPS) * w + b


def _dropout() -> nn.Cell:
    cell = Dropout(RATE, "cell").set_train()
    set_dropout_key(cell, KEY, BLOCK)
    return cell


def _dropped(x):
    """By the same hash of 32 bits, where numbers have no sign."""

    def mixed(bits):
        bits = (bits ^ bits >> 16) * 0x85EBCA6B % WORD
        bits = (bits ^ bits >> 13) * 0xC2B2AE35 % WORD
        return bits ^ bits >> 16

    seed = mixed((KEY * 668265263 + zlib.crc32(b"cell") % (WORD // 2)) % WORD)
    places = np.arange(x.size, dtype=np.uint64) + BLOCK * x.size
    bits = mixed((places * 0x9E3779B9 + seed) % WORD)
    return np.where(bits.reshape(x.shape) % (WORD // 2) >= RATE * WORD // 2, x / (1 - RATE), 0.0)


def _attention(q, k, v, seen):
    groups = HEADS // KV_HEADS
    scores = q @ np.repeat(k, groups, 1).swapaxes(2, 3) * HEAD_DIM**-0.5
    weights = np.exp(np.where(seen[:, None], scores - scores.max(-1, keepdims=True), -np.inf))
    mixed = weights / weights.sum(-1, keepdims=True) @ np.repeat(v, groups, 1)
    return mixed.transpose(0, 2, 1, 3).reshape(BATCH * LENGTH, HEADS * HEAD_DIM)


def _swiglu(gate, up):
    return gate / (1 + np.exp(-gate)) * up


def _rotate(x, form):
    width = x.shape[-1]
    angles = np.arange(LENGTH)[:, None] * rotary_frequencies(width)[None].astype(np.float64)
    a, b = (x[..., : width // 2], x[..., width // 2 :]) if form == "half" else (x[..., ::2], x[..., 1::2])
    turned = a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)
    if form == "half":
        return np.concatenate(turned, -1)
    return np.stack(turned, -1).reshape(x.shape)


def _rotated_heads(x, form, turned):
    heads = x.reshape(BATCH, LENGTH, HEADS, HEAD_DIM).transpose(0, 2, 1, 3)
    return np.concatenate((_rotate(heads[..., :turned], form), heads[..., turned:]), -1)


def look(section: Section, small: bool) -> None:
    """A row for each cell and type: of the forward, and of the gradients."""
    section.add(
        "fused operators of the device", NOTE, "used" if ascend.has_operators() else "none here, or PET_NATIVE=0"
    )
    for kind, limit in LIMITS.items():
        dtype = getattr(ms, kind)
        for name, subject in subjects(dtype).items():
            with section.checking(f"{name} {kind}", lacking(kind, small)):
                forward, gradient = differences(subject, dtype)
                section.difference(f"{name} {kind} forward", forward, limit)
                section.difference(f"{name} {kind} gradient", gradient, 4 * limit)


def lacking(kind: str, small: bool) -> str:
    """The verdict of what cannot be computed in a type: MindSpore has few kernels for bfloat16 on a CPU, where it is a
    precision of products alone."""
    return NOTE if kind == "bfloat16" and small else BAD


def differences(subject: Subject, dtype) -> tuple[float, float]:
    """Largest differences of a cell's output and gradients from NumPy's, by the largest value of each."""
    random = np.random.default_rng(7)
    name_parameters(subject.cell)
    weights = subject.cell.trainable_params()
    for weight in weights:
        weight.set_data(_tensor(random.normal(size=weight.shape), dtype))
    inputs = [_tensor(random.normal(size=shape), dtype) for shape in subject.inputs]
    exact = [array_of(each) for each in (*inputs, *weights)]
    expected = subject.reference(*exact)
    slope = _tensor(random.normal(size=expected.shape), dtype)

    def loss(*inputs):
        return (subject.call(subject.cell, *inputs).astype(ms.float32) * slope.astype(ms.float32)).sum()

    output = array_of(subject.call(subject.cell, *inputs))
    positions = tuple(range(len(inputs))) if inputs else None
    found = ms.grad(loss, positions, ParameterTuple(weights) if weights else None)(*inputs)
    wanted = [numeric_gradient(subject.reference, exact, place, array_of(slope)) for place in range(len(exact))]
    differing = [apart(array_of(one), other) for one, other in zip(_flat(found), wanted, strict=True)]
    return apart(output, expected), float(np.max(differing))  # which is NaN where one of them is


def numeric_gradient(function: Callable, arguments: list[np.ndarray], place: int, slope: np.ndarray) -> np.ndarray:
    """The gradient of ``sum(function(…) · slope)`` by one argument, by central differences in double precision."""
    point = arguments[place].copy()
    result = np.empty_like(point)
    changed = [*arguments[:place], point, *arguments[place + 1 :]]
    for index in np.ndindex(point.shape):
        value, ends = point[index], []
        for sign in (1, -1):
            point[index] = value + sign * STEP
            ends.append(float((function(*changed) * slope).sum()))
        point[index] = value
        result[index] = (ends[0] - ends[1]) / (2 * STEP)
    return result


def _flat(found) -> list[Tensor]:
    return [each for part in found for each in _flat(part)] if isinstance(found, (tuple, list)) else [found]


def _tensor(values: np.ndarray, dtype) -> Tensor:
    return Tensor(values.astype(np.float32)).astype(dtype)


def array_of(tensor: Tensor) -> np.ndarray:
    """In double precision."""
    return tensor.astype(ms.float32).asnumpy().astype(np.float64)


def apart(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference by the largest value; NaN where something is not finite."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())
