"""From float32 to codes and factors and back, bit for bit as bitsandbytes' CPU backend has them.

The C functions (`model_zoo.engine.packing`) do this on all cores; the NumPy here says the same, and stands for them
where there is no compiler. Both work on the matrix as one row-major vector, a piece of whole blocks at a time.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from model_zoo import progress
from model_zoo.checkpoint.dtypes import from_bfloat16
from model_zoo.errors import InputError
from model_zoo.quantization.codes import LIMITS, MAPS, boundaries, dynamic_map
from model_zoo.quantization.storage import NESTED_BLOCK, Storage

SMALLEST = np.float32(1e-38)
"""What a block of zeros is divided by."""

INT8_STEP = np.float32(7.874015718698502e-3)
"""1/127 as bitsandbytes has it."""

AT_ONCE = 1 << 22
"""Elements that are wide at a time, so that a matrix of any size is quantised in 16 MB."""

LEAST_BLOCK = 8
"""The smallest blocks that a part of a matrix may have: below, its factors take more than its codes."""

Arrays = dict[str, np.ndarray]


def kernels():
    """The C functions (`model_zoo.engine.packing`), or None without a compiler."""
    from model_zoo.engine import packing_kernels

    return packing_kernels()


# A whole matrix -------------------------------------------------------------------------------------------------------


def empty(storage: Storage, shape: tuple[int, int]) -> Arrays:
    """The arrays of a matrix of this shape, to be filled."""
    return {name: np.zeros(extent, dtype) for name, (dtype, extent) in storage.parts(shape).items()}


def quantize(
    storage: Storage, shape: tuple[int, int], rows: Callable[[slice], np.ndarray], out: Arrays | None = None
) -> Arrays:
    """A matrix ``(out, in)`` in codes and factors.

    Args:
        storage: the form.
        shape: of the matrix.
        rows: gives some rows of it in float32, float16, or as the bits of bfloat16 (uint16); asked once for each, in
            order.
        out: where to write; new arrays by default.

    Raises:
        InputError: NaN or infinity in the matrix (for int8, in float16), or a shape that has no such blocks.
    """
    reason = storage.why_not(shape)
    if reason is not None:
        raise InputError(reason)
    if storage.zeros:
        raise ValueError("zero points come out of files; there is no rule here by which to choose them")
    out = empty(storage, shape) if out is None else out
    native, (height, width) = kernels(), shape
    whole = 1 if storage.kind == "int8" else math.lcm(storage.block, width) // width  # rows that end where a block does
    step = max(1, AT_ONCE // max(1, whole * width)) * whole
    factors = np.zeros(storage.blocks(shape), np.float32) if storage.double else out.get("absmax")
    codes = out["weight"].reshape(-1)
    if storage.kind != "int8":
        out["quant_map"][:] = MAPS[storage.kind]
    for first in range(0, height, step):
        progress.tick()
        some = slice(first, min(first + step, height))
        values = np.ascontiguousarray(rows(some))
        if native is None or values.dtype not in (np.uint16, np.float16):
            values = from_bfloat16(values) if values.dtype == np.uint16 else values.astype(np.float32, copy=False)
        if storage.kind == "int8":
            out["weight"][some], out["SCB"][some] = quantize_rows(values, native)
            bad = not np.isfinite(out["SCB"][some]).all()
        else:
            begin, byte = first * width // storage.block, first * width // 2
            scales = factors[begin : begin + -(-values.size // storage.block)]
            quantize_blocks(values.reshape(-1), storage, native, codes[byte : byte + (values.size + 1) // 2], scales)
            bad = not np.isfinite(scales).all()
        if bad:
            raise InputError("holds NaN or infinity, which no block of codes can")
    if storage.double:
        offset = mean(factors)
        out["nested_offset"][0] = offset
        out["nested_quant_map"][:] = dynamic_map()
        out["absmax"][:], out["nested_absmax"][:] = quantize_bytes(factors - offset)
    return out


def factors_of(storage: Storage, parts: Mapping[str, np.ndarray]) -> np.ndarray:
    """The factor of each block in float32, of 4-bit types."""
    if not storage.double:
        return np.ascontiguousarray(parts["absmax"], np.float32)
    nested = np.repeat(parts["nested_absmax"], NESTED_BLOCK)[: parts["absmax"].size]
    return parts["nested_quant_map"][parts["absmax"]] * nested + parts["nested_offset"]


def dequantize(
    storage: Storage, parts: Mapping[str, np.ndarray], shape: tuple[int, int], rows: slice = slice(None)
) -> np.ndarray:
    """Rows of the matrix ``(out, in)`` in float32."""
    first, last, _ = rows.indices(shape[0])
    last = max(first, last)
    width = shape[1]
    if storage.kind == "int8":
        return dequantize_rows(parts["weight"][first:last], parts["SCB"][first:last], kernels())
    # from the block that the first element is in: rows need not begin with one
    start = first * width // storage.block * storage.block
    count, begin = last * width - start, start // storage.block
    end = -(-(last * width) // storage.block)
    codes = parts["weight"].reshape(-1)[start // 2 : -(-(last * width) // 2)]
    if storage.double:
        low = begin // NESTED_BLOCK
        nested = {**parts, "absmax": parts["absmax"][low * NESTED_BLOCK : end]}
        nested["nested_absmax"] = parts["nested_absmax"][low : -(-end // NESTED_BLOCK)]
        factors = factors_of(storage, nested)[begin - low * NESTED_BLOCK :]
    else:
        factors = parts["absmax"][begin:end]
    zeros = parts["zeros"][begin:end] if storage.zeros else None
    values = dequantize_blocks(codes, count, storage.block, parts["quant_map"], factors, zeros, kernels())
    return values[first * width - start :].reshape(last - first, width)


def with_taken(values: np.ndarray, taken: np.ndarray) -> np.ndarray:
    """What is left of a matrix in float32, and what was taken off before packing in float64 → their sum in float32."""
    return (values + taken).astype(np.float32)


def glance(arrays: Arrays) -> int:
    """A checksum of a packed matrix that costs next to nothing: of the factors, and one code of every 4096."""
    seen = 0
    for part, array in arrays.items():
        flat = array.reshape(-1)
        seen = zlib.crc32(np.ascontiguousarray(flat[::4093] if part == "weight" else flat), seen)
    return seen


# Pieces; ``native`` are the C functions, or None ----------------------------------------------------------------------


def quantize_blocks(values: np.ndarray, storage: Storage, native, codes: np.ndarray, factors: np.ndarray) -> None:
    """A vector that begins with a block → its codes, two to a byte, and the blocks' factors; float32 without C."""
    half = storage.kind == "int4"  # the factors of int4 are what float16 holds, which is what other systems' files have
    limit, (bounds, order) = LIMITS[storage.kind], boundaries(storage.kind)
    if native is not None:
        return native.quantize_blocks(values, storage.block, limit, half, bounds, order, codes, factors)
    full = values.size // storage.block * storage.block
    parts, scales = [], []
    # bitsandbytes multiplies by the reciprocal, but divides the elements of a last block that is not whole
    for some in (values[:full].reshape(-1, storage.block), values[full:].reshape(1, -1)):
        if not some.size:
            continue
        most = np.abs(some).max(1)
        if len(parts) or full == 0:
            most = np.maximum(most, SMALLEST)
        scale = most / np.float32(limit)
        scale = scale.astype(np.float16).astype(np.float32) if half else scale
        divisor = np.maximum(scale, SMALLEST)[:, None]
        with np.errstate(invalid="ignore"):
            scaled = some * (np.float32(1) / divisor) if some.shape[1] == storage.block else some / divisor
        parts.append(np.searchsorted(bounds, scaled.reshape(-1), side="left"))
        scales.append(scale)
    index = np.concatenate([*parts, np.full(values.size % 2, np.searchsorted(bounds, 0.0), np.int64)])
    found = order[index]
    codes[:], factors[:] = found[::2] << 4 | found[1::2], np.concatenate(scales)


