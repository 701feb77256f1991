"""Prefix tuning (Li & Liang 2021): trained keys and values in front of every layer's own.

    extend(keys, values)
      prompt_embeddings (T, 2·kv_dim) ─► keys and values (1, kv_heads, T, d) ─► in front of the real ones

Each attention core holds its own layer's share, so that nothing of one layer travels to another. In PEFT's file the
shares lie side by side, ``(T, 2·L·kv_dim)``: the key of layer i at 2i, its value at 2i + 1. Prefix keys are not
rotated, and the real tokens start at position T.

With a projection, a share is ``tanh(E·W₁ᵀ + b₁)·W₂ᵀ + b₂`` with E and W₁ common to all layers and W₂ cut by layers; the
file then holds the result, as PEFT's does, while checkpoints of a run hold E, W₁ and W₂ and can be resumed.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from adapters.factors import generator_for, kaiming_uniform
from adapters.fitting import misfits, shapes_of
from adapters.matching import sites
from adapters.method import AdapterModule, MethodConfig
from adapters.settings import Prefix
from model_zoo.activations import tanh
from model_zoo.errors import InputError, warn_once

PEFT_NAME = "prompt_embeddings"
PROMPT_KEYS = (
    *("modules_to_save", "num_attention_heads", "num_layers", "num_transformer_submodules"),
    *("num_virtual_tokens", "token_dim"),
)
"""Keys of adapter_config.json that PEFT's prompt methods have in common."""


class InFront(MethodConfig):
    """What prefixes and prompts have in common: they may start from a text, and PEFT's files have one tensor."""

    prefixed = False

    def validate(self) -> None:
        super().validate()
        ids = self.init_ids
        if ids is not None and (not ids or not all(isinstance(token, (int, np.integer)) for token in ids)):
            raise InputError(f"{self.method}: init_ids holds no token ids")
        if self.init_text is not None and ids is None:
            raise InputError(
                f"{self.method}: init_text needs the model's tokenizer; give tokenizer= or the text's init_ids"
            )

    def say_elsewhere(self, model) -> None:
        """In PEFT what stands in front takes places of a window and leaves it; here every token sees it."""
        dims = model_dims(model, self.method)
        window = min(filter(None, model.config.windows), default=dims.context)
        if window < dims.context:
            warn_once(
                f"{self.method}: config.json says sliding_window={window}, so that in PEFT tokens behind the first "
                f"{max(window - self.length, 0)} see less of the {self.length} in front, and answer otherwise"
            )

    @classmethod
    def from_peft(cls, values: dict[str, Any]):
        """The file holds what a network gave, so none is built."""
        if whole := values.get("modules_to_save"):  # a head, say, of task_type SEQ_CLS
            raise InputError(
                f"task_type {values.get('task_type')}, modules_to_save {whole}: weights in full beside {cls.method} "
                "are not supported; beside LoRA and IA3 they are"
            )
        return cls(length=values.get("num_virtual_tokens"))


