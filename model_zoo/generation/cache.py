"""A static key/value cache: arrays of a fixed length that every step writes one column of.

The arrays of a layer are kept as ``(B·heads·length, head_dim)`` rows, so that a step writes its ``B·heads`` rows in
place and reading them as ``(B, heads, length, head_dim)`` moves nothing.

A layer with a window keeps the columns in front of all tokens (a trained prompt's, which are seen from beyond it), and
after these a ring: as many rows as the window is wide, which the columns take in turn. So the column that a token
overwrites is the one that has just left its window. A prompt runs in one pass, with the keys of one layer at a time in
full; what stays of them is the end.
"""

from __future__ import annotations

from collections.abc import Callable

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from model_zoo.ascend import on_ascend
from model_zoo.checkpoint.parameters import write_parameter
from model_zoo.engine import token_attention
from model_zoo.layers import AttentionCore, int_range, new_parameter


class LayerCache(nn.Cell):
    """The keys and values of one attention core.

    ``prefilling`` is set while the prompt goes through: the new keys are written and, being all there are, handed back
    as they came.

    Args:
        name: of the core.
        columns: how many tokens there are at most, those in front among them; `length` is how many rows are kept.
        pinned: how many columns are in front of all tokens.
        cursor: the column that is written next.
        native: whether C kernels attend over it (`engine.token_attention`); otherwise `AttentionCore` does.
        window: of the model's answers, where the core has none: `Config.cached_window`.

    Attributes:
        numbers: of the attention of a token over it; see `engine.token_attention`.
        made: what programs over it hold of cells that compute it out of weights alone: by the cell's id, the result,
            and what gives it anew.
    """

    def __init__(
        self,
        name: str,
        core: AttentionCore,
        batch: int,
        columns: int,
        pinned: int,
        cursor: Parameter,
        dtype,
        native,
        window: int = 0,
    ):
        super().__init__()
        self.made: dict[int, tuple[Parameter, Callable[[], Tensor]]] = {}
        self.batch, self.heads, self.head_dim = batch, core.kv_heads, core.head_dim
        window = core.window or window
        self.pinned = pinned if window else 0
        self.length = rows_kept(columns, pinned, window)
        self.wraps = self.length < columns
        shape = batch * self.heads * self.length, self.head_dim
        self.keys, self.values = (
            new_parameter(shape, dtype, name=f"cache.{name}.{part}") for part in ("keys", "values")
        )
        self.keys.requires_grad = self.values.requires_grad = False
        self.cursor = cursor
        self.prefilling = True
        self.numbers = {**core.numbers, "window": window, "pinned": self.pinned}
        self.token = token_attention(**self.numbers) if native else None
        self.gather, self.modulo = ops.Gather(), ops.FloorMod()
        # Ascend's documentation has bfloat16 for the second alone
        self.by_point = on_ascend()
        self.write = ops.ScatterNdUpdate() if self.by_point else ops.ScatterUpdate()

    def computed(self, cell: nn.Cell, give: Callable[[], Tensor]) -> Parameter:
        """What a cell's function gives; the same until `Cache.compute`."""
        if id(cell) not in self.made:
            self.made[id(cell)] = Parameter(give().asnumpy(), requires_grad=False), give
        return self.made[id(cell)][0]

    def attend(self, query, keys, values, end, columns):
        """Attention of one token per row; see `engine.token_attention`."""
        return self.token(query, keys, values, self.keys, self.values, end, columns)

    def construct(self, keys, values):
        new_keys, new_values, columns = keys, values, int_range(keys.shape[2]) + self.cursor
        if keys.shape[2] > self.length:  # a prompt, of which the pinned columns and the last ones stay
            columns = int_range(self.length)
            columns = ops.select(columns < self.pinned, columns, columns + (keys.shape[2] - self.length))
            new_keys, new_values = self.gather(keys, columns, 2), self.gather(values, columns, 2)
        if self.wraps:
            turn = self.pinned + self.modulo(columns - self.pinned, self.length - self.pinned)
            columns = ops.select(columns < self.pinned, columns, turn)
        first = int_range(self.batch * self.heads).reshape(-1, 1) * self.length
        rows = (first + columns).reshape((-1, 1) if self.by_point else (-1,))  # (B·heads·count,)
        all_keys = self.write(self.keys, rows, new_keys.reshape(-1, self.head_dim))
        all_values = self.write(self.values, rows, new_values.reshape(-1, self.head_dim))
        if self.prefilling:
            return keys, values
        shape = (self.batch, self.heads, self.length, self.head_dim)
        return all_keys.reshape(shape), all_values.reshape(shape)

    def rows(self, end, keep):
        """Where a token's interval ends ``(B, 1)`` and the key mask ``(B, columns)``, by rows instead of columns: the
        mask is ``(B, length)``, and 0 for rows that hold nothing yet."""
        if not self.wraps:
            return end, keep
        row = int_range(self.length)
        latest = self.cursor - self.modulo(self.cursor - row, self.length - self.pinned)  # the column of each row
        column = ops.select(row < self.pinned, row, latest)
        written = (column >= ops.minimum(row, self.pinned)).astype(ms.int32)
        return ops.zeros_like(end) + self.length, self.gather(keep, ops.maximum(column, 0), 1) * written


