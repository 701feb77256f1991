"""Strategy files: how each tensor of a sharded checkpoint lies over the devices.

Written in MindSpore's own JSON form, which its tools read; read in that form and in its protobuf form. A file describes
one pipeline stage, or several merged into one (names like ``1-model.norm.weight``)::

    {"current_stage": 0,
     "parallel_strategy_item": {"layout": {"stage": 0}},
     "parallel_layout_item": {"model.layers.0.self_attn.q_proj.weight":
       {"dev_matrix": [2, 4],       devices of the stage as data × tensor: device = replica · 4 + shard
        "tensor_map": [0, -1],      axis 0 lies along the last axis of the matrix, axis 1 is whole
        "opt_weight_shard_step": 0, "opt_weight_shard_size": 0, "field": 0}}}

A fused projection is divided block by block (`pet.parallel.split`), which MindSpore's form cannot say. Its entry has
``"blocks": [sizes]`` besides; only this library understands that.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from model_zoo.atomic import read_bytes, read_json
from model_zoo.errors import InputError
from pet.parallel.split import Division

MERGED = re.compile(r"(\d+)-(.+)")


@dataclasses.dataclass(frozen=True)
class TensorLayout:
    """How one tensor lies over the devices of its stage.

    Attributes:
        dev_matrix: the devices as a box; the last axis runs fastest.
        tensor_map: for each axis of the tensor the axes of the box that divide it, counted from the last one, outermost
            first; none where it is whole.
        step, size: MindSpore's parallel optimizer: axis 0 is divided once more over ``size`` devices, ``step`` apart.
        blocks: blocks along the one divided axis, each divided by itself; None for one.
    """

    dev_matrix: tuple[int, ...]
    tensor_map: tuple[tuple[int, ...], ...]
    step: int = 0
    size: int = 0
    blocks: tuple[int, ...] | None = None

    @property
    def devices(self) -> int:
        """Of the stage."""
        return prod(self.dev_matrix)

    def parts(self, axis: int) -> int:
        """Into how many parts an axis is cut."""
        along = self.tensor_map[axis] if axis < len(self.tensor_map) else ()
        return prod(self.dev_matrix[-1 - place] for place in along) * (max(1, self.size) if axis == 0 else 1)

    def place(self, device: int, axis: int) -> int:
        """Which of them a device has."""
        found, stride, coordinates = 0, 1, []
        for extent in reversed(self.dev_matrix):
            coordinates.append(device // stride % extent)  # from the last axis on, as the map counts
            stride *= extent
        for place in self.tensor_map[axis] if axis < len(self.tensor_map) else ():
            found = found * self.dev_matrix[-1 - place] + coordinates[place]
        if axis == 0 and self.size > 1:
            found = found * self.size + device // self.step % self.size
        return found

    def key(self, device: int, rank: int) -> tuple[int, ...]:
        """The parts that a device has of a tensor with that many axes; devices with equal ones hold the same."""
        return tuple(self.place(device, axis) for axis in range(rank))

    def divisions(self, part: tuple[int, ...]) -> list[Division]:
        """How the whole tensor is divided along each of its divided axes, given the shape of a part."""
        found = []
        for axis, extent in enumerate(part):
            if (members := self.parts(axis)) > 1:
                blocks = self.blocks or (extent * members,)
                if sum(blocks) != extent * members:
                    raise InputError(f"strategy: blocks of {sum(blocks)} for an axis of {extent * members}")
                found.append(Division(axis, blocks, members))
        return found


EVERYWHERE = TensorLayout((1,), ())
"""Of a tensor that every device has in full."""


@dataclasses.dataclass(frozen=True)
class Strategy:
    """The layout of a whole job.

    Attributes:
        stages: for each pipeline stage, the layouts of its tensors by name.
        devices: of one stage.
    """

    stages: tuple[dict[str, TensorLayout], ...]
    devices: int

    @property
    def ranks(self) -> int:
        """Devices of the job."""
        return self.devices * len(self.stages)

    def layout(self, stage: int, name: str) -> TensorLayout:
        """A tensor's layout; that of the parameter for what an optimizer keeps of it (``<slot>.<parameter>``)."""
        known = self.stages[stage]
        return known.get(name) or known.get(name.partition(".")[2]) or EVERYWHERE

    def held(self, stage: int, name: str) -> bool:
        """Whether a stage has a tensor. What no stage knows (a counter) is everywhere."""
        known = [self.layout(other, name) is not EVERYWHERE for other in range(len(self.stages))]
        return known[stage] or not any(known)


def read_strategy(path: str | Path | None) -> Strategy | None:
    """The strategy in a file, or in a folder with one file for each rank or stage; None for a whole checkpoint.

    Raises:
        InputError: nothing there, a file of another format, or stages that do not fit together.
    """
    if path is None:
        return None
    path = Path(path).expanduser()
    files = sorted([*path.glob("*.json"), *path.glob("*.ckpt")]) if path.is_dir() else [path]
    if not files:
        raise InputError(f"{path}: holds no strategy files (*.json, *.ckpt)")
    stages: dict[int, dict[str, TensorLayout]] = {}
    for file in files:
        own, items = read_items(file)
        for name, layout in items.items():
            merged = MERGED.fullmatch(name)
            stage, name = (int(merged[1]), merged[2]) if merged else (own, name)
            before = stages.setdefault(stage, {}).setdefault(name, layout)
            if before != layout:
                raise InputError(f"{file}: {name} lies otherwise than in another file of stage {stage}")
    devices = {layout.devices for layouts in stages.values() for layout in layouts.values()}
    if sorted(stages) != list(range(len(stages))):
        raise InputError(
            f"{path}: describes stage {', '.join(map(str, sorted(stages)))} alone; give the folder with the files of "
            "all stages"
        )
    if len(devices) != 1:
        raise InputError(f"{path}: stages of {', '.join(map(str, sorted(devices)))} devices; one size was expected")
    return Strategy(tuple(stages[number] for number in sorted(stages)), devices.pop())


