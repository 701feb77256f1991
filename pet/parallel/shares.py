"""What each process of a layout holds, from shapes alone: no weight is allocated, no process is started.

`shares` says of every parameter what `pet.parallel.tensor.shard` and `pet.parallel.stages.cut_stage` do with it on a
real model: how it is divided, which stages have it, and how the terms of its gradient come together. Planning
(`pet.planning`) and strategy files (`pet.parallel.strategy`) follow from it; a test holds it against divided models.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from math import prod

from adapters.initial import START
from adapters.matching import chosen_sites, plan
from adapters.method import MethodConfig
from adapters.patterns import named
from adapters.replacement import wanted
from model_zoo.errors import InputError
from pet.outline import Outline
from pet.parallel.checks import check_divisible
from pet.parallel.split import PARTIAL, SPLIT, WHOLE, Division
from pet.parallel.stages import TIED, balance
from pet.parallel.tensor import PREFIX_AXES, acts_on_sum, axes_of

@dataclasses.dataclass(frozen=True)
class Share:
    """A parameter, and what a process has of it.

    Attributes:
        name: as in the model.
        shape: of the whole tensor.
        role: how the terms of its gradient come together (`pet.parallel.split`, and `TIED`).
        division: how tensor-parallel members share it; None where each has all of it.
        stages: the pipeline stages that have it.
        adapter: whether it belongs to the adapter: held in float32 whatever the base's type is.
        copied: whether it is the adapter's own copy of one of the base's parameters, in the base's type.
        trained: whether the optimizer changes it.
    """

    name: str
    shape: tuple[int, ...]
    role: str = WHOLE
    division: Division | None = None
    stages: tuple[int, ...] = (0,)
    adapter: bool = False
    copied: bool = False
    trained: bool = False

    @property
    def part(self) -> tuple[int, ...]:
        """The shape of what one process has."""
        return self.shape if self.division is None else self.division.part_shape(self.shape)

    @property
    def size(self) -> int:
        """How many numbers that is."""
        return prod(self.part)

    def bytes(self, width: int) -> int:
        """Memory of it, with ``width`` bytes for a number of the base."""
        return self.size * (4 if self.adapter and not self.copied else width)


@dataclasses.dataclass(frozen=True)
class Layout:
    """All shares of a model.

    Attributes:
        shares: one per parameter.
        layers: of each stage.
        regions: per layer, how many sums over the tensor-parallel group its forward has.
    """

    shares: tuple[Share, ...]
    layers: tuple[range, ...]

    def of_stage(self, stage: int) -> list[Share]:
        """What a stage holds."""
        return [share for share in self.shares if stage in share.stages]


def shares(outline: Outline, adapter: MethodConfig | None = None, tensor: int = 1, pipeline: int = 1) -> Layout:
    """How a model and its adapter are divided.

    Args:
        outline: the model.
        adapter: a method's configuration; None trains every weight.
        tensor, pipeline: shards and stages.

    Raises:
        InputError: heads, widths, layers or an adapter that cannot be divided so.
    """
    check_divisible(outline.config.dims, tensor)
    found = [*base_shares(outline, tensor, adapter is None)]
    if adapter is not None:
        found += adapter_shares(outline, adapter, tensor, {share.name: share for share in found})
    return cut(outline, adapter, found, pipeline)


def side_of(outline: Outline, path: str) -> str | None:
    """``column`` or ``row`` for a linear cell that is divided, else None."""
    family = outline.family
    if not path.startswith(family.layers + "."):
        return None
    if any(named(path, name) for name in family.column):
        return "column"
    return "row" if any(named(path, name) for name in family.row) else None


def cell_of(outline: Outline, name: str) -> str:
    """The path of the cell that a parameter belongs to, an adapter's to the one it sits on; empty where it is none."""
    while name and name not in outline.cells:
        name = name.rpartition(".")[0]
    return name


def in_feed_forward(outline: Outline, path: str) -> bool:
    """Whether a cell is one of the feed-forward's."""
    return any(named(path, name) for name in outline.family.mlp)


