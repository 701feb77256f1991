"""What each process of a layout holds, from shapes alone: no weight is allocated, no process is started.

`shares` lists every parameter with its specification (`pet.parallel.specs`, which `shard` and `cut_stage` carry out on
a real model): how it is divided, which stages have it, and how the terms of its gradient come together. Planning
(`pet.planning`) and strategy files (`pet.parallel.strategy`) follow from it.
"""

from __future__ import annotations

import dataclasses
import functools
from math import prod

from adapters.initial import START
from adapters.matching import chosen_sites, plan, wanted
from adapters.method import MethodConfig
from adapters.patterns import named
from model_zoo.errors import InputError
from model_zoo.quantization.codec import part_storage
from model_zoo.quantization.storage import Storage
from pet.meta_model import MetaModel
from pet.parallel import specs
from pet.parallel.specs import TIED, ShardSpecs, check_whole, stage_layers
from pet.parallel.split import WHOLE, Division

NAMES = 2**14
"""How many answers about a parameter's name are kept: some more than the largest model's parameters."""
STAGES = 2**9
"""How many answers about a stage are kept: some more than a layout has stages, with all ways to work them through."""


@dataclasses.dataclass(frozen=True)
class Share:
    """A parameter, and what a process has of it.

    Attributes:
        shape: of the whole tensor.
        role: how the terms of its gradient come together (`pet.parallel.split`, and `TIED`).
        division: how tensor-parallel members share it; None where each has all of it.
        stages: the pipeline stages that have it.
        adapter: whether it belongs to the adapter: held in float32 whatever the base's type is.
        copied: whether it is the adapter's own copy of one of the base's parameters, in the base's type.
        trained: whether the optimizer changes it.
        replicas: how many share a process's part, of which each has some rows (`pet.parallel.gathered`).
    """

    name: str
    shape: tuple[int, ...]
    role: str = WHOLE
    division: Division | None = None
    stages: tuple[int, ...] = (0,)
    adapter: bool = False
    copied: bool = False
    trained: bool = False
    replicas: int = 1

    @functools.cached_property
    def part(self) -> tuple[int, ...]:
        """The shape of what one process has."""
        return self.shape if self.division is None else self.division.part_shape(self.shape)

    @functools.cached_property
    def size(self) -> int:
        """How many numbers that is."""
        return prod(self.part)


@dataclasses.dataclass(frozen=True, eq=False)  # one is itself alone, so that what is known of it can be kept
class Layout:
    """All shares of a model.

    Attributes:
        shares: one per parameter.
        layers: of each stage.
    """

    shares: tuple[Share, ...]
    layers: tuple[range, ...]

    @property
    def gathered(self) -> bool:
        """Whether replicas share the frozen base."""
        return any(share.replicas > 1 for share in self.shares)

    def of_stage(self, stage: int) -> list[Share]:
        """What a stage holds."""
        return self._held[stage]

    @functools.cached_property
    def _held(self) -> list[list[Share]]:
        return [[share for share in self.shares if stage in share.stages] for stage in range(len(self.layers))]

    def trained(self) -> Layout:
        """Itself. Raises InputError where a stage has nothing to train."""
        for part, held in zip(self.layers, self._held, strict=True):
            if not any(share.trained for share in held):
                raise InputError(
                    f"parallel.pipeline: a stage would have nothing to train; of layers {part.start} to "
                    f"{part.stop - 1} nothing is; expected an adapter on every stage (adapter.layers), or fewer stages"
                )
        return self


def shares(
    meta_model: MetaModel, adapter: MethodConfig | None = None, tensor: int = 1, pipeline: int = 1, replicas: int = 1
) -> Layout:
    """How a model and its adapter are divided.

    Args:
        adapter: a method's configuration; None trains every weight.
        tensor, pipeline: shards and stages.
        replicas: those that share what is frozen (`pet.parallel.gathered`); 1 where each has all of it.

    Raises:
        InputError: heads, widths, layers, rows or an adapter that cannot be divided so.
    """
    return cut(meta_model, adapter, uncut(meta_model, adapter, tensor, replicas), pipeline)


