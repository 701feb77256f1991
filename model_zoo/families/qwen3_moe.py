"""Qwen3's mixtures of experts (Qwen team 2025): Qwen3's attention, and a feed-forward of experts of which a router
chooses some for each token."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from model_zoo.configs import CellSpec, Dims, linear
from model_zoo.errors import InputError
from model_zoo.families.qwen3 import PUBLISHED
from model_zoo.families.rotary import RotaryConfig, published, rotary_family


@dataclasses.dataclass
class Qwen3MoeConfig(RotaryConfig):
    """config.json of a Qwen3-MoE; what it leaves out has the values that transformers assumes.

    Published files have ``num_experts``, those that transformers 5 writes ``num_local_experts``, which older versions
    do not read.
    """

    family = rotary_family("qwen3_moe", routers=("mlp.gate",))
    architectures: ClassVar[dict[str, str]] = {"qwen3_moe": "Qwen3MoeForCausalLM"}
    head_norms = True
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

    def feed_forward(self, bias: bool = False, path: str = "mlp") -> dict[str, CellSpec]:
        count = self.experts[0]
        found = {f"{path}.gate": linear(count, self.hidden_size)}
        for index in range(count):
            found.update(super().feed_forward(bias, f"{path}.experts.{index}"))
        return found

    def slides(self, layer: int) -> bool:
        return bool(self.extra.get("use_sliding_window"))

    def to_dict(self) -> dict:
        values = super().to_dict()
        if self.num_local_experts is not None:
            del values["num_experts"]
        return values

    @classmethod
    def for_file(cls, values: Mapping[str, Any], dtype: str | None = None) -> dict[str, Any]:
        count = values.get("num_local_experts")
        return super().for_file({**values, **({} if count is None else {"num_experts": count})}, dtype)

    def check(self) -> None:
        super().check()
        self.require("decoder_sparse_step", 1)
        self.require("mlp_only_layers", [])
        count, chosen, _ = self.experts
        if chosen > count:
            raise InputError(f"config.json: num_experts_per_tok is {chosen}, but there are {count} experts")


CONFIG = Qwen3MoeConfig


def _qwen3_moe(layers: int, hidden: int, heads: int, ffn: int, of_expert: int) -> dict:
    return published(
        Qwen3MoeConfig,
        (layers, hidden, heads, 4, ffn, 128),
        moe_intermediate_size=of_expert,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        **PUBLISHED,
    )


PRESETS = {
    "qwen3_30b_a3b": _qwen3_moe(48, 2048, 32, 6144, 768),
    "qwen3_235b_a22b": _qwen3_moe(94, 4096, 64, 12288, 1536),
}
