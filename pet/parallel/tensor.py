"""Tensor parallelism: every layer's matrices shared by a group, after Shoeybi et al. 2019 (Megatron-LM).

A sublayer (attention, feed-forward) is one region. Its input is copied to the group, its output summed over it, and
in between each member computes with its own heads or its own columns::

            ┌ copy ┐   column-parallel            row-parallel   ┌ sum ┐
    x ──────┤      ├─► W_q W_k W_v  ─► heads ─►       W_o   ─────┤     ├──► y         2 sums forward and 2 backward
            └──────┘   rows of W split            columns split  └─────┘              per layer, of B·S·H each

Adapters are taken along. On a column-parallel cell LoRA's A is whole and B split like W; on a row-parallel one A is
split and B whole, and its product joins W's before the sum: no adapter adds communication to the forward. What is
whole within a region gets one term of its gradient on each member (`PARTIAL`); those terms are added up once per step,
together, which is smaller by far than a sum per layer would be. What acts on a sublayer's output (bottleneck adapters)
comes after the sum and is whole in every respect.

The experts of a mixture are one region together, summed once behind all of them. The router is outside of it.

Embedding and head stay whole on every member. They are frozen, so they cost memory but no gradient; the loss then needs
no communication, and generation sees the same logits everywhere.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Mapping

from mindspore import Tensor, nn, ops
from mindspore.common.initializer import initializer

from adapters.dora import Magnitude
from adapters.dropout import Dropout
from adapters.method import AdapterModule
from adapters.registry import registry
from adapters.sites import select_rows, traced_input
from model_zoo.engine import mixture
from model_zoo.errors import InputError
from model_zoo.quantization.cells import QuantizedLinear
from model_zoo.quantization.storage import is_quantized
from pet.parallel.collectives import CopyToGroup, Group, GroupSum, ReduceFromGroup, in_graphs
from pet.parallel.shares import too_small
from pet.parallel.specs import ShardSpecs, acts_on_sum
from pet.parallel.split import SPLIT, WHOLE, Division, mark

log = logging.getLogger("pet")


def shard(model: nn.Cell, group: Group, loaded: bool = True) -> nn.Cell:
    """Leaves on this process its share of a model, adapters included, and makes the cells talk to the group.

    Args:
        model: whole, with its adapters. Adapters cannot be added afterwards.
        loaded: whether the base's weights are there. If not, the cut parameters are fresh zeros, which take no memory
            until they are loaded (`pet.parallel.loading`).

    Raises:
        InputError: heads or widths that cannot be divided, an adapter that cannot be shared.
    """
    if group.size == 1:
        return model
    specs, cells = ShardSpecs(model.config, group.size), dict(model.cells_and_names())
    divided = [
        (parameter, *specs.of_base(path, attribute), loaded or hasattr(parameter, "adapter"))  # whose copies are there
        for path, spec in specs.cells.items()
        for attribute in spec.shapes
        if not (attribute == "weight" and is_quantized(cells[path]))
        for parameter in variants(model, cells[path], attribute)
    ]
    for path in specs.cells:
        if is_quantized(cells[path]):
            division = specs.of_base(path, "weight")[1]
            if division is not None:
                cut_packed(cells[path], path, division, group, loaded)
    divided += [
        (parameter, *specs.of_adapter(path, module, name), True)
        for path, cell in cells.items()
        if path.startswith(model.family.layers + ".")
        for module in adapter_modules(cell)
        for name, parameter in module.parameters_and_names()
    ]
    for parameter, role, division, there in divided:
        if division is not None:
            cut(parameter, division, group, there)
        elif role != WHOLE:
            mark(parameter, role)
    connect(cells, specs, group)
    if not in_graphs(group):
        model.compiles = False
        if group.place == 0:
            log.info(
                "parallel.tensor: beside other groups layers run by single operators on a CPU before "
                "MindSpore 2.8, and answers without a cache"
            )
    for path, cell in cells.items():
        if path.startswith(model.family.layers + "."):
            for name in ("heads", "kv_heads"):
                if name in cell.__dict__:
                    setattr(cell, name, getattr(cell, name) // group.size)
    return model


# What is cut where ---------------------------------------------------------------------------------------------------


def variants(model: nn.Cell, cell: nn.Cell, attribute: str) -> list:
    """A cell's parameter, and those that take its place when adapters that train it whole come or go."""
    present = getattr(cell, attribute)
    found = {id(present): present} if present is not None else {}
    for adapter in registry(model).adapters.values():
        for item in adapter.replaced:
            if item.cell is cell and item.attribute == attribute:
                found.update({id(parameter): parameter for parameter in (item.base, item.own)})
    return list(found.values())


