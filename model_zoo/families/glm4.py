"""GLM-4 in transformers' own layouts: ``glm``, and ``glm4`` with a norm behind each sublayer too."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from model_zoo.configs import CellSpec, linear
from model_zoo.families.rotary import RotaryConfig, rotary_family


@dataclasses.dataclass
class GlmConfig(RotaryConfig):
    """config.json of GLM-4 in transformers' own layouts, ``glm`` and ``glm4``."""

    family = rotary_family("glm4", ("gate_up_proj",), fused={"gate_up_proj": "gate_up"})
    architectures: ClassVar[dict[str, str]] = {"glm": "GlmForCausalLM", "glm4": "Glm4ForCausalLM"}
    rotary = "interleaved"
    reads_window = False
    assumed_padding = 151329

    vocab_size: int = 151552
    intermediate_size: int = 13696
    num_hidden_layers: int = 40
    num_key_value_heads: int = 2
    head_dim: int = 128
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1.5625e-07
    attention_bias: bool = True
    partial_rotary_factor: float = 0.5
    model_type: str = "glm"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]):
        # transformers 5 writes it there alone; said beside it, too, it is read by those that look there first
        within = values.get("rope_parameters") or values.get("rope_scaling")
        part = within.get("partial_rotary_factor") if isinstance(within, Mapping) else None
        if "partial_rotary_factor" in values and values["partial_rotary_factor"] is None:  # null: whole heads
            values = {**values, "partial_rotary_factor": 1.0 if part is None else part}
        elif part is not None:
            values = {"partial_rotary_factor": part, **values}
        return super().from_dict(values)

    def layer(self) -> dict[str, CellSpec]:
        n = self.dims
        norms = ["input_layernorm", "post_attention_layernorm"]
        if self.model_type == "glm4":
            norms += ["post_self_attn_layernorm", "post_mlp_layernorm"]
        return {
            **dict.fromkeys(norms, self.norm()),
            **self.attention(self.attention_bias),
            "mlp.gate_up_proj": linear(2 * n.ffn, n.hidden),
            "mlp.down_proj": linear(n.hidden, n.ffn),
        }


CONFIG = GlmConfig
PRESETS: dict[str, dict] = {}