def dequantize_blocks(
    codes: np.ndarray, count: int, block: int, quant_map: np.ndarray, factors: np.ndarray, zeros, native
) -> np.ndarray:
    """The first ``count`` elements of packed codes, in float32."""
    quant_map, factors = np.ascontiguousarray(quant_map), np.ascontiguousarray(factors, np.float32)
    if native is not None:
        return native.dequantize_blocks(np.ascontiguousarray(codes), count, block, quant_map, factors, zeros)
    values = quant_map[halves(codes)[:count]]
    for some, one in ((slice(0, count // block * block), block), (slice(count // block * block, count), count % block)):
        if one:
            table = values[some].reshape(-1, one)  # a view
            own = slice(some.start // block, some.start // block + len(table))
            if zeros is not None:
                table += 8 - zeros[own, None].astype(np.float32)
            table *= factors[own, None]
    return values


def halves(codes: np.ndarray) -> np.ndarray:
    """Two codes to a byte → one to a byte, as a vector."""
    return np.stack((codes >> 4, codes & 15), -1).reshape(-1)


def quantize_rows(values: np.ndarray, native) -> tuple[np.ndarray, np.ndarray]:
    """int8 by row: ``(rows, in)`` → codes and the largest absolute value of each row, taken of float16 numbers."""
    if native is not None:
        return native.quantize_rows(values)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        values = values.astype(np.float16).astype(np.float32)  # beyond its range infinite
        most = np.abs(values).max(1, initial=0.0)
        scaled = np.rint(values * (np.float32(1) / most[:, None] * np.float32(127)))
    return np.where(np.isfinite(scaled), scaled, 0).astype(np.int8), most


def dequantize_rows(codes: np.ndarray, most: np.ndarray, native) -> np.ndarray:
    """int8 codes ``(rows, in)`` in float32."""
    if native is not None:
        return native.dequantize_rows(np.ascontiguousarray(codes), np.ascontiguousarray(most, np.float32))
    return codes.astype(np.float32) * np.asarray(most, np.float32)[:, None] * INT8_STEP


def quantize_bytes(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A float32 vector → codes of `dynamic_map` and a factor per `NESTED_BLOCK`. Which code is nearest is looked up at
    the nearest of 65536 steps from −1 to 1."""
    table = np.pad(values, (0, -values.size % NESTED_BLOCK)).reshape(-1, NESTED_BLOCK)
    most = np.abs(table).max(1)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        scaled = np.clip(table * (np.float32(1) / most)[:, None], np.float32(-1), np.float32(1))
        scaled[np.isnan(scaled)] = 0  # 0 times what is infinite where the largest has no reciprocal
    half = (scaled + np.float32(1)) * np.float32(0.5)
    place = (half.astype(np.float64) * 65535 + 0.5).astype(np.float32)  # rounded once
    codes = nearest_codes()[np.where(most[:, None] == 0, 0, place).astype(np.int32)]
    codes[most == 0] = 0
    return codes.reshape(-1)[: values.size], most


@functools.cache
def nearest_codes() -> np.ndarray:
    """The code of `dynamic_map` that is nearest to each of 65536 steps from −1 to 1."""
    middles = np.float32(0.5) * (dynamic_map()[:-1] + dynamic_map()[1:])
    steps = np.float32(-1) + np.arange(65536, dtype=np.float32) * np.float32(2) / np.float32(65535)
    return np.searchsorted(middles, steps, side="left").astype(np.uint8)


def mean(values: np.ndarray) -> np.float32:
    """The mean in float32, added up in the order of PyTorch's sum on one thread, which is what files hold.

    Vectors of 8 (single numbers where there are fewer), four of them side by side. Partial sums of some rows are passed
    on to the next level when they are full, four levels in all.
    """
    lanes = 8 if values.size >= 8 else 1
    columns = 4 * lanes
    count = values.size // columns
    table = values[: count * columns].reshape(count, columns)
    step = 1 << max(4, (max(count, 1) - 1).bit_length() // 4)
    levels = []
    for _ in range(3):
        groups = len(table) // step
        levels.append(in_order(table[groups * step :]))
        table = in_order(table[: groups * step].reshape(groups, step, columns).swapaxes(0, 1))
    levels.append(in_order(table))
    sums = in_order(levels).reshape(4, lanes)
    rest = values[count * columns :]
    whole = rest.size // lanes * lanes
    sums[0] = in_order([sums[0], *rest[:whole].reshape(-1, lanes)])
    total = in_order([*rest[whole:, None], *in_order(sums)[:, None]])
    return total[0] / np.float32(values.size)


def in_order(rows) -> np.ndarray:
    """Their sum, one after the other."""
    total = np.zeros(rows.shape[1:] if isinstance(rows, np.ndarray) else rows[0].shape, np.float32)
    for row in rows:
        total += row
    return total


# Parts of a matrix ----------------------------------------------------------------------------------------------------


def take(
    storage: Storage, parts: Mapping[str, np.ndarray], shape: tuple[int, int], axis: int, ranges: Sequence[slice]
) -> tuple[Storage, Arrays]:
    """Some rows or columns of a packed matrix, one range after the other, with the same numbers to the bit.

    Where a range cuts blocks these become smaller; factors of factors are multiplied out, since they run on across the
    cuts. So a part takes a few more bits per weight than the whole.

    Args:
        axis: 0 for rows, 1 for columns.

    Raises:
        InputError: blocks would be cut into pieces of less than `LEAST_BLOCK`.
    """
    if storage.kind == "int8":
        rows = np.concatenate([parts["weight"][(slice(None),) * axis + (some,)] for some in ranges], axis)
        factors = parts["SCB"] if axis else np.concatenate([parts["SCB"][some] for some in ranges])
        return storage, {"weight": rows, "SCB": factors}
    form = part_storage(storage, shape, axis, ranges)
    height, width = shape
    table = halves(parts["weight"])[: height * width].reshape(shape)
    taken = np.concatenate([table[(slice(None),) * axis + (some,)] for some in ranges], axis)
    flat = np.pad(taken.reshape(-1), (0, taken.size % 2))
    # where each new block begins in the whole
    starts = [np.arange(*some.indices(height)) * width for some in ranges] if axis == 0 else np.arange(height) * width
    if axis == 0:
        first = np.concatenate([np.arange(one[0], one[-1] + width, form.block) for one in starts])
    else:
        columns = np.concatenate([np.arange(*some.indices(width))[:: form.block] for some in ranges])
        first = (starts[:, None] + columns).reshape(-1)
    block = first // storage.block
    found = {
        "weight": (flat[::2] << 4 | flat[1::2]).reshape(-1, 1),
        "absmax": factors_of(storage, parts)[block],
        "quant_map": parts["quant_map"].copy(),
    }
    if storage.zeros:
        found["zeros"] = parts["zeros"][block]
    return form, found


def part_storage(storage: Storage, shape: tuple[int, int], axis: int, ranges: Sequence[slice]) -> Storage:
    """The form of a part; see `take`."""
    if storage.kind == "int8":
        return storage
    width = shape[1]
    cuts = [edge for some in ranges for edge in some.indices(shape[axis])[:2]]
    sizes = [edge * width for edge in cuts] if axis == 0 else [width, *cuts]
    block = math.gcd(storage.block, *sizes)
    if block < LEAST_BLOCK:
        kind = "rows" if axis == 0 else "columns"
        raise InputError(
            f"its blocks of {storage.block} would be cut into pieces of {block} by a division into {kind} "
            f"{', '.join(f'{low} … {high - 1}' for low, high in zip(cuts[::2], cuts[1::2], strict=True))}"
        )
    return dataclasses.replace(storage, block=block, double=False)
