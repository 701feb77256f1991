"""How one tensor is divided over the members of a tensor-parallel group: along one axis, in one or several blocks.

A fused projection holds several: each member gets its share of every block, so that what it computes is complete::

    rows of a fused q|k|v       blocks (8, 4, 4), two members
      q q q q q q q q            member 0: q q q q  k k  v v
      k k k k v v v v            member 1: q q q q  k k  v v   (the other halves)

A parameter's division and its role in the gradient's sum are kept on the parameter (`division_of`, `role_of`), so that
whoever sees only parameters (segments, checkpoints) can tell.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from model_zoo.errors import InputError

WHOLE = "whole"
"""The same on every member, and so is its gradient."""
SPLIT = "split"
"""Each member has its own part, and computes all of that part's gradient."""
PARTIAL = "partial"
"""The same on every member, but each computes one term of the gradient: the terms are added up."""


@dataclasses.dataclass(frozen=True)
class Division:
    """Along which axis a tensor is divided, and the sizes of the blocks there that are each divided evenly.

    Attributes:
        axis: the divided axis.
        blocks: sizes along it; their sum is the whole tensor's.
        members: how many share it.
    """

    axis: int
    blocks: tuple[int, ...]
    members: int

    def __post_init__(self):
        if any(block % self.members for block in self.blocks):
            raise InputError(f"parallel.tensor: {self.blocks} cannot be divided evenly over {self.members} workers")

    def ranges(self, member: int) -> list[slice]:
        """What a member has of the whole axis."""
        found, offset = [], 0
        for block in self.blocks:
            share = block // self.members
            found.append(slice(offset + member * share, offset + (member + 1) * share))
            offset += block
        return found

    def slices(self, member: int) -> list[tuple[slice, ...]]:
        """The same as one slice per leading axis, as `Checkpoint.read` takes them."""
        return [(slice(None),) * self.axis + (part,) for part in self.ranges(member)]

    def part_shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """The shape of a member's part."""
        shape = list(whole)
        shape[self.axis] //= self.members
        return tuple(shape)

    def whole_shape(self, part: Sequence[int]) -> tuple[int, ...]:
        """The shape of the whole tensor."""
        shape = list(part)
        shape[self.axis] *= self.members
        return tuple(shape)

    def take(self, whole: np.ndarray, member: int) -> np.ndarray:
        """A member's part of the whole tensor, as an array of its own."""
        return np.concatenate([whole[index] for index in self.slices(member)], axis=self.axis)

    def join(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """The whole tensor from the members' parts."""
        borders = np.cumsum([block // self.members for block in self.blocks])[:-1]
        pieces = [np.split(part, borders, axis=self.axis) for part in parts]
        return np.concatenate([piece[index] for index in range(len(self.blocks)) for piece in pieces], axis=self.axis)


def parts_of(parameter, member: int) -> tuple[int, list[tuple[slice, ...]]] | None:
    """What this process has of a parameter's whole tensor; None where that is all of it.

    Args:
        parameter: divided over a tensor-parallel group, its rows over replicas (`pet.parallel.gathered`), or both.
        member: place in the tensor-parallel group.

    Returns:
        The axis along which the pieces follow one another, and the indices of each.
    """
    division, rows = division_of(parameter), getattr(parameter, "rows", None)
    if rows is None:
        return None if division is None else (division.axis, division.slices(member))
    if division is None:
        return 0, [(rows,)]
    if division.axis > 0:
        return division.axis, [(rows, *index[1:]) for index in division.slices(member)]
    found, offset = [], 0  # rows of what the member's ranges are, end to end
    for part in division.ranges(member):
        first, last = (min(max(row - offset, 0), part.stop - part.start) for row in (rows.start, rows.stop))
        if first < last:
            found.append((slice(part.start + first, part.start + last),))
        offset += part.stop - part.start
    return 0, found


def division_of(parameter) -> Division | None:
    """How a parameter is divided; None when every member has all of it."""
    return getattr(parameter, "division", None)


def role_of(parameter) -> str:
    """`WHOLE`, `SPLIT` or `PARTIAL`."""
    return getattr(parameter, "parallel_role", WHOLE)


def mark(parameter, role: str, division: Division | None = None) -> None:
    """Notes on a parameter how it is shared."""
    parameter.parallel_role = role
    parameter.division = division
