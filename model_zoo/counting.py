"""Shapes, sizes and memory of a model from its configuration alone: nothing is allocated, MindSpore is not imported.

`parameter_shapes` spells out the tensors of a checkpoint. It is the model's shape written a second time on purpose:
tests hold the two against each other, and a count of 65 billion parameters costs microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

from model_zoo.configs import ChatGLM2Config, GLMConfig, GlmConfig, GPT2Config, LlamaConfig, config_class
from model_zoo.errors import InputError

Shapes = dict[str, tuple[int, ...]]


class Sizes(NamedTuple):
    """A model's dimensions, whatever its configuration calls them."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context: int


MOST_LAYERS = 1 << 14
LAYOUTS = {
    GPT2Config: "gpt2",
    LlamaConfig: "llama",
    GlmConfig: "glm4",
    GLMConfig: "chatglm",
    ChatGLM2Config: "chatglm2",
}
# By layout: buffers that published files carry beside the parameters and that nobody reads.
BUFFERS = {
    "gpt2": (r"\.attn\.bias$", r"\.attn\.masked_bias$"),
    "llama": (r"rotary_emb\.inv_freq$",),
    "glm4": (r"rotary_emb\.inv_freq$",),
    "chatglm": (r"rotary_emb\.inv_freq$",),
    "chatglm2": (r"rotary_pos_emb\.inv_freq$",),
}


def layout_of(config: Mapping[str, Any]) -> str:
    """Which set of tensor names a configuration stands for: gpt2, llama, glm4, chatglm or chatglm2."""
    return LAYOUTS[config_class(config)]