def read_items(file: Path) -> tuple[int, dict[str, TensorLayout]]:
    """(pipeline stage, layouts by name) of one file."""
    if not file.is_file():
        raise InputError(f"strategy {file}: no such file")
    try:
        stage, items = json_items(file) if file.suffix == ".json" else protobuf_items(file)
        found = {name: layout_of(values) for name, values in items.items()}
    except InputError:
        raise
    except Exception as error:  # whatever a foreign file makes the parser say
        raise InputError(f"strategy {file}: cannot be read ({type(error).__name__}: {error})") from error
    if not found:
        raise InputError(f"strategy {file}: describes no tensor")
    return stage, found


def json_items(file: Path) -> tuple[int, Mapping[str, Any]]:
    """(pipeline stage, entries by name) of MindSpore's JSON form."""
    content = read_json(file, "a strategy")
    nodes = content.get("parallel_strategy_item") or {}
    first = next(iter(nodes.values()), {})
    return int(first.get("stage", 0)), content["parallel_layout_item"]


def protobuf_items(file: Path) -> tuple[int, Mapping[str, Any]]:
    """The same of MindSpore's protobuf form."""
    from mindspore.train.node_strategy_pb2 import ParallelStrategyMap

    content = ParallelStrategyMap()
    content.ParseFromString(read_bytes(file))
    nodes = content.parallel_strategy_item
    stage = nodes[0].parallel_strategys.stage if nodes else 0
    items = {}
    for item in content.parallel_layout_item:
        layouts = item.parallel_layouts
        maps = [list(entry.dim) for entry in layouts.tensor_map]
        items[item.param_name] = {
            "dev_matrix": list(layouts.dev_matrix[0].dim),
            "tensor_map": maps[0] if len(maps) == 1 else [entry for entry in maps if entry],
            "opt_weight_shard_step": layouts.opt_weight_shard_step,
            "opt_weight_shard_size": layouts.opt_weight_shard_size,
            "field": layouts.field,
        }
    return stage, items


def layout_of(values: Mapping[str, Any]) -> TensorLayout:
    """An entry as a layout. Raises ValueError: it is none."""
    if values.get("field"):
        raise ValueError("tensors divided by field are not supported")
    maps = tuple(
        tuple(place for place in (entry if isinstance(entry, (list, tuple)) else [entry]) if place != -1)
        for entry in values["tensor_map"]
    )
    matrix, size = tuple(values["dev_matrix"]), max(0, values.get("opt_weight_shard_size") or 0)
    if any(not 0 <= place < len(matrix) for entry in maps for place in entry):
        raise ValueError("a tensor_map names an axis that dev_matrix does not have")
    step = values.get("opt_weight_shard_step") or 0
    if size > 1 and step < 1:
        raise ValueError("opt_weight_shard_size without opt_weight_shard_step")
    step, size = (step, size) if size > 1 else (0, 0)
    return TensorLayout(matrix, maps, step, size, tuple(values.get("blocks") or ()) or None)


def stage_content(divided, data: int, tensor: int, stage: int) -> dict[str, Any]:
    """The file of a stage of this library's own layout.

    Args:
        divided: who holds what (`pet.parallel.shares.Layout`).
        data, tensor: replicas and shards.
    """
    items = {}
    for share in divided.of_stage(stage):
        places = [-1] * len(share.shape)
        if share.division is not None:
            places[share.division.axis] = 0
        items[share.name] = {
            "dev_matrix": [data, tensor],
            "tensor_map": places,
            "opt_weight_shard_step": 0,
            "opt_weight_shard_size": 0,
            "field": 0,
            "param_split_shape": [],
            "indices_offset": [],
        }
        if share.division is not None and len(share.division.blocks) > 1:
            items[share.name]["blocks"] = list(share.division.blocks)
    return {
        "current_stage": stage,
        "parallel_strategy_item": {"layout": {"stage": stage, "parallel_strategy": []}},
        "parallel_layout_item": items,
    }


def write_strategies(directory: str | Path, divided, data: int, tensor: int, pipeline: int) -> list[Path]:
    """Writes ``ckpt_strategy_rank_N.json`` for every rank of a layout; returns the files."""
    from pet.files import write_json

    written = []
    for stage in range(pipeline):
        content = stage_content(divided, data, tensor, stage)
        for device in range(data * tensor):
            path = Path(directory) / f"ckpt_strategy_rank_{stage * data * tensor + device}.json"
            write_json(path, content, indent=None)
            written.append(path)
    return written


def recipe_strategies(recipe, directory: str | Path, config: Mapping[str, Any] | None = None) -> list[Path]:
    """The strategy files of a recipe's model, adapter and layout, from shapes alone.

    Args:
        config: the config.json of the model, where it is not the recipe's.

    Raises:
        InputError: a layout that the model cannot be divided into.
    """
    from pet.meta_model import MetaModel
    from pet.parallel.shares import shares
    from pet.recipe.adapter import recipe_method

    layout = recipe.parallel
    meta_model = MetaModel(recipe.model.config_json() if config is None else dict(config))
    adapter = recipe_method(recipe.adapter, recipe.train.seed)
    divided = shares(meta_model, adapter, layout.tensor, layout.pipeline)
    return write_strategies(directory, divided, layout.data, layout.tensor, layout.pipeline)
