"""A MindFormers ``.ckpt`` file seen as a checkpoint with Hugging Face's names, and the other way round.

Both views give one tensor at a time: memory holds that and its parts, however large the file is.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from model_zoo.checkpoint.made import MadeTensor, Slices
from model_zoo.checkpoint.mindspore_files import opened
from model_zoo.checkpoint.reading import Checkpoint, assignment, check_tied
from model_zoo.checkpoint.safetensors_io import TensorInfo, nbytes
from model_zoo.counting import parameter_shapes, tied_head
from model_zoo.errors import InputError, nearest
from model_zoo.families import config_class
from pet.compat.ckpt.names import LORA, NO_WEIGHTS, PREFIX, Form, Group, form_of, groups, shapes_of

log = logging.getLogger("pet")
_LAYER = re.compile(r"\.(\d+)\.")
_LEFT_OUT = re.compile("|".join(f"(?:{pattern})" for pattern in NO_WEIGHTS))


def is_weight(name: str) -> bool:
    """Whether a name is that of a weight: no optimizer state, counter, cache, LoRA matrix or part of a prefix."""
    return not any(pattern.fullmatch(name) for pattern in (_LEFT_OUT, LORA, PREFIX))


def is_prefix(name: str) -> bool:
    """Whether a name is that of a part of a prefix."""
    return PREFIX.fullmatch(name) is not None


def is_lora(name: str) -> bool:
    """Whether a name is that of a LoRA matrix."""
    return LORA.fullmatch(name) is not None and _LEFT_OUT.fullmatch(name) is None


def to_ours(group: Group, theirs: list[np.ndarray]) -> list[np.ndarray]:
    """Our tensors, or B matrices of LoRA, out of MindFormers' of a group: by its outputs, the first axis."""
    parts = _rearranged(group, theirs if len(theirs) > 1 else _cut(group, theirs[0], group.pieces), back=True)
    return parts if len(group.ours) > 1 else [_joined(parts)]


def our_tensors(group: Group, theirs: list[np.ndarray], shapes: Mapping[str, tuple[int, ...]]) -> list[np.ndarray]:
    """`to_ours` of weights, which lie as in our models."""
    ours = zip(to_ours(group, theirs), group.ours, strict=True)
    return [one.T if group.transposed or one.shape != shapes[name] else one for one, name in ours]  # w2_transb


def to_theirs(group: Group, ours: list[np.ndarray]) -> list[np.ndarray]:
    """MindFormers' tensors, or B matrices of LoRA, out of ours of a group: by its outputs, the first axis."""
    parts = _rearranged(group, _cut(group, _joined(ours)))
    return parts if len(group.theirs) > 1 else [_joined(parts, group.pieces)]


def _cut(group: Group, whole: np.ndarray, pieces: int = 1) -> list[np.ndarray]:
    turns, ends = whole.reshape(pieces, -1, *whole.shape[1:]), np.cumsum(group.rows)[:-1] // pieces
    return [part.reshape(-1, *whole.shape[1:]) for part in np.split(turns, ends, axis=1)]


def _joined(parts: list[np.ndarray], pieces: int = 1) -> np.ndarray:
    if len(parts) == 1:
        return parts[0]
    rest = parts[0].shape[1:]
    return np.concatenate([part.reshape(pieces, -1, *rest) for part in parts], axis=1).reshape(-1, *rest)


def _rearranged(group: Group, parts: list[np.ndarray], back: bool = False) -> list[np.ndarray]:
    """The parts with the outputs of every head in MindFormers' order, or `back` in ours."""
    return [_ordered(*pair, back) for pair in zip(parts, group.rearranged or (0,) * len(parts), strict=True)]


def _ordered(part: np.ndarray, width: int, back: bool) -> np.ndarray:
    if not width:
        return part
    width, back = abs(width), back != (width < 0)
    order = np.concatenate([np.arange(0, width, 2), np.arange(1, width, 2)])
    order = np.argsort(order) if back else order
    return part.reshape(-1, width, *part.shape[1:])[:, order].reshape(part.shape)


