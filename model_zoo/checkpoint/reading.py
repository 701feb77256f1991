"""Hugging Face checkpoint directories as a set of named tensors, and their assignment to a model.

A directory holds ``config.json`` and either ``model.safetensors`` or shards with ``model.safetensors.index.json``, or
older files that PyTorch wrote (``pytorch_model.bin``).
Parameters bear the names of the published tensors, so that loading is an assignment; what a family's files have beside
them (tied copies, buffers) stands in its `Family` table.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from model_zoo.atomic import no_directory, read_json
from model_zoo.checkpoint.digests import check_beside
from model_zoo.checkpoint.directory import find_weights
from model_zoo.checkpoint.dtypes import STORAGE, float_name, typed
from model_zoo.checkpoint.made import MadeTensor, finite
from model_zoo.checkpoint.parameters import base_parameters, retype, write_parameter
from model_zoo.checkpoint.safetensors_io import SafetensorsFile, Slices, TensorInfo, nbytes
from model_zoo.checkpoint.wrappers import PUBLISHED, unstacked, unwrapped
from model_zoo.counting import config_of
from model_zoo.errors import InputError, located, nearest
from model_zoo.generation_settings import settings_beside
from model_zoo.quantization import codec
from model_zoo.quantization.additive import find_additive
from model_zoo.quantization.files import PackedTensor, find_packed, hidden, section_of
from model_zoo.quantization.integers import find_integers
from model_zoo.quantization.scaled import find_scaled

if TYPE_CHECKING:
    from mindspore import nn


def read_config(directory: str | Path) -> dict:
    """The dictionary in a checkpoint's ``config.json``; InputError when it is missing or not a JSON object."""
    directory = Path(directory)
    if not directory.is_dir():
        raise InputError(f"{directory}: {no_directory(directory)}; a Hugging Face checkpoint directory was expected")
    return read_json(directory / "config.json", "a Hugging Face model configuration")


