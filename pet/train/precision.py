"""Narrow matrix products and recomputed layers."""

from __future__ import annotations

import mindspore as ms
from mindspore import nn, ops

from model_zoo.errors import InputError
from model_zoo.layers import is_product
from pet.installation import has_bf16

NARROW = {"fp16": ms.float16, "bf16": ms.bfloat16}


class NarrowProduct(nn.Cell):
    """A matrix product in a narrow type, whose factors and result are as wide as they were.

    Args:
        product: the primitive that it takes the place of.
        dtype: of the product.
    """

    def __init__(self, product, dtype):
        super().__init__()
        self.product, self.dtype = product, dtype

    def construct(self, left, right):
        wide = self.product(left.astype(self.dtype), right.astype(self.dtype))
        return wide.astype(left.dtype)


def set_precision(model: nn.Cell, precision: str) -> None:
    """Lets every matrix product of a model and its adapters compute in a narrow type, on weights that stay as they are.

    Norms, softmax, loss, the sums of the residual stream and the update stay in float32. ``fp32`` undoes it.

    Raises:
        InputError: the device has no such products.
    """
    if precision == "bf16" and not has_bf16():
        raise InputError("train.precision: bf16 has no matrix product on a CPU; use fp32 or fp16")
    cells = [cell for _, cell in model.cells_and_names()]
    for cell in [cell for cell in cells if not (isinstance(cell, NarrowProduct) or is_product(cell))]:
        if "narrow" in vars(cell):  # it has another way than its products
            cell.narrow = precision != "fp32"
        for name, product in list(vars(cell).items()) + list(cell.name_cells().items()):
            if isinstance(product, NarrowProduct):
                product = product.product
            elif not (is_product(product) or isinstance(product, ops.BatchMatMul)):
                continue
            delattr(cell, name)
            setattr(cell, name, product if precision == "fp32" else NarrowProduct(product, NARROW[precision]))


def set_recompute(model: nn.Cell) -> None:
    """Turns on activation checkpointing of every decoder layer.

    Raises:
        InputError: the model does not say which cells are its layers.
    """
    family = getattr(model, "family", None)
    if family is None:
        raise InputError(f"train.recompute: {type(model).__name__} does not say which cells are its layers")
    for layer in model.layer_list:
        layer.recompute()
        layer.recomputes = True  # for `model_zoo.engine`