def blocks_at(outline: Outline, path: str, side: str) -> tuple[int, ...]:
    """The blocks along the divided side of a cell, each of which is divided by itself."""
    spec = outline.specs[path]
    into, out = spec.weight if spec.transposed else spec.weight[::-1]
    if side == "row":
        return (into,)
    dims = outline.config.dims
    kind = next((kind for name, kind in outline.family.fused.items() if named(path, name)), None)
    if kind == "qkv":
        return (dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim, dims.kv_heads * dims.head_dim)
    return (dims.ffn, dims.ffn) if kind == "gate_up" else (out,)


def base_shares(outline: Outline, tensor: int, trained: bool) -> Iterator[Share]:
    """The base's parameters."""
    for name, shape in outline.shapes.items():
        path, _, attribute = name.rpartition(".")
        side = side_of(outline, path) if tensor > 1 else None
        role, division = WHOLE, None
        if side is not None:
            blocks = blocks_at(outline, path, side)
            if attribute == "weight":
                axis = (0 if side == "column" else 1) ^ outline.specs[path].transposed
                role, division = SPLIT, Division(axis, blocks, tensor)
            elif side == "column":
                role, division = SPLIT, Division(0, blocks, tensor)
            else:
                role = PARTIAL
        yield Share(name, shape, role, division, trained=trained)


def adapter_shares(outline: Outline, adapter: MethodConfig, tensor: int, base: dict[str, Share]) -> list[Share]:
    """What an adapter adds: its modules' parameters, and its copies of the base's."""
    adapter = adapter.resolved(outline)
    if "model" in adapter.kinds:  # its one module stands in front of the whole model
        return [Share("prompt", (plan(outline, adapter).parameters,), adapter=True, trained=True)]
    chosen = chosen_sites(outline, adapter)
    found: dict[str, Share] = {}
    regions = {path.rpartition(".")[0] for path in outline.cells if side_of(outline, path)} if tensor > 1 else set()
    for path, module in modules_at(outline, adapter, chosen).items():
        if path in regions:
            raise InputError(
                f"parallel.tensor: {type(module).__name__} beside {path} cannot be divided; place it behind (houlsby)"
            )
        for name, parameter in module.parameters_and_names():
            full = f"{path}.{name}" if path else name
            # what layers share is one parameter under several names
            shared = name.startswith(("trunk.", "source."))
            role, division = divided(outline, path, module, name, tensor)
            trained = not getattr(parameter, "buffer", False) and parameter.requires_grad
            share = Share(full, tuple(parameter.shape), role, division, adapter=True, trained=trained)
            found[name if shared else full] = share
    if getattr(adapter, "init", None) in START:
        found.update(first_factors(found))
    if getattr(adapter, "use_dora", False):
        found.update(magnitudes(outline, chosen, tensor))
    for path, cell, attribute in wanted(outline, adapter, chosen):
        original = base.get(f"{path}.{attribute}")
        shape = tuple(cell._params[attribute].shape)
        role, division = (original.role, original.division) if original is not None else (WHOLE, None)
        name = f"{path}.modules_to_save.default.{attribute}"
        found[name] = Share(name, shape, role, division, (0,), True, True, True)
    return list(found.values())


def modules_at(outline: Outline, adapter: MethodConfig, chosen: list) -> dict:
    """A module for each cell. Cells alike in all but their layer get the same one: only its shapes are looked at."""
    plain = dataclasses.replace(adapter, use_dora=False) if getattr(adapter, "use_dora", False) else adapter
    if getattr(plain, "init", "default") != "default":
        plain = dataclasses.replace(plain, init="default")  # another start, the same shapes
    if getattr(plain, "dropout", 0.0):
        plain = dataclasses.replace(plain, dropout=0.0)  # its key is one number
    rank_at = getattr(plain, "rank_at", lambda path: 0)
    models: dict[tuple, str] = {}
    kinds = {}
    for site in chosen:
        suffix = site.path if site.layer is None else site.path.split(f".{site.layer}.", 1)[1]
        kinds[site.path] = key = (suffix, rank_at(site.path))
        models.setdefault(key, site)
    built = plain.build_all(outline, list(models.values()))
    return {path: built[models[key].path] for path, key in kinds.items() if models[key].path in built}


