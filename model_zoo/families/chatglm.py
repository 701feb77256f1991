"""ChatGLM-6B (Du et al. 2022; Zeng et al. 2023)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from model_zoo.configs import CellSpec, Config, Dims, Family, embedding, layer_norm, linear
from model_zoo.errors import InputError
from model_zoo.field_types import TokenId

if TYPE_CHECKING:  # checking a recipe does without it
    import numpy as np

IMAGE_TOKENS = 20000
"""Ids that the first release had for images, in front of the text's."""


def document_layout(config: GLMConfig, ids) -> tuple[np.ndarray, np.ndarray]:
    """`layout` of one unpadded document on the host: positions ``(2, S)`` and interval ends ``(S,)``."""
    import numpy as np

    ids = np.asarray(ids)
    index = np.arange(len(ids), dtype=np.int32)
    context = _first(ids, config.bos_token_id)
    held = min(_first(ids, config.gmask_token_id), len(ids))
    if held == len(ids):
        held = _first(ids, config.mask_token_id)
    if held == len(ids):
        held = context
    text = np.where(index < context, index, held)
    block = np.where(index < context, 0, index - context + 1)
    return np.stack([text, block]).astype(np.int32), np.maximum(index + 1, context).astype(np.int32)


def _first(ids: np.ndarray, token: int) -> int:
    found = (ids == token).nonzero()[0]
    return int(found[0]) if found.size else len(ids)


def advance(position: np.ndarray) -> np.ndarray:
    """The next answer token: the text position stays, the block position counts on. ``(…, 2)``."""
    import numpy as np

    return position + np.array([0, 1], position.dtype)


FAMILY = Family(
    name="glm",
    layout="chatglm",
    layers="transformer.layers",
    attention_core="attention.core",
    embedding="transformer.word_embeddings",
    head="lm_head",
    default_targets=("query_key_value",),
    attention=("query_key_value", "dense"),
    mlp=("dense_h_to_4h", "dense_4h_to_h"),
    ia3_targets=("query_key_value", "dense_4h_to_h"),
    fused={"query_key_value": "heads"},
    tied={"lm_head.weight": "transformer.word_embeddings.weight"},
    saved_tied=("lm_head.weight",),
    ignored_tensors=(r"rotary_emb\.inv_freq$",),
    document_layout=document_layout,
    advance=advance,
)


@dataclasses.dataclass
class GLMConfig(Config):
    """config.json of ChatGLM-6B; defaults are the published model's."""

    family = FAMILY
    model = "model_zoo.glm:GLMForConditionalGeneration"
    architectures: ClassVar[dict[str, str]] = {"chatglm": "ChatGLMForConditionalGeneration"}
    marks = ("position_encoding_2d",)
    sized_by = ("hidden_size", "num_attention_heads", "num_layers", "vocab_size")

    model_type: str = "chatglm"
    position_encoding_2d: bool = True
    vocab_size: int = 130528
    hidden_size: int = 4096
    num_layers: int = 28
    num_attention_heads: int = 32
    inner_hidden_size: int | None = None
    max_sequence_length: int = 2048
    layernorm_epsilon: float = 1e-5
    bos_token_id: TokenId = 130004
    eos_token_id: TokenId = 130005
    mask_token_id: TokenId = 130000
    gmask_token_id: TokenId = 130001
    pad_token_id: TokenId = 3
    torch_dtype: str = "float32"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]):
        # the first release's file has <sop> alone; where masks are stood in its code
        first = values.get("bos_token_id") == cls.bos_token_id + IMAGE_TOKENS
        left_out = [key for key in ("mask_token_id", "gmask_token_id") if first and values.get(key) is None]
        return super().from_dict({**values, **{key: getattr(cls, key) + IMAGE_TOKENS for key in left_out}})

    @property
    def dims(self) -> Dims:
        width = self.inner_hidden_size or 4 * self.hidden_size
        head_dim = self.hidden_size // self.num_attention_heads
        heads = self.num_attention_heads
        return Dims(
            self.num_layers,
            self.hidden_size,
            heads,
            heads,
            head_dim,
            width,
            self.vocab_size,
            self.max_sequence_length,
        )

    def tensors(self) -> dict[str, CellSpec]:
        n = self.dims
        norm = layer_norm(n.hidden, self.layernorm_epsilon)
        return {
            "transformer.word_embeddings": embedding(n.vocab, n.hidden),
            "transformer.layers.*.input_layernorm": norm,
            "transformer.layers.*.post_attention_layernorm": norm,
            "transformer.layers.*.attention.query_key_value": linear(3 * n.hidden, n.hidden, True),
            "transformer.layers.*.attention.dense": linear(n.hidden, n.hidden, True),
            "transformer.layers.*.mlp.dense_h_to_4h": linear(n.ffn, n.hidden, True),
            "transformer.layers.*.mlp.dense_4h_to_h": linear(n.hidden, n.ffn, True),
            "transformer.final_layernorm": norm,
        }

    def check(self) -> None:
        self.require("position_encoding_2d", True)
        self.require("quantization_bit", 0, 8)
        if self.hidden_size % self.num_attention_heads or self.dims.head_dim % 4:
            raise InputError(
                f"config.json: hidden_size {self.hidden_size} over num_attention_heads {self.num_attention_heads}: "
                "a head's width must be a whole multiple of 4"
            )
        if self.extra.get("pre_seq_len"):
            raise InputError("config.json: pre_seq_len is set: load the base without it and its P-Tuning v2 file apart")


CONFIG = GLMConfig
PRESETS = {"glm_6b": GLMConfig.published("ChatGLMModel", inner_hidden_size=16384, torch_dtype="float16")}
