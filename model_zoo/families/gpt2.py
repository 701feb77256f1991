"""GPT-2 (Radford et al. 2019)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from model_zoo.configs import CellSpec, Config, Dims, Family, conv1d, embedding, layer_norm, linear
from model_zoo.errors import InputError

FAMILY = Family(
    name="gpt",
    layout="gpt2",
    layers="transformer.h",
    attention_core="attn.core",
    embedding="transformer.wte",
    positions="transformer.wpe",
    head="lm_head",
    default_targets=("c_attn",),
    attention=("c_attn", "attn.c_proj"),
    mlp=("c_fc", "mlp.c_proj"),
    ia3_targets=("c_attn", "mlp.c_proj"),
    fused={"c_attn": "qkv"},
    tied={"lm_head.weight": "transformer.wte.weight"},
    ignored_tensors=(r"\.attn\.bias$", r"\.attn\.masked_bias$"),
)

GELUS = "gelu", "gelu_python", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "quick_gelu"
COMMON = {"hidden_size": "n_embd", "max_position_embeddings": "n_positions"}
COMMON |= {"num_attention_heads": "n_head", "num_hidden_layers": "n_layer"}
"""The names that other families have for a field; transformers takes them too, and before GPT-2's own."""


@dataclasses.dataclass
class GPT2Config(Config):
    """config.json of a GPT-2; defaults are those of the small one."""

    family = FAMILY
    model = "model_zoo.gpt:GPT2LMHeadModel"
    architectures: ClassVar[dict[str, str]] = {"gpt2": "GPT2LMHeadModel"}
    acts = *GELUS, "relu", "silu", "swish", "tanh"
    reads_window = False
    bounded_positions = True
    dropouts: ClassVar[dict[str, str]] = {"embd_pdrop": "embedding", "resid_pdrop": "hidden", "attn_pdrop": "attention"}
    assumed_dropout = 0.1
    sized_by = ("n_embd", "n_head", "n_layer", "vocab_size")

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int | None = None
    activation_function: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    add_cross_attention: bool = False
    tie_word_embeddings: bool = True
    model_type: str = "gpt2"

    @classmethod
    def flat(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        said = {own: values[name] for name, own in COMMON.items() if values.get(name) is not None}
        return {**{name: value for name, value in values.items() if name not in COMMON}, **said}

    @property
    def dims(self) -> Dims:
        width, heads = self.n_embd, self.n_head
        ffn = self.n_inner or 4 * width
        return Dims(self.n_layer, width, heads, heads, width // heads, ffn, self.vocab_size, self.n_positions)

    def score_scale(self, layer: int) -> float:
        """What attention's scores are multiplied by in this layer, the first of which is 0."""
        scale = self.dims.head_dim**-0.5 if self.scale_attn_weights else 1.0
        return scale / (layer + 1) if self.scale_attn_by_inverse_layer_idx else scale

    def tensors(self) -> dict[str, CellSpec]:
        n = self.dims
        norm = layer_norm(n.hidden, self.layer_norm_epsilon)
        return {
            "transformer.wte": embedding(n.vocab, n.hidden),
            "transformer.wpe": embedding(n.context, n.hidden),
            "transformer.h.*.ln_1": norm,
            "transformer.h.*.ln_2": norm,
            "transformer.h.*.attn.c_attn": conv1d(n.hidden, 3 * n.hidden),
            "transformer.h.*.attn.c_proj": conv1d(n.hidden, n.hidden),
            "transformer.h.*.mlp.c_fc": conv1d(n.hidden, n.ffn),
            "transformer.h.*.mlp.c_proj": conv1d(n.ffn, n.hidden),
            "transformer.ln_f": norm,
            **({} if self.tie_word_embeddings else {"lm_head": linear(n.vocab, n.hidden)}),
        }

    def check(self) -> None:
        self.require("activation_function", *self.acts)
        self.require("add_cross_attention", False)
        if self.n_embd % self.n_head:
            raise InputError(f"config.json: n_embd {self.n_embd} is no multiple of n_head {self.n_head}")


CONFIG = GPT2Config


def _published(layers: int, hidden: int, heads: int, context: int = 1024) -> dict:
    sizes = {"n_layer": layers, "n_embd": hidden, "n_head": heads, "n_positions": context, "n_ctx": context}
    return GPT2Config.published(**sizes, bos_token_id=50256, eos_token_id=50256, torch_dtype="float32")


PRESETS = {
    "gpt2": _published(12, 768, 12),
    "gpt2_medium": _published(24, 1024, 16),
    "gpt2_large": _published(36, 1280, 20),
    "gpt2_xl": _published(48, 1600, 25),
    # GPT-3-sized models that MindFormers published under GPT-2's name
    "gpt2_13b": _published(40, 5120, 40, 2048),
    "gpt2_52b": _published(64, 8192, 32, 2048),
}
PRESETS["gpt2_small"] = PRESETS["gpt2"]