def cut(parameter, division: Division, group: Group, loaded: bool) -> None:
    """Leaves in a parameter this member's part."""
    if loaded:
        part = Tensor(division.take(parameter.asnumpy(), group.place), parameter.dtype)
    else:
        part = initializer("zeros", division.part_shape(parameter.shape), parameter.dtype)
    parameter.set_data(part, slice_shape=True)
    mark(parameter, SPLIT, division)


def cut_packed(cell: QuantizedLinear, path: str, division: Division, group: Group, loaded: bool) -> None:
    """Leaves in a packed cell this member's part of the matrix, with the numbers that the whole has.

    Raises:
        InputError: the part would cut blocks into pieces that are too small.
    """
    axis = 1 - division.axis if cell.published_transposed else division.axis
    try:
        cell.keep_part(path, axis, division.ranges(group.place), loaded)
    except InputError as error:
        raise too_small(path, error) from None
    mark(cell.weight, SPLIT, division)


def adapter_modules(cell: nn.Cell) -> list[AdapterModule]:
    """The adapter modules on a cell."""
    return [child for child in cell.cells() if isinstance(child, AdapterModule)]


# Cells that talk -----------------------------------------------------------------------------------------------------


def connect(cells: Mapping[str, nn.Cell], specs: ShardSpecs, group: Group) -> None:
    """Makes the cells of a model, by their paths, talk to the group."""
    mixtures = [path for path, cell in cells.items() if hasattr(cell, "mix") and sums_once(cell)]

    def is_expert(path: str) -> bool:
        return any(path.startswith(f"{above}.") for above in mixtures)

    for path, side in specs.sides.items():
        if side == "row":
            make_row_parallel(cells[path], group, None if is_expert(path) else ReduceFromGroup(group))
    for path in specs.regions:
        if not is_expert(path):
            region = cells[path]
            region.copy_to_group = CopyToGroup(group)
            region.__class__ = region_class(type(region))
    for path in mixtures:
        cell = cells[path]
        cell.copy_to_group, cell.reduce_from_group = CopyToGroup(group), ReduceFromGroup(group)
        cell.join = ops.Concat(1)
        cell.__class__ = mixture_class(type(cell))


def sums_once(cell: nn.Cell) -> bool:
    """Whether a mixture's experts are added up by one sum over the group: no adapter needs an expert's whole output."""
    return not any(acts_on_sum(module) for _, inner in cell.cells_and_names() for module in adapter_modules(inner))


@functools.cache
def region_class(cls: type) -> type:
    """A sublayer's class, with its input copied to the group."""

    class Region(cls):
        def construct(self, x, *rest):
            return super().construct(self.copy_to_group(x), *rest)

        def trace(self, tracer, x, *rest):
            return tracer.follow(cls, self, self.copy_to_group(x), *rest)

    Region.__name__ = Region.__qualname__ = f"Parallel{cls.__name__}"
    return Region