def uncut(meta_model: MetaModel, adapter: MethodConfig | None, tensor: int, replicas: int = 1) -> list[Share]:
    """The shares before they are put on stages. Arguments and errors are those of `shares`."""
    rules = ShardSpecs(meta_model.config, tensor)
    found = [
        Share(f"{path}.{attribute}", shape, *rules.of_base(path, attribute), trained=adapter is None)
        for path, cell in rules.cells.items()
        for attribute, shape in cell.shapes.items()
    ]
    if adapter is not None:
        found += adapter_shares(meta_model, adapter, rules, {share.name: share for share in found})
    if replicas > 1:
        found = over_replicas(meta_model, adapter, found, replicas)
    return found


def packed_part(share: Share, storage: Storage, transposed: bool) -> Storage:
    """The form of what a process has of a packed matrix.

    Args:
        storage: the form of the whole.
        transposed: whether checkpoints have the matrix as (in, out).

    Raises:
        InputError: its blocks would be cut into pieces that are too small.
    """
    division, turn = share.division, -1 if transposed else 1
    if division is None:
        return storage
    try:
        return part_storage(storage, share.shape[::turn], (0, 1)[::turn][division.axis], division.ranges(0))
    except InputError as error:
        raise too_small(share.name.rpartition(".")[0], error) from None


def too_small(path: str, error: InputError) -> InputError:
    """What is said of a packed matrix that cannot be cut."""
    return InputError(f"parallel.tensor: {path}: {error}; choose another block, or list it in skip")


# Names are asked for again by every layout of a plan.


@functools.lru_cache(NAMES)
def side_of(meta_model: MetaModel, path: str) -> str | None:
    """``column`` or ``row`` for a linear cell that is divided, else None."""
    return specs.side_of(meta_model.family, path)


@functools.lru_cache(NAMES)
def cell_of(meta_model: MetaModel, name: str) -> str:
    """The path of the cell that a parameter belongs to, an adapter's to the one it sits on; empty where it is none."""
    while name and name not in meta_model.cells:
        name = name.rpartition(".")[0]
    return name


@functools.lru_cache(NAMES)
def in_feed_forward(meta_model: MetaModel, path: str) -> bool:
    """Whether a cell is one of the feed-forward's."""
    return any(named(path, name) for name in meta_model.family.mlp)


def adapter_shares(
    meta_model: MetaModel, adapter: MethodConfig, rules: ShardSpecs, base: dict[str, Share]
) -> list[Share]:
    """What an adapter adds: its modules' parameters, and its copies of the base's."""
    adapter = adapter.resolved(meta_model)
    if "model" in adapter.kinds:  # its one module stands in front of the whole model
        return [Share("prompt", (plan(meta_model, adapter).parameters,), adapter=True, trained=True)]
    chosen = chosen_sites(meta_model, adapter)
    found: dict[str, Share] = {}
    for path, module in modules_at(meta_model, adapter, chosen).items():
        for name, parameter in module.parameters_and_names():
            full = f"{path}.{name}" if path else name
            # what layers share is one parameter under several names
            shared = name.startswith(("trunk.", "source."))
            spec = rules.of_adapter(path, module, name)
            trained = not getattr(parameter, "buffer", False) and parameter.requires_grad
            share = Share(full, tuple(parameter.shape), *spec, adapter=True, trained=trained)
            found[name if shared else full] = share
    if getattr(adapter, "init", None) in START:  # the factors that it starts from and keeps lie as the trained ones do
        ends = (".lora_A.weight", ".lora_B.weight")  # embeddings have another start
        pairs = [(name.replace(".lora_", ".initial_"), share) for name, share in found.items() if name.endswith(ends)]
        found.update({name: dataclasses.replace(share, name=name, trained=False) for name, share in pairs})
    if getattr(adapter, "use_dora", False):
        found.update(magnitudes(rules, chosen))
    for path, cell, attribute in wanted(meta_model, adapter, chosen):
        original = base.get(f"{path}.{attribute}")
        shape = tuple(cell._params[attribute].shape)
        role, division = (original.role, original.division) if original is not None else (WHOLE, None)
        name = f"{path}.modules_to_save.default.{attribute}"
        found[name] = Share(name, shape, role, division, (0,), True, True, True)
    return list(found.values())