class Checkpoint(contextlib.AbstractContextManager["Checkpoint"]):
    """The tensors of a checkpoint directory, in one file or many, read on demand. All headers are checked when it is
    opened; no weights are read then.

    Iterating gives the names in alphabetical order. Use it as a context manager, or call `close`.

    Attributes:
        packed: the matrices that are stored in 8 or 4 bits. Each is one float32 tensor here, under the weight's name
            and in the model's shape, and is dequantised as it is read; what else belongs to it is not listed. Those in
            float8 (`model_zoo.quantization.scaled`), out of codebooks (`additive`) or as integers that no cell
            holds (`integers`) are float32 likewise, but not among these: no cell holds them so.

    Raises:
        InputError: no directory, no weights, a missing shard, a truncated or corrupt file.
    """

    def __init__(self, directory: str | Path):
        self.directory = Path(directory)
        check_beside(self.directory)
        self.files: dict[str, SafetensorsFile] = {}
        self._where: dict[str, SafetensorsFile | MadeTensor] = {}
        self.packed: dict[str, PackedTensor] = {}
        paths, placed = find_weights(self.directory)
        problems = []
        try:
            for path in paths:
                try:
                    self.files[path.name] = SafetensorsFile(path)
                except InputError as error:
                    problems.append(str(error))
            if not problems:
                problems = self._collect(placed)
            InputError.raise_any(problems)
            config = self.directory / "config.json"
            values = read_json(config) if config.is_file() else {}
            with located(self.directory):
                self._unwrap(values)
                self._find_made(values)
        except BaseException:
            self.close()
            raise

    def _collect(self, placed: Mapping[str, str] | None) -> list[str]:
        problems = []
        for file_name, file in self.files.items():
            for name in file.tensors:
                if placed is not None and placed.get(name, file_name) != file_name:
                    continue
                if name in self._where:
                    problems.append(f"{self.directory}: {name} is in {self._where[name].path.name} and in {file_name}")
                self._where[name] = file
        for name, file_name in (placed or {}).items():
            if name not in self.files[file_name].tensors:
                problems.append(f"{self.directory / file_name}: lacks {name}, which the index places there")
        return problems

    def _unwrap(self, values: Mapping[str, Any]) -> None:
        known = set()
        with suppress(InputError):  # one that nobody can open has names all the same
            config = config_of(values)
            known = {*config.shapes(), *config.family.tied}
        known.update([name.partition(".")[2] for name in known])
        names = unwrapped(self._where, known)
        for file in self.files.values():
            file.rename(names)
        where = {names[name]: file for name, file in self._where.items()}
        self._where = {
            own: file for name, file in where.items() for own in unstacked({name: file.info(name)}, file.made)
        }
        for file in self.files.values():
            file.tensors = unstacked(file.tensors, file.made)

    def _find_made(self, values: Mapping[str, Any]) -> None:
        infos = {name: file.info(name) for name, file in self._where.items()}
        settings = section_of(values)
        scaled, beside = find_scaled(infos, settings)
        summed, parts = find_additive(infos, settings)
        integers, of_integers = find_integers(infos, self.stored, settings)
        beside |= parts | of_integers
        left = {name: info for name, info in infos.items() if name not in scaled and name not in beside}
        self.packed = find_packed(left, self.stored, integers)
        for name, one in {**scaled, **summed}.items():
            self._make(name, one.shape, functools.partial(one.read, self.stored))
        for name in beside:
            del self._where[name]
        cells = config_of(values).cells() if self.packed or integers else {}
        for name, one in {**integers, **self.packed}.items():
            spec, bias = cells.get(name.rpartition(".")[0]), f"{name[:-6]}bias"
            if spec is not None and not spec.bias and bias in self._where and not self.stored(bias).any():
                del self._where[bias]  # AutoGPTQ gave every matrix one
            if spec is not None and spec.transposed:
                one = dataclasses.replace(one, transposed=True)
            make = functools.partial(self._dequantized, name)
            if name in self.packed:
                self.packed[name] = one
            else:
                make = functools.partial(one.read, self.stored)
            self._make(name, one.shape[:: -1 if one.transposed else 1], make)
        for name in hidden(self.packed):
            self._where.pop(name, None)

    def _make(self, name: str, shape: tuple[int, ...], make: Callable[[Slices], np.ndarray]) -> None:
        info = TensorInfo("float32", shape, 0, nbytes("float32", shape))
        self._where[name] = MadeTensor(info, finite(f"{self.directory}: {name}", make))

    def with_tensors(self, made: Mapping[str, MadeTensor]) -> Checkpoint:
        """The same files with other tensors in the places of these."""
        other = copy.copy(self)
        other._where = {**self._where, **made}
        return other

    def without(self, left_out: Callable[[str], bool]) -> Checkpoint:
        """The same files as if they had no tensors of some names."""
        other = copy.copy(self)
        other._where = {name: file for name, file in self._where.items() if not left_out(name)}
        other.packed = {name: one for name, one in self.packed.items() if not left_out(name)}
        return other

    def stored(self, name: str, slices: Slices | None = None, dtype: str | None = None) -> np.ndarray:
        """A stored tensor as it is, the parts of packed matrices among them; bfloat16 as bits."""
        return next(file for file in self.files.values() if name in file.tensors).read(name, slices, dtype)

    def parts(self, name: str) -> codec.Arrays:
        """The arrays of a packed matrix. Raises InputError: NaN or infinity among its factors."""
        with located(self.directory):
            return self.packed[name].parts(self.stored)

    def _dequantized(self, name: str, slices: Slices) -> np.ndarray:
        """A packed matrix, or a block of it, in float32 and in the model's shape."""
        one, parts = self.packed[name], self.parts(name)
        first, second = (*slices, slice(None), slice(None))[:2]
        if one.transposed:
            return codec.dequantize(one.storage, parts, one.shape, second)[:, first].T
        return codec.dequantize(one.storage, parts, one.shape, first)[:, second]

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        for file in self.files.values():
            file.close()

    def __iter__(self):
        return iter(sorted(self._where))

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, name: str) -> bool:
        return name in self._where

    @property
    def names(self) -> list[str]:
        """The tensors' names in alphabetical order."""
        return sorted(self._where)

    def info(self, name: str) -> TensorInfo:
        """Type, shape and size of a tensor, from the header."""
        return self.source(name).info(name)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.info(name).shape

    def dtype(self, name: str) -> str:
        """``"float32"``, ``"float16"``, ``"bfloat16"``, …"""
        return self.info(name).dtype

    def read(self, name: str, slices: Slices | None = None, dtype: str | None = None) -> np.ndarray:
        """A tensor, or the block of it that `slices` (one ``slice`` per leading axis) cuts out, as a new array.

        Only the bytes of the block are read. `dtype` is a floating-point type to convert to, exactly or rounded once;
        without it the array has the stored type, bfloat16 as exact float32. ``"bfloat16"`` gives an array of
        MindSpore's NumPy type, which ``Tensor`` takes as it is.
        """
        target = float_name(dtype) if dtype is not None else "float32" if self.dtype(name) == "bfloat16" else None
        return typed(self.source(name).read(name, slices, target), target)

    def raw(self, name: str, dtype: str | None = None) -> np.ndarray:
        """A whole tensor in its stored type, or in `dtype`; bfloat16 as its bits (uint16), without MindSpore."""
        return self.source(name).read(name, None, dtype)

    def read_into(self, name: str, out: np.ndarray, slices: Slices | None = None) -> None:
        """Copies a tensor or a block of it into an array of the same shape, converting to the array's type."""
        self.source(name).read_into(name, out, slices)

    def blocks(self, name: str) -> Iterable[memoryview]:
        """The stored bytes of a tensor in pieces; of a packed matrix those of its numbers."""
        return self.source(name).blocks(name)

    def source(self, name: str) -> SafetensorsFile | MadeTensor:
        """What a tensor is read from."""
        try:
            return self._where[name]
        except KeyError:
            raise InputError(f"{self.directory}: there is no tensor {name!r}{nearest(name, self._where)}") from None


