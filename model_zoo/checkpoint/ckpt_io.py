"""MindSpore's ``.ckpt`` format, read and written as a stream, one tensor at a time.

A file is a sequence of protocol-buffer messages ``Checkpoint {repeated Value {tag, TensorProto {dims, type, bytes}}}``.
A tensor of more than 512 MB is cut into several values of the same tag, one behind the other. ``load_checkpoint`` holds
the whole file in memory twice; here a file of any size takes the memory of the tensor that is read. Neither MindSpore
nor protobuf is imported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from model_zoo.atomic import atomic_write
from model_zoo.checkpoint.dtypes import as_storage, convert
from model_zoo.checkpoint.file_bytes import CHUNK, TensorFile
from model_zoo.checkpoint.safetensors_io import storage
from model_zoo.errors import InputError
from model_zoo.protobuf import fields, varint

# The format's words for types, and ours.
TYPES = {
    "Float16": "float16",
    "BFloat16": "bfloat16",
    "Float32": "float32",
    "Float64": "float64",
    "Bool": "bool",
    **{f"{sign}Int{bits}": f"{sign.lower()}int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)},
}
WORDS = {ours: theirs for theirs, ours in TYPES.items()}
SLICE = 512 * 2**20  # bytes of one value; MindSpore cuts there, too
CHECKSUM = b"crc_num"  # followed by ten bytes, at the end of files written with crc_check=True

Piece = tuple[int, int]  # start and end of bytes in the file


class CkptFile(TensorFile):
    """One open ``.ckpt`` file. Its structure is checked as a whole when it is opened; tensors are read on demand.

    Attributes:
        tensors: {name: (type, shape)} in the file's order.

    Raises:
        InputError: the file is missing, truncated, encrypted or of another format.
    """

    tensors: dict[str, tuple[str, tuple[int, ...]]]

    def scan(self) -> None:
        self.tensors, self._pieces = {}, dict[str, list[Piece]]()
        if not self._bytes.size:
            raise InputError(f"{self.path}: is empty; a MindSpore checkpoint was expected")
        try:
            self._scan()
        except (ValueError, IndexError, UnicodeDecodeError) as error:
            raise InputError(
                f"{self.path}: not a whole MindSpore checkpoint ({error}); was it cut off, or saved with an enc_key?"
            ) from None

    # Structure --------------------------------------------------------------------------------------------------------

    def _scan(self) -> None:
        end = self._bytes.size
        if self._bytes[max(0, end - 17) : max(0, end - 10)] == CHECKSUM:
            end -= 17
        for field, _, start, stop in fields(self._bytes, 0, end):
            if field != 1:
                raise ValueError(f"byte {start} belongs to no value")
            self._value(start, stop)
        if not self.tensors:
            raise ValueError("it holds no tensors")
        for name, (dtype, shape) in self.tensors.items():
            needed = math.prod(shape) * storage(dtype).itemsize
            found = sum(stop - start for start, stop in self._pieces[name])
            if needed != found:
                raise ValueError(f"{name} of shape {shape} takes {needed} bytes, {found} are there")

    def _value(self, start: int, stop: int) -> None:
        name, tensor = None, None
        for field, _, begin, end in fields(self._bytes, start, stop):
            if field == 1:
                name = self._bytes[begin:end].decode("utf-8")
            elif field == 2:
                tensor = begin, end
        if name is None or tensor is None:
            raise ValueError("a value has no name or is no tensor")
        dims, word, piece = [], None, (0, 0)
        for field, _, begin, end in fields(self._bytes, *tensor):
            if field == 1:
                while begin < end:
                    extent, begin = varint(self._bytes, begin)
                    dims.append(extent)
            elif field == 2:
                word = self._bytes[begin:end].decode("utf-8")
            elif field == 3:
                piece = begin, end
        if word == "str":
            return  # a remark beside the weights
        if word not in TYPES:
            raise ValueError(f"{name} is of type {word!r}")
        shape = () if dims == [0] else tuple(dims)
        if self.tensors.setdefault(name, (TYPES[word], shape)) != (TYPES[word], shape):
            raise ValueError(f"{name} is there twice")
        self._pieces.setdefault(name, []).append(piece)

    # Tensors ----------------------------------------------------------------------------------------------------------

    def read(self, name: str) -> np.ndarray:
        """A tensor as a new array of its stored type; bfloat16 as its bits (uint16)."""
        dtype, shape = self.info(name)
        array = np.empty(shape, storage(dtype))
        flat, done = array.reshape(-1).view(np.uint8), 0
        for piece in self._pieces[name]:
            for start in range(piece[0], piece[1], CHUNK):
                end = min(start + CHUNK, piece[1])
                self._bytes.read_into(start, flat[done : done + end - start])
                done += end - start
        return array


def write_ckpt(
    path: str | Path,
    tensors: Mapping[str, tuple[str, tuple[int, ...]]],
    data: Callable[[str], np.ndarray],
) -> None:
    """Writes a ``.ckpt`` file as MindSpore's ``save_checkpoint`` does, whole or not at all.

    Args:
        tensors: {name: (type, shape)} of everything that goes into it, in this order.
        data: gives a tensor when its turn comes, of any floating-point type (bfloat16 as bits); it is let go of before
            the next is asked for.
    """
    with atomic_write(path) as file:
        for name, (dtype, shape) in tensors.items():
            bits, word = as_storage(data(name))
            word = dtype if word == "uint16" and dtype == "bfloat16" else word
            flat = np.ascontiguousarray(convert(bits, word, dtype)).reshape(-1)
            if flat.size != math.prod(shape):
                raise ValueError(f"{name}: {flat.size} elements were given, {shape} takes more or fewer")
            content = memoryview(flat).cast("B") if flat.size else memoryview(b"")
            for start in range(0, max(1, len(content)), SLICE):
                piece = content[start : start + SLICE]
                for block in _framed(name, WORDS[dtype], shape, len(piece)):
                    file.write(block)
                file.write(piece)


def _framed(name: str, word: str, shape: Iterable[int], size: int) -> Iterator[bytes]:
    """What stands before a value's bytes: the messages around them, whose lengths include the bytes."""
    dims = b"".join(b"\x08" + _number(extent) for extent in (tuple(shape) or (0,)))
    inner = dims + _text(2, word) + b"\x1a" + _number(size)
    tag = _text(1, name)
    tensor = b"\x12" + _number(len(inner) + size)
    yield b"\x0a" + _number(len(tag) + len(tensor) + len(inner) + size)
    yield tag
    yield tensor
    yield inner


def _text(field: int, text: str) -> bytes:
    encoded = text.encode("utf-8")
    return bytes([field << 3 | 2]) + _number(len(encoded)) + encoded


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
