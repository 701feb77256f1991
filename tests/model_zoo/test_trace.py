"""What the tracer makes of cells, and what it refuses."""

from __future__ import annotations

import ast
from pathlib import Path

import mindspore as ms
import pytest
from mindspore import nn, ops

from model_zoo import activations, layers, norms
from model_zoo.engine import NotTraceable
from model_zoo.engine.experts import mixture
from model_zoo.engine.trace import SequenceTracer, traced_calls

ROOT = Path(__file__).parents[2]


class Layer(nn.Cell):
    """Called as a decoder layer; what it does is its `body`."""

    def __init__(self, body):
        super().__init__()
        self.body = body

    def construct(self, x, cosine, sine, start, end, keep):
        return self.body(x)


class Residual(nn.Cell):
    """A cell of other cells, with arithmetic between them."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.act = norms.RMSNorm(8, 1e-6), layers.Linear(8, 12), activations.SwiGLU()
        self.down, self.parts = layers.Linear(6, 8), layers.Parts(2)

    def construct(self, x):
        y = self.norm(x)
        gate, up = self.parts(self.up(y))
        x = y * 0.5 + self.down(self.act(gate, up))
        return x + self.down(x[:, 2:])


def traced(body) -> SequenceTracer:
    layer = Layer(body)
    tracer = SequenceTracer(8, layer)
    before = nn.Cell.__call__
    try:
        tracer.result = tracer.run(layer, tracer.hidden)
    finally:
        assert nn.Cell.__call__ is before
    return tracer


def test_cells_of_cells_are_traced_by_their_construct():
    cell = Residual()
    tracer = traced(cell)
    assert [one.op for one in tracer.instructions] == [
        *("rms_norm", "product_of_rows", "add_bias", "take_columns", "take_columns", "swiglu"),
        *("product_of_rows", "add_bias", "add", "take_columns", "product_of_rows", "add_bias", "add"),
    ]
    first, second = (one for one in tracer.instructions if one.op == "add")
    norm = tracer.instructions[0].outputs[0]
    assert first.inputs[0] is norm and first.inputs[2].constant == 0.5
    assert second.inputs[0] is first.outputs[0] and second.inputs[2].constant == 1.0
    assert tracer.instructions[9].outputs[0].per_token == (1, 6) and tracer.result.per_token == (1, 8)
    assert [parameter is cell.down.weight for parameter in tracer.parameters].count(True) == 1
    assert len(tracer.tables) == 2


class Derived(layers.Linear):
    """Computes something else than its class says."""

    def construct(self, x):
        return -x


class Operators(nn.Cell):
    """Calls MindSpore itself."""

    def construct(self, x):
        return ops.relu(x)


class OwnGradient(nn.Cell):
    """Gives what it was given, with another gradient, as cells do that sum gradients over processes."""

    def construct(self, x):
        return x

    def bprop(self, x, out, dout):
        return (dout * 2.0,)


class Gain(nn.Cell):
    """Arithmetic with something that is no number."""

    def __init__(self):
        super().__init__()
        self.gain = ms.Parameter(ms.Tensor([2.0]), name="gain")

    def construct(self, x):
        return x * self.gain


class Sizes(nn.Cell):
    """Asks for the number of tokens, which is not known."""

    def construct(self, x):
        return x * (1.0 / x.shape[0]) + x


@pytest.mark.parametrize(
    "cell", [Derived(8, 8), Operators(), OwnGradient(), Gain(), Sizes()], ids=lambda cell: type(cell).__name__
)
def test_what_cannot_be_followed_is_refused(cell):
    with pytest.raises(NotTraceable, match=type(cell).__name__):
        traced(cell)


class Wired(nn.Cell):
    """Two products and their sum; the second product is of the first one's result or of what came in."""

    def __init__(self, chain: bool):
        super().__init__()
        self.one, self.other, self.chain = layers.Linear(8, 8, False), layers.Linear(8, 8, False), chain

    def construct(self, x):
        y = self.one(x)
        return y + self.other(y if self.chain else x)


def test_experts_of_the_same_operations_wired_otherwise_are_of_two_makes():
    tracer = SequenceTracer(8, Layer(None))
    x, (shares, *rows) = tracer.hidden, (tracer.place(shape) for shape in ((1, 4), *3 * [(1, 2)]))
    with traced_calls():
        mixture(tracer, [Wired(chain) for chain in (True, False, True, False)], x, shares, rows)
    members = [one.group.members for one in tracer.instructions if one.op == "product_of_rows"]
    assert members == 2 * [(0, 2)] + 2 * [(1, 3)]


def test_nothing_but_the_door_is_imported_from_outside():
    found = []
    for package in ("pet", "adapters", "model_zoo"):
        for path in (ROOT / package).rglob("*.py"):
            if "engine" in path.parent.parts[-1:]:
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                found += [(path.name, name) for name in names if name.startswith("model_zoo.engine.")]
            assert "model_zoo.engine" in path.read_text() or "import engine" not in path.read_text()
    assert found == []
