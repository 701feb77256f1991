"""The safetensors format, read and written as a stream, one tensor at a time.

A file is an unsigned 64-bit length, a JSON header of that length (``{name: {"dtype", "shape", "data_offsets"}}``) and
the tensors' bytes, little-endian, in row-major order, without gaps. Why not the safetensors package: its NumPy side
cannot read bfloat16, needs all tensors in memory to write, and in 0.8 writes wrong bytes for arrays that are not
contiguous. Files written here are byte for byte those of the package.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from model_zoo import progress
from model_zoo.checkpoint import pickled
from model_zoo.checkpoint.dtypes import FLOAT8, STORAGE, as_storage, convert
from model_zoo.checkpoint.file_bytes import CHUNK, FileBytes, TensorFile
from model_zoo.checkpoint.made import MadeTensor, Slices, strided
from model_zoo.errors import InputError

# The format's type codes in its own order (tensors are written by descending type, then by name), the word used here,
# and the bits of one element.
DTYPES = {
    "BOOL": ("bool", 8),
    "F4": ("float4", 4),
    "F6_E2M3": ("float6_e2m3", 6),
    "F6_E3M2": ("float6_e3m2", 6),
    "U8": ("uint8", 8),
    "I8": ("int8", 8),
    "F8_E5M2": ("float8_e5m2", 8),
    "F8_E4M3": ("float8_e4m3", 8),
    "F8_E8M0": ("float8_e8m0", 8),
    "I16": ("int16", 16),
    "U16": ("uint16", 16),
    "F16": ("float16", 16),
    "BF16": ("bfloat16", 16),
    "I32": ("int32", 32),
    "U32": ("uint32", 32),
    "F32": ("float32", 32),
    "C64": ("complex64", 64),
    "F64": ("float64", 64),
    "I64": ("int64", 64),
    "U64": ("uint64", 64),
}
CODES = {word: code for code, (word, _) in DTYPES.items()}
RANK = {code: rank for rank, code in enumerate(DTYPES)}

MAX_HEADER = 100_000_000  # the limit of the reference implementation
NARROW = 4096  # parts of rows of fewer bytes are read with what lies between: the disk gives no less at once
AHEAD = 8 * CHUNK  # how far before it is copied a chunk is asked for: the disk reads while others are converted


class TensorInfo(NamedTuple):
    """What a header says of one tensor; `start` and `end` are byte positions in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.start


def nbytes(dtype: str, shape: Iterable[int]) -> int:
    """Bytes of a tensor of this type and shape in a file."""
    return math.prod(shape) * DTYPES[CODES[dtype]][1] // 8


def storage(dtype: str) -> np.dtype:
    """The NumPy type that holds a tensor of this type; bfloat16 and float8 are kept as their bits."""
    if dtype in STORAGE:
        return STORAGE[dtype]
    if dtype in FLOAT8:
        return np.dtype("uint8")
    if dtype == "bool" or dtype.startswith(("int", "uint", "complex")):
        return np.dtype(dtype).newbyteorder("<")
    raise InputError(f"tensors of type {dtype} cannot be read; supported are {', '.join(STORAGE)} and integers")


