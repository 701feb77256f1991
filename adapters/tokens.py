"""Single rows of an embedding, trained: for tokens that are new, without training the whole table.

    ids     5  17  2  17             place   -1 … 0 … -1      (V,)  the trained row of each id, or -1
    trained {17}          ──►        rows    (1, width)       in PEFT's file: token_adapter.trainable_tokens_delta

The file holds the rows themselves, not their difference from the base's, as PEFT's does. Where the head shares the
embedding's weight, it uses the trained rows too; a merge then changes the shared weight once.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, ops

from adapters.cells import weight_of
from adapters.matching import live_token_rows, with_tokens
from adapters.method import AdapterModule, Companion, MethodConfig
from adapters.peft_config import from_file
from adapters.settings import Tokens
from adapters.sites import weight_array
from model_zoo.engine import stored_rows, unlearned

KEY_ALONE = "trainable_tokens_delta"
KEY = f"token_adapter.{KEY_ALONE}"


class TrainableTokensConfig(Tokens, MethodConfig):
    """Trained rows alone: PEFT's TRAINABLE_TOKENS. `LoRAConfig.trainable_tokens` trains them beside LoRA."""

    def companions(self, model, chosen) -> list[Companion]:
        return companions(model, self, chosen)

    def pack(self, arrays: dict[str, np.ndarray], adapter) -> dict[str, np.ndarray]:
        """PEFT looks for a tied head's rows, too."""
        rows = {id(adapter.modules[key.removesuffix(f".{KEY}")]): array for key, array in arrays.items()}
        return {f"{path}.{KEY_ALONE}": rows[id(module.owner[0])] for path, module in adapter.modules.items()}

    def unpack(self, arrays: dict[str, np.ndarray], model) -> dict[str, np.ndarray]:
        rows = {key.removesuffix(f".{KEY_ALONE}"): array for key, array in arrays.items()}
        return without_copies({f"{path}.{KEY}": array for path, array in rows.items()}, model)

    def to_peft(self, model, adapter) -> dict[str, Any]:
        rows = [path for path, module in adapter.modules.items() if module.tensors()]
        return {
            "init_weights": True,
            "target_modules": sorted(rows),
            "token_indices": list(self.trainable_tokens),
        }

    from_peft = classmethod(from_file)


class TokenRows(AdapterModule):
    """Trained rows of an embedding table.

    Args:
        site: the embedding.
        ids: which rows.
    """

    saved = (f"{KEY}=trained",)
    needs_base = True
    starts_from_base = True

    def __init__(self, site, ids: list[int]):
        super().__init__()
        self.ids, self.output_scale = np.array(ids, np.int64), site.output_scale
        self.padding_row = site.padding_row if site.padding_row in ids else -1
        place = np.full(site.shape[0], -1, np.int32)
        place[self.ids] = np.arange(len(ids))
        self.place = Tensor(place)
        self.trained = Parameter(Tensor(weight_array(site)[self.ids].astype(np.float32)), name="trained")
        object.__setattr__(self, "owner", (self,))
        self.gather = ops.Gather()

    def on_base(self, ids, y, base, weight, bias):
        ids = ids.reshape(-1)
        place = self.gather(self.place, ids, 0)  # (N,)
        rows = unlearned(self.gather(self.trained, ops.maximum(place, 0), 0), ids, self.padding_row)
        rows = rows * self.output_scale  # (N, width)
        change = rows - base.astype(ms.float32).reshape(rows.shape)
        hit = ops.broadcast_to((place >= 0).expand_dims(1), rows.shape)
        change = ops.select(hit, change, ops.zeros_like(change))
        return y + change.reshape(y.shape).astype(y.dtype)

    def delta(self, weight: np.ndarray) -> np.ndarray:
        change = np.zeros_like(weight)
        change[self.ids] = self.owner[0].trained.asnumpy().astype(np.float64) - weight[self.ids]
        return change


class TokenOutputs(AdapterModule):
    """The same rows of a head ``(V, width)``: the logits of those tokens.

    Args:
        site: the linear cell.
        ids: which rows.
        shared: the embedding's module, where the head is tied to it; None trains rows of the head's own.
    """

    needs_base = True
    starts_from_base = True
    delta = TokenRows.delta

    def __init__(self, site, ids: list[int], shared: TokenRows | None = None):
        super().__init__()
        self.ids = np.array(ids, np.int64)
        column = np.full(site.shape[0], len(ids), np.int32)  # beyond the trained ones lies a column of zeros
        column[self.ids] = np.arange(len(ids))
        self.column, self.row = Tensor(column), Tensor(self.ids.astype(np.int32))
        if shared is None:
            self.trained = Parameter(Tensor(weight_array(site)[self.ids].astype(np.float32)), name="trained")
        # not as a child: the rows belong to the embedding's module
        object.__setattr__(self, "owner", (shared or self,))
        self.saved = TokenRows.saved if shared is None else ()
        self.table_rows, self.gather = stored_rows(), ops.Gather()
        self.product = ops.MatMul(transpose_b=True)

    def on_base(self, x, y, base, weight, bias):
        rows = self.table_rows(weight, self.row)  # (n, width)
        change = self.product(x.reshape(-1, x.shape[-1]).astype(ms.float32), self.owner[0].trained - rows)  # (N, n)
        change = ops.concat((change, ops.zeros_like(change[:, :1])), 1)
        return y + self.gather(change, self.column, 1).reshape(y.shape).astype(y.dtype)


def without_copies(arrays: dict[str, np.ndarray], model) -> dict[str, np.ndarray]:
    """An adapter's arrays without a tied head's rows, which PEFT may write a second time."""
    kept = dict(arrays)
    tables = [site for site in with_tokens(model) if f"{site.path}.{KEY}" in arrays]
    embeddings = {id(weight_of(site.cell)): site.path for site in tables if site.kind == "embedding"}
    for site in tables:
        key, shared = f"{site.path}.{KEY}", embeddings.get(id(weight_of(site.cell)), site.path)
        if shared != site.path and np.array_equal(arrays[key], arrays[f"{shared}.{KEY}"]):
            del kept[key]
    return kept


def companions(model, config, chosen) -> list[Companion]:
    """The modules for trained tokens: one per embedding, and one on every head that is tied to it."""
    found: dict[str, Companion] = {}
    for site, ids, shared in live_token_rows(model, config, chosen):
        if shared is not None:
            made, count = Lazily(TokenOutputs, site, ids, found[shared.path].build), 0
        else:
            made = Lazily(TokenOutputs if site.kind == "linear" else TokenRows, site, ids)
            count = len(ids) * site.shape[1]
        found[site.path] = Companion(site, count, made)
    return list(found.values())


class Lazily:
    """A module that is built once, when it is first called for; arguments of this kind are built too."""

    def __init__(self, cls, *arguments):
        self.cls, self.arguments, self.made = cls, arguments, None

    def __call__(self):
        if self.made is None:
            self.made = self.cls(*(given() if isinstance(given, Lazily) else given for given in self.arguments))
        return self.made
