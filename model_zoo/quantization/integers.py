"""Matrices of integers with a factor and a zero per group of inputs: published GPTQ, AWQ and compressed-tensors files.

An element ``[o, i]`` is (code − zero[o, g]) · factor[o, g], with g the group of input i (Frantar et al. 2023). Codes
are streams of bits, 32 to an integer, the lowest first:

- ``gptq``, ``gptq_v2``: ``X.qweight (in·bits/32, out)`` along the inputs, ``X.qzeros (groups, out·bits/32)`` along the
  outputs, in ``gptq`` less one, ``X.scales (groups, out)``, ``X.g_idx (in)`` where groups are of no neighbours.
- ``gemm`` (AWQ): ``X.qweight (in, out/8)`` and ``X.qzeros (groups, out/8)`` along the outputs, eight of which lie in an
  order of their own, ``X.scales (groups, out)``.
- ``pack-quantized`` (compressed-tensors): ``X.weight_packed (out, in·bits/32)`` along the inputs,
  ``X.weight_zero_point (out·bits/32, groups)`` along the outputs (without it the middle code is zero),
  ``X.weight_scale (out, groups)``, ``X.weight_g_idx (in)``, and ``X.weight_shape``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from model_zoo.checkpoint.dtypes import STORAGE
from model_zoo.errors import InputError, shown

FORMS = {
    "gptq": ("checkpoint_format", ("gptq", "gptq_v2")),
    "awq": ("version", ("gemm",)),
    "compressed-tensors": ("format", ("pack-quantized", "mixed-precision")),
}
"""{method: what says how its integers lie, and which of that is opened; it may be said as ``format``, too}."""
BITS = {"gptq": (2, 3, 4, 8), "awq": (4,), "compressed-tensors": (2, 3, 4, 5, 6, 7, 8)}
PARTS = {
    "qweight": ("qweight", "qzeros", "scales", "g_idx"),
    "weight_packed": ("weight_packed", "weight_zero_point", "weight_scale", "weight_g_idx", "weight_shape"),
}
"""{what a matrix is found by: its parts, in the order of codes, zeros, factors, groups}."""
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where each of eight neighbouring outputs lies in AWQ's integers, from the lowest bits on."""
WIDTH = re.compile(r"'num_bits': (\d+)")
SYMMETRIC = re.compile(r"'weights': \{[^{}]*'symmetric': (True|False)")
OWN_WIDTH = re.compile(r"'bits': (\d+)")
"""Of some modules, in GPT-QModel's ``dynamic``."""
AT_ONCE = 1 << 22
"""Elements that are wide at a time beside the result."""

Stored = Callable[..., np.ndarray]
"""Gives a stored tensor by name, slices and type."""


