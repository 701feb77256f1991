"""Adafactor (Shazeer & Stern 2018): second moments of matrices by their row and column means alone.

The state of an ``(n, m)`` matrix is n + m numbers instead of n·m; a tensor of more dimensions is many matrices, of its
last two. Without momentum, and with the learning rate of the
schedule instead of one relative to the weights' size (``scale_parameter=False``, ``relative_step=False`` of the
reference implementations). A prefix is a matrix for each layer; in PEFT it is one for all, whose means are other ones.
"""

from __future__ import annotations

import numpy as np
from mindspore import Parameter, ParameterTuple, ops

from model_zoo.checkpoint.parameters import read_parameter, write_parameter
from pet.train.optimizers.base import Optimizer, zeros
from pet.train.segments import Segment, flatten, unflatten

_map = ops.HyperMap()

# Added to squared gradients, so that a row of zeros divides by something (the paper's epsilon 1).
TINY = 1e-30


def _factors(shape: tuple[int, ...]) -> tuple[int, int]:
    """How many rows and how many columns all matrices of a tensor have together; a vector is one row."""
    matrix = shape[-2:] if len(shape) > 1 else (1, *shape)
    count = int(np.prod(shape[:-2]))
    return count * int(matrix[0]), count * int(np.prod(matrix[1:]))


def _update(clip, keep, remember, gradient, row, column):
    """A tensor's update, before the learning rate; ``row`` and ``column`` move. A vector is all column, unfactored."""
    count = row.size * column.size // gradient.size
    rows, columns = row.size // count, column.size // count
    gradient = ops.reshape(gradient, (count, rows, columns))
    square = gradient * gradient + TINY
    new_column = column * keep + square.mean(1).reshape(-1) * remember
    update = gradient * ops.rsqrt(new_column).reshape(count, 1, columns)
    new_row = row
    if rows > 1:
        new_row = row * keep + square.mean(2).reshape(-1) * remember
        each = new_row.reshape(count, rows, 1)
        update = update * ops.rsqrt(each / each.mean(1, keep_dims=True))
    rms = ops.sqrt((update * update).mean())
    update = update / ops.maximum(rms / clip, ops.ones_like(rms))
    update = ops.depend(update, ops.assign(row, new_row))
    update = ops.depend(update, ops.assign(column, new_column))
    return update.reshape(-1)


class Adafactor(Optimizer):
    """Adafactor with factored second moments, no first moment, and decoupled weight decay.

    Args:
        decay: exponent of the memory: ``1 − step^decay`` of the old mean square is kept.
        clip: an update whose root mean square is above this is scaled down to it.
    """

    def __init__(self, segments, decay: float = -0.8, clip: float = 1.0, compiled: bool = True):
        self.decay, self.clip = decay, clip
        super().__init__(segments, compiled)

    def make_state(self, index, segment):
        state = super().make_state(index, segment)
        for parameter in segment.parameters:
            rows, columns = _factors(parameter.shape)
            state[f"row/{parameter.name}"] = zeros(rows, f"exp_avg_sq_row.{parameter.name}")
            state[f"column/{parameter.name}"] = zeros(columns, f"exp_avg_sq_col.{parameter.name}")
        return state

    def scalars(self, learning_rate, weight_decay, step):
        keep = 1.0 - step**self.decay
        return learning_rate, 1.0 - learning_rate * weight_decay, keep, 1.0 - keep

    def rule(self, segment: Segment, state: dict[str, Parameter]):
        rows = ParameterTuple([state[f"row/{name}"] for name in segment.names])
        columns = ParameterTuple([state[f"column/{name}"] for name in segment.names])
        sizes, clip = segment.sizes, self.clip

        def adafactor(weights, gradient, scalars):
            learning_rate, decayed, keep, remember = scalars

            update_one = ops.partial(_update, clip, keep, remember)
            update = flatten(_map(update_one, unflatten(gradient, sizes), rows, columns))
            return weights * decayed - learning_rate * update

        return adafactor

    def slot_arrays(self, segment, slot, vector):
        return super().slot_arrays(segment, slot, vector) if slot == "master" else {vector.name: read_parameter(vector)}

    def load_slot(self, segment, slot, vector, arrays):
        if slot == "master":
            super().load_slot(segment, slot, vector, arrays)
        else:
            write_parameter(vector, np.asarray(arrays[vector.name], np.float32))
