"""Narrow matrix products and recomputed layers."""

from __future__ import annotations

import mindspore as ms
from mindspore import nn

from model_zoo.errors import InputError

NARROW = {"fp16": ms.float16, "bf16": ms.bfloat16}


def set_precision(model: nn.Cell, precision: str) -> None:
    """Lets every projection compute in a narrow type, on weights that stay as they are.

    Norms, softmax, loss and the update stay in float32, as the cells themselves see to.

    Raises:
        InputError: the device has no such products.
    """
    if precision == "fp32":
        return
    if precision == "bf16" and ms.get_context("device_target") == "CPU":
        raise InputError("train.precision: bf16 has no matrix product on a CPU; use fp32 or fp16")
    from adapters.sites import kind_of

    for _, cell in model.cells_and_names():
        if kind_of(cell) == "linear":
            cell.to_float(NARROW[precision])


def set_recompute(model: nn.Cell) -> None:
    """Lets every decoder layer forget its activations and compute them again in the backward pass."""
    family = getattr(model, "family", None)
    if family is None:
        raise InputError(f"train.recompute: {type(model).__name__} does not say which cells are its layers")
    cell = model
    for part in family.layers.split("."):
        cell = getattr(cell, part)
    for layer in cell:
        layer.recompute()
