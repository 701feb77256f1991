"""P-Tuning v2 (Liu et al. 2021) as ChatGLM-6B and ChatGLM2-6B ship it: a prefix that moves no positions.

It differs from `adapters.prefix` in two ways: real tokens keep the positions 0, 1, 2 …, and the file holds the
network itself, under the names of ChatGLM's own code::

    transformer.prefix_encoder.embedding.weight     (T, 2·L·kv_dim), or E (T, width) with a projection
    transformer.prefix_encoder.trans.0.weight/bias  W₁ (hidden, width)
    transformer.prefix_encoder.trans.2.weight/bias  W₂ (2·L·kv_dim, hidden)

The key of layer i lies at 2i, its value at 2i + 1, as in PEFT's prefix tuning. `adapters.ptuning_file` reads and writes
such a file alone, as ChatGLM's code does; `adapters.saving` writes the same tensors into an adapter directory, whose
JSON carries ChatGLM's ``pre_seq_len`` and ``prefix_projection``.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from adapters.method import MethodConfig
from adapters.prefix import PEFT_NAME, TRUNK_KEYS, InFront, PrefixConfig, check_only, gathered, model_dims
from adapters.settings import PTuning2

NATIVE = "transformer.prefix_encoder."
TRANS = ("trans.0.weight", "trans.0.bias", "trans.2.weight", "trans.2.bias")
PLAIN = (NATIVE + "embedding.weight",)
PROJECTED = (*PLAIN, *(NATIVE + name for name in TRANS))


class PTuningV2Config(PTuning2, PrefixConfig):
    """P-Tuning v2: `PrefixConfig` with ChatGLM's positions and file."""

    peft_keys = ()

    def resolved(self, model) -> PTuningV2Config:
        config = super().resolved(model)
        if not self.projection:
            return config
        return dataclasses.replace(config, embedding_size=config.embedding_width(model, model.config.dims.layers))

    def embedding_width(self, model, layers: int) -> int:
        dims = model.config.dims
        if self.embedding_size is not None:
            return self.embedding_size
        return dims.hidden if dims.heads == dims.kv_heads else 2 * layers * dims.kv_heads * dims.head_dim

    def check_tensors(self, model, tensors, where) -> None:
        dims = model_dims(model, self.method)
        whole = 2 * dims.layers * dims.kv_heads * dims.head_dim
        if not self.projection:
            return check_only(tensors, {PLAIN[0]: (self.length, whole)}, where)
        width, hidden = self.embedding_width(model, dims.layers), self.projection_hidden or dims.hidden
        shapes = ((self.length, width), (hidden, width), (hidden,), (whole, hidden), (whole,))
        return check_only(tensors, dict(zip(PROJECTED, shapes, strict=True)), where)

    def pack(self, arrays: dict[str, np.ndarray], adapter) -> dict[str, np.ndarray]:
        if not self.projection:
            return {PLAIN[0]: super().pack(arrays, adapter)[PEFT_NAME]}
        return dict(zip(PROJECTED, gathered(arrays), strict=True))

    def unpack(self, arrays: dict[str, np.ndarray], model) -> dict[str, np.ndarray]:
        if not self.projection:
            return super().unpack({PEFT_NAME: arrays[PLAIN[0]]}, model)
        paths = [site.path for site in self.fixed_sites(model)]
        found = {f"{paths[0]}.{key}": arrays[name] for key, name in zip(TRUNK_KEYS, PROJECTED[:3], strict=True)}
        for name, key in ((PROJECTED[3], "weight"), (PROJECTED[4], "bias")):
            for path, part in zip(paths, np.split(arrays[name], len(paths)), strict=True):
                found[f"{path}.prefix_output.{key}"] = part
        return found

    @classmethod
    def from_peft(cls, values):
        return super(InFront, cls).from_peft({"pre_seq_len": None, **values})  # the length has no default in a file

    to_peft = MethodConfig.to_peft