class PrefixConfig(Prefix, InFront):
    """Prefix tuning in PEFT's form."""

    peft_keys = (*PROMPT_KEYS, "encoder_hidden_size", "init_weights", "prefix_projection")

    def resolved(self, model) -> MethodConfig:
        if not self.projection or self.projection_hidden is not None:
            return self
        return dataclasses.replace(self, projection_hidden=model_dims(model, self.method).hidden)

    def fixed_sites(self, model) -> list:
        model_dims(model, self.method)
        return [site for site in sites(model) if site.kind == "attention"]

    def embedding_width(self, model, layers: int) -> int:
        """Width of E; PEFT takes that of one layer's keys."""
        dims = model.config.dims
        return dims.kv_heads * dims.head_dim

    def build_all(self, model, chosen) -> dict[str, AdapterModule]:
        if not self.projection:
            shares = self.initial_shares(model, chosen)
            return {site.path: PrefixShare(share) for site, share in zip(chosen, shares, strict=True)}
        generator = generator_for(self.seed, self.method)
        trunk = PrefixTrunk(self.length, self.embedding_width(model, len(chosen)), self.projection_hidden, generator)
        built: dict[str, AdapterModule] = {}
        for site in chosen:
            width = 2 * site.in_features * site.out_features
            built[site.path] = ProjectedShare(trunk, width, generator_for(self.seed, site.path), owner=not built)
        return built

    def initial_shares(self, model, chosen) -> list[np.ndarray]:
        """``(T, 2·kv_dim)`` per layer: the given text's keys and values, or small random ones."""
        if self.init_ids is not None:
            return real_shares(model, chosen, fitted(self.init_ids, self.length, model, self.method))
        found = []
        for site in chosen:
            shape = (self.length, 2 * site.in_features * site.out_features)
            # small, so that fresh keys draw every query alike and fresh values add little
            found.append(0.02 * generator_for(self.seed, site.path).standard_normal(shape, np.float32))
        return found

    def parameters_at(self, site) -> int:
        width = 2 * site.in_features * site.out_features
        if not self.projection:
            return self.length * width
        common = 0
        if site.layer == 0:  # counted once
            inputs = getattr(self, "embedding_size", None) or width // 2
            common = self.length * inputs + self.projection_hidden * (inputs + 1)
        return width * (self.projection_hidden + 1) + common

    def check_tensors(self, model, tensors, where) -> None:
        dims = model_dims(model, self.method)
        expected = (self.length, 2 * dims.layers * dims.kv_heads * dims.head_dim)
        check_only(tensors, {PEFT_NAME: expected}, where)

    def pack(self, arrays: dict[str, np.ndarray], adapter) -> dict[str, np.ndarray]:
        if not self.projection:
            return {PEFT_NAME: np.ascontiguousarray(np.concatenate(list(arrays.values()), 1))}
        embedding, inner, inner_bias, outer, outer_bias = gathered(arrays)
        hidden = np.tanh(embedding.astype(np.float64) @ inner.T.astype(np.float64) + inner_bias)
        return {PEFT_NAME: np.ascontiguousarray((hidden @ outer.T + outer_bias).astype(np.float32))}

    def unpack(self, arrays: dict[str, np.ndarray], model) -> dict[str, np.ndarray]:
        whole = arrays[PEFT_NAME]
        paths = [site.path for site in self.fixed_sites(model)]
        return {f"{path}.{PEFT_NAME}": share for path, share in zip(paths, np.split(whole, len(paths), 1), strict=True)}

    def to_peft(self, model, adapter) -> dict[str, Any]:
        dims = model.config.dims
        return {
            **prompt_fields(self, dims, dims.kv_heads, dims.kv_heads * dims.head_dim),
            "encoder_hidden_size": self.projection_hidden or dims.hidden,
            "prefix_projection": self.projection,
        }


# Modules -------------------------------------------------------------------------------------------------------------


