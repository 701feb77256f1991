"""Shard specifications: which part of each parameter a process has, from names, shapes and the family's table.

`pet.parallel.shares` reads them off shapes, for plans and files; `pet.parallel.tensor` and `pet.parallel.stages` carry
them out on a model's cells.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import accumulate

from adapters.bitfit import AddedBias
from adapters.bottleneck import Bottleneck
from adapters.ia3 import IA3
from adapters.low_rank_adapter import LowRankAdapter
from adapters.method import AdapterModule
from adapters.patterns import named
from model_zoo.configs import CellSpec, Config, Family
from model_zoo.errors import InputError
from pet.parallel.checks import check_divisible, check_stages
from pet.parallel.split import PARTIAL, SPLIT, WHOLE, Division

TIED = "tied"
"""Held by the first and the last stage, each of which computes one term of the gradient."""

CELL_AXES = {
    "linear": {"weight": ("out", "in"), "bias": ("out",)},
    "conv1d": {"weight": ("in", "out"), "bias": ("out",)},
}
"""Which side of its cell each axis of a base parameter belongs to."""

ADAPTER_AXES: dict[str, tuple[str, ...]] = {
    "lora_A.weight": ("", "in"),
    "lora_B.weight": ("out", ""),
    "initial_A.weight": ("", "in"),
    "initial_B.weight": ("out", ""),
    "lora_magnitude_vector": ("out",),
    "magnitude.norm": ("out",),
    "dropout.key": ("",),
}
"""The same of an adapter's parameters, for those that are linear in the output."""

PREFIX_AXES: dict[str, int | None] = {
    "prompt": 1,
    "weight": 0,
    "bias": 0,
    "trunk.embedding": None,
    "trunk.weight": None,
    "trunk.bias": None,
}
"""Along which axis a prefix's parameters hold keys | values, each by heads; None for what all heads share."""

Spec = tuple[str, Division | None]  # role, and how it is divided


# Shards --------------------------------------------------------------------------------------------------------------


def side_of(family: Family, path: str) -> str | None:
    """``column`` or ``row`` for a linear cell that is divided, else None."""
    if not path.startswith(family.layers + "."):
        return None
    if any(named(path, name) for name in family.column):
        return "column"
    return "row" if any(named(path, name) for name in family.row) else None


class ShardSpecs:
    """How a tensor-parallel group shares a model's parameters.

    Args:
        members: of the group; one has everything.

    Attributes:
        sides: {path: ``column`` or ``row``} of the cells that are divided.
        regions: paths of the sublayers that they stand in, whose input is copied to the group.

    Raises:
        InputError: heads or widths that cannot be divided.
    """

    def __init__(self, config: Config, members: int):
        check_divisible(config.dims, members)
        self.dims, self.family, self.members = config.dims, config.family, members
        self.cells = config.cells()
        sides = {path: side_of(self.family, path) for path in self.cells} if members > 1 else {}
        self.sides = {path: side for path, side in sides.items() if side is not None}
        self.regions = dict.fromkeys(path.rpartition(".")[0] for path in self.sides)

    def blocks(self, path: str) -> tuple[int, ...]:
        """The blocks along the divided side of a cell, each of which is divided by itself."""
        out, into = (
            self.cells[path].weight[CELL_AXES[self.cells[path].kind]["weight"].index(e)] for e in ("out", "in")
        )
        if self.sides[path] == "row":
            return (into,)
        dims = self.dims
        kind = next((kind for name, kind in self.family.fused.items() if named(path, name)), None)
        if kind == "qkv":
            return (dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim, dims.kv_heads * dims.head_dim)
        return (dims.ffn, dims.ffn) if kind == "gate_up" else (out,)

    def along(self, path: str, axes: tuple[str, ...]) -> Spec:
        """For a parameter of a cell whose axes belong to these sides of it."""
        side = self.sides.get(path)
        if side is None:
            return WHOLE, None
        end = "out" if side == "column" else "in"
        return (SPLIT, Division(axes.index(end), self.blocks(path), self.members)) if end in axes else (PARTIAL, None)

    def of_base(self, path: str, attribute: str) -> Spec:
        """For a cell's weight or bias."""
        if path in self.sides:
            return self.along(path, CELL_AXES[self.cells[path].kind][attribute])
        # within a sublayer each member computes with its own heads, so with a term of the gradient
        return (PARTIAL if path.rpartition(".")[0] in self.regions else WHOLE), None

    def of_adapter(self, path: str, module: AdapterModule, name: str) -> Spec:
        """For a parameter of a module on the cell at a path. Raises InputError: nobody knows how to divide it."""
        kind = type(module).__name__
        if self.members == 1:
            return WHOLE, None
        if path in self.regions:  # it would read the input on this side of the copy
            raise InputError(f"parallel.tensor: {kind} beside {path} cannot be divided; place it behind (houlsby)")
        if path.startswith(self.family.layers + ".") and path.endswith("." + self.family.attention_core):
            if name in PREFIX_AXES:
                axis, width = PREFIX_AXES[name], self.dims.kv_heads * self.dims.head_dim
                return (PARTIAL, None) if axis is None else (SPLIT, Division(axis, (width, width), self.members))
            raise InputError(f"parallel.tensor: {kind} on {path} cannot be divided ({name})")
        if acts_on_sum(module) and self.sides.get(path) == "row" and not getattr(module, "parallel", False):
            return WHOLE, None  # input, dropout mask, parameters and gradients are the same on every member
        axes = axes_of(module, name)
        if path in self.sides and axes is None:
            raise InputError(f"parallel.tensor: {kind} on {path} cannot be divided ({name})")
        return self.along(path, axes or ())


