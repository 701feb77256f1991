"""What families in LLaMA's layout have in common: projections apart, grouped queries, RMS norms, rotary positions.

A family of this kind is a `RotaryConfig` with its fields and the cells of a layer, of which `model_zoo.rotary_decoder`
builds the model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from model_zoo.configs import CellSpec, Config, Dims, Family, embedding, linear, rms_norm
from model_zoo.errors import InputError, shown
from model_zoo.rope_config import LAYER_TYPES, rope_settings, with_older_form


def rotary_family(
    name: str,
    up: tuple[str, ...] = ("gate_proj", "up_proj"),
    root: str = "model",
    ignored: tuple[str, ...] = (),
    **differences,
) -> Family:
    """The table of such a family.

    Args:
        up: the feed-forward's projections in.
        root: the path of all but the head.
        ignored: further `Family.ignored_tensors`.
    """
    return Family(
        name=name,
        layout=name,
        layers=f"{root}.layers",
        attention_core="self_attn.core",
        embedding=f"{root}.embed_tokens",
        head="lm_head",
        default_targets=("q_proj", "v_proj"),
        attention=("q_proj", "k_proj", "v_proj", "o_proj"),
        mlp=(*up, "down_proj"),
        ia3_targets=("k_proj", "v_proj", "down_proj"),
        gated=True,
        tied={"lm_head.weight": f"{root}.embed_tokens.weight"},
        ignored_tensors=(r"rotary_emb\.inv_freq$", *ignored),
        **differences,
    )


DEFAULT_WINDOW = 4096
"""The window of every family here, where a config.json leaves it out."""


@dataclasses.dataclass
class RotaryConfig(Config):
    """The fields of config.json that such families share.

    Attributes:
        rotary: how the rotated pairs lie, as in `model_zoo.rotary.RotaryTable`.
        block: the kind of layer, of `model_zoo.rotary_decoder.BLOCKS`.
        acts: which activations there are.
        norm_offset: what is added to the norms' weights.
        head_norms: whether each head's query and key are normed before the rotation.
        embedding_scale: what the embedding's rows are multiplied by.
        experts: how many there are, how many a token goes through, and whether the shares of these are made to add up
            to 1; None for a feed-forward without experts.
        score_scale, score_cap: as ``scale`` and ``cap`` in `model_zoo.layers.AttentionCore`.
        assumed_padding: the ``pad_token_id`` of a config.json that has none.
    """

    model = "model_zoo.rotary_decoder:RotaryCausalLM"
    rotary = "half"
    block = "llama"
    acts = ("silu",)
    norm_offset = 0.0
    head_norms = False
    embedding_scale = 1.0
    experts: ClassVar[tuple[int, int, bool] | None] = None
    score_scale: ClassVar[float | None] = None
    score_cap = 0.0
    assumed_padding: ClassVar[int | None] = None
    dropouts: ClassVar[dict[str, str]] = {"attention_dropout": ""}
    sized_by = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")

    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: dict | None = None
    rope_parameters: dict | None = None
    attention_bias: bool = False
    tie_word_embeddings: bool = False

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]):
        act = {"hidden_act": "silu"} if values.get("hidden_act") == "swish" else {}
        return super().from_dict({**cls.with_heads(values), **act})

    @classmethod
    def with_heads(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """A null that means as many key heads as others is said: left out, it were what the published model has."""
        heads = values.get("num_attention_heads") or cls.num_attention_heads
        return {**values, **({"num_key_value_heads": heads} if values.get("num_key_value_heads", 0) is None else {})}

    @classmethod
    def for_file(cls, values: Mapping[str, Any], dtype: str | None = None) -> dict[str, Any]:
        return super().for_file(with_older_form(cls.with_heads(values)), dtype)

    @property
    def dims(self) -> Dims:
        heads = self.num_attention_heads
        return Dims(
            self.num_hidden_layers,
            self.hidden_size,
            heads,
            self.num_key_value_heads or heads,
            self.head_dim or self.hidden_size // heads,
            self.intermediate_size,
            self.vocab_size,
            self.context,
        )

    @property
    def padding_row(self) -> int:
        return self.row_of_padding(self.extra)

    def row_of_padding(self, values: Mapping[str, Any]) -> int:
        """The same by a config.json's dictionary. torch counts -1 from the end, and takes no row beyond it."""
        row = values.get("pad_token_id", self.assumed_padding)
        return -1 if row is None or row >= self.vocab_size else row % self.vocab_size

    @property
    def bounded_positions(self) -> bool:
        # beyond the context transformers goes on by frequencies that follow from the longest text so far
        return any(rope_settings(self, local)["rope_type"] == "dynamic" for local in (False, True))

    @property
    def root(self) -> str:
        """The path of all but the head."""
        return self.family.layers.removesuffix(".layers")

    @property
    def context(self) -> int:
        """How many tokens one sequence may have."""
        return self.max_position_embeddings

    def slides(self, layer: int) -> bool:
        """Whether a query of this layer sees the last ``sliding_window`` keys only."""
        return False

    def slides_as_listed(self, layer: int, otherwise: bool) -> bool:
        """The same as ``layer_types`` says; where config.json has none, by an older rule."""
        kinds = self.extra.get("layer_types")
        return otherwise if kinds is None else kinds[layer] == "sliding_attention"

    def slides_as_qwen(self, layer: int) -> bool:
        """Qwen's windows, which are off unless asked for, and then begin at a layer."""
        first = self.extra.get("max_window_layers", 28)
        return bool(self.extra.get("use_sliding_window")) and self.slides_as_listed(layer, layer >= first)

    @property
    def windows(self) -> tuple[int, ...]:
        """The window of each layer: how many keys a query sees, itself among them; 0 for all."""
        width = self.extra.get("sliding_window", DEFAULT_WINDOW) or 0
        return tuple(width if self.slides(layer) else 0 for layer in range(self.num_hidden_layers))

    def layer(self) -> dict[str, CellSpec]:
        """{path within a layer: cell}."""
        return {
            "input_layernorm": self.norm(),
            "post_attention_layernorm": self.norm(),
            **self.attention(self.attention_bias, self.attention_bias),
            **self.feed_forward(),
        }

    def tensors(self) -> dict[str, CellSpec]:
        n = self.dims
        return {
            self.family.embedding: embedding(n.vocab, n.hidden, self.embedding_scale, self.padding_row),
            **{f"{self.family.layers}.*.{path}": cell for path, cell in self.layer().items()},
            f"{self.root}.norm": self.norm(),
            **({} if self.tie_word_embeddings else {"lm_head": linear(n.vocab, n.hidden)}),
        }

    def norm(self, width: int | None = None) -> CellSpec:
        """A norm, by default as wide as the model."""
        return rms_norm(width or self.hidden_size, self.rms_norm_eps, self.norm_offset)

    def attention(self, bias: bool, output_bias: bool = False) -> dict[str, CellSpec]:
        """The four projections, and the norms of heads."""
        n = self.dims
        query, keys = n.heads * n.head_dim, n.kv_heads * n.head_dim
        norms = ("self_attn.q_norm", "self_attn.k_norm") if self.head_norms else ()
        return {
            "self_attn.q_proj": linear(query, n.hidden, bias),
            "self_attn.k_proj": linear(keys, n.hidden, bias),
            "self_attn.v_proj": linear(keys, n.hidden, bias),
            "self_attn.o_proj": linear(n.hidden, query, output_bias),
            **dict.fromkeys(norms, self.norm(n.head_dim)),
        }

    def feed_forward(self, bias: bool = False, path: str = "mlp") -> dict[str, CellSpec]:
        """The gated feed-forward's three projections."""
        n = self.dims
        return {
            f"{path}.gate_proj": linear(n.ffn, n.hidden, bias),
            f"{path}.up_proj": linear(n.ffn, n.hidden, bias),
            f"{path}.down_proj": linear(n.hidden, n.ffn, bias),
        }

    def to_dict(self) -> dict:
        return said_once(super().to_dict(), "rope_theta", self.rope_parameters)

    def check(self) -> None:
        self.require("hidden_act", *self.acts)
        kinds = self.extra.get("layer_types")
        if kinds is not None and (
            len(kinds) != self.num_hidden_layers or any(kind not in LAYER_TYPES for kind in kinds)
        ):
            raise InputError(
                f"config.json: layer_types must name {' or '.join(LAYER_TYPES)} for each of {self.num_hidden_layers} "
                f"layers, it is {shown(kinds)}"
            )
        if self.extra.get("sliding_window") == 0 and any(map(self.slides, range(self.num_hidden_layers))):
            raise InputError("config.json: sliding_window is 0, so that layers with a window would see nothing")
        rope_settings(self)
        n = self.dims
        if n.heads % n.kv_heads:
            raise InputError(
                f"config.json: num_attention_heads {n.heads} is no multiple of num_key_value_heads {n.kv_heads}"
            )


def said_once(values: dict, key: str, rope_parameters: dict | None) -> dict:
    """A config.json's dictionary without this base of the rotations where ``rope_parameters`` has it; transformers may
    write null there."""
    if (rope_parameters or {}).get("rope_theta") is not None:
        values.pop(key, None)
    return values


SIZES = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "head_dim",
)


def published(config: type[RotaryConfig], dims: Sequence[int], **other: Any) -> dict[str, Any]:
    """The config.json of a published model, given its `SIZES`; a head's may be left out."""
    sizes = dict(zip(SIZES, dims, strict=False))
    return config.published(**{**sizes, "tie_word_embeddings": False, "torch_dtype": "bfloat16", **other})