def modules_at(meta_model: MetaModel, adapter: MethodConfig, chosen: list) -> dict:
    """A module for each cell. Cells alike in all but their layer get the same one: only its shapes are looked at."""
    # neither another start nor a magnitude changes these shapes; dropout's key is one number
    simplest = {"use_dora": False, "init": "default", "dropout": 0.0}
    plain = dataclasses.replace(adapter, **{name: value for name, value in simplest.items() if hasattr(adapter, name)})
    rank_at = getattr(plain, "rank_at", lambda path: 0)
    models: dict[tuple, str] = {}
    kinds = {}
    for site in chosen:
        suffix = site.path if site.layer is None else site.path.split(f".{site.layer}.", 1)[1]
        kinds[site.path] = key = (suffix, rank_at(site.path))
        models.setdefault(key, site)
    built = plain.build_all(meta_model, list(models.values()))
    return {path: built[models[key].path] for path, key in kinds.items() if models[key].path in built}


def magnitudes(rules: ShardSpecs, chosen: list) -> dict[str, Share]:
    """DoRA's trained magnitude at each cell, and the norm that it starts from, which is no weight."""
    found = {}
    for site in chosen:
        for name, trained in (("lora_magnitude_vector", True), ("magnitude.norm", False)):
            full = f"{site.path}.{name}"
            spec = rules.along(site.path, specs.ADAPTER_AXES[name])
            found[full] = Share(full, (site.out_features,), *spec, (0,), True, False, trained)
    return found


def over_replicas(
    meta_model: MetaModel, adapter: MethodConfig | None, found: list[Share], replicas: int
) -> list[Share]:
    """The same with the frozen matrices of the layers shared, but those that an adapter's copy stands in for."""
    if getattr(adapter, "use_dora", False):
        raise InputError("parallel.shard_base: adapter.use_dora reads whole matrices, which replicas would share")
    gathered = {f"{path}.weight" for path in specs.gathered_cells(meta_model.config)}
    gathered -= {share.name.replace(".modules_to_save.default.", ".") for share in found if share.copied}
    divided = []
    for share in found:
        if share.name in gathered and not share.trained:
            specs.check_rows(share.name.rpartition(".")[0], share.part[0], replicas)
            share = dataclasses.replace(share, replicas=replicas)
        divided.append(share)
    return divided


# Stages --------------------------------------------------------------------------------------------------------------


def cut(meta_model: MetaModel, adapter: MethodConfig | None, found: list[Share], pipeline: int) -> Layout:
    """Puts the shares on their stages.

    Raises:
        InputError: more stages than layers, or an adapter that acts on the whole model.
    """
    count = meta_model.config.dims.layers
    if pipeline == 1:
        return Layout(tuple(found), (range(count),))
    check_whole(adapter)
    tied = meta_model.config.tied_head()
    sizes = [
        (share.name, share.size)
        for share in found
        # a copy stands in the place of the base's own, which counts (`pet.parallel.stages.cut_stage`)
        if not share.copied and (not share.adapter or isinstance(place_of(meta_model, share.name), int))
    ]
    if tied is not None:
        sizes.append((tied[0], prod(meta_model.shapes[tied[1]])))
    layers = stage_layers(meta_model.config, sizes, pipeline)
    stage_of = {index: stage for stage, part in enumerate(layers) for index in part}
    placed = []
    for share in found:
        place = place_of(meta_model, share.name)
        stages = (stage_of[place],) if isinstance(place, int) else (0,) if place == "first" else (pipeline - 1,)
        if tied is not None and share.name == tied[1]:
            share, stages = dataclasses.replace(share, role=TIED), (0, pipeline - 1)
        placed.append(dataclasses.replace(share, stages=stages))
    return Layout(tuple(placed), tuple(layers))


@functools.lru_cache(NAMES)
def place_of(meta_model: MetaModel, name: str) -> int | str:
    """The layer of a parameter, or ``first`` for embeddings and ``last`` for the final norm and the head."""
    return specs.place_of(meta_model.family, name)
