"""ZeRO stage 3 (Rajbhandari et al. 2020) for what is frozen: the replicas share the base's matrices.

Each replica keeps some rows of every frozen matrix of the layers. A product gathers the whole matrix before it
multiplies, and once more in its backward pass; in between nobody has it::

    rows (out / N, in) ─ gather ─► W (out, in) ─► y = x·Wᵀ       forward
    rows (out / N, in) ─ gather ─► W (out, in) ─► dx = dy·W      backward

A gather waits for its product's input (or the gradient that came in): a graph could otherwise gather all matrices at
its beginning. So a device may gather what reads the same input (query, key and value; gate and up) while it multiplies
with the first of them, and nothing of the next layer: cells hand on activations alone. Embedding, head, norms, biases
and all that is trained are whole on every replica.

On a CPU the layers run operator by operator. Its operator for gathers within graphs knows the group of all processes
alone, and two gathers that do not depend on each other may run in either order there, so that one process would take
the other matrix for its own. On Ascend the order is the graph's.
"""

from __future__ import annotations

import logging

import mindspore as ms
from mindspore import Tensor, nn, ops

from adapters.registry import registry
from model_zoo.errors import InputError
from model_zoo.layers import new_parameter
from model_zoo.quantization.storage import is_quantized
from pet.parallel.collectives import Group, GroupGather
from pet.parallel.specs import check_rows, gathered_cells
from pet.parallel.split import division_of, mark, role_of

log = logging.getLogger("pet")


class GatheredProduct(nn.Cell):
    """``x·Wᵀ``, or ``x·W``, for a frozen W of which each member of a group has some rows. There is no gradient of W.

    Args:
        turned: whether W is ``(out, in)``.
        group: who has the rows.
        dtype: of W.
    """

    rounded = ("product", "product_back")  # for `pet.train.precision`

    def __init__(self, turned: bool, group: Group, dtype):
        super().__init__()
        self.gather = GroupGather(group, dtype)
        self.product, self.product_back = ops.MatMul(transpose_b=turned), ops.MatMul(transpose_b=not turned)
        self.late = ops.Depend()

    def construct(self, x, rows):
        return self.product(x, self.gather(self.late(rows, x)).astype(x.dtype))

    def bprop(self, x, rows, out, dout):
        weight = self.gather(self.late(rows, dout)).astype(dout.dtype)
        return self.product_back(dout, weight), rows  # nobody asks for it


def shard_base(model: nn.Cell, group: Group, loaded: bool) -> None:
    """Leaves on this process its rows of the frozen base's matrices, and makes their cells gather them.

    Args:
        model: this process's part by tensor and pipeline, with its adapters.
        group: the replicas.
        loaded: whether the base's weights are there; otherwise they are read afterwards (`pet.parallel.loading`).

    Raises:
        InputError: packed weights, an adapter that reads whole matrices, rows that cannot be divided evenly, or nothing
            that is frozen.
    """
    cells, found = dict(model.cells_and_names()), 0
    replaced = {
        id(item.cell)
        for adapter in registry(model).adapters.values()
        for item in adapter.replaced
        if item.attribute == "weight"
    }
    for path, spec in gathered_cells(model.config).items():
        cell = cells.get(path)  # another stage's is not there
        if cell is None or id(cell) in replaced or cell.weight.requires_grad:
            continue
        if is_quantized(cell):
            raise InputError(not_gathered(path))
        if any(getattr(child, "needs_base", False) for child in cell.cells()):
            raise InputError(
                f"parallel.shard_base: the adapter on {path} reads the whole matrix; expected adapter.use_dora: false"
            )
        check_rows(path, cell.weight.shape[0], group.size)
        take_rows(cell, spec.kind == "linear", group, loaded)
        found += 1
    if not found:  # each is trained whole, by modules_to_save
        raise InputError("parallel.shard_base: no matrix of the layers is frozen; expected an adapter")
    if ms.get_context("device_target") == "CPU":
        model.compiles = False
        if group.place == 0:
            log.info("parallel.shard_base: on a CPU layers run by single operators, and answers without a cache")


def not_gathered(path: str) -> str:
    """What is said of a packed matrix."""
    return (
        f"parallel.shard_base: {path} is packed in 8 or 4 bits, which is not gathered; expected a base in 16 or 32 "
        "bits, or parallel.tensor, which divides packed weights"
    )


def take_rows(cell: nn.Cell, turned: bool, group: Group, loaded: bool) -> None:
    """Leaves in a cell this member's rows of its weight."""
    whole = cell.weight
    count = whole.shape[0] // group.size
    own = slice(group.place * count, (group.place + 1) * count)
    rows = new_parameter((count, *whole.shape[1:]), whole.dtype)
    if loaded:
        rows.set_data(Tensor(whole.asnumpy()[own], whole.dtype))
    rows.name, rows.requires_grad, rows.rows, rows.weights = whole.name, False, own, int(whole.size)
    mark(rows, role_of(whole), division_of(whole))
    cell.weight = rows
    del cell.product
    cell.product = GatheredProduct(turned, group, rows.dtype)
