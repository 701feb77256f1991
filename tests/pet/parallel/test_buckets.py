"""Gradients summed in pieces: which pieces, and that together they are the vectors of a step."""

import numpy as np
import pytest
from mindspore import Parameter, Tensor

from model_zoo.graph import Graph
from pet.parallel import buckets
from pet.parallel.buckets import BucketSums, cut
from pet.parallel.collectives import Group
from pet.train.segments import Segment


@pytest.mark.parametrize(
    ("sizes", "count", "expected"),
    [
        ([4, 4, 4, 4], 2, [(0, 2), (2, 4)]),
        ([4, 4, 4, 4], 1, [(0, 4)]),
        ([4, 4], 5, [(0, 1), (1, 2)]),  # a parameter is not divided
        ([1, 1, 10, 1, 1], 3, [(0, 3), (3, 5)]),
        ([7], 3, [(0, 1)]),
    ],
)
def test_runs_of_parameters(sizes, count, expected):
    assert cut(sizes, count) == expected


@pytest.mark.parametrize("earlier", [False, True])
def test_the_sums_are_the_vectors_of_all_segments(monkeypatch, earlier):
    random, order = np.random.default_rng(0), []

    def parameter(name, *shape):
        return Parameter(Tensor(random.normal(size=shape).astype(np.float32)), name=name)

    matrices = [parameter(f"m{index}", 3, 4) for index in range(5)]
    vectors = [parameter(f"v{index}", 4) for index in range(2)]
    by_itself = parameter("m5", 2, 6)
    segments = [Segment(tuple(matrices), 1.0, 0.1), Segment(tuple(vectors), 1.0, 0.0), Segment((by_itself,), 1.0, 0.1)]
    gradients = [Tensor(random.normal(size=each.shape).astype(np.float32)) for each in (*matrices, *vectors, by_itself)]
    shapes = [(60,), (8,), by_itself.shape]
    before = [Tensor(random.normal(size=shape).astype(np.float32)) for shape in shapes]

    class Doubled(buckets.GroupSum):
        """Of two processes that have the same."""

        def construct(self, x):
            order.append(x.shape)
            return x * 2

    monkeypatch.setattr(buckets, "GroupSum", Doubled)
    cell = BucketSums(Group("data", "", (0,), 0), segments, 5)

    def function(*arguments):
        return cell(arguments[:8], arguments[8:])

    given = [*gradients, *(before if earlier else [])]
    found = function(*given)
    assert order == [(12,), (8,), (12,), (12,), (12,), (24,)]  # the last parameters first
    for index, part in enumerate((gradients[:5], gradients[5:7], gradients[7:])):
        expected = np.concatenate([each.asnumpy().reshape(-1) for each in part])
        expected = 2 * (expected + before[index].asnumpy().reshape(-1) if earlier else expected)
        assert np.array_equal(found[index].asnumpy(), expected)
    monkeypatch.undo()
    alone = BucketSums(Group("data", "", (0,), 0), segments, 5)

    def compiled(*arguments):
        return alone(arguments[:8], arguments[8:])

    for one, other in zip(Graph(compiled)(*given), found, strict=True):
        assert np.array_equal(2 * one.asnumpy(), other.asnumpy())
