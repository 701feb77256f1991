"""A digest that tells one base model from another, so that an adapter is not put on the wrong one.

It depends on the architecture and on every weight, and on nothing else: not on shards, file names, the form of
config.json, buffers, or the type the weights are held in. For the last it has two parts, of every weight rounded to
bfloat16 and to float16, and two bases are the same where one part is (`same_base`): a copy in bfloat16 has the first
part of what it is a copy of, a copy in float16 the second. Two copies of one float32 base, one in each type, count as
different: each has lost what the other keeps. Loaded as float16, or packed in 8 or 4 bits while loading, unchanged
weights count as those of the files that they were loaded from. What is packed on disk counts by its dequantised
numbers.
Another fine-tuning of the same model differs in some of its millions of rounded weights.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from model_zoo import progress
from model_zoo.checkpoint.dtypes import STORAGE, as_storage, convert, float_name
from model_zoo.checkpoint.parameters import base_parameters, read_parameter, whole_base
from model_zoo.checkpoint.reading import Checkpoint, assignment
from model_zoo.counting import parameter_shapes, sizes
from model_zoo.errors import InputError
from model_zoo.quantization import codec

if TYPE_CHECKING:
    from mindspore import nn

PIECE = 2**16  # elements that are rounded and hashed at once in each thread: few enough to stay in its cache
ROUNDINGS = ("bfloat16", "float16")
VERSION = "1"  # goes into the digest; to be raised when its definition changes


def fingerprint(config: Mapping[str, Any], source: Checkpoint | nn.Cell, roundings: Sequence[str] = ROUNDINGS) -> str:
    """The fingerprint of a base model: for each rounding 32 hexadecimal digits, with a ``-`` between them.

    Args:
        config: config.json's dictionary, or a model's ``config.to_dict()``.
        source: an open `Checkpoint`, or a model. Of a model only the base's parameters count, whatever adapters are
            attached; a base that was trained or merged into is another one.
        roundings: the first of `ROUNDINGS`.

    Raises:
        InputError: the checkpoint or the model lacks a tensor that the configuration asks for.
    """
    shapes = parameter_shapes(config)
    if isinstance(source, Checkpoint):
        stored, _ = assignment(source, shapes, ignored=(".",))  # whatever is not a parameter does not count
        return digest(
            config,
            {name: (source.dtype(stored[name]), shapes[name]) for name in shapes},
            _file(source, stored),
            roundings,
        )
    parameters = whole_base(source)
    packed = {name: parameters[name].packed_in for name in shapes if hasattr(parameters[name], "packed_in")}
    words = {name: float_name(parameters[name].dtype) for name in shapes if name not in packed}

    def bits(name: str) -> np.ndarray:
        return as_storage(read_parameter(parameters[name]))[0]

    with ExitStack() as stack:
        stored, pieces = _rounded_from(source, shapes, words, bits, packed, stack)
        described = {name: (stored.get(name, word), shapes[name]) for name, word in words.items()}
        described.update((name, (stored.get(name, "float32"), shapes[name])) for name in packed)

        def own(name: str) -> Iterable[np.ndarray]:
            if name in stored:
                return pieces(name)
            if name in packed:
                return _pieces(packed[name].published())
            return _pieces(bits(name))

        return digest(config, described, own, roundings)


def same_numbers(own: np.ndarray, others: np.ndarray) -> bool:
    """Whether a base's numbers are these, both in float32, or are once they are rounded to 16 bits."""
    as_stored = (convert(convert(own, "float32", kind), kind, "float32") for kind in ("float32", *ROUNDINGS))
    return any(np.array_equal(each, others) for each in as_stored)


def same_base(one: str, other: str) -> bool:
    """Whether two fingerprints are of one base, in whatever types it is kept. One of older files has the first part."""
    return any(part == its for part, its in zip(one.split("-"), other.split("-"), strict=False))


