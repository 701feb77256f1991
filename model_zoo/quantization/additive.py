"""Matrices out of codebooks, which become float32 as they are read: published AQLM checkpoints.

``X.weight (out, in)`` is blocks of g rows and h columns (Egiazarian et al. 2024). Each is a sum of vectors, one out of
each of n codebooks ``X.codebooks (n, 2^bits, g, h)`` by ``X.codes (out/g, in/h, n)``, times its rows' factor
``X.scales (out/g, 1, 1, 1)``. Codes are signed: those from 2^(bits−1) on lie 2^bits below.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from model_zoo.checkpoint.dtypes import STORAGE
from model_zoo.errors import InputError, shown

PARTS = ("codes", "codebooks", "scales")
TOLD: tuple[str, ...] = ("num_codebooks", "nbits_per_codebook", "out_group_size", "in_group_size")
"""What ``quantization_config`` says of the codebooks, in the order of their shape."""


@dataclasses.dataclass(frozen=True)
class AdditiveTensor:
    """One such matrix.

    Attributes:
        path: in front of the names of its parts.
        shape: ``(out, in)``.
        block: its rows and columns, ``(g, h)``.
    """

    path: str
    shape: tuple[int, int]
    block: tuple[int, int]

    def read(self, stored: Callable[..., np.ndarray], slices: tuple[slice, ...]) -> np.ndarray:
        """The matrix, or a block of it, in float32. Of the codes those of its blocks are read.

        Args:
            stored: gives a stored tensor by name, slices and type.
        """
        wanted = [part.indices(size)[:2] for part, size in zip((*slices, *[slice(None)] * 2), self.shape, strict=False)]
        groups = [(start // size, -(-stop // size)) for (start, stop), size in zip(wanted, self.block, strict=True)]
        codes = stored(f"{self.path}.codes", tuple(slice(*group) for group in groups), None).astype(np.int64)
        books = stored(f"{self.path}.codebooks", None, "float32")
        values = np.zeros((*codes.shape[:2], *self.block), np.float32)  # (out/g, in/h, g, h)
        for number, book in enumerate(books):
            values += book[codes[..., number] % len(book)]
        values *= stored(f"{self.path}.scales", (slice(*groups[0]),), "float32")
        shape = [count * size for count, size in zip(codes.shape, self.block, strict=False)]
        whole = values.swapaxes(1, 2).reshape(shape)
        rows, columns = (
            slice(start - first * size, stop - first * size)
            for (start, stop), (first, _), size in zip(wanted, groups, self.block, strict=True)
        )
        return whole[rows, columns]


def find_additive(infos: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[dict[str, AdditiveTensor], set[str]]:
    """{name of the weight: matrix} among stored tensors, and the names of their parts. Arguments and errors are as of
    `model_zoo.quantization.scaled.find_scaled`."""
    found, problems = {}, []
    for path in sorted({name.rpartition(".")[0] for name in infos if name.rpartition(".")[2] in PARTS[:2]}):
        try:
            found[f"{path}.weight"] = _additive(path, infos, settings)
        except InputError as error:
            problems.append(str(error))
    InputError.raise_any(problems)
    return found, {f"{one.path}.{part}" for one in found.values() for part in PARTS}


def _additive(path: str, infos: Mapping[str, Any], settings: Mapping[str, Any]) -> AdditiveTensor:
    if missing := [part for part in PARTS if f"{path}.{part}" not in infos]:
        raise InputError(f"{path}.{missing[0]} is missing; an AQLM matrix is {', '.join(PARTS)}")
    if f"{path}.weight" in infos:
        raise InputError(f"{path}.weight lies beside {path}.codes, which stand in its place")
    codes, books, scales = (infos[f"{path}.{part}"] for part in PARTS)
    bits = (books.shape[1] - 1).bit_length() if len(books.shape) == 4 else 0
    if not bits or books.shape[1] != 1 << bits or books.dtype not in STORAGE:
        raise InputError(f"{path}.codebooks {books.dtype} {books.shape}: (number, 2^bits, rows, columns) was expected")
    told = {name: settings[name] for name in TOLD if name in settings}
    own = dict(zip(TOLD, (books.shape[0], bits, *books.shape[2:]), strict=True))
    if wrong := [f"{name} {shown(value)}" for name, value in told.items() if value != own[name]]:
        raise InputError(f"{path}.codebooks {books.shape}: config.json says {', '.join(wrong)}")
    kind = next(f"int{width}" for width in (8, 16, 32, 64) if bits <= width)
    if len(codes.shape) != 3 or codes.shape[2] != books.shape[0] or codes.dtype != kind:
        expected = f"{kind} (rows, columns, {books.shape[0]})"
        raise InputError(f"{path}.codes is {codes.dtype} {codes.shape}; {expected} was expected")
    if scales.shape != (codes.shape[0], 1, 1, 1) or scales.dtype not in STORAGE:
        expected = (codes.shape[0], 1, 1, 1)
        raise InputError(f"{path}.scales is {scales.dtype} {scales.shape}; {expected} was expected")
    block = books.shape[2:]
    return AdditiveTensor(path, tuple(size * count for size, count in zip(block, codes.shape, strict=False)), block)