@functools.cache
def mixture_class(cls: type) -> type:
    """A mixture's class whose experts are one region, and whose router is outside of it.

    Shares enter it together with the input, so that the gradients of both are one message.
    """

    class Mixture(cls):
        def construct(self, x):
            width = x.shape[1]
            within = self.copy_to_group(self.join((x, self.shares(self.gate(x)).astype(x.dtype))))
            return self.reduce_from_group(self.mix(within[:, :width], within[:, width:]))

        def trace(self, tracer, x):
            shares, *rows = self.shares(self.gate(x))
            within = self.copy_to_group(tracer.emit("join_columns", x, shares))
            inner, own = tracer.columns(within, 0, x.width), tracer.columns(within, x.width, shares.width)
            return self.reduce_from_group(mixture(tracer, self.experts, inner, own, rows))

    Mixture.__name__ = Mixture.__qualname__ = f"Parallel{cls.__name__}"
    return Mixture


def make_row_parallel(cell: nn.Cell, group: Group, reduce: ReduceFromGroup | None) -> None:
    """Turns a linear cell, with or without adapters, into one with split input.

    Args:
        reduce: what sums its output over the group; None where that is done behind it.
    """
    cls = getattr(type(cell), "plain", type(cell))
    for module in adapter_modules(cell):
        module.after_sum = acts_on_sum(module)
        if module.after_sum:
            continue
        for part in module.cells():
            if isinstance(part, Dropout):
                part.members, part.place = group.size, group.place
            if isinstance(part, Magnitude):
                part.sum = GroupSum(dataclasses.replace(group, sums="float32"))  # norms of weights
                part.__class__ = _SplitMagnitude
    if "active" not in cell.__dict__:
        object.__setattr__(cell, "active", ())
    cell.reduce_from_group = nn.Identity() if reduce is None else reduce
    # the bias belongs to the sum, so one member adds it
    cell.bias_share = 1.0 if group.place == 0 else 0.0
    object.__setattr__(cell, "__class__", row_class(cls))


@functools.cache
def row_class(cls: type) -> type:
    """A linear cell's class with split input: adapters that are linear join before the sum, others act after it."""

    class RowParallel(cls):
        active = ()

        def construct(self, x):
            inner = x
            for module in self.active:
                if module.changes_input:
                    inner = select_rows(module.rows, module.before(inner), inner)
            base, bias = self.multiply(inner), None
            if self.bias is not None:
                bias = self.bias * self.bias_share
                base = self.add_bias(base, bias)
            y = base
            for module in self.active:
                if not module.after_sum:
                    if module.needs_base:
                        # behind the input: what it sums comes in the order of the layers, on every member
                        changed = module.on_base(x, y, base, ops.depend(self.matrix(), inner), bias)
                    else:
                        changed = module(x, y)
                    y = select_rows(module.rows, changed, y)
            y = self.reduce_from_group(y)
            for module in self.active:
                if module.after_sum:
                    y = select_rows(module.rows, module(x, y), y)
            return y

        def trace(self, tracer, x):
            trained_bias = self.bias is not None and self.bias.requires_grad
            if trained_bias or any(module.needs_base for module in self.active):
                tracer.refuse(type(self))
            y = tracer.follow(cls, self, traced_input(tracer, self, x), with_bias=self.bias_share == 1.0)
            for module in self.active:
                if not module.after_sum:
                    y = module(x, y)
            y = self.reduce_from_group(y)
            for module in self.active:
                if module.after_sum:
                    y = module(x, y)
            return y

    def multiply(self, x):
        return self.product(x, self.weight)

    def matrix(self):
        return self.weight

    if not issubclass(cls, QuantizedLinear):
        RowParallel.matrix, RowParallel.multiply = matrix, multiply
    RowParallel.__name__ = RowParallel.__qualname__ = f"RowParallel{cls.__name__}"
    RowParallel.plain = RowParallel  # adapters go by it: taking the last one off leaves this class
    return RowParallel


class _SplitMagnitude(Magnitude):
    """DoRA's factor where each member has some columns of W and A: W·Aᵀ and A·Aᵀ are sums over the group.

    The two small sums, ``(out, r)`` and ``(r, r)``, are the only ones that an adapter adds to a forward.
    """

    def whole(self, wa, a):
        wide = self.sum(wa)
        # behind the other sum: of two that do not depend on each other members may run either first
        return wide, self.sum(ops.depend(self.product(a, a), wide))