# Assigning to a model ------------------------------------------------------------------------------------------------


def assignment(
    checkpoint: Checkpoint,
    shapes: Mapping[str, tuple[int, ...]],
    tied: Mapping[str, str] | None = None,
    ignored: Iterable[str] = (),
) -> tuple[dict[str, str], dict[str, str]]:
    """Which stored tensor goes to which parameter.

    Args:
        shapes: {parameter name: shape} of the model.
        tied: {saved name: parameter name} for a tensor that a file may hold a second time under another name.
        ignored: regular expressions of stored names that are no parameters (mask buffers, inv_freq).

    Returns:
        ``({parameter name: stored name}, {stored name: parameter name of its tied copies})``

    Raises:
        InputError: lists every missing, extra and misshapen tensor, and every one of an unusable type.
    """
    tied = dict(tied or {})
    names = _with_prefix(checkpoint.names, shapes, tied)
    ignored = [re.compile(pattern) for pattern in ignored]
    sources = {name: stored for stored, name in names.items() if name in shapes}
    copies = {stored: tied[name] for stored, name in names.items() if name in tied and name not in shapes}
    for stored, name in list(copies.items()):
        if name not in sources:  # only the copy was saved
            sources[name] = stored
            del copies[stored]
    problems = []  # what the file does hold comes first: long lists are cut, and it says which model the file is of
    for stored, name in names.items():
        if name not in shapes and name not in tied and not any(pattern.search(stored) for pattern in ignored):
            problems.append(f"{stored} {checkpoint.shape(stored)} is no parameter of the model{nearest(name, shapes)}")
    problems += [f"{name} {tuple(shape)} is missing" for name, shape in shapes.items() if name not in sources]
    for name, stored in [*sources.items(), *((name, stored) for stored, name in copies.items())]:
        info = checkpoint.info(stored)
        if name in shapes and info.shape != tuple(shapes[name]):
            problems.append(f"{stored} has shape {info.shape}, the model needs {tuple(shapes[name])}")
        if info.dtype not in STORAGE:
            problems.append(f"{stored} is of type {info.dtype}; supported are {', '.join(STORAGE)}")
    InputError.raise_any([f"{checkpoint.directory}: {problem}" for problem in problems])
    return sources, copies


