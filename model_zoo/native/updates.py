"""The C kernels of the optimizer's step; see `model_zoo.native`."""

from __future__ import annotations

import functools

import numpy as np
from mindspore import Tensor, nn

from model_zoo.native.kernels import operator, outputs


@outputs(3)
def three_as_first(*shapes):
    return shapes[0], shapes[0], shapes[0]


def one(*shapes):
    return [1]


class AdamW(nn.Cell):
    """One pass over all numbers instead of some fifteen; the formula is that of `pet.train.optimizers.AdamW`.

    Args:
        betas, eps: as there.
    """

    def __init__(self, betas: tuple[float, float], eps: float):
        super().__init__()
        numbers = [1.0 - betas[0], betas[1], 1.0 - betas[1], eps]
        self.numbers = Tensor(np.array(numbers, np.float32))
        self.update = operator("adamw", three_as_first)

    def construct(self, weights, gradient, average, square, step_size, root, keep):
        """→ new weights, average and average of squares."""
        return self.update(weights, gradient, average, square, step_size, root, keep, self.numbers)


class SumOfSquares(nn.Cell):
    """``(n,)`` → ``(1,)``, added up in double precision."""

    def __init__(self):
        super().__init__()
        self.sum = operator("sum_of_squares", one)

    def construct(self, vector):
        return self.sum(vector)


adamw = functools.cache(AdamW)
sum_of_squares = functools.cache(SumOfSquares)
