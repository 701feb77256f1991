"""R-Drop under MindPet's names, for training loops of one's own; the trainer has it by ``train.r_drop_alpha``."""

from __future__ import annotations

from typing import Any, TypeVar, overload

import numpy as np
from mindspore import Tensor, nn, ops

from model_zoo.settings import require
from pet.data.dataset import IGNORED
from pet.train.objectives.causal import RDrop, shift_labels

Array = TypeVar("Array", np.ndarray, Tensor)


@overload
def rdrop_repeat(array: Array, /) -> Array: ...
@overload
def rdrop_repeat(*arrays: Array) -> tuple[Array, ...]: ...
def rdrop_repeat(*arrays: Any) -> Any:
    """Each row of a batch twice, one after the other, as `RDropLoss` wants its pairs.

    Args:
        arrays: NumPy arrays or Tensors with rows along the first axis.

    Returns:
        The repeated arrays: one alone, several as a tuple.
    """
    repeated = tuple(
        ops.repeat_interleave(array, 2, 0) if isinstance(array, Tensor) else np.repeat(np.asarray(array), 2, axis=0)
        for array in arrays
    )
    return repeated[0] if len(repeated) == 1 else repeated


def check_pairs(rows: int) -> None:
    """Raises ValueError where a row has no twin."""
    if rows % 2:
        raise ValueError("RDropLoss: the batch has an odd number of rows; repeat each with rdrop_repeat")


class RDropLoss(nn.Cell):
    """Mean cross-entropy plus ``α/4 · (KL(p‖q) + KL(q‖p))`` between the rows of each pair.

    Rows 2i and 2i + 1 are the same sample under different dropout (`rdrop_repeat`). Both terms are means over labels.

    Args:
        alpha: α; 4 is MindPet's default.
    """

    def __init__(self, alpha: float = 4.0):
        super().__init__()
        require("RDropLoss", "alpha", alpha, float, ge=0)
        self.objective = RDrop(float(alpha))

    def construct(self, logits, labels, alpha=None):
        """Logits ``(B, S, V)`` and unshifted labels ``(B, S)``, or a classifier's ``(B, V)``, ``(B,)`` → a scalar;
        `alpha` instead of that of the loss."""
        if len(labels.shape) == 1:  # one label per row: put where the row's first token predicts it
            ignored = ops.full_like(labels, IGNORED)
            labels = ops.stack((ignored, labels), 1)
            logits = ops.stack((logits, ops.zeros_like(logits)), 1)
        check_pairs(labels.shape[0])
        count = (shift_labels(labels) != IGNORED).astype(logits.dtype).sum()
        return self.objective.loss(logits, labels, alpha) / count
