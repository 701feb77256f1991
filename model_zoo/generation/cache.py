"""A static key/value cache: arrays of a fixed length that every step writes one column of.

The arrays of a layer are kept as ``(B·heads·length, head_dim)`` rows, so that a step writes its ``B·heads`` rows in
place and reading them as ``(B, heads, length, head_dim)`` moves nothing.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Parameter, nn, ops

from model_zoo.engine import token_attention
from model_zoo.layers import AttentionCore, int_range


class LayerCache(nn.Cell):
    """The keys and values of one attention core.

    ``prefilling`` is set while the prompt goes through: the new keys are written and, being all there are, handed back
    as they came.

    Args:
        token: what attends over the kept keys for one token per row, and writes its own (`engine.token_attention`);
            None where only `AttentionCore` can.
    """

    def __init__(self, name: str, batch: int, heads: int, length: int, head_dim: int, cursor: Parameter, dtype, token):
        super().__init__()
        self.batch, self.heads, self.length, self.head_dim = batch, heads, length, head_dim
        rows = batch * heads * length
        self.keys = Parameter(ops.zeros((rows, head_dim), dtype), name=f"cache.{name}.keys", requires_grad=False)
        self.values = Parameter(ops.zeros((rows, head_dim), dtype), name=f"cache.{name}.values", requires_grad=False)
        self.cursor = cursor
        self.prefilling = True
        self.token = token
        self.write = ops.ScatterUpdate()

    def attend(self, query, keys, values, end, columns):
        """Attention of one token per row; see `engine.token_attention`."""
        return self.token(query, keys, values, self.keys, self.values, end, columns)

    def construct(self, keys, values):
        count = keys.shape[2]
        first = int_range(self.batch * self.heads).reshape(-1, 1) * self.length
        rows = (first + int_range(count) + self.cursor).reshape(-1)  # (B·heads·count,)
        all_keys = self.write(self.keys, rows, keys.reshape(-1, self.head_dim))
        all_values = self.write(self.values, rows, values.reshape(-1, self.head_dim))
        if self.prefilling:
            return keys, values
        shape = (self.batch, self.heads, self.length, self.head_dim)
        return all_keys.reshape(shape), all_values.reshape(shape)


class Cache:
    """The caches of all layers of a model for one batch size and length, and the column that is written next.

    Args:
        native: whether C kernels attend over it.
    """

    def __init__(self, model, batch: int, length: int, native: bool):
        self.length = length
        self.cursor = Parameter(ops.zeros((1,), ms.int32), name="cache.cursor", requires_grad=False)
        self.cores = [(path, cell) for path, cell in model.cells_and_names() if isinstance(cell, AttentionCore)]
        self.layers = []
        for path, core in self.cores:
            token = token_attention(**core.numbers) if native else None
            sizes = batch, core.kv_heads, length, core.head_dim
            self.layers.append(LayerCache(path, *sizes, self.cursor, model.dtype, token))

    def attach(self, prefilling: bool) -> None:
        """Makes the model's attention use this cache. Set past `Cell.__setattr__`: it is no part of the model."""
        for (_, core), layer in zip(self.cores, self.layers, strict=True):
            object.__setattr__(layer, "prefilling", prefilling)
            object.__setattr__(core, "cache", layer)

    def detach(self) -> None:
        """Leaves the model without a cache."""
        for _, core in self.cores:
            object.__setattr__(core, "cache", None)

    def copy(self, other: Cache) -> None:
        """Takes over the columns of a shorter cache for the same batch."""
        for layer, short in zip(self.layers, other.layers, strict=True):
            for mine, theirs in ((layer.keys, short.keys), (layer.values, short.values)):
                columns = theirs.reshape(-1, short.length, short.head_dim)
                rest = ops.zeros((columns.shape[0], layer.length - short.length, layer.head_dim), mine.dtype)
                ops.assign(mine, ops.concat([columns, rest], 1).reshape(mine.shape))

    def reorder(self, rows) -> None:
        """Makes row i of the batch what row ``rows[i]`` was."""
        for layer in self.layers:
            for parameter in (layer.keys, layer.values):
                split = parameter.reshape(layer.batch, -1)
                ops.assign(parameter, ops.gather(split, rows, 0).reshape(parameter.shape))
