"""What one training step sends: calls and bytes per collective, as `pet.parallel.collectives.counting` counts them."""

from __future__ import annotations

import dataclasses
import functools
import math

from adapters.initial import START
from pet.meta_model import MetaModel
from pet.parallel.shares import NAMES, STAGES, Layout, cell_of, in_feed_forward, place_of, side_of
from pet.parallel.specs import TIED
from pet.parallel.split import PARTIAL

Traffic = dict[tuple[str, str], list[int]]
"""{(operation, group): [calls, bytes handed in]} of one process."""


@dataclasses.dataclass(frozen=True)
class Steps:
    """How a step is worked through.

    Attributes:
        data, tensor, pipeline: the layout.
        pieces: forward passes of one replica in a step.
        tokens: of one of them.
        width: bytes of a number in an activation.
        zero: whether the optimizer's state is divided over the replicas.
        recompute: of so many layers the first is computed again in the backward pass; 0 for none.
        frozen: bytes of a number of a frozen matrix.
        sum: bytes of a number that is sent to be added up, by ``parallel.reduce_dtype``.
    """

    data: int
    tensor: int
    pipeline: int
    pieces: int
    tokens: int
    width: int
    zero: bool = False
    recompute: int = 0
    frozen: int = 4
    sum: int = 4

    def again(self, layers: range) -> range:
        """Those of a stage's layers that are computed again, as `pet.train.precision.set_recompute` chooses them."""
        if not self.recompute:
            return range(0)
        return range(-(-layers.start // self.recompute) * self.recompute, layers.stop, self.recompute)


def gradient_sums(meta_model: MetaModel, layout: Layout, stage: int, again: range = range(0)) -> int:
    """Sublayers of a stage whose input needs a gradient: each has one sum over the tensor-parallel group backward.

    On the first stage those up to the first trained parameter need none; later stages always owe the stage before one.
    A layer that is computed again (one of `again`) is differentiated as a whole, its input included.
    """
    layers = layout.layers[stage]
    last = 2 * layers.stop - 1
    return max(0, min(2 * len(layers), last - math.floor(first_trained(meta_model, layout, stage, again))))


@functools.lru_cache(NAMES)
def sublayer(meta_model: MetaModel, name: str) -> float:
    """Where a parameter of a layer acts: 2·layer for attention, 2·layer + 1 for the feed-forward, a half more in their
    second products, and 2·layer − 1 for a norm, which stands before what it feeds."""
    rest = name[len(meta_model.family.layers) + 1 :].partition(".")[2]
    cell, place = cell_of(meta_model, name), place_of(meta_model, name)
    half = 0.5 if side_of(meta_model, cell) == "row" else 0.0
    if rest.startswith(meta_model.family.attention_core.rpartition(".")[0] + "."):
        return 2 * place + half
    return 2 * place + 1 + half if in_feed_forward(meta_model, cell) else 2 * place - 1


@functools.lru_cache(STAGES)
def first_trained(meta_model: MetaModel, layout: Layout, stage: int, again: range = range(0)) -> float:
    """The `sublayer` of a stage's first trained parameter, behind which every input needs a gradient."""
    first = -1.0 if stage > 0 else 2.0 * layout.layers[stage].stop
    for share in layout.of_stage(stage):
        place = place_of(meta_model, share.name)
        if share.trained and place == "first":
            return -1.0
        if share.trained and isinstance(place, int):
            first = min(first, 2 * place - 1 if place in again else sublayer(meta_model, share.name))
    return first


def graph_sums(meta_model: MetaModel, layout: Layout, steps: Steps, stage: int, adapter=None) -> tuple[int, int]:
    """(calls, bytes) of the sums within the graphs of one step."""
    if steps.tensor == 1:
        return 0, 0
    block = steps.tokens * meta_model.config.dims.hidden * steps.sum
    forward = 2 * len(layout.layers[stage])
    twice = steps.again(layout.layers[stage])
    small_calls, small_numbers = dora_sums(meta_model, layout, stage, adapter)
    small_again, numbers_again = dora_sums(meta_model, layout, stage, adapter, twice)
    runs = 1  # of the forward, beside the backward
    if steps.pipeline > 1 and stage < steps.pipeline - 1:
        runs += 1  # once to send on, once more with the backward
    back, experts = gradient_sums(meta_model, layout, stage, twice), meta_model.config.feed_forwards
    calls = runs * forward + 2 * len(twice) + back
    # the gradients of experts' shares go with those of what the experts read
    of_shares = (back + 1) // 2 * steps.tokens * experts * steps.sum if experts > 1 else 0
    small_calls, small_bytes = runs * small_calls + small_again, steps.sum * (runs * small_numbers + numbers_again)
    return steps.pieces * (calls + small_calls), steps.pieces * (calls * block + small_bytes + of_shares)


def gathers(meta_model: MetaModel, layout: Layout, steps: Steps, stage: int) -> tuple[int, int]:
    """(calls, bytes) of the gathers of one step: of each shared matrix one in a forward, and one for the gradient of
    its input where that is needed."""
    calls, nbytes = gathers_of_piece(meta_model, layout, stage, steps.again(layout.layers[stage]), steps.frozen)
    return steps.pieces * calls, steps.pieces * nbytes


@functools.lru_cache(STAGES)
def gathers_of_piece(meta_model: MetaModel, layout: Layout, stage: int, again: range, frozen: int) -> tuple[int, int]:
    """The same of one piece."""
    runs = 2 if stage < len(layout.layers) - 1 else 1
    first, calls, nbytes = first_trained(meta_model, layout, stage, again), 0, 0
    for share in layout.of_stage(stage):
        if share.replicas > 1:
            times = runs + (place_of(meta_model, share.name) in again)
            times += stage > 0 or sublayer(meta_model, share.name) > first
            calls, nbytes = calls + times, nbytes + times * share.size // share.replicas * frozen
    return calls, nbytes


def dora_sums(
    meta_model: MetaModel, layout: Layout, stage: int, adapter, layers: range | None = None
) -> tuple[int, int]:
    """(calls, numbers) of DoRA's two small sums at every row-parallel cell of these layers (all): W·Aᵀ ``(out, r)`` and
    A·Aᵀ ``(r, r)``; of twice the rank where the first factors are kept beside the trained ones."""
    if not getattr(adapter, "use_dora", False):
        return 0, 0
    calls = numbers = 0
    for share in layout.of_stage(stage):
        path, found, _ = share.name.partition(".lora_magnitude_vector")
        here = layers is None or place_of(meta_model, share.name) in layers
        if found and here and side_of(meta_model, path) == "row":
            rank = adapter.rank_at(path) * (2 if adapter.init in START else 1)
            calls, numbers = calls + 2, numbers + rank * (share.shape[0] + rank)
    return calls, numbers


@functools.lru_cache(STAGES)
def trained_size(layout: Layout, stage: int, role: str | None = None) -> int:
    """Trained numbers that a process of a stage holds."""
    held = layout.of_stage(stage)
    return sum(share.size for share in held if share.trained and (role is None or share.role == role))


def step_traffic(meta_model: MetaModel, layout: Layout, steps: Steps, stage: int, adapter=None) -> Traffic:
    """Everything that a process of a stage sends in one training step."""
    found: Traffic = {}

    def add(operation: str, group: str, calls: int, nbytes: int) -> None:
        if calls:
            entry = found.setdefault((operation, group), [0, 0])
            entry[0], entry[1] = entry[0] + calls, entry[1] + nbytes

    add("all_reduce", "tensor", *graph_sums(meta_model, layout, steps, stage, adapter))
    add("all_gather", "base", *gathers(meta_model, layout, steps, stage))
    partial = trained_size(layout, stage, PARTIAL)
    if steps.tensor > 1 and partial:
        add("all_reduce", "tensor", 1, steps.sum * partial)
    tied = trained_size(layout, stage, TIED)
    if steps.pipeline > 1 and tied:
        add("all_reduce", "tied", 1, steps.sum * tied)
    if steps.data > 1:
        add("all_reduce", "data", 1, steps.sum * trained_size(layout, stage))
        if steps.zero:
            loads = [load for load in owner_loads(layout, stage, steps.data) if load]
            add("broadcast", "data", len(loads), 4 * sum(loads))
    if steps.pipeline > 1:
        block = steps.tokens * meta_model.config.dims.hidden * steps.width
        first, last = stage == 0, stage == steps.pipeline - 1
        neighbours = (not first) + (not last)
        add("send", "pipeline", steps.pieces * neighbours, steps.pieces * neighbours * block)
        add("receive", "pipeline", steps.pieces * neighbours, steps.pieces * neighbours * block)
    # pairs of float32, gathered: what the loss is divided by; loss and norm; whether all go on
    if steps.data > 1:
        add("all_gather", "data", 1, 24)
    if steps.data * steps.tensor * steps.pipeline > 1:
        add("all_gather", "world", 1, 16)
        add("all_gather", "world", 1, 8)
    return found


@functools.lru_cache(STAGES)
def owner_loads(layout: Layout, stage: int, owners: int) -> tuple[int, ...]:
    """Numbers that each replica updates under ZeRO: parameters go, largest first, to whoever has least."""
    loads = [0] * owners
    for size in sorted((share.size for share in layout.of_stage(stage) if share.trained), reverse=True):
        loads[loads.index(min(loads))] += size
    return tuple(loads)
