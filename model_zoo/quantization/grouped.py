"""GPTQ's matrices that no cell holds as they are, which become float32 as they are read: those of 2, 3 or 8 bits, and
those whose groups are not of neighbouring inputs (``desc_act``) or not of one size.

``X.qweight (in·bits/32, out)`` is a stream of codes along the inputs for each output, 32 bits to an integer, the lowest
first; ``X.qzeros (groups, out·bits/32)`` is one along the outputs for each group. An element is
(code − zero) · ``X.scales[group, out]``, and ``X.g_idx (in)`` says which group an input is in (Frantar et al. 2023).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from model_zoo.checkpoint.dtypes import STORAGE
from model_zoo.errors import InputError

FORMS = {"gptq": ("checkpoint_format", ("gptq", "gptq_v2")), "awq": ("version", ("gemm",))}
"""{method: what says how its integers lie, and which of that is opened; it may be said as ``format``, too}."""
BITS = (2, 3, 4, 8)
AT_ONCE = 1 << 22
"""Elements that are wide at a time beside the result."""


@dataclasses.dataclass(frozen=True)
class GroupedTensor:
    """One such matrix.

    Attributes:
        path: in front of the names of its parts.
        shape: ``(out, in)``.
        bits: of a code.
        form: ``gptq``, which stores zeros less one, or ``gptq_v2``.
        size: of a group of neighbouring inputs; None where ``g_idx`` says which are together.
        transposed: whether the model has it as ``(in, out)``.
    """

    path: str
    shape: tuple[int, int]
    bits: int
    form: str
    size: int | None
    transposed: bool = False

    def read(self, stored: Callable[..., np.ndarray], slices: tuple[slice, ...]) -> np.ndarray:
        """The matrix, or a block of it, in float32 and in the model's shape.

        Args:
            stored: gives a stored tensor by name, slices and type.
        """
        rows, columns = (*slices, slice(None), slice(None))[:2][:: -1 if self.transposed else 1]
        words = stored(f"{self.path}.qweight", (slice(None), rows), None).T
        zeros = zeros_of(stored(f"{self.path}.qzeros", None, None), self.bits, self.form)[:, rows].T  # (out, groups)
        scales = stored(f"{self.path}.scales", (slice(None), rows), "float32").T
        group = groups_of(stored, self.path, self.shape[1], self.size)[columns]
        found = np.empty((len(words), len(group)), np.float32)
        step = max(1, AT_ONCE // self.shape[1])
        for first in range(0, len(words), step):
            some = slice(first, first + step)
            found[some] = numbers(words[some], self.bits)[:, columns]
            found[some] -= zeros[some][:, group]
            found[some] *= scales[some][:, group]
        return found.T if self.transposed else found


def numbers(words: np.ndarray, bits: int) -> np.ndarray:
    """int32 ``(n, words)`` → uint8 ``(n, 32·words/bits)``: each row's stream of codes, the lowest bits first."""
    found = np.ascontiguousarray(words, "<i4").view(np.uint8)
    if 8 % bits:
        stream = np.unpackbits(found, axis=1, bitorder="little").reshape(len(found), -1, bits)
        return np.packbits(stream, axis=2, bitorder="little")[..., 0]
    codes = np.empty((len(found), found.shape[1] * 8 // bits), np.uint8)
    for place in range(8 // bits):
        codes[:, place :: 8 // bits] = found >> bits * place & (1 << bits) - 1
    return codes


def zeros_of(words: np.ndarray, bits: int, form: str) -> np.ndarray:
    """The zero of each group and output, ``(groups, out)``."""
    return numbers(words, bits) + (form == "gptq") & (1 << bits) - 1


def groups_of(stored: Callable[..., np.ndarray], path: str, inputs: int, size: int | None) -> np.ndarray:
    """The group of each input."""
    return stored(f"{path}.g_idx", None, None) if size is None else np.arange(inputs) // size


def of_type(infos: Mapping[str, Any], name: str, dtype: str, shape: tuple[int, ...]) -> str:
    """The name of a part, after a look at its type and shape."""
    info = infos.get(name)
    if info is None:
        raise InputError(f"{name} is missing")
    if info.dtype != dtype or tuple(info.shape) != shape:
        raise InputError(f"{name} is {info.dtype} {tuple(info.shape)}; {dtype} {shape} was expected")
    return name


def find_grouped(
    infos: Mapping[str, Any], stored: Callable[..., np.ndarray], settings: Mapping[str, Any]
) -> tuple[dict[str, GroupedTensor], set[str]]:
    """{name of the weight: matrix} among stored tensors, and the names of their parts. Arguments and errors are as of
    `model_zoo.quantization.scaled.find_scaled`; of what `stored` gives the groups alone are read."""
    found, parts, problems = {}, set(), []
    ours = settings.get("quant_method") == "gptq" and form_of(settings) in FORMS["gptq"][1]
    for name in infos if ours else ():
        path, _, last = name.rpartition(".")
        if last == "qweight" and settings.get("bits") in BITS:
            try:
                one = _grouped(path, infos, stored, settings)
            except InputError as error:
                problems.append(str(error))
                continue
            if one is not None:
                found[f"{path}.weight"] = one
                parts |= {f"{path}.{part}" for part in ("qweight", "qzeros", "scales", "g_idx")} & infos.keys()
    InputError.raise_any(problems)
    return found, parts


def form_of(settings: Mapping[str, Any]) -> str:
    """How the integers of GPTQ or AWQ lie."""
    key, known = FORMS[settings["quant_method"]]
    return str(settings.get(key) or settings.get("format") or known[0]).lower()


def _grouped(
    path: str, infos: Mapping[str, Any], stored: Callable[..., np.ndarray], settings: Mapping[str, Any]
) -> GroupedTensor | None:
    """A matrix; None of one that a cell holds as it is: in 4 bits, in whole groups of neighbours."""
    weight, scales, bits = infos[f"{path}.qweight"], infos.get(f"{path}.scales"), settings["bits"]
    if len(weight.shape) != 2 or scales is None or len(scales.shape) != 2 or 0 in scales.shape:
        raise InputError(f"{path}.qweight {tuple(weight.shape)}: its scales (groups, out) are missing or misshapen")
    (count, out), inputs = scales.shape, weight.shape[0] * 32 // bits
    whole, size = inputs // count if inputs % count == 0 else None, settings.get("group_size")
    if f"{path}.g_idx" in infos:
        group = stored(of_type(infos, f"{path}.g_idx", "int32", (inputs,)), None, None)
        if group.min() < 0 or group.max() >= count:
            raise InputError(f"{path}.g_idx: groups from {group.min()} to {group.max()}; there are {count}")
        size = whole if whole and np.array_equal(group, np.arange(inputs) // whole) else None
    elif not isinstance(size, int) or size < 1 or -(-inputs // size) != count:  # else the last one may be smaller
        size = whole
        if whole is None:
            raise InputError(f"{path}.scales has {count} groups for {inputs} inputs; groups of one size were expected")
    if bits == 4 and size is not None and inputs == size * count:
        return None
    of_type(infos, f"{path}.qweight", "int32", (inputs * bits // 32, out))
    of_type(infos, f"{path}.qzeros", "int32", (count, out * bits // 32))
    of_type(infos, f"{path}.scales", scales.dtype if scales.dtype in STORAGE else "float16", (count, out))
    return GroupedTensor(path, (out, inputs), bits, form_of(settings), size)