@dataclasses.dataclass(frozen=True)
class IntegerTensor:
    """One such matrix.

    Attributes:
        parts: the names of codes, zeros, factors and groups.
        shape: ``(out, in)``.
        bits: of a code.
        form: ``gptq``, ``gptq_v2``, ``gemm`` or ``pack-quantized``.
        size: of a group of neighbouring inputs; None where a stored tensor says which are together.
        zeros: whether there are any.
        transposed: whether the model has it as ``(in, out)``.
    """

    parts: tuple[str, ...]
    shape: tuple[int, int]
    bits: int
    form: str
    size: int | None
    zeros: bool = True
    transposed: bool = False

    @property
    def fits_cells(self) -> bool:
        """Whether a cell holds it as it is: in 4 bits, in whole groups of neighbours."""
        return self.bits == 4 and self.size is not None and self.shape[1] % self.size == 0 and self.size % 2 == 0

    def codes(self, stored: Stored, rows: slice = slice(None)) -> np.ndarray:
        """Of some outputs, ``(rows, in)``."""
        if self.form == "gemm":
            return in_order(stored(self.parts[0], None, None)).T[rows]
        if self.form == "pack-quantized":
            return numbers(stored(self.parts[0], (rows,), None), self.bits)[:, : self.shape[1]]
        return numbers(stored(self.parts[0], (slice(None), rows), None).T, self.bits)

    def zeros_of(self, stored: Stored, rows: slice = slice(None)) -> np.ndarray:
        """Of some outputs, ``(rows, groups)``."""
        words = stored(self.parts[1], None, None)
        if self.form == "gemm":
            return in_order(words).T[rows]
        if self.form == "pack-quantized":
            return numbers(words.T, self.bits).T[: self.shape[0]][rows]
        less = self.form == "gptq"
        if less and 32 % self.bits == 0:  # whole integers are one less per place: below a zero of 0 a place lends one
            words, less = words.view(np.uint32) + np.uint32(0xFFFFFFFF // ((1 << self.bits) - 1)), False
        return ((numbers(words.view(np.int32), self.bits) + less) & (1 << self.bits) - 1).T[rows]

    def factors(self, stored: Stored, rows: slice = slice(None)) -> np.ndarray:
        """Of some outputs in float32, ``(rows, groups)``."""
        if self.form == "pack-quantized":
            return stored(self.parts[2], (rows,), "float32")
        return stored(self.parts[2], (slice(None), rows), "float32").T

    def read(self, stored: Stored, slices: tuple[slice, ...]) -> np.ndarray:
        """The matrix, or a block of it, in float32 and in the model's shape."""
        rows, columns = (*slices, slice(None), slice(None))[:2][:: -1 if self.transposed else 1]
        factors = self.factors(stored, rows)
        zeros = self.zeros_of(stored, rows) if self.zeros else np.full_like(factors, 1 << self.bits - 1)
        group = stored(self.parts[3], None, None) if self.size is None else np.arange(self.shape[1]) // self.size
        group, codes = group[columns], self.codes(stored, rows)[:, columns]
        found = np.empty(codes.shape, np.float32)
        step = max(1, AT_ONCE // self.shape[1])
        for first in range(0, len(found), step):
            some = slice(first, first + step)
            np.subtract(codes[some], zeros[some][:, group], out=found[some], dtype=np.float32)
            found[some] *= factors[some][:, group]
        return found.T if self.transposed else found


def numbers(words: np.ndarray, bits: int) -> np.ndarray:
    """int32 ``(n, words)`` → uint8 ``(n, 32·words/bits)``: each row's stream of codes."""
    found = np.ascontiguousarray(words, "<i4").view(np.uint8)
    if 8 % bits:
        whole = found.shape[1] * 8 // bits * bits
        stream = np.unpackbits(found, axis=1, bitorder="little")[:, :whole].reshape(len(found), -1, bits)
        return np.packbits(stream, axis=2, bitorder="little")[..., 0]
    codes = np.empty((len(found), found.shape[1] * 8 // bits), np.uint8)
    for place in range(8 // bits):
        codes[:, place :: 8 // bits] = found >> bits * place & (1 << bits) - 1
    return codes


def in_order(words: np.ndarray) -> np.ndarray:
    """AWQ's int32 ``(n, out/8)`` → uint8 ``(n, out)``."""
    return numbers(words, 4).reshape(len(words), -1, 8)[..., AWQ_PLACES].reshape(len(words), -1)


# Finding them ---------------------------------------------------------------------------------------------------------


def find_integers(
    infos: Mapping[str, Any], stored: Stored, settings: Mapping[str, Any]
) -> tuple[dict[str, IntegerTensor], set[str]]:
    """{name of the weight: matrix} among stored tensors, and the names of their parts. Arguments and errors are as of
    `model_zoo.quantization.scaled.find_scaled`; of what `stored` gives, groups and shapes alone are read."""
    found, beside, problems, method = {}, set(), [], settings.get("quant_method")
    for name in infos:
        path, _, last = name.rpartition(".")
        if last in PARTS:
            if method not in FORMS or (method == "compressed-tensors") != (last == "weight_packed"):
                raise InputError(f"{name}: config.json has no quantization_config with quant_method {', '.join(FORMS)}")
            names = tuple(f"{path}.{part}" for part in PARTS[last])
            try:
                found[f"{path}.weight"] = _integers(names, infos, stored, settings)
            except InputError as error:
                problems.append(str(error))
            beside |= infos.keys() & {*names}
    InputError.raise_any(problems)
    return found, beside


def _integers(
    parts: tuple[str, ...], infos: Mapping[str, Any], stored: Stored, settings: Mapping[str, Any]
) -> IntegerTensor:
    codes, zeros, scales = parts[:3]
    method = settings["quant_method"]
    key, known = FORMS[method]
    form = str(settings.get(key) or settings.get("format") or known[0]).lower()
    weight, factors = infos[codes], infos.get(scales)
    if len(weight.shape) != 2 or factors is None or len(factors.shape) != 2 or 0 in factors.shape:
        there = (
            "are missing"
            if factors is None
            else f"have the shape {factors.shape}; one for each output and group was expected"
        )
        raise InputError(f"{codes} {tuple(weight.shape)}: its {scales.rpartition('.')[2]} {there}")
    if method == "compressed-tensors":
        form = form if form not in known else "pack-quantized"
        kind = "int32" if parts[4] in infos and infos[parts[4]].dtype == "int32" else "int64"
        out, inputs = map(int, stored(of_type(infos, parts[4], kind, (2,)), None, None))
        bits, count = weight.shape[1] * 32 // max(1, inputs), factors.shape[1]
        if (told := WIDTH.findall(str(settings))) and str(bits) not in told:  # older files have gaps
            text = ", ".join(dict.fromkeys(told))
            raise InputError(f"{codes} {tuple(weight.shape)}: {bits} bits for {inputs} inputs; config.json says {text}")
    else:
        (count, out), bits, inputs = factors.shape, settings.get("bits", settings.get("w_bit")), weight.shape[0]
        if method == "gptq" and parts[3] in infos:
            own = inputs * 32 // max(1, *infos[parts[3]].shape)
            bits = own if str(own) in OWN_WIDTH.findall(str(settings.get("dynamic"))) else bits
    if type(bits) is not int or bits not in BITS[method] or form not in known:
        supported = f"{', '.join(map(str, BITS[method]))} bits, {', '.join(known)}"
        raise InputError(f"{codes}: {method} of {shown(bits)} bits ({form}); supported: {supported}")
    inputs = inputs * 32 // bits if method == "gptq" else inputs
    wide, high = -(-inputs * bits // 32), -(-out * bits // 32)
    shapes = {
        "gptq": ((wide, out), (count, high), (count, out)),
        "awq": ((inputs, high), (count, high), (count, out)),
        "compressed-tensors": ((out, wide), (high, count), (out, count)),
    }[method]
    of_type(infos, codes, "int32", shapes[0])
    has_zeros = method != "compressed-tensors" or zeros in infos
    if has_zeros or {*SYMMETRIC.findall(str(settings))} == {"False"}:
        of_type(infos, zeros, "int32", shapes[1])
    of_type(infos, scales, factors.dtype if factors.dtype in STORAGE else "float16", shapes[2])
    size = _size(parts, inputs, count, infos, stored, settings)
    return IntegerTensor(parts, (out, inputs), bits, form, size, has_zeros)


def _size(
    parts: tuple[str, ...],
    inputs: int,
    count: int,
    infos: Mapping[str, Any],
    stored: Stored,
    settings: Mapping[str, Any],
) -> int | None:
    """Of a group of neighbouring inputs, the last of which may have fewer; None where these are together otherwise."""
    whole = inputs // count if inputs % count == 0 else None
    if parts[3] in infos:
        group = stored(of_type(infos, parts[3], "int32", (inputs,)), None, None)
        if group.min() < 0 or group.max() >= count:
            raise InputError(f"{parts[3]}: groups from {group.min()} to {group.max()}; there are {count}")
        return whole if whole and np.array_equal(group, np.arange(inputs) // whole) else None
    told = settings.get("group_size")
    size = told if isinstance(told, int) and told > 0 and -(-inputs // told) == count else whole
    if size is None:
        raise InputError(f"{parts[2]} has {count} groups for {inputs} inputs; groups of one size were expected")
    return size


def of_type(infos: Mapping[str, Any], name: str, dtype: str, shape: tuple[int, ...]) -> str:
    """The name of a part, after a look at its type and shape."""
    info = infos.get(name)
    if info is None:
        raise InputError(f"{name} is missing")
    if info.dtype != dtype or tuple(info.shape) != shape:
        raise InputError(f"{name} is {info.dtype} {tuple(info.shape)}; {dtype} {shape} was expected")
    return name
