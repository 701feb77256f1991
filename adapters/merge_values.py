"""Values of weights while they are merged: out of parameters in float64, and back in the form that these have."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor

from model_zoo import progress
from model_zoo.checkpoint.dtypes import convert, float_name, from_bfloat16
from model_zoo.checkpoint.parameters import read_as
from model_zoo.quantization import codec
from model_zoo.quantization.cells import QuantizedLinear


def packed_in(parameter: Parameter) -> QuantizedLinear | None:
    """The cell of a packed weight."""
    return getattr(parameter, "packed_in", None)


def wide(parameter: Parameter) -> np.ndarray:
    """A parameter's values in float64."""
    progress.tick()
    if (packed := packed_in(parameter)) is not None:
        return packed.dequantized().astype(np.float64)
    return read_as(parameter, "float64")


def unpacked(parameter: Parameter) -> np.ndarray:
    """`wide`, but of a packed weight what it was packed from. Raises InputError: its file holds it packed."""
    packed = packed_in(parameter)
    return wide(parameter) if packed is None else packed.original().astype(np.float64)


def rounded(parameter: Parameter, exact: np.ndarray) -> tuple[Any, np.ndarray]:
    """Merged values in the form that a parameter has (`adapters.merge.Target.kept`), and as they are there, in
    float64."""
    packed = packed_in(parameter)
    if packed is not None:
        arrays = packed.requantized(exact.astype(np.float32))
        return (arrays, None), codec.dequantize(packed.storage, arrays, packed.shape).astype(np.float64)
    stored = float_name(parameter.dtype)
    kept = convert(exact, "float64", stored)
    return kept, (from_bfloat16(kept) if stored == "bfloat16" else kept).astype(np.float64)


def as_tensor(values: np.ndarray, dtype) -> Tensor:
    """An array, for bfloat16 one of bits or of MindSpore's NumPy type, as a Tensor of this type."""
    if dtype == ms.bfloat16 and values.dtype == np.uint16:
        values = from_bfloat16(values)
    return Tensor(np.ascontiguousarray(values)).astype(dtype)
