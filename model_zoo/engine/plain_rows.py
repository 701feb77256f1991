"""Rows of a table in the plain column, and the row that no lookup trains."""

from __future__ import annotations

import mindspore as ms
from mindspore import ops


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
