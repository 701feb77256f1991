"""Qwen3's mixtures of experts (Qwen team 2025): Qwen3's attention, and a feed-forward of experts of which a router
chooses some for each token."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from model_zoo.configs import CellSpec, Dims, linear
from model_zoo.errors import InputError
from model_zoo.families.rotary import RotaryConfig, rotary_family


@dataclasses.dataclass
class Qwen3MoeConfig(RotaryConfig):
    """config.json of a Qwen3-MoE; what it leaves out has the values that transformers assumes.

    Published files have ``num_experts``, those that transformers 5 writes ``num_local_experts``.
    """

    family = rotary_family("qwen3_moe", routers=("mlp.gate",))
    architectures: ClassVar = {"qwen3_moe": "Qwen3MoeForCausalLM"}
    sized_by = (*RotaryConfig.sized_by, "moe_intermediate_size")

    vocab_size: int = 151936
    hidden_size: int = 2048
    intermediate_size: int = 6144
    num_hidden_layers: int = 24
    num_key_value_heads: int = 4
    max_position_embeddings: int = 32768
    moe_intermediate_size: int = 768
    num_experts: int = 128
    num_local_experts: int | None = None
    num_experts_per_tok: int = 8
    norm_topk_prob: bool = False
    model_type: str = "qwen3_moe"

    @property
    def dims(self) -> Dims:
        return super().dims._replace(ffn=self.moe_intermediate_size)

    @property
    def experts(self) -> tuple[int, int, bool]:
        return self.num_local_experts or self.num_experts, self.num_experts_per_tok, self.norm_topk_prob

    @property
    def feed_forwards(self) -> int:
        return self.experts[0]

    def layer(self) -> dict[str, CellSpec]:
        count, of_head, experts = self.experts[0], self.norm(self.dims.head_dim), {}
        for index in range(count):
            experts.update(self.feed_forward(path=f"mlp.experts.{index}"))
        return {
            "input_layernorm": self.norm(),
            "post_attention_layernorm": self.norm(),
            **self.attention(self.attention_bias, self.attention_bias),
            "self_attn.q_norm": of_head,
            "self_attn.k_norm": of_head,
            "mlp.gate": linear(count, self.hidden_size),
            **experts,
        }

    def slides(self, layer: int) -> bool:
        return bool(self.extra.get("use_sliding_window"))

    def to_dict(self) -> dict:
        values = super().to_dict()
        if self.num_local_experts is not None:
            del values["num_experts"]
        return values

    def check(self) -> None:
        super().check()
        self.require("decoder_sparse_step", 1)
        self.require("mlp_only_layers", [])
        count, chosen, _ = self.experts
        if chosen > count:
            raise InputError(f"config.json: num_experts_per_tok is {chosen}, but there are {count} experts")


CONFIG = Qwen3MoeConfig


def _qwen3_moe(layers: int, hidden: int, heads: int, ffn: int, of_expert: int) -> dict:
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "intermediate_size": ffn,
        "moe_intermediate_size": of_expert,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "hidden_act": "silu",
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "torch_dtype": "bfloat16",
    }


PRESETS = {
    "qwen3_30b_a3b": _qwen3_moe(48, 2048, 32, 6144, 768),
    "qwen3_235b_a22b": _qwen3_moe(94, 4096, 64, 12288, 1536),
}