def _rounded_from(model: nn.Cell, shapes, words, bits, packed, stack: ExitStack):
    """What the float16 and packed weights of a model were in its checkpoint: ({name: stored type}, name -> pieces).

    float16 loses what bfloat16 keeps (small and large numbers) and moves others across the middle between two of
    bfloat16's: no digest of the rounded weights could be that of the file. A weight that still is what the file's
    becomes in float16 counts as the file's. So does a packed one that was not changed since it was loaded.
    """
    directory = getattr(model, "loaded_from", None)
    if directory is None or not (packed or "float16" in words.values()):
        return {}, None
    try:
        checkpoint = stack.enter_context(Checkpoint(directory))
        places, _ = assignment(checkpoint, shapes, ignored=(".",))
    except InputError:  # the files are gone, or others by now
        return {}, None
    same = {
        name: checkpoint.dtype(places[name])
        for name, word in words.items()
        if word == "float16"
        and np.array_equal(checkpoint.raw(places[name], word).view(np.uint16), bits(name).view(np.uint16))
    }
    same.update((name, checkpoint.dtype(places[name])) for name, cell in packed.items() if cell.unchanged)
    return same, _file(checkpoint, places)


def glance(model: nn.Cell) -> int:
    """A checksum of a model's base that costs next to nothing: of a matrix one number of every row, each in another
    column. Training, loading and editing rows change it; it tells whether `fingerprint` has to be taken again.
    """
    seen = 0
    for name, parameter in sorted(base_parameters(model).items()):
        if hasattr(parameter, "packed_in"):
            seen = zlib.crc32(str(codec.glance(parameter.packed_in.arrays())).encode(), seen)
            continue
        bits, word = as_storage(read_parameter(parameter))
        some = bits.reshape(-1)[:: bits.shape[-1] + 1 if bits.ndim > 1 else 1]
        seen = zlib.crc32(np.ascontiguousarray(some), zlib.crc32(f"{name} {word}".encode(), seen))
    return seen


def digest(
    config: Mapping[str, Any],
    tensors: Mapping[str, tuple[str, tuple[int, ...]]],
    pieces: Callable[[str], Iterable[np.ndarray]],
    roundings: Sequence[str] = ROUNDINGS,
) -> str:
    """The digests over a configuration and tensors given as {name: (type, shape)} and one-dimensional pieces of each.

    SHA-256, for which processors have instructions of their own.
    """

    def one(name: str) -> list[bytes]:
        states = [hashlib.sha256() for _ in roundings]
        word, _ = tensors[name]
        for piece in pieces(name):
            for state, rounding in zip(states, roundings, strict=True):
                state.update(np.ascontiguousarray(convert(piece, word, rounding)))
        return [state.digest() for state in states]

    names = sorted(tensors)
    facts = {"version": VERSION, "model_type": config.get("model_type"), "sizes": sizes(config)._replace(context=0)}
    wholes = [hashlib.sha256(json.dumps(facts, sort_keys=True).encode()) for _ in roundings]
    # hashing and NumPy let go of the interpreter's lock
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        for name, values in zip(names, pool.map(one, names), strict=True):
            progress.tick()
            for whole, value in zip(wholes, values, strict=True):
                whole.update(json.dumps([name, tensors[name][1]]).encode() + value)
    return "-".join(whole.hexdigest()[:32] for whole in wholes)


def _file(checkpoint: Checkpoint, stored: Mapping[str, str]) -> Callable[[str], Iterable[np.ndarray]]:
    def pieces(name: str):
        word = checkpoint.dtype(stored[name])
        for block in checkpoint.blocks(stored[name]):
            yield from _pieces(np.frombuffer(bytes(block), STORAGE[word]))  # a copy: the block is only lent

    return pieces


def _pieces(array: np.ndarray) -> Iterable[np.ndarray]:
    flat = array.reshape(-1)
    for start in range(0, flat.size, PIECE):
        yield flat[start : start + PIECE]