def divided(outline: Outline, path: str, module, name: str, tensor: int) -> tuple[str, Division | None]:
    """Role and division of a module's parameter."""
    side = side_of(outline, path) if tensor > 1 else None
    if tensor > 1 and path.endswith(outline.family.attention_core) and name in PREFIX_AXES:
        axis, width = PREFIX_AXES[name], outline.config.dims.kv_heads * outline.config.dims.head_dim
        return (PARTIAL, None) if axis is None else (SPLIT, Division(axis, (width, width), tensor))
    if side is None or (acts_on_sum(module) and side == "row" and not getattr(module, "parallel", False)):
        return WHOLE, None
    axes = axes_of(module, name)
    if axes is None:
        raise InputError(f"parallel.tensor: {type(module).__name__} on {path} cannot be divided ({name})")
    end = "out" if side == "column" else "in"
    if end not in axes:
        return PARTIAL, None
    return SPLIT, Division(axes.index(end), blocks_at(outline, path, side), tensor)


def first_factors(found: dict[str, Share]) -> dict[str, Share]:
    """The factors that PiSSA and OLoRA start from and keep: they lie as the trained ones do."""
    pairs = [(name.replace(".lora_", ".initial_"), share) for name, share in found.items() if ".lora_" in name]
    return {name: dataclasses.replace(share, name=name, trained=False) for name, share in pairs}


def magnitudes(outline: Outline, chosen: list, tensor: int) -> dict[str, Share]:
    """DoRA's trained magnitude at each cell, and the norm that it starts from, which is no weight."""
    found = {}
    for site in chosen:
        side = side_of(outline, site.path) if tensor > 1 else None
        role, division = WHOLE, None
        if side == "column":
            role, division = SPLIT, Division(0, blocks_at(outline, site.path, side), tensor)
        elif side == "row":
            role = PARTIAL
        for name, trained in (("lora_magnitude_vector", True), ("magnitude.norm", False)):
            full = f"{site.path}.{name}"
            found[full] = Share(full, (site.out_features,), role, division, (0,), True, False, trained)
    return found


# Stages --------------------------------------------------------------------------------------------------------------


def cut(outline: Outline, adapter: MethodConfig | None, found: list[Share], pipeline: int) -> Layout:
    """Puts the shares on their stages.

    Raises:
        InputError: more stages than layers, or an adapter that acts on the whole model.
    """
    count = outline.config.dims.layers
    if pipeline == 1:
        return Layout(tuple(found), (range(count),))
    if adapter is not None and "model" in adapter.kinds:
        raise InputError(
            f"parallel.pipeline: adapter.method {adapter.method!r} acts on the whole model, which cannot be cut into "
            "stages; expected another method, or parallel.pipeline = 1"
        )
    if getattr(adapter, "projection", False):
        raise InputError(
            "parallel.pipeline: the adapter has a projection that all layers share, which cannot be cut into stages; "
            "set adapter.projection to false"
        )
    costs, first, last = [0] * count, 0, 0
    tied = outline.config.tied_head()
    places: dict[str, int | str] = {}
    for share in found:
        place = place_of(outline, share.name)
        places[share.name] = place
        if isinstance(place, int):
            costs[place] += share.size
        elif share.copied or not share.adapter:
            if place == "first":
                first += share.size
            else:
                last += share.size
    if tied is not None:
        last += prod(outline.shapes[tied[1]])
    layers = balance(costs, first, last, pipeline)
    stage_of = {index: stage for stage, part in enumerate(layers) for index in part}
    placed = []
    for share in found:
        place = places[share.name]
        stages = (stage_of[place],) if isinstance(place, int) else (0,) if place == "first" else (pipeline - 1,)
        if tied is not None and share.name == tied[1]:
            share, stages = dataclasses.replace(share, role=TIED), (0, pipeline - 1)
        placed.append(dataclasses.replace(share, stages=stages))
    return Layout(tuple(placed), tuple(layers))


def place_of(outline: Outline, name: str) -> int | str:
    """The layer of a parameter, or ``first`` for embeddings and ``last`` for the final norm and the head."""
    prefix = outline.family.layers + "."
    if name.startswith(prefix):
        return int(name[len(prefix) :].partition(".")[0])
    return "first" if cell_of(outline, name) in outline.family.embeddings else "last"
