"""ChatGLM2, ChatGLM3 and GLM-4-9B in their remote-code layout, with fused projections."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from model_zoo.configs import CellSpec, Config, Dims, Family, embedding, linear, rms_norm
from model_zoo.errors import InputError

FAMILY = Family(
    name="glm4",
    layout="chatglm2",
    layers="transformer.encoder.layers",
    attention_core="self_attention.core",
    embedding="transformer.embedding.word_embeddings",
    head="transformer.output_layer",
    default_targets=("query_key_value",),
    attention=("query_key_value", "dense"),
    mlp=("dense_h_to_4h", "dense_4h_to_h"),
    ia3_targets=("query_key_value", "dense_4h_to_h"),
    gated=True,
    fused={"query_key_value": "qkv", "dense_h_to_4h": "gate_up"},
    ignored_tensors=(r"rotary_pos_emb\.inv_freq$",),
)


@dataclasses.dataclass
class ChatGLM2Config(Config):
    """config.json of ChatGLM2, ChatGLM3 and GLM-4-9B in their remote-code layout; defaults are ChatGLM2-6B's."""

    family = FAMILY
    model = "model_zoo.glm4:ChatGLM2ForConditionalGeneration"
    architectures: ClassVar[dict[str, str]] = {"chatglm": "ChatGLMForConditionalGeneration"}
    marks = ("padded_vocab_size", "kv_channels")
    dropouts: ClassVar[dict[str, str]] = {"attention_dropout": "", "hidden_dropout": ""}
    sized_by = ("hidden_size", "num_attention_heads", "num_layers", "multi_query_group_num", "ffn_hidden_size")
    sized_by += ("padded_vocab_size",)

    padded_vocab_size: int = 65024
    hidden_size: int = 4096
    num_layers: int = 28
    num_attention_heads: int = 32
    multi_query_group_num: int = 2
    kv_channels: int = 128
    ffn_hidden_size: int = 13696
    seq_length: int = 32768
    layernorm_epsilon: float = 1e-5
    rope_ratio: float = 1.0
    add_qkv_bias: bool = True
    add_bias_linear: bool = False
    multi_query_attention: bool = True
    rmsnorm: bool = True
    post_layer_norm: bool = True
    apply_residual_connection_post_layernorm: bool = False
    original_rope: bool = True
    tie_word_embeddings: bool = False
    model_type: str = "chatglm"

    @property
    def dims(self) -> Dims:
        return Dims(
            self.num_layers,
            self.hidden_size,
            self.num_attention_heads,
            self.multi_query_group_num,
            self.kv_channels,
            self.ffn_hidden_size,
            self.padded_vocab_size,
            self.seq_length,
        )

    def tensors(self) -> dict[str, CellSpec]:
        n = self.dims
        norm = rms_norm(n.hidden, self.layernorm_epsilon)
        return {
            "transformer.embedding.word_embeddings": embedding(n.vocab, n.hidden),
            "transformer.encoder.layers.*.input_layernorm": norm,
            "transformer.encoder.layers.*.post_attention_layernorm": norm,
            "transformer.encoder.layers.*.self_attention.query_key_value": linear(
                (n.heads + 2 * n.kv_heads) * n.head_dim, n.hidden, self.add_qkv_bias
            ),
            "transformer.encoder.layers.*.self_attention.dense": linear(n.hidden, n.heads * n.head_dim),
            "transformer.encoder.layers.*.mlp.dense_h_to_4h": linear(2 * n.ffn, n.hidden),
            "transformer.encoder.layers.*.mlp.dense_4h_to_h": linear(n.hidden, n.ffn),
            "transformer.encoder.final_layernorm": norm,
            "transformer.output_layer": linear(n.vocab, n.hidden),
        }

    def check(self) -> None:
        for key in ("multi_query_attention", "rmsnorm", "post_layer_norm", "original_rope"):
            self.require(key, True)
        for key in ("add_bias_linear", "apply_residual_connection_post_layernorm", "tie_word_embeddings"):
            self.require(key, False)
        self.require("quantization_bit", 0, 8)
        if self.extra.get("pre_seq_len"):
            raise InputError("config.json: pre_seq_len is set: load the base without it and its P-Tuning v2 file apart")
        n = self.dims
        if n.heads % n.kv_heads:
            raise InputError(f"config.json: {n.heads} attention heads are no multiple of {n.kv_heads} key heads")


CONFIG = ChatGLM2Config
_OLDER = {"eos_token_id": 2, "pad_token_id": 0, "torch_dtype": "float16"}

PRESETS = {
    "glm2_6b": ChatGLM2Config.published("ChatGLMModel", **_OLDER),
    "glm3_6b": ChatGLM2Config.published("ChatGLMModel", seq_length=8192, **_OLDER),
    "glm4_9b": ChatGLM2Config.published(
        "ChatGLMModel",
        num_layers=40,
        padded_vocab_size=151552,
        seq_length=8192,
        layernorm_epsilon=1.5625e-7,
        eos_token_id=[151329, 151336, 151338],
        pad_token_id=151329,
        torch_dtype="bfloat16",
    ),
}