class SafetensorsFile(TensorFile):
    """One open safetensors file. The header is checked as a whole when it is opened; data is read on demand.

    A file that ``torch.save`` wrote is one as well: only where its tensors lie is said otherwise (`pickled`).

    Attributes:
        tensors: {name: what the header says}.
        made: those of them that do not lie in the file as they are read.

    Raises:
        InputError: the file is missing, truncated or corrupt.
    """

    tensors: dict[str, TensorInfo]

    def scan(self) -> None:
        self.made: dict[str, MadeTensor] = {}
        form = pickled.form_of(self._bytes[0 : pickled.LONGEST])
        if form == "torch" or (not form and self.path.suffix == ".bin"):
            self.tensors, self.metadata = self._pickled(), {}
        else:
            self.tensors, self.metadata = _read_header(self._bytes, self.path)

    def rename(self, names: Mapping[str, str]) -> None:
        """Calls tensors by others names from here on: {name: its new one}."""
        self.tensors = {names.get(name, name): info for name, info in self.tensors.items()}
        self.made = {names.get(name, name): one for name, one in self.made.items()}

    def read(self, name: str, slices: Slices | None = None, dtype: str | None = None) -> np.ndarray:
        """A tensor, or a block of it, as a fresh contiguous array.

        Args:
            slices: one ``slice`` of step 1 per leading axis; only these bytes are read.
            dtype: floating-point type to convert to; ``None`` keeps the stored type. bfloat16 comes as its bits
                (uint16).
        """
        info = self.info(name)
        if name in self.made:
            return self.made[name].read(name, slices, dtype)
        wanted = storage(dtype or info.dtype)
        out = np.empty([stop - start for start, stop in _bounds(info.shape, slices, name)], wanted)
        self._copy(name, out, slices, dtype or info.dtype)
        return out

    def read_into(self, name: str, out: np.ndarray, slices: Slices | None = None) -> None:
        """Copies a tensor, or a block of it, into an array of the same shape, converting to the array's type.

        `out` may be of MindSpore's NumPy bfloat16. Nothing but `out` takes memory, apart from pieces of
        `CHUNK` bytes.
        """
        bits, target = as_storage(out)
        if name in self.made:
            return self.made[name].read_into(name, out, slices)
        return self._copy(name, bits, slices, target)

    def blocks(self, name: str) -> Iterable[memoryview]:
        """The bytes of a tensor as stored, in pieces that are only valid until the next one is asked for."""
        info = self.info(name)
        if name in self.made:
            yield from self.made[name].blocks(name)
            return
        buffer = memoryview(bytearray(min(CHUNK, info.nbytes)))
        for start in range(info.start, info.end, CHUNK):
            piece = buffer[: info.end - start]
            self._ahead(start)
            self._bytes.read_into(start, piece)
            yield piece.toreadonly()

    def _pickled(self) -> dict[str, TensorInfo]:
        tensors = {}
        for name, (dtype, shape, start, strides) in pickled.read_header(self.path, nbytes).items():
            tensors[name] = info = TensorInfo(dtype, shape, start, start + nbytes(dtype, shape))
            if strides is not None:
                self.made[name] = strided(self._bytes, info, storage(dtype), strides)
        return tensors

    def _copy(self, name: str, out: np.ndarray, slices: Slices | None, target: str) -> None:
        info = self.info(name)
        bounds = _bounds(info.shape, slices, name)
        if out.shape != tuple(stop - start for start, stop in bounds):
            raise InputError(f"{self.path}: {name} has shape {info.shape}, which does not fit into {out.shape}")
        if info.dtype != target and (info.dtype not in STORAGE or target not in STORAGE):
            raise InputError(f"{self.path}: {name} is of type {info.dtype} and cannot be converted to {target}")
        if not out.size:
            return
        shape = info.shape or (1,)
        bounds, out = bounds or [(0, 1)], out.reshape(1) if out.ndim == 0 else out
        partly = [axis for axis, (bound, size) in enumerate(zip(bounds, shape, strict=True)) if bound != (0, size)]
        axis = max(partly, default=0)  # behind it all is taken: what lies there is one run of bytes
        strides = [math.prod(shape[number + 1 :]) for number in range(len(shape))]
        if axis == 0:
            width = strides[0] if not out.flags.c_contiguous else 1
            rows = out.reshape(-1) if width == 1 else out
            self._copy_rows(info, bounds[0][0] * strides[0], (0, width), width, rows, target)
            return
        columns = (bounds[axis][0] * strides[axis], bounds[axis][1] * strides[axis])
        for index in itertools.product(*(range(*bound) for bound in bounds[: axis - 1])):
            begin = sum(place * stride for place, stride in zip((*index, bounds[axis - 1][0]), strides, strict=False))
            own = tuple(place - bound[0] for place, bound in zip(index, bounds, strict=False))
            self._copy_rows(info, begin, columns, strides[axis - 1], out[own], target)

    def _copy_rows(
        self, info: TensorInfo, begin: int, columns: tuple[int, int], width: int, out: np.ndarray, target: str
    ) -> None:
        """Copies the same columns of neighbouring rows.

        Args:
            begin: the element of the tensor where the first row begins.
            columns: the first one that is taken, and the one behind the last.
            width: elements of a row.
            out: (rows, …) of the taken elements.
        """
        stored, taken = storage(info.dtype), columns[1] - columns[0]
        apart = taken < width and taken * stored.itemsize >= NARROW
        whole = taken if apart else width
        straight = taken == width and out.dtype == stored and info.dtype == target and out.flags.c_contiguous
        step = max(1, CHUNK // (whole * stored.itemsize))
        buffer = None if straight else np.empty(min(step, len(out)) * whole, stored)
        for first in range(0, len(out), step):
            rows = out[first : first + step]
            piece = rows.reshape(-1) if straight else buffer[: len(rows) * whole]
            start = info.start + (begin + first * width + apart * columns[0]) * stored.itemsize
            self._ahead(start)
            for number, run in enumerate(piece.view(np.uint8).reshape(len(rows) if apart else 1, -1)):
                self._bytes.read_into(start + number * width * stored.itemsize, run)
            if not straight:
                part = piece if apart else piece.reshape(-1, width)[:, slice(*columns)]
                rows[...] = convert(part.reshape(rows.shape), info.dtype, target)

    def _ahead(self, start: int) -> None:
        """Asks the system for the chunk that lies `AHEAD` of this place."""
        progress.tick()
        self._bytes.ahead(start + AHEAD, CHUNK)


def _bounds(shape: tuple[int, ...], slices: Slices | None, name: str) -> list[tuple[int, int]]:
    slices = (slices,) if isinstance(slices, slice) else tuple(slices or ())
    if len(slices) > len(shape):
        raise InputError(f"{name} has shape {shape}: {len(slices)} slices are too many")
    bounds = []
    for size, part in zip(shape, slices + (slice(None),) * (len(shape) - len(slices)), strict=True):
        start, stop, step = part.indices(size)
        if step != 1:
            raise InputError(f"{name}: slices of a stored tensor have step 1, not {step}")
        bounds.append((start, max(start, stop)))
    return bounds


def _unique(pairs: list[tuple[str, object]]) -> dict:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name occurs twice")
    return result


def _read_header(file: FileBytes, path: Path) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    size = file.size

    def corrupt(reason: str) -> InputError:
        return InputError(f"{path}: not a whole safetensors file: {reason}; download or write it again")

    if size < 8:
        raise corrupt(f"it has {size} bytes")
    length = int.from_bytes(file[0:8], "little")
    if length > MAX_HEADER or length < 2:
        raise corrupt(f"its header claims {length} bytes (is it really a safetensors file?)")
    if length + 8 > size:
        raise corrupt(f"its header claims {length} bytes, the file has {size}")
    try:
        header = json.loads(file[8 : 8 + length].decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise corrupt(f"its header is not valid JSON ({error})") from None
    if not isinstance(header, dict):
        raise corrupt("its header is not a JSON object")
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise corrupt("its __metadata__ is not a JSON object of texts")
    begin = 8 + length
    tensors = {}
    for name, entry in header.items():
        try:
            code, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
            numbers = (*shape, start, end)
            if not all(type(number) is int and number >= 0 for number in numbers) or end < start:
                raise ValueError
        except (KeyError, TypeError, ValueError):
            raise corrupt(f"the header's entry of {name!r} is malformed") from None
        if type(code) is not str or code not in DTYPES:
            raise corrupt(f"{name!r} has the unknown type {code!r}")
        word, bits = DTYPES[code]
        if math.prod(shape) * bits != (end - start) * 8:
            raise corrupt(f"{name!r} of shape {shape} and type {code} does not fill its {end - start} bytes")
        tensors[name] = TensorInfo(word, shape, begin + start, begin + end)
    position = begin
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)):
        if info.start != position:
            raise corrupt(f"there is a gap or an overlap before {name!r}")
        position = info.end
    if position != size:
        missing = f" ({position - size} are missing)" if position > size else ""
        raise corrupt(f"its tensors end at byte {position}, the file has {size} bytes{missing}")
    return tensors, metadata