def axes_of(module: AdapterModule, name: str) -> tuple[str, ...] | None:
    """Which side of its cell each axis of an adapter's parameter belongs to; None where nobody knows."""
    if isinstance(module, IA3):
        return ("", "in") if module.changes_input else ("out", "")
    if isinstance(module, AddedBias):
        return ("out",)
    return ADAPTER_AXES.get(name)


def acts_on_sum(module: AdapterModule) -> bool:
    """Whether a module needs a cell's whole output: one that is not linear in it, and what is added once."""
    return isinstance(module, (Bottleneck, LowRankAdapter, AddedBias))


# Replicas ------------------------------------------------------------------------------------------------------------


def gathered_cells(config: Config) -> dict[str, CellSpec]:
    """The cells whose matrices replicas share, as far as they are frozen (`pet.parallel.gathered`): those of layers."""
    prefix = config.family.layers + "."
    return {path: cell for path, cell in config.cells().items() if path.startswith(prefix) and cell.kind in CELL_AXES}


def check_rows(path: str, rows: int, replicas: int) -> None:
    """Raises InputError for a matrix whose rows replicas cannot share evenly."""
    if rows % replicas:
        possible = ", ".join(str(number) for number in range(1, min(rows, 64) + 1) if rows % number == 0)
        raise InputError(
            f"parallel.shard_base: {rows} rows of {path} cannot be divided evenly over {replicas} replicas; "
            f"possible are {possible}"
        )


# Stages --------------------------------------------------------------------------------------------------------------


def place_of(family: Family, name: str) -> int | str:
    """The layer of a parameter, or ``first`` for embeddings and ``last`` for the final norm and the head."""
    prefix = family.layers + "."
    if name.startswith(prefix):
        return int(name[len(prefix) :].partition(".")[0])
    return "first" if name.startswith(tuple(f"{path}." for path in family.embeddings)) else "last"


def check_whole(adapter) -> None:
    """Raises InputError for an adapter (a method's configuration, or None) that cannot be cut into stages."""
    if "model" in getattr(adapter, "kinds", ()):
        raise InputError(
            f"parallel.pipeline: adapter.method {adapter.method!r} acts on the whole model, which cannot be cut into "
            "stages; expected another method, or parallel.pipeline = 1"
        )
    if getattr(adapter, "projection", False):
        raise InputError(
            "parallel.pipeline: the adapter has a projection that all layers share, which cannot be cut into stages; "
            "set adapter.projection to false"
        )


def stage_layers(config: Config, sizes: Iterable[tuple[str, int]], stages: int) -> list[range]:
    """The layers of each stage, by what there is in each and in front of and behind them.

    Args:
        sizes: (name, numbers) of parameters, those of a tied head among them.
        stages: how many.

    Raises:
        InputError: more stages than layers.
    """
    costs, ends = [0] * config.dims.layers, {"first": 0, "last": 0}
    for name, size in sizes:
        place = place_of(config.family, name)
        if isinstance(place, int):
            costs[place] += size
        else:
            ends[place] += size
    return balance(costs, ends["first"], ends["last"], stages)


def balance(costs: list[int], first: int, last: int, stages: int) -> list[range]:
    """Consecutive layers for each stage, so that the largest stage is as small as can be.

    Args:
        costs: of each layer, in parameters.
        first, last: what the first and the last stage hold besides: the embedding; the final norm and the head.
        stages: how many; each gets a layer at least.

    Raises:
        InputError: more stages than layers.
    """
    count = len(costs)
    check_stages(count, stages)

    before = [0, *accumulate(costs)]

    def cost(begin: int, end: int, stage: int) -> int:
        return before[end] - before[begin] + (first if stage == 0 else 0) + (last if stage == stages - 1 else 0)

    # best[end]: the smallest possible largest stage when the stages so far hold the layers before `end`
    best = {end: (cost(0, end, 0), (end,)) for end in range(1, count + 1)}

    def least(end: int, stage: int) -> tuple[int, tuple[int, ...]]:
        found = (sys.maxsize, ())
        for begin in reversed(range(stage, end)):  # the earlier it begins, the more the stage has
            own = cost(begin, end, stage)
            if own > found[0]:
                break
            found = min(found, (max(best[begin][0], own), (*best[begin][1], end)))
        return found

    for stage in range(1, stages):
        best = {end: least(end, stage) for end in range(stage + 1, count + 1)}
    ends = best[count][1]
    return [range(begin, end) for begin, end in zip((0, *ends), ends, strict=False)]
