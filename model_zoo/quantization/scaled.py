"""Matrices of 8-bit numbers with factors beside them, which become float32 as they are read: published FP8 checkpoints.

``X.weight (out, in)`` in float8 or int8 is multiplied by ``X.weight_scale``, or by what fine-grained FP8 calls
``X.weight_scale_inv``: one factor, one for each output, or one for each block of rows and columns. Factors of
activations, of keys and values are left out: here these are not rounded.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from model_zoo.checkpoint.dtypes import FLOAT8, STORAGE
from model_zoo.errors import InputError, shown

METHODS = ("fp8", "compressed-tensors", "fbgemm_fp8", "modelopt", "aqlm")
"""``quant_method`` of config.json whose matrices are float32 once they are read; the last one is `additive`'s."""
ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO")
"""``quant_algo`` of NVIDIA's ModelOpt: those whose elements are codes times factors alone."""
FORMATS = (None, "dense", "float-quantized", "int-quantized", "naive-quantized", "pack-quantized", "mixed-precision")
"""``format`` of compressed-tensors: those that leave an element a byte, and what `integers` opens."""
CODES = (*FLOAT8, "int8")
FACTORS = ("weight_scale_inv", "weight_scale")
OTHERS = ("weight_zero_point", "weight_g_idx", "weight_global_scale")
"""Parts of a matrix whose elements are not codes times factors alone."""
TOLD = re.compile(r"'(?:weight_block_size|block_structure)': [('\[]*(\d+)[, x]+(\d+)")
"""Sizes of blocks in the settings, which the last ones may not fill."""
OF_ACTIVATIONS = re.compile(r".*\.(input|output|activation|[qkv])_(scale|scale_ub|zero_point)")


@dataclasses.dataclass(frozen=True)
class ScaledTensor:
    """One such matrix.

    Attributes:
        shape: ``(out, in)``.
        weight, factors: names of the stored tensors; None where the codes are the numbers.
        grid: how many factors there are along rows and columns.
        block: how many rows and columns share one.
    """

    weight: str
    shape: tuple[int, int]
    dtype: str
    factors: str | None = None
    grid: tuple[int, int] = (1, 1)
    block: tuple[int, int] = (0, 0)

    def read(self, stored: Callable[..., np.ndarray], slices: tuple[slice, ...]) -> np.ndarray:
        """The matrix, or a block of it, in float32.

        Args:
            stored: gives a stored tensor by name, slices and type.
        """
        codes = stored(self.weight, slices, None)
        values = FLOAT8[self.dtype][codes] if self.dtype in FLOAT8 else codes.astype(np.float32)
        if self.factors is None:
            return values
        factors = stored(self.factors, None, "float32").reshape(self.grid)
        first, begin = (part.start or 0 for part in (*slices, slice(None), slice(None))[:2])
        factors = factors[np.arange(first, first + len(values)) // self.block[0]]  # (rows, grid[1])
        for column in range(self.grid[1]):
            some = slice(*(max(0, edge * self.block[1] - begin) for edge in (column, column + 1)))
            values[:, some] *= factors[:, column, None]
        return values


def find_scaled(infos: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[dict[str, ScaledTensor], set[str]]:
    """{name of the weight: matrix} among stored tensors, and the names of what stands beside them.

    Args:
        infos: {stored name: its `TensorInfo`}.
        settings: ``quantization_config`` of config.json; empty where there is none.

    Raises:
        InputError: every matrix whose parts are missing or contradict one another, by a line each.
    """
    method, form = settings.get("quant_method"), settings.get("format")
    if method == "compressed-tensors" and (form not in FORMATS or settings.get("transform_config")):
        raise InputError(
            f"config.json: compressed-tensors in format {shown(form)}; of these float-quantized, int-quantized, "
            "naive-quantized and pack-quantized open: give another copy of the model, or the unquantised one"
        )
    algorithm = settings.get("quant_algo")
    if method == "modelopt" and str(algorithm).upper() not in ALGORITHMS:
        raise InputError(
            f"config.json: modelopt by quant_algo {shown(algorithm)}; of these {', '.join(ALGORITHMS)} open: give "
            "another copy of the model, or the unquantised one"
        )
    found, beside, problems = {}, set(), []
    for name, info in infos.items():
        path, _, last = name.rpartition(".")
        if last == "weight" and info.dtype in CODES and f"{path}.SCB" not in infos:
            parts = [f"{path}.{part}" for part in FACTORS if f"{path}.{part}" in infos]
            try:
                found[name] = _scaled(name, parts, infos, settings)
                beside.update(parts)
            except InputError as error:
                problems.append(str(error))
    InputError.raise_any(problems)
    # ModelOpt's earlier files have their settings in hf_quant_config.json alone
    beside.update(name for name in infos if (settings or found) and OF_ACTIVATIONS.fullmatch(name))
    return found, beside


def _scaled(name: str, parts: list[str], infos: Mapping[str, Any], settings: Mapping[str, Any]) -> ScaledTensor:
    info, path = infos[name], name.removesuffix("weight")
    if others := [path + part for part in OTHERS if path + part in infos]:
        raise InputError(f"{others[0]}: not supported; {name} can be opened where it is codes times factors alone")
    if len(info.shape) != 2 or len(parts) > 1 or (not parts and (info.dtype == "int8" or settings)):
        what = "SCB or weight_scale" if info.dtype == "int8" else "weight_scale"
        raise InputError(f"{name} is packed ({info.dtype} {info.shape}), but its {what} is missing, or there are two")
    if not parts:
        return ScaledTensor(name, info.shape, info.dtype)
    factors = infos[parts[0]]
    shape = (
        factors.shape[::2] if factors.shape[1::2] == (1, 1) else factors.shape
    )  # ModelOpt's are (rows, 1, columns, 1)
    grid = (*shape, 1, 1)[:2]
    block = tuple(_blocks(info.shape, grid, settings))
    if len(shape) > 2 or factors.dtype not in STORAGE or 0 in block:
        raise InputError(f"{parts[0]} {factors.dtype} {factors.shape}: no factors of {name} {info.shape}")
    return ScaledTensor(name, info.shape, info.dtype, parts[0], grid, block)


def _blocks(shape: tuple[int, int], grid: tuple[int, int], settings: Mapping[str, Any]) -> Iterator[int]:
    """How many rows and how many columns share a factor; 0 where the numbers say none."""
    told = TOLD.search(str(settings))
    blocks = [max(1, int(block)) for block in (told.groups() if told else shape)]
    in_blocks = tuple(-(-size // block) for size, block in zip(shape, blocks, strict=True))
    others = told and grid not in ((1, 1), (shape[0], 1))  # than those of a matrix, or of outputs, beside such blocks
    for size, count, block in zip(shape, grid, blocks, strict=True):
        whole = size // count if count and size % count == 0 and not others else 0
        yield block if told and grid == in_blocks else whole