def rows_kept(columns: int, pinned: int, window: int) -> int:
    """How many of a sequence's columns a layer keeps."""
    return min(columns, pinned + window) if window else columns


class Cache:
    """The caches of all layers of a model for one batch size and length, and the column that is written next.

    Args:
        native: whether C kernels attend over it.
    """

    def __init__(self, model, batch: int, length: int, native: bool):
        self.length = length
        self.cursor = new_parameter((1,), ms.int32, name="cache.cursor")
        self.cursor.requires_grad = False
        self.cores = [(path, cell) for path, cell in model.cells_and_names() if isinstance(cell, AttentionCore)]
        self.layers = []
        for path, core in self.cores:
            sizes, window = (batch, length, model.virtual_tokens), model.config.cached_window
            self.layers.append(LayerCache(path, core, *sizes, self.cursor, model.dtype, native, window))

    def attach(self, prefilling: bool) -> None:
        """Makes the model's attention use this cache. Set past `Cell.__setattr__`: it is no part of the model."""
        for (_, core), layer in zip(self.cores, self.layers, strict=True):
            object.__setattr__(layer, "prefilling", prefilling)
            object.__setattr__(core, "cache", layer)

    def detach(self) -> None:
        """Leaves the model without a cache."""
        for _, core in self.cores:
            object.__setattr__(core, "cache", None)

    def compute(self) -> None:
        """Computes anew what is held: weights may have been trained since the last answer."""
        for layer in self.layers:
            for result, give in layer.made.values():
                write_parameter(result, give().asnumpy())

    def copy(self, other: Cache) -> None:
        """Takes over the columns of a shorter cache for the same batch."""
        for layer, short in zip(self.layers, other.layers, strict=True):
            for mine, theirs in ((layer.keys, short.keys), (layer.values, short.values)):
                if layer.length > short.length:  # which is no ring then: it holds all columns in their order
                    theirs = theirs.reshape(-1, short.length, short.head_dim)
                    rest = ops.zeros((theirs.shape[0], layer.length - short.length, layer.head_dim), mine.dtype)
                    theirs = ops.concat([theirs, rest], 1).reshape(mine.shape)
                ops.assign(mine, theirs)
        self.settle()

    def reorder(self, rows) -> None:
        """Makes row i of the batch what row ``rows[i]`` was."""
        for layer in self.layers:
            for parameter in (layer.keys, layer.values):
                split = parameter.reshape(layer.batch, -1)
                ops.assign(parameter, ops.gather(split, rows, 0).reshape(parameter.shape))
        self.settle()

    def settle(self) -> None:
        """Waits until what was assigned is there, as asking for an address does: a program that knows the caches by
        theirs reads what it finds."""
        for layer in self.layers:
            layer.keys.data_ptr(), layer.values.data_ptr()
