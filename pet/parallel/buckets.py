"""Sums of gradients over replicas within the backward pass, in pieces.

A gradient can be added up as soon as it is known, while the device computes those of the layers before it. So the
gradients of a step's last micro-batch are summed in its graph: in runs of parameters, the last ones first. Each sum
waits for the one before it, since a CPU's graph runs what does not depend on one another in any order, and processes
would mix it up.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from mindspore import nn, ops

from pet.parallel.collectives import Group, GroupSum
from pet.train.segments import flatten


def cut(sizes: Sequence[int], count: int) -> list[tuple[int, int]]:
    """Parameters of these sizes in at most so many runs of about equally many numbers, as (first, last + 1)."""
    ends = np.cumsum(sizes)
    wanted = ends[-1] * np.arange(1, count + 1) / count
    borders = sorted({0, *(int(np.searchsorted(ends, each)) + 1 for each in wanted[:-1]), len(sizes)})
    return list(itertools.pairwise(borders))


class BucketSums(nn.Cell):
    """The summed vectors of all segments, out of a micro-batch's gradients. Graph code.

    Args:
        group: the replicas.
        segments: whose parameters the gradients are of, one after the other.
        count: of sums in a step, at least one for each segment.
    """

    def __init__(self, group: Group, segments: Sequence, count: int):
        super().__init__()
        self.sum, self.late, self.join = GroupSum(group), ops.Depend(), ops.Concat(0)
        whole, runs, offset = sum(segment.size for segment in segments), [], 0
        for number, segment in enumerate(segments):
            places = np.cumsum([0, *segment.sizes]).tolist()
            for first, last in cut(segment.sizes, max(1, round(count * segment.size / whole))):
                runs.append((offset + first, offset + last, number, places[first], places[last]))
            offset += len(segment.sizes)
        self.runs = tuple(reversed(runs))
        self.segments = tuple(
            tuple(place for place in reversed(range(len(runs))) if self.runs[place][2] == number)
            for number in range(len(segments))
        )

    def construct(self, gradients, earlier):
        """
        Args:
            gradients: of all parameters.
            earlier: the gradients of the micro-batches before (`pet.train.segments.vectors_of`); empty for the first.
        """
        sums, before = [], None
        for first, last, segment, start, stop in self.runs:
            piece = flatten(gradients[first:last])
            if len(earlier) > 0:
                piece = piece + earlier[segment].reshape(-1)[start:stop]
            if before is not None:
                piece = self.late(piece, before)
            before = self.sum(piece)
            sums.append(before)
        vectors = []
        for places in self.segments:
            parts = []
            for place in places:
                parts.append(sums[place])
            vectors.append(self.join(parts) if len(parts) > 1 else parts[0])
        return tuple(vectors)
