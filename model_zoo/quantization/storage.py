"""How a frozen matrix is stored in 8 or 4 bits, and which arrays that takes."""

from __future__ import annotations

import dataclasses
import math

from model_zoo.errors import InputError, nearest

BLOCKS = {
    "int8": (),
    "nf4": (32, 64, 128, 256, 512, 1024, 2048, 4096),
    "fp4": (32, 64, 128, 256, 512, 1024, 2048, 4096),
    "int4": (32, 64, 128),
}
"""The block sizes of each type; int8 has a factor per row."""
KINDS = tuple(BLOCKS)

NESTED_BLOCK = 256
"""Factors that share a factor of their own in double quantisation, as bitsandbytes has it."""

Parts = dict[str, tuple[str, tuple[int, ...]]]


@dataclasses.dataclass(frozen=True)
class Storage:
    """The form of a packed matrix ``(out, in)``; blocks run along its rows, row after row.

    ``nf4``, ``fp4`` (Dettmers et al. 2023) and ``int4``: two codes to a byte, the even element in the high half. An
    element is ``quant_map[code]·absmax[i // block]``; int4's map is −8 … 7, and imported files may have a ``zero`` in
    place of the 8 per block. ``int8``: an element is ``code·SCB[row]/127``.

    Attributes:
        kind: one of `KINDS`.
        block: elements that share a factor; int8 has one factor per row, whatever this says.
        double: whether the factors are stored in 8 bits themselves (nf4, fp4): 4.13 bits per weight, not 4.5.
        zeros: whether each block has a zero point of its own (int4 out of GPTQ and AWQ files).

    Raises:
        InputError: an unknown type, or one that has no such block or no double quantisation.
    """

    kind: str = "nf4"
    block: int = 64
    double: bool = False
    zeros: bool = False

    def __post_init__(self):
        if self.kind not in KINDS:
            raise InputError(f"quantization type {self.kind!r} is unknown{nearest(self.kind, KINDS)}")
        allowed = BLOCKS[self.kind]
        # a part of a matrix that was cut may have smaller blocks, and files any that their writer had
        if allowed and not (isinstance(self.block, int) and self.block >= 2 and self.block % 2 == 0):
            raise InputError(f"quantization block {self.block!r}: expected one of {', '.join(map(str, allowed))}")
        if self.double and self.kind not in ("nf4", "fp4"):
            raise InputError(f"quantization type {self.kind} has no double quantisation; only nf4 and fp4 have")
        if self.zeros and self.kind != "int4":
            raise InputError(f"quantization type {self.kind} has no zero points; only int4 has")

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return 8 if self.kind == "int8" else 4

    def blocks(self, shape: tuple[int, int]) -> int:
        """How many factors a matrix of this shape has."""
        return shape[0] if self.kind == "int8" else -(-math.prod(shape) // self.block)

    def parts(self, shape: tuple[int, int]) -> Parts:
        """{name: (type, shape)} of the arrays of a matrix, as a cell holds them."""
        if self.kind == "int8":
            return {"weight": ("int8", tuple(shape)), "SCB": ("float32", (shape[0],))}
        count = self.blocks(shape)
        found: Parts = {
            "weight": ("uint8", (-(-math.prod(shape) // 2), 1)),
            "absmax": ("uint8" if self.double else "float32", (count,)),
            "quant_map": ("float32", (16,)),
        }
        if self.double:
            found["nested_absmax"] = ("float32", (-(-count // NESTED_BLOCK),))
            found["nested_quant_map"] = ("float32", (256,))
            found["nested_offset"] = ("float32", (1,))
        if self.zeros:
            found["zeros"] = ("uint8", (count,))
        return found

    def nbytes(self, shape: tuple[int, int]) -> int:
        """Bytes of a matrix of this shape, factors included."""
        sizes = {"int8": 1, "uint8": 1, "float32": 4}
        return sum(sizes[dtype] * math.prod(extent) for dtype, extent in self.parts(shape).values())

    def why_not(self, shape: tuple[int, int]) -> str | None:
        """Why a matrix of this shape cannot be stored so; None when it can."""
        if self.kind == "int4" and shape[1] % self.block:
            return f"its {shape[1]} inputs are no multiple of the block of {self.block}"
        return None

    def __str__(self) -> str:
        if self.kind == "int8":
            return "int8"
        return f"{self.kind}, blocks of {self.block}" + (", double" if self.double else "")


def part_name(path: str, part: str) -> str:
    """What a part of the matrix of the cell at `path` is called, as in bitsandbytes' files."""
    return f"{path}.{part}" if part in ("weight", "SCB") else f"{path}.weight.{part}"


def is_quantized(cell) -> bool:
    """Whether a cell's weight is packed."""
    return getattr(cell, "storage", None) is not None
