"""The precision of matrix products, and recomputed layers."""

from __future__ import annotations

import dataclasses
import logging

import mindspore as ms
from mindspore import nn, ops

from adapters.apply import trainable_parameters
from adapters.graphs import recompute_what_is_there
from model_zoo.engine import Rounded, Widened, bf16_speedup, no_bf16, set_kernels
from model_zoo.errors import InputError
from model_zoo.inputs import check_runs
from model_zoo.layers import AttentionCore, Conv1D, Linear, is_product
from model_zoo.quantization.cells import PackedProduct
from model_zoo.storage import widen_trained
from pet.train.base_dropout import attach_dropout, say_unapplied

log = logging.getLogger("pet")

NARROW = {"fp16": ms.float16, "bf16": ms.bfloat16}

FASTER = 1.2
"""How many times as fast as float32's bfloat16 products must be for ``auto`` to choose them: what lies between the
products takes as long in both."""


@dataclasses.dataclass(frozen=True)
class Precision:
    """What products are computed in.

    Attributes:
        name: ``fp32``, ``fp16`` or ``bf16``.
        why: of ``auto``'s choice, else "".
    """

    name: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.name} (auto: {self.why})" if self.why else self.name


def choose_precision(asked: str) -> Precision:
    """The precision that ``train.precision`` means on this machine.

    Raises:
        InputError: bf16 is asked for and not there.
    """
    if asked not in ("auto", "bf16"):
        return Precision(asked)
    reason, on_cpu = no_bf16(), ms.get_context("device_target") == "CPU"
    if reason and asked == "bf16":
        raise InputError(f"train.precision: bf16 has no matrix product here: {reason}; use fp32, or auto")
    if reason:
        return Precision("fp32", f"no bf16 products: {reason}")
    if not on_cpu:
        return Precision("bf16", "this device has bf16 products" if asked == "auto" else "")
    speedup = bf16_speedup()
    if asked == "auto":
        name = "bf16" if speedup >= FASTER else "fp32"
        return Precision(name, f"bf16 products take 1/{speedup:.1f} of float32's time here")
    if speedup < 1:
        log.warning("train.precision: bf16 products are slower than float32's here (%.1f times as fast)", speedup)
    return Precision(asked)


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


def prepare_model(model: nn.Cell, settings, distributed) -> Precision:
    """Sets a model up for training as a recipe's ``train`` section says: types, recomputation, the base's dropout.

    Args:
        distributed: its ``tensor_rank`` is that of masks that differ between the members of a tensor-parallel group.

    Returns:
        The precision chosen.

    Raises:
        InputError: bf16 is asked for and not there, or is the model's own type.
    """
    check_runs(getattr(model, "dtype", None))
    widen_trained(model, trainable_parameters(model))
    precision = choose_precision(settings.precision)
    set_precision(model, precision.name)
    if settings.recompute:
        set_recompute(model, int(settings.recompute))
    elif any(getattr(layer, "recomputes", False) for layer in getattr(model, "layer_list", ())):
        log.warning("train.recompute: this model's layers are recomputed since an earlier trainer; load it anew")
    if not settings.base_dropout:
        say_unapplied(model)
    attach_dropout(model, settings.base_dropout, distributed.tensor_rank, of_run=True)
    return precision


def set_precision(model: nn.Cell, precision: str) -> None:
    """Lets the matrix products of a model compute in a narrow type, on weights that stay as they are.

    Norms, softmax, loss, the sums of the residual stream and the update stay in float32. ``fp32`` undoes it. On a CPU
    bf16 is for products of activations with the model's own weights and for those of attention, whose sums are float32;
    what lies between two of them lies in bf16 too where the CPU engine computes the layers. Adapters' weights and their
    gradients stay in float32.

    Args:
        precision: ``fp32``, ``fp16`` or ``bf16``; see `choose_precision`.
    """
    model.product_precision = precision
    rounded = precision == "bf16" and ms.get_context("device_target") == "CPU"
    cells = [cell for _, cell in model.cells_and_names()]
    for cell in [cell for cell in cells if not (isinstance(cell, (NarrowProduct, Rounded)) or is_product(cell))]:
        if "narrow" in vars(cell):  # it has another way than its products
            cell.narrow = None if rounded else NARROW.get(precision)
        own = next((names for kind, names in ROUNDED.items() if isinstance(cell, kind)), getattr(cell, "rounded", ()))
        for name, product in list(vars(cell).items()) + list(cell.name_cells().items()):
            found = bare(product)
            if not isinstance(found, (ops.MatMul, ops.BatchMatMul, Widened)):
                continue
            if rounded:
                new = Rounded(found) if name in own else found
            else:
                new = found if precision == "fp32" else NarrowProduct(found, NARROW[precision])
            delattr(cell, name)
            setattr(cell, name, new)
    set_kernels(model, getattr(model, "runs_fast", False))


ROUNDED = {
    Linear: ("product",),
    Conv1D: ("product",),
    nn.Dense: ("matmul",),
    PackedProduct: ("product", "product_back"),
    AttentionCore: ("scores", "values"),
}
"""Cells whose products are rounded on a CPU, and by what names they have them; others say it by ``rounded``."""


def bare(product):
    """The primitive of a product, or what widens its weight, whatever stands for it."""
    while not isinstance(product, Widened) and (
        isinstance(product, NarrowProduct) or hasattr(type(product), "stands_for_product")
    ):
        product = product.product if isinstance(product, NarrowProduct) else product.primitive
    return product


def set_recompute(model: nn.Cell, every: int = 1) -> None:
    """Turns on activation checkpointing of decoder layers.

    Args:
        model: whole, or one stage of it.
        every: of so many layers the first.

    Raises:
        InputError: the model does not say which cells are its layers.
    """
    family = getattr(model, "family", None)
    if family is None:
        raise InputError(f"train.recompute: {type(model).__name__} does not say which cells are its layers")
    for layer in list(model.layer_list)[::every]:  # a slice of a CellList renames what is in it
        layer.recompute()
        layer.recomputes = True  # for `model_zoo.engine`
    recompute_what_is_there(model)
