"""MindFormers' loss as a cell of a script's own; a trainer's runs have this library's."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import nn, ops

from model_zoo.errors import InputError
from pet.recipe.translation import is_off

EPS = 1e-8
WATCHES = ("check_for_nan_in_loss_and_grad", "monitor_device_local_loss")
"""What prints or keeps each process's own loss there."""


class CrossEntropyLoss(nn.Cell):
    """The mean cross-entropy of the rows of mask 1. A label beyond the classes counts with a loss of 0, as there.

    Args:
        parallel_config: says nothing here, where a loss is computed whole.
        calculate_per_token_loss: gives the sum of the losses and that of the mask, instead of their quotient.
        seq_split_num: above 1 does the same.
        settings: ``check_for_nan_in_loss_and_grad`` and ``monitor_device_local_loss``, which have to be off.

    Raises:
        InputError: a setting that is not here.
    """

    def __init__(self, parallel_config=None, *, calculate_per_token_loss=False, seq_split_num=1, **settings: Any):
        super().__init__()
        InputError.raise_any(
            f"CrossEntropyLoss: {name}={value!r}: is not supported"
            for name, value in settings.items()
            if not (name in WATCHES and is_off(value))
        )
        self.apart = bool(calculate_per_token_loss) or seq_split_num > 1

    def construct(self, logits, label, input_mask):
        """Of logits ``(N, C)``, ids ``(N,)`` and a mask of N numbers: the mean, ``(1,)``; or the two sums."""
        known = ops.logical_and(label >= 0, label < logits.shape[-1])
        logits = logits.astype(ms.float32)
        logits = logits - ops.stop_gradient(logits.max(-1, keepdims=True))  # `log_softmax` is 2e-6 off on a CPU
        found = ops.gather_elements(logits, 1, ops.where(known, label, 0).reshape(-1, 1)).reshape(-1)
        losses = ops.log(ops.exp(logits).sum(-1)) - found
        mask = input_mask.reshape(-1).astype(ms.float32)
        total, count = (ops.where(known, losses, 0.0) * mask).sum(), (mask.sum() + EPS).reshape(1)
        return (total, count) if self.apart else total / count
