"""Sharded checkpoints from one layout to another, or to and from whole ones, tensor by tensor.

The directories are MindFormers': ``DIR/rank_N/checkpoint_N.ckpt``, or MindSpore's safetensors in their place. A whole
checkpoint may also be one file, or a Hugging Face directory. At no time more than one whole tensor is in memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from model_zoo.atomic import staged
from model_zoo.checkpoint.ckpt_io import write_ckpt
from model_zoo.checkpoint.directory import holds_weights
from model_zoo.checkpoint.file_bytes import TensorFile
from model_zoo.checkpoint.mindspore_files import opened, written
from model_zoo.checkpoint.reading import Checkpoint
from model_zoo.errors import InputError, nearest
from pet.parallel.strategy import EVERYWHERE, Strategy, TensorLayout, read_strategy

log = logging.getLogger("pet")
PREFIX = "checkpoint_"
STEP = re.compile(r"-(\d+_\d+)$")
"""How MindSpore ends a checkpoint's name: by epoch and step."""


@dataclasses.dataclass
class Report:
    """What was done; prints as a line.

    Attributes:
        ranks: files written.
        tensors: whole ones that they hold together.
    """

    output: Path
    ranks: int
    tensors: int

    def __str__(self) -> str:
        return f"{self.output}: {self.tensors} tensors in {self.ranks} {'ranks' if self.ranks > 1 else 'whole file'}"


def transform(
    source: str | Path,
    output: str | Path,
    source_strategy: str | Path | None = None,
    output_strategy: str | Path | None = None,
    prefix: str = PREFIX,
) -> Report:
    """Rewrites a checkpoint in another layout.

    Args:
        source: ``rank_N`` directories; or, whole, such a directory with ``rank_0``, a file of MindSpore's, or a Hugging
            Face directory.
        output: where ``rank_N/<prefix>N.ckpt`` go.
        source_strategy, output_strategy: a strategy file, a folder of them (one per rank or stage), or None: whole.
        prefix: of the written files' names.

    Raises:
        InputError: files or ranks that are missing, tensors that do not fit the strategy, a full output directory.
        CannotWrite: no room on the disk. Nothing is at `output` then.
    """
    output = Path(output).expanduser()
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InputError(f"{output}: is there already; give another directory")
    before, after = read_strategy(source_strategy), read_strategy(output_strategy)
    with Source(Path(source).expanduser(), before) as tensors, staged(output) as place:
        if after is not None:
            check_known(tensors, after)
        written: dict[tuple, Path] = {}
        ranks = 1 if after is None else after.ranks
        for rank in range(ranks):
            stage, device = (0, 0) if after is None else divmod(rank, after.devices)
            names = [name for name in tensors.shapes if after is None or after.held(stage, name)]
            layouts = {name: EVERYWHERE if after is None else after.layout(stage, name) for name in names}
            parts = {name: Part(name, tensors, layout, device) for name, layout in layouts.items()}
            path = place / f"rank_{rank}" / f"{prefix}{rank}.ckpt"
            path.parent.mkdir()
            same = tuple((name, part.key) for name, part in parts.items())
            if same in written:  # a replica
                shutil.copyfile(written[same], path)
                continue
            write_ckpt(path, {name: part.info for name, part in parts.items()}, lambda name, p=parts: p[name].read())
            written[same] = path
        return Report(output, ranks, len(tensors.shapes))