def header_bytes(tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str] | None = None):
    """The head of a file for tensors given as {name: (type, shape)}, and the names in the order of their data."""
    order = sorted(tensors, key=lambda name: (-RANK[CODES[tensors[name][0]]], name))
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    position = 0
    for name in order:
        dtype, shape = tensors[name]
        end = position + nbytes(dtype, shape)
        header[name] = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)  # the data begins at a multiple of eight
    return len(text).to_bytes(8, "little") + text, order


def write_stream(
    file: BinaryIO,
    tensors: Mapping[str, tuple[str, tuple[int, ...]]],
    data: Callable[[str], np.ndarray | Iterable[memoryview]],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes a safetensors file, asking for one tensor at a time.

    Args:
        tensors: {name: (type, shape)} of everything that goes into the file.
        data: gives the tensor of a name when its turn comes: an array (of any floating-point type, converted piece by
            piece; bfloat16 as bits or as MindSpore's type), or a sequence of byte blocks. It is let go of before the
            next is asked for.
        metadata: strings for the header; transformers wants ``{"format": "pt"}``.
    """
    head, order = header_bytes(tensors, metadata)
    file.write(head)
    for name in order:
        dtype, shape = tensors[name]
        value = data(name)
        begin = file.tell()
        if isinstance(value, np.ndarray):
            _write_array(file, name, value, dtype, shape)
        else:
            for block in value:
                file.write(block)
        expected = nbytes(dtype, shape)
        if file.tell() - begin != expected:
            raise ValueError(f"{name}: {file.tell() - begin} bytes were given, {dtype} {shape} takes {expected}")
        del value


def _write_array(file: BinaryIO, name: str, value: np.ndarray, dtype: str, shape: tuple[int, ...]) -> None:
    bits, word = as_storage(value)
    if word == "uint16" and dtype == "bfloat16":
        word = dtype  # already as bits
    if bits.shape != tuple(shape) or (word != dtype and not {word, dtype} <= set(STORAGE)):
        raise ValueError(f"{name}: got {word} {bits.shape}, announced was {dtype} {tuple(shape)}")
    rows = bits.reshape(1) if bits.ndim == 0 else bits
    step = max(1, CHUNK // max(1, rows[:1].nbytes))
    for start in range(0, len(rows), step):
        progress.tick()
        piece = convert(rows[start : start + step], word, dtype)
        block = np.ascontiguousarray(piece, dtype=storage(dtype))
        file.write(memoryview(block.reshape(-1)).cast("B"))


def write_file(path: str | Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None) -> None:
    """Writes arrays (float, integer, or MindSpore's NumPy bfloat16) as one safetensors file, whole or not at all."""
    from model_zoo.atomic import atomic_write

    described = {name: (as_storage(value)[1], value.shape) for name, value in tensors.items()}
    with atomic_write(path, sum(value.nbytes for value in tensors.values())) as file:
        write_stream(file, described, tensors.__getitem__, metadata)


def read_file(path: str | Path) -> dict[str, np.ndarray]:
    """All tensors of a small file; bfloat16 comes as exact float32."""
    with SafetensorsFile(path) as file:
        return {
            name: file.read(name, dtype="float32" if info.dtype == "bfloat16" else None)
            for name, info in file.tensors.items()
        }
