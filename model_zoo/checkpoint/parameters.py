"""The values of MindSpore's parameters, read and written where they lie.

MindSpore is imported when one is at hand: checkpoints are merged and counted without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from model_zoo.checkpoint.dtypes import as_storage, convert, float_name, from_bfloat16
from model_zoo.errors import InputError, first_of

if TYPE_CHECKING:
    from mindspore import Parameter, nn

    from model_zoo.configs import Config


def read_parameter(parameter) -> np.ndarray:
    """A MindSpore Parameter's values as an array, bfloat16 as MindSpore's NumPy type.

    On the CPU that is the parameter's own memory. On a device it is read through a copy there: `asnumpy` leaves what
    it brings to the host with the tensor that it is called on, so that a model that was once saved would have all its
    weights on the host, in every process.
    """
    import mindspore as ms
    from mindspore import ops

    if ms.get_context("device_target") == "CPU":
        return parameter.asnumpy()
    return ops.deepcopy(parameter).asnumpy()


def read_as(parameter, dtype: str) -> np.ndarray:
    """Those values in this type, bfloat16 as its bits; where it is their own, what `read_parameter` gives."""
    return convert(*as_storage(read_parameter(parameter)), dtype)


def retype(parameter, dtype) -> None:
    """Gives a MindSpore Parameter this type. It is noted there: outside of graphs MindSpore goes on rounding some
    gradients to the type of before (`model_zoo.engine.call.as_it_is`)."""
    parameter.set_dtype(dtype)
    parameter.retyped = True


def write_parameter(parameter, values: np.ndarray) -> None:
    """Writes an array into a MindSpore Parameter, rounding once to its type; compiled graphs see the new values.

    bfloat16 values may come as bits (uint16) or as MindSpore's NumPy type. Not by ``ops.assign`` on the CPU: it has no
    kernel for bfloat16 there.
    """
    import mindspore as ms
    from mindspore import Tensor, ops

    from model_zoo.graph import in_order

    if tuple(values.shape) != tuple(parameter.shape):
        raise ValueError(f"{parameter.name} has shape {tuple(parameter.shape)}, the values {values.shape}")
    target = float_name(parameter.dtype)
    bits, source = as_storage(values)
    bits = convert(bits, "bfloat16" if source == "uint16" else source, target)
    in_order(parameter)
    if ms.get_context("device_target") == "CPU":
        as_storage(parameter.asnumpy())[0][...] = bits
    else:
        tensor = Tensor(from_bfloat16(bits)).astype(ms.bfloat16) if target == "bfloat16" else Tensor(bits)
        ops.assign(parameter, tensor)


def base_parameters(model: nn.Cell, config: Config | None = None) -> dict[str, Parameter]:
    """{published name: Parameter} of a model, without what adapters and new tokens added to it.

    Args:
        config: of what it is to be; default its own.
    """
    names = (config or model.config).shapes()
    found = ((published_name(path, one), one) for path, one in model.parameters_and_names())
    return {name: parameter for name, parameter in found if name in names}


def published_name(path: str, parameter: Parameter) -> str:
    """A parameter's name in files: its own, but for what MindSpore puts in front of it where the model is a part of a
    user's cell. Its place is not always its name: a stage's first layer is a later one of the model."""
    return path if parameter.name.endswith(f".{path}") else parameter.name


def whole_base(model: nn.Cell, config: Config | None = None) -> dict[str, Parameter]:
    """`base_parameters`, all that the configuration asks for, in the order in which they lie in the model.

    Raises:
        InputError: one is lacking, or a cell that stands in another's place has one that the configuration has not: a
            bias, or a head of its own where the embedding is the head.
    """
    names = (config or model.config).shapes()
    found = base_parameters(model, config)
    if absent := [name for name in names if name not in found]:
        raise InputError(
            f"the model lacks {first_of(absent)}: another cell stands there, an active adapter (disable or merge it "
            "first), or other processes have it"
        )
    known = {*names, *model.config.shapes()}  # a language model's head is none of its classifier's
    cells = ("lm_head", *(name.rpartition(".")[0] for name in known))
    possible = {f"{cell}.{kind}" for cell in cells for kind in ("weight", "bias")}
    # a bias that an adapter adds has the name of one of the cell's, and another attribute
    there = (
        name
        for path, one in model.parameters_and_names()
        if (name := published_name(path, one)).endswith(path.rpartition(".")[2])
    )
    if beyond := [name for name in there if name in possible and name not in known]:
        raise InputError(f"the model's configuration has no {first_of(beyond)}: another cell stands there")
    return found