class Source(contextlib.AbstractContextManager["Source"]):
    """Whole tensors out of a checkpoint of any layout.

    Args:
        directory: where it lies.
        strategy: its layout; None for a whole one.

    Attributes:
        shapes: {name: shape} of the whole tensors.
        types: {name: type}.
    """

    def __init__(self, directory: Path, strategy: Strategy | None):
        self.strategy = strategy
        self.files: list = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.types: dict[str, str] = {}
        self.holders: dict[str, list[int]] = {}  # ranks whose parts make up the whole
        try:
            self._open(directory)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_) -> None:
        for file in self.files:
            file.close()

    def _open(self, directory: Path) -> None:
        if self.strategy is None:
            self.files.append(whole_file(directory))
            for name in self.files[0].tensors if isinstance(self.files[0], TensorFile) else self.files[0].names:
                self.types[name], self.shapes[name] = self.files[0].info(name)[:2]
            return
        for path in rank_files(directory, self.strategy.ranks):
            self.files.append(opened(path))
        for rank, file in enumerate(self.files):
            for name in file.tensors:
                self._add(rank, name)

    def _add(self, rank: int, name: str) -> None:
        dtype, part = self.files[rank].info(name)[:2]
        stage, whole = rank // self.strategy.devices, part
        for division in self.strategy.layout(stage, name).divisions(part):
            whole = division.whole_shape(whole)
        if self.shapes.setdefault(name, whole) != whole or self.types.setdefault(name, dtype) != dtype:
            raise InputError(f"{self.files[rank].path}: {name} does not fit its parts in other ranks {whole}")
        if stage == next(one for one in range(len(self.strategy.stages)) if self.strategy.held(one, name)):
            ranks = self.holders.setdefault(name, [])
            keys = [self._key(other, name, len(whole)) for other in ranks]
            if self._key(rank, name, len(whole)) not in keys:
                ranks.append(rank)

    def _key(self, rank: int, name: str, axes: int) -> tuple:
        stage, device = divmod(rank, self.strategy.devices)
        return self.strategy.layout(stage, name).key(device, axes)

    def read(self, name: str) -> np.ndarray:
        """A whole tensor, of its stored type; bfloat16 as its bits."""
        if self.strategy is None:
            file = self.files[0]
            return file.read(name) if isinstance(file, TensorFile) else file.raw(name)
        ranks = self.holders[name]
        first = self.files[ranks[0]].read(name)
        layout = self.strategy.layout(ranks[0] // self.strategy.devices, name)
        if len(ranks) == 1 and not layout.divisions(first.shape):
            return first
        whole = np.empty(self.shapes[name], first.dtype)
        missing = whole.size
        for rank in ranks:
            part = first if rank == ranks[0] else self.files[rank].read(name)
            for outer, inner in places(layout, rank % self.strategy.devices, part.shape):
                whole[outer] = part[inner]
            missing -= part.size
        if missing:
            raise InputError(f"{name}: the ranks hold {whole.size - missing} of its {whole.size} numbers")
        return whole


@dataclasses.dataclass
class Part:
    """What one rank of the output gets of a tensor."""

    name: str
    source: Source
    layout: TensorLayout
    device: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the part. Raises InputError: an axis that cannot be divided so."""
        whole = self.source.shapes[self.name]
        for axis, extent in enumerate(whole):
            if extent % self.layout.parts(axis):
                raise InputError(
                    f"{self.name}: axis {axis} of {whole} cannot be cut into {self.layout.parts(axis)} parts"
                )
        return tuple(extent // self.layout.parts(axis) for axis, extent in enumerate(whole))

    @property
    def info(self) -> tuple[str, tuple[int, ...]]:
        """Type and shape."""
        return self.source.types[self.name], self.shape

    @property
    def key(self) -> tuple:
        """Equal for ranks that hold the same."""
        return self.layout.key(self.device, len(self.source.shapes[self.name]))

    def read(self) -> np.ndarray:
        """The part as an array of its own."""
        whole, shape = self.source.read(self.name), self.shape
        if shape == whole.shape:
            return whole
        part = np.empty(shape, whole.dtype)
        for outer, inner in places(self.layout, self.device, shape):
            part[inner] = whole[outer]
        return part


def places(layout: TensorLayout, device: int, part: tuple[int, ...]) -> Iterator[tuple[tuple, tuple]]:
    """(index in the whole, index in the part) of each piece that a device has of a tensor."""
    axes: list[list[tuple[slice, slice]]] = [[(slice(None), slice(None))] for _ in part]
    for division in layout.divisions(part):
        found, offset = [], 0
        for outer in division.ranges(layout.place(device, division.axis)):
            width = outer.stop - outer.start
            found.append((outer, slice(offset, offset + width)))
            offset += width
        axes[division.axis] = found
    indices: list[tuple[tuple, tuple]] = [((), ())]
    for choices in axes:
        indices = [((*outer, whole), (*inner, own)) for outer, inner in indices for whole, own in choices]
    yield from indices


def check_known(source: Source, strategy: Strategy) -> None:
    """Raises InputError when a strategy describes nothing that the checkpoint holds: they belong to other models."""
    described = {name for stage in strategy.stages for name in stage}
    if not described & source.shapes.keys():
        some = next(iter(source.shapes))
        raise InputError(
            f"the strategy describes none of the checkpoint's tensors: not {some!r}{nearest(some, described)}"
        )


def rank_files(directory: Path, ranks: int) -> list[Path]:
    """The files of a checkpoint, one of each rank: of the newest step that all have, since a job may have ended while
    only some had written theirs.

    Raises:
        InputError: a rank has no file, or there are more ranks; or no step is in all of them.
    """
    found: list[dict[str, Path]] = []  # {step: file} from the newest on
    for rank in range(ranks):
        folder = directory / f"rank_{rank}"
        if not (files := written(folder)):
            raise InputError(f"{folder}: there is no .ckpt file, but the strategy has a rank {rank}")
        found.append({})
        for file in reversed(files):
            found[-1].setdefault(step_of(file), file)
    if (more := directory / f"rank_{ranks}").is_dir():
        raise InputError(f"{more}: is there, but the strategy has {ranks} ranks alone; does it lack a stage?")
    common = next((step for step in found[0] if all(step in each for each in found)), None)
    if common is None:
        ends = ", ".join(str(next(iter(each.values())).relative_to(directory)) for each in found)
        raise InputError(f"{directory}: the ranks have no step in common; they end with {ends}")
    for each in found:
        if (newest := next(iter(each))) != common:
            log.warning("%s is left: not all ranks have that step; %s is read", each[newest], each[common].name)
    return [each[common] for each in found]


def step_of(file: Path) -> str:
    """Epoch and step by MindSpore's name of a file; empty where it has none."""
    step = STEP.search(file.stem)
    return step[1] if step else ""


def whole_file(path: Path):
    """A whole checkpoint, opened: a file of MindSpore's, ``rank_0`` of a directory, or a Hugging Face directory."""
    if path.is_file():
        return opened(path)
    if not path.is_dir():
        raise InputError(f"{path}: no such file or directory")
    ranks = sorted(path.glob("rank_*"))
    if len(ranks) > 1:
        raise InputError(f"{path}: holds {len(ranks)} ranks; give their --src_ckpt_strategy")
    if ranks:
        return opened(*rank_files(path, 1))
    files = sorted(path.glob("*.ckpt"))
    if len(files) == 1:
        return opened(files[0])
    if files and not holds_weights(path):
        raise InputError(f"{path}: holds {len(files)} .ckpt files; give one of them, such as {files[-1]}")
    return Checkpoint(path)
