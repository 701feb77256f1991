"""Rows in the plain column: of a table, with the one that no lookup trains, and of scores that become shares."""

from __future__ import annotations

import mindspore as ms
from mindspore import ops

_softmax = ops.Softmax(-1)


def softmax(scores):
    """Of the last axis. Not MindSpore's of a single number: outside of graphs MindSpore 2.10 keeps the gradient of the
    first one that it differentiates for all others of as many axes, and that of a single number is none."""
    return _softmax(scores) if scores.shape[-1] > 1 else scores - scores + 1.0


def unlearned(rows, ids, padding: int, axis: int = -1):
    """The same rows, of which those of the padding's id have no gradient.

    Args:
        rows: of a table, one for each id.
        ids: whose they are.
        padding: the id, or -1 for none.
        axis: where a row has the axis that ids have not.
    """
    if padding < 0:
        return rows
    return ops.where((ids == padding).expand_dims(axis), ops.stop_gradient(rows), rows)


def rows_of(padding):
    return lambda table, ids: unlearned(ops.gather(table, ids, 0).astype(ms.float32), ids, padding)
