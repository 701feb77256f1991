"""Operations, their arguments and their gradients."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from model_zoo import engine
from model_zoo.engine import cells
from model_zoo.graph import Graph

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