class MindFormersCheckpoint(Checkpoint):
    """The tensors of a ``.ckpt`` file by Hugging Face's names, which it may have itself: MindSpore saves this library's
    models so.

    Args:
        path: the file.
        config: the dictionary of the model's config.json.
        form: what the file's names do not tell.
        fewer: of a file with more layers than the configuration has the first ones are read, as MindSpore loads them,
            and a line says so. Without, that is an error.

    Attributes:
        left_out: names in the file that are no weights of the base, or of layers that are not read.

    Raises:
        InputError: lists every name that is missing or not known, with the nearest, and every shape that does not fit.
    """

    def __init__(self, path: str | Path, config: Mapping[str, Any], form: Form | None = None, fewer: bool = True):
        self.path = Path(path)
        self.directory = self.path.parent  # where tokenizer files may be
        self.config, self.files = config, {}
        self.file = opened(path)
        weights = [name for name in self.file.tensors if is_weight(name)]
        self.left_out = [name for name in self.file.tensors if not is_weight(name)]
        self.form, self._shapes = form_of(weights, form), shapes_of(config)
        found = own_names(config, weights, self.form) or groups(config, self.form)
        if fewer and (further := further_layers(self.path, weights, {one for group in found for one in group.theirs})):
            weights = [name for name in weights if name not in further]
            self.left_out += sorted(further)
        self._check(found, weights)
        self._where = {}
        for group in found:
            for place, name in enumerate(group.ours):
                self._add(name, group, place)

    def _check(self, found: list[Group], weights: Iterable[str]) -> None:
        wanted = {name for group in found for name in group.theirs}
        if not any(name in wanted for name in weights):
            kind = "only LoRA matrices" if any(map(is_lora, self.left_out)) else "no weight of this model"
            example = next(iter(weights), None)
            raise InputError(
                f"{self.path}: holds {kind}" + (f", {example} for example" if example else "") + "; "
                f"names such as {found[0].theirs[0]} were expected"
            )
        missing = [name for name in wanted if name not in self.file.tensors]
        problems = [f"{name} is missing" for name in missing]
        problems += [
            f"{name} is no parameter of this model{nearest(name, missing or wanted)}"  # most likely one that is missing
            for name in weights
            if name not in wanted
        ]
        there = {name: info[1] for name, info in self.file.tensors.items()}
        problems += [problem for group in found for problem in misshapen(group, self._shapes, there)]
        InputError.raise_any([f"{self.path}: {problem}" for problem in sorted(problems)])

    def close(self) -> None:
        self.file.close()

    def _add(self, name: str, group: Group, place: int) -> None:
        theirs = group.theirs[place] if len(group.theirs) == len(group.ours) else group.theirs[0]
        dtype, shape = self.file.info(theirs)[0], self._shapes[name]

        def make(slices: Slices) -> np.ndarray:
            theirs = [self.file.read(theirs) for theirs in group.theirs]
            return our_tensors(group, theirs, self._shapes)[place][slices or ...]

        self._where[name] = MadeTensor(TensorInfo(dtype, shape, 0, nbytes(dtype, shape)), make)


def layer_of(name: str) -> int:
    """The number of the layer whose weight bears a name; -1 for a weight of none."""
    found = _LAYER.search(name)
    return int(found[1]) if found else -1


def further_layers(path: Path, weights: Iterable[str], wanted: set[str]) -> set[str]:
    """The weights of layers behind the last one of a model, of whose first layers a file has any; a line says so."""
    layers, known, weights = 1 + max(map(layer_of, wanted)), {_LAYER.sub(".", name) for name in wanted}, set(weights)
    found = {name for name in weights if layer_of(name) >= layers and _LAYER.sub(".", name) in known}
    if not found or not wanted & weights:
        return set()
    read, there = (1 + max(map(layer_of, one)) for one in (weights - found, weights))
    log.warning("%s: the first %d of %d layers are read", path, read, there)
    return found


def own_names(config: Mapping[str, Any], weights: Iterable[str], form: Form) -> list[Group]:
    """The tensors of a model each by itself, where a file has more names of ours than of MindFormers'; else none."""
    own, weights = parameter_shapes(config), set(weights)
    with suppress(InputError):  # MindFormers has no such family
        if len(weights & own.keys()) <= sum(name in weights for one in groups(config, form) for name in one.theirs):
            return []
    return [Group((name,), (name,), shape[:1]) for name, shape in own.items()] if weights & own.keys() else []


def their_shapes(group: Group, shapes: Mapping[str, tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The shapes that MindFormers' tensors of a group have."""
    first = shapes[group.ours[0]]
    rest = (first[0],) if group.transposed else first[1:]
    if len(group.theirs) == 1:
        return [first if len(group.ours) == 1 else (sum(group.rows), *rest)]
    return [(rows, *rest) for rows in group.rows]


def misshapen(
    group: Group, shapes: Mapping[str, tuple[int, ...]], there: Mapping[str, tuple[int, ...]]
) -> Iterator[str]:
    """What is wrong with the shapes of MindFormers' tensors of a group, as far as they are there."""
    for name, shape in zip(group.theirs, their_shapes(group, shapes), strict=True):
        found = there.get(name, shape)
        if found != shape and not (name.endswith("feed_forward.w2.weight") and found == shape[::-1]):
            yield f"{name} has shape {found}, this model needs {shape}"


class HuggingFaceView:
    """The tensors of a checkpoint directory by MindFormers' names.

    Args:
        checkpoint: the open directory.
        config: its config.json.
        form: how MindFormers is to divide the matrices.

    Attributes:
        tensors: {MindFormers' name: (type, shape)}, in the order of the layers.

    Raises:
        InputError: the directory lacks a tensor, or MindFormers has no place for one.
    """

    def __init__(self, checkpoint: Checkpoint, config: Mapping[str, Any], form: Form | None = None):
        self.checkpoint = checkpoint
        head, shapes = tied_head(config), shapes_of(config)
        tied = dict([head]) if head else {}
        ignored = config_class(config).family.ignored_tensors
        self.sources, copies = assignment(checkpoint, parameter_shapes(config), tied, ignored)
        check_tied(checkpoint, self.sources, copies)
        self.sources.update({name: self.sources[source] for name, source in tied.items()})
        self.tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._where: dict[str, tuple[Group, int]] = {}
        for group in groups(config, form):
            dtype = checkpoint.dtype(self.sources[group.ours[0]])
            for place, (name, shape) in enumerate(zip(group.theirs, their_shapes(group, shapes), strict=True)):
                self.tensors[name] = dtype, shape
                self._where[name] = group, place

    def raw(self, name: str) -> np.ndarray:
        """A tensor by MindFormers' name, as stored; bfloat16 as its bits."""
        group, place = self._where[name]
        dtype = self.tensors[name][0]
        arrays = [self.checkpoint.raw(self.sources[ours], dtype) for ours in group.ours]
        parts = to_theirs(group, [array.T for array in arrays] if group.transposed else arrays)
        return np.ascontiguousarray(parts[place])
