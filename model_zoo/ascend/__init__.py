"""Ascend's fused operators, each in a file of its own, behind the cells whose plain paths are the reference.

    attention.py    flash_attention_score, with a mask or by documents
    product.py      WeightQuantBatchMatmul, for weights in 8 and 4 bits
    norms.py        RmsNorm and LayerNorm
    rotary.py       rotary_position_embedding
    swiglu.py       swiglu

Written by the documentation of MindSpore 2.7 to 2.10, which tests hold to NumPy models of it. None has been run on a
device; `pet doctor --full` measures the cells there.
"""

from __future__ import annotations

import mindspore as ms

from model_zoo.engine import switched_off


def on_ascend() -> bool:
    """Whether that is the device."""
    return ms.get_context("device_target") == "Ascend"


def has_operators() -> bool:
    """Whether the device has these operators, and ``PET_NATIVE=0`` does not ask for plain ones."""
    return on_ascend() and not switched_off()