def sizes(config: Mapping[str, Any]) -> Sizes:
    """The dimensions in a config.json's dictionary. Raises InputError when one is missing or no positive integer."""
    layout = layout_of(config)
    config_class(config).check_types(config)

    def get(*keys: str, default: int | None = None) -> int:
        value = next((config[key] for key in keys if config.get(key) is not None), default)
        if type(value) is not int or value <= 0:
            raise InputError(f"config.json: {keys[0]} must be a positive integer, it is {value!r}")
        return value

    if layout == "gpt2":
        hidden, heads = get("n_embd", "hidden_size"), get("n_head", "num_attention_heads")
        context = get("n_positions", "n_ctx", default=1024)
        ffn = get("n_inner", default=4 * hidden)
        layers = get("n_layer", "num_hidden_layers", "num_layers")
        found = Sizes(layers, hidden, heads, heads, hidden // heads, ffn, get("vocab_size"), context)
    elif layout == "chatglm":
        hidden, heads = get("hidden_size"), get("num_attention_heads")
        context, vocab = get("max_sequence_length", default=2048), get("vocab_size")
        ffn = get("inner_hidden_size", default=4 * hidden)
        found = Sizes(get("num_layers"), hidden, heads, heads, hidden // heads, ffn, vocab, context)
    elif layout == "chatglm2":
        hidden, heads = get("hidden_size"), get("num_attention_heads")
        kv_heads = get("multi_query_group_num") if config.get("multi_query_attention") else heads
        head_dim, context = get("kv_channels", default=hidden // heads), get("seq_length", default=2048)
        ffn, vocab = get("ffn_hidden_size"), get("padded_vocab_size")
        found = Sizes(get("num_layers"), hidden, heads, kv_heads, head_dim, ffn, vocab, context)
    else:
        hidden, heads = get("hidden_size"), get("num_attention_heads")
        kv_heads = get("num_key_value_heads", default=heads)
        head_dim = get("head_dim", default=128 if layout == "glm4" else hidden // heads)
        ffn, vocab = get("intermediate_size"), get("vocab_size")
        context = get("max_position_embeddings", default=2048)
        found = Sizes(get("num_hidden_layers"), hidden, heads, kv_heads, head_dim, ffn, vocab, context)
    if found.layers > MOST_LAYERS:
        raise InputError(f"config.json: {found.layers} layers; at most {MOST_LAYERS} are a model's")
    if found.heads % found.kv_heads:
        raise InputError(f"config.json: {found.heads} heads cannot share {found.kv_heads} key-value heads evenly")
    return found


def parameter_shapes(config: Mapping[str, Any]) -> Shapes:
    """{tensor name: shape} of the parameters, under their published names. A tied head is not listed twice."""
    builder = {"gpt2": _gpt2, "llama": _llama, "glm4": _glm4, "chatglm": _chatglm, "chatglm2": _chatglm2}
    return builder[layout_of(config)](config, sizes(config))


def count_parameters(config: Mapping[str, Any]) -> int:
    """The number of parameters; a tied head counts once."""
    return sum(prod(shape) for shape in parameter_shapes(config).values())


def _dense(shapes: Shapes, name: str, out: int, width: int, bias: bool) -> None:
    shapes[f"{name}.weight"] = (out, width)
    if bias:
        shapes[f"{name}.bias"] = (out,)


def _norm(shapes: Shapes, name: str, width: int, bias: bool = False) -> None:
    shapes[f"{name}.weight"] = (width,)
    if bias:
        shapes[f"{name}.bias"] = (width,)


def _gpt2(config: Mapping[str, Any], n: Sizes) -> Shapes:
    shapes: Shapes = {"transformer.wte.weight": (n.vocab, n.hidden), "transformer.wpe.weight": (n.context, n.hidden)}
    for index in range(n.layers):
        block = f"transformer.h.{index}"
        _norm(shapes, f"{block}.ln_1", n.hidden, True)
        _norm(shapes, f"{block}.ln_2", n.hidden, True)
        for name, width, out in (
            ("attn.c_attn", n.hidden, 3 * n.hidden),
            ("attn.c_proj", n.hidden, n.hidden),
            ("mlp.c_fc", n.hidden, n.ffn),
            ("mlp.c_proj", n.ffn, n.hidden),
        ):
            shapes[f"{block}.{name}.weight"] = (width, out)  # Conv1D stores (in, out)
            shapes[f"{block}.{name}.bias"] = (out,)
    _norm(shapes, "transformer.ln_f", n.hidden, True)
    if config.get("tie_word_embeddings") is False:
        _dense(shapes, "lm_head", n.vocab, n.hidden, False)
    return shapes


def _llama(config: Mapping[str, Any], n: Sizes) -> Shapes:
    qwen = config["model_type"] == "qwen2"
    attention_bias = bool(config.get("attention_bias", False)) or qwen
    output_bias = bool(config.get("attention_bias", False)) and not qwen
    mlp_bias = bool(config.get("mlp_bias", False))
    shapes: Shapes = {"model.embed_tokens.weight": (n.vocab, n.hidden)}
    for index in range(n.layers):
        layer = f"model.layers.{index}"
        _norm(shapes, f"{layer}.input_layernorm", n.hidden)
        _norm(shapes, f"{layer}.post_attention_layernorm", n.hidden)
        _attention(shapes, layer, n, attention_bias, output_bias)
        _dense(shapes, f"{layer}.mlp.gate_proj", n.ffn, n.hidden, mlp_bias)
        _dense(shapes, f"{layer}.mlp.up_proj", n.ffn, n.hidden, mlp_bias)
        _dense(shapes, f"{layer}.mlp.down_proj", n.hidden, n.ffn, mlp_bias)
    return _end(shapes, config, n)


def _attention(shapes: Shapes, layer: str, n: Sizes, bias: bool, output_bias: bool) -> None:
    _dense(shapes, f"{layer}.self_attn.q_proj", n.heads * n.head_dim, n.hidden, bias)
    _dense(shapes, f"{layer}.self_attn.k_proj", n.kv_heads * n.head_dim, n.hidden, bias)
    _dense(shapes, f"{layer}.self_attn.v_proj", n.kv_heads * n.head_dim, n.hidden, bias)
    _dense(shapes, f"{layer}.self_attn.o_proj", n.hidden, n.heads * n.head_dim, output_bias)


def _end(shapes: Shapes, config: Mapping[str, Any], n: Sizes) -> Shapes:
    _norm(shapes, "model.norm", n.hidden)
    if not config.get("tie_word_embeddings", False):
        _dense(shapes, "lm_head", n.vocab, n.hidden, False)
    return shapes


def _glm4(config: Mapping[str, Any], n: Sizes) -> Shapes:
    bias = bool(config.get("attention_bias", False))
    norms = ["input_layernorm", "post_attention_layernorm"]
    if config["model_type"] == "glm4":
        norms += ["post_self_attn_layernorm", "post_mlp_layernorm"]
    shapes: Shapes = {"model.embed_tokens.weight": (n.vocab, n.hidden)}
    for index in range(n.layers):
        layer = f"model.layers.{index}"
        for norm in norms:
            _norm(shapes, f"{layer}.{norm}", n.hidden)
        _attention(shapes, layer, n, bias, False)
        _dense(shapes, f"{layer}.mlp.gate_up_proj", 2 * n.ffn, n.hidden, False)
        _dense(shapes, f"{layer}.mlp.down_proj", n.hidden, n.ffn, False)
    return _end(shapes, config, n)


def _chatglm(config: Mapping[str, Any], n: Sizes) -> Shapes:
    shapes: Shapes = {"transformer.word_embeddings.weight": (n.vocab, n.hidden)}
    for index in range(n.layers):
        layer = f"transformer.layers.{index}"
        _norm(shapes, f"{layer}.input_layernorm", n.hidden, True)
        _norm(shapes, f"{layer}.post_attention_layernorm", n.hidden, True)
        _dense(shapes, f"{layer}.attention.query_key_value", 3 * n.hidden, n.hidden, True)
        _dense(shapes, f"{layer}.attention.dense", n.hidden, n.hidden, True)
        _dense(shapes, f"{layer}.mlp.dense_h_to_4h", n.ffn, n.hidden, True)
        _dense(shapes, f"{layer}.mlp.dense_4h_to_h", n.hidden, n.ffn, True)
    _norm(shapes, "transformer.final_layernorm", n.hidden, True)
    return shapes


def _chatglm2(config: Mapping[str, Any], n: Sizes) -> Shapes:
    linear_bias = bool(config.get("add_bias_linear", False))
    qkv_bias = bool(config.get("add_qkv_bias", True)) or linear_bias
    shapes: Shapes = {"transformer.embedding.word_embeddings.weight": (n.vocab, n.hidden)}
    for index in range(n.layers):
        layer = f"transformer.encoder.layers.{index}"
        rows = (n.heads + 2 * n.kv_heads) * n.head_dim
        _norm(shapes, f"{layer}.input_layernorm", n.hidden)
        _norm(shapes, f"{layer}.post_attention_layernorm", n.hidden)
        _dense(shapes, f"{layer}.self_attention.query_key_value", rows, n.hidden, qkv_bias)
        _dense(shapes, f"{layer}.self_attention.dense", n.hidden, n.heads * n.head_dim, linear_bias)
        _dense(shapes, f"{layer}.mlp.dense_h_to_4h", 2 * n.ffn, n.hidden, linear_bias)
        _dense(shapes, f"{layer}.mlp.dense_4h_to_h", n.hidden, n.ffn, linear_bias)
    if config.get("post_layer_norm", True):
        _norm(shapes, "transformer.encoder.final_layernorm", n.hidden)
    if not config.get("tie_word_embeddings", False):
        _dense(shapes, "transformer.output_layer", n.vocab, n.hidden, False)
    return shapes


def tied_head(config: Mapping[str, Any]) -> tuple[str, str] | None:
    """(name of the head's weight, name of the embedding that it is), or None where the head has a weight of its own."""
    shapes = parameter_shapes(config)
    embedding = next(iter(shapes))
    head = "transformer.output_layer.weight" if layout_of(config) == "chatglm2" else "lm_head.weight"
    return None if head in shapes else (head, embedding)


def stored_transposed(config: Mapping[str, Any], name: str) -> bool:
    """Whether a linear cell's weight is stored (in, out): GPT-2's Conv1D."""
    return layout_of(config) == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