def _with_prefix(stored: Iterable[str], shapes: Mapping[str, object], tied: Mapping[str, str]) -> dict[str, str]:
    """{stored name: name in the model}. Files written from the headless model lack the first part of every name
    (``h.0.attn.c_attn.weight`` for ``transformer.h.0.attn.c_attn.weight``): it is put back."""
    stored = list(stored)
    known, published = {**shapes, **tied}, {}
    for old, new in PUBLISHED.items():
        names = {name: new + name.removeprefix(old) for name in stored if name.startswith(old)}
        published.update((name, its) for name, its in names.items() if its in known)
    if published:
        return {**{name: name for name in stored}, **published}
    for prefix in sorted({name.split(".", 1)[0] + "." for name in shapes if "." in name}):
        bare = {name.removeprefix(prefix) for name in shapes if name.startswith(prefix)}
        if not any(name.startswith(prefix) for name in stored) and any(name in bare for name in stored):
            return {name: name if name in shapes or name in tied else prefix + name for name in stored}
    return {name: name for name in stored}


def load_into(model: nn.Cell, directory: str | Path | Checkpoint, dtype: object = None) -> None:
    """Assigns a checkpoint to a model's parameters, tensor by tensor, straight from the file.

    Args:
        model: a `CausalLM`. Of what an adapter added, only what starts from the base's weights changes with them, as
            far as it has not been trained: it is then as if the adapter had been put on the loaded model.
        directory: checkpoint directory, or an open `Checkpoint`.
        dtype: floating-point type the parameters are given; ``None`` keeps the type each was created with.

    Raises:
        InputError: before anything is assigned; lists every tensor that is missing, extra or misshapen.
    """
    if not isinstance(directory, Checkpoint):
        with Checkpoint(directory) as checkpoint:
            return load_into(model, checkpoint, dtype)
    checkpoint = directory
    target = float_name(dtype) if dtype is not None else None
    family = model.family
    with getattr(model, "base_loading", nullcontext)():
        parameters = base_parameters(model)
        shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
        packed = [name for name, parameter in parameters.items() if hasattr(parameter, "packed_in")]
        shapes |= {name: model.config.shapes()[name] for name in packed}  # there they have others
        sources, copies = assignment(checkpoint, shapes, family.tied, family.ignored_tensors)
        check_tied(checkpoint, sources, copies)
        for name, stored in sources.items():
            assign(parameters[name], checkpoint, stored, target)
    note_source(model, checkpoint.directory)
    return None


def note_source(model: nn.Cell, directory: Path) -> None:
    """Keeps on a model where its tokenizer and licence are, for those who save it again, and how it generates."""
    model.generation_config = settings_beside(directory)
    model.loaded_from = str(directory)


def check_tied(checkpoint: Checkpoint, sources: Mapping[str, str], copies: Mapping[str, str]) -> None:
    """InputError when a file holds two different tensors where the model has one: one of them would be lost."""
    problems = []
    for stored, name in copies.items():
        if checkpoint.dtype(stored) != checkpoint.dtype(sources[name]):
            same = np.array_equal(checkpoint.read(stored), checkpoint.read(sources[name]))
        else:
            pairs = zip(checkpoint.blocks(stored), checkpoint.blocks(sources[name]), strict=True)
            same = all(bytes(first) == bytes(second) for first, second in pairs)
        if not same:
            problems.append(
                f"{checkpoint.directory}: {stored} differs from {sources[name]}, but the configuration ties them; "
                "set tie_word_embeddings to false in config.json if the family supports a head of its own"
            )
    InputError.raise_any(problems)


def assign(parameter, checkpoint: Checkpoint, stored: str, dtype: str | None = None, slices: Slices | None = None):
    """Puts a stored tensor, or a block of it, into a MindSpore Parameter, converted to `dtype` or to its own type.

    On the CPU a parameter's array is its memory, and a fresh zero parameter takes none before it is written to: the
    file's bytes go there without a second copy, and compiled graphs see them. On a device the array is a copy, so the
    tensor is read into an array of its own and assigned.
    """
    import mindspore as ms

    from model_zoo.graph import in_order

    if (cell := getattr(parameter, "packed_in", None)) is not None:
        from model_zoo.quantization.loading import fill

        return fill(cell, checkpoint, stored)
    if dtype is not None and float_name(parameter.dtype) != dtype:
        retype(parameter, getattr(ms, dtype))
    if ms.get_context("device_target") == "CPU":
        in_order(parameter)
        checkpoint.read_into(stored, parameter.asnumpy(), slices)
    else:
        write_parameter(parameter, checkpoint.read(stored, slices, float_name(parameter.dtype)))
    return None