class AttentionPrefix(AdapterModule):
    """What stands in front of one layer's keys. Sub-classes give ``share()``, ``(T, 2·kv_dim)``."""

    def extend(self, keys, values):
        batch, heads, _, width = keys.shape
        # (T, 2·kv_dim) -> (2, kv_heads, T, d)
        share = self.share().reshape(-1, 2, heads, width).transpose(1, 2, 0, 3).astype(keys.dtype)
        shape = (batch, heads, share.shape[2], width)
        before_keys = ops.broadcast_to(share[:1], shape)
        before_values = ops.broadcast_to(share[1:], shape)
        return ops.concat((before_keys, keys), 2), ops.concat((before_values, values), 2)

    def seen(self, seen, before: int, count: int, batch: int):
        """``(B, before + count)``: which of the extra keys each row sees; None for all.

        Args:
            seen: the same for the `before` extra keys that were there already; these `count` stand in front of them.
        """
        if self.rows is None:
            if seen is None:
                return None
            return ops.concat((ops.ones((batch, count), seen.dtype), seen), 1)
        rows = self.rows.astype(ms.int32).reshape(-1, 1)
        own = ops.broadcast_to(rows, (rows.shape[0], count * (batch // rows.shape[0]))).reshape(batch, count)
        if before == 0:
            return own
        if seen is None:
            seen = ops.ones((batch, before), ms.int32)
        return ops.concat((own, seen), 1)


class PrefixShare(AttentionPrefix):
    """Keys and values that are trained as they are."""

    saved = (f"{PEFT_NAME}=prompt",)

    def __init__(self, values: np.ndarray):
        super().__init__()
        self.prompt = Parameter(Tensor(np.ascontiguousarray(values, np.float32)), name=PEFT_NAME)

    def share(self):
        return self.prompt

    def trace(self, tracer, query, keys, values, numbers):
        return tracer.prefixed_attention(query, keys, values, numbers, self.prompt)


class PrefixTrunk(nn.Cell):
    """What the layers' projections have in common: ``tanh(E·W₁ᵀ + b₁)``, ``(T, hidden)``.

    Every layer evaluates it anew: next to its own product with W₂ it costs little, and a compiled graph does it once.
    """

    def __init__(self, length: int, width: int, hidden: int, generator: np.random.Generator):
        super().__init__()
        self.embedding = Parameter(Tensor(generator.standard_normal((length, width), np.float32)), name="embedding")
        self.weight = Parameter(Tensor(kaiming_uniform(generator, hidden, width)), name="weight")
        self.bias = Parameter(Tensor(np.zeros(hidden, np.float32)), name="bias")
        self.product = ops.MatMul(transpose_b=True)

    def construct(self):
        return tanh(self.product(self.embedding, self.weight) + self.bias)


class ProjectedShare(AttentionPrefix):
    """One layer's keys and values out of the common trunk.

    Args:
        owner: whether the trunk is a child of this module; the others only refer to it.
    """

    def __init__(self, trunk: PrefixTrunk, width: int, generator: np.random.Generator, owner: bool):
        super().__init__()
        if owner:
            self.trunk = trunk
        else:
            object.__setattr__(self, "trunk", trunk)
            object.__setattr__(self, "lent", (trunk,))
        self.owner = owner
        hidden = trunk.weight.shape[0]
        self.weight = Parameter(Tensor(kaiming_uniform(generator, width, hidden)), name="weight")
        self.bias = Parameter(Tensor(np.zeros(width, np.float32)), name="bias")
        self.product = ops.MatMul(transpose_b=True)

    def tensors(self) -> dict[str, Parameter]:
        own = {"prefix_output.weight": self.weight, "prefix_output.bias": self.bias}
        if not self.owner:
            return own
        trunk = self.trunk
        common = (trunk.embedding, trunk.weight, trunk.bias)
        return {**dict(zip(TRUNK_KEYS, common, strict=True)), **own}

    def share(self):
        return self.product(self.trunk(), self.weight) + self.bias

    def trace(self, tracer, query, keys, values, numbers):
        return tracer.prefixed_attention(query, keys, values, numbers, tracer.computed(self, self.share))


TRUNK_KEYS = ("prefix_encoder.embedding", "prefix_encoder.weight", "prefix_encoder.bias")


def gathered(arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    """E, W₁, b₁, and W₂ and b₂ of all layers below one another."""

    def ending(suffix: str) -> list[np.ndarray]:
        return [array for key, array in arrays.items() if key.endswith("." + suffix)]

    common = [ending(key)[0] for key in TRUNK_KEYS]
    return (*common, np.concatenate(ending("prefix_output.weight")), np.concatenate(ending("prefix_output.bias")))


# What prefixes and prompts share -------------------------------------------------------------------------------------


def model_dims(model, method: str):
    """The sizes of a model of a family; InputError for any other cell."""
    config = getattr(model, "config", None)
    if not hasattr(config, "dims"):
        raise InputError(f"{method} needs a model of a known family; this is a {type(model).__name__}")
    return config.dims


def fitted(ids, length: int, model, method: str) -> list[int]:
    """Token ids repeated, or cut, to this many."""
    vocabulary = model.config.dims.vocab
    wrong = [token for token in ids if not 0 <= token < vocabulary]
    if wrong:
        raise InputError(f"{method}: init_ids holds {wrong[0]}, but the vocabulary has ids 0 … {vocabulary - 1}")
    return (list(ids) * -(-length // len(ids)))[:length]


class _Recorder(nn.Cell):
    """Stands where a cache would, and keeps what passes."""

    prefilling, token = True, None

    def construct(self, keys, values):
        self.found = (keys.asnumpy(), values.asnumpy())
        return keys, values


def real_shares(model, chosen, ids: list[int]) -> list[np.ndarray]:
    """The keys (rotated for positions 0 … T−1, as a prefix's are not rotated again) and values of a text.

    Returns:
        ``(T, 2·kv_dim)`` per layer.
    """
    tokens = Tensor(np.array([ids], np.int32))
    recorders = [_Recorder() for _ in chosen]
    training = model.training
    model.set_train(False)
    for site, recorder in zip(chosen, recorders, strict=True):
        object.__setattr__(site.cell, "cache", recorder)
    try:
        model.hidden_states(tokens, *model.layout(tokens))
    finally:
        for site in chosen:
            object.__setattr__(site.cell, "cache", None)
        model.set_train(training)
    found = []
    for recorder in recorders:
        rows = [array[0].astype(np.float32).transpose(1, 0, 2).reshape(len(ids), -1) for array in recorder.found]
        found.append(np.concatenate(rows, 1))
    return found


def check_only(tensors: dict[str, Any], expected: dict[str, tuple[int, ...]], where) -> None:
    """Raises InputError unless a file holds just these tensors with these shapes."""
    InputError.raise_any(f"{where}: {problem}" for problem in misfits(expected, shapes_of(tensors)))


def prompt_fields(config, dims, heads: int, width: int) -> dict[str, Any]:
    """The JSON fields that PEFT's prompt methods have in common."""
    sizes = {"num_attention_heads": heads, "num_layers": dims.layers, "token_dim": width}
    return {**sizes, "num_transformer_submodules": 1, "num_virtual_tokens": config.length}
