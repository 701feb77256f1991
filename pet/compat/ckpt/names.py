"""MindFormers' parameter names beside Hugging Face's, one table per family, as in that project's conversion scripts.

``{}`` is the number of a layer. Where the two divide a matrix differently, the parts of it stand in a tuple, in the
order of the matrix's outputs.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from model_zoo.configs import Dims
from model_zoo.counting import layout_of, parameter_shapes, sizes, tied_head
from model_zoo.errors import InputError, warn_once

Names = str | tuple[str, ...]


def _both(theirs: Names, ours: Names, weight: str = "weight", bias: str = "bias") -> dict[Names, Names]:
    """Two entries, for a weight and its bias; norms of MindSpore call them gamma and beta."""

    def named(names: Names, suffix: str) -> Names:
        return f"{names}.{suffix}" if isinstance(names, str) else tuple(f"{name}.{suffix}" for name in names)

    return {named(theirs, weight): named(ours, "weight"), named(theirs, bias): named(ours, "bias")}


def _norm(theirs: str, ours: str) -> dict[Names, Names]:
    return _both(theirs, ours, "gamma", "beta")


def _parts(stem: str, *parts: str) -> tuple[str, ...]:
    return tuple(f"{stem}.{part}" for part in parts)


def _each(entries: Callable, theirs: str, ours: str, names: str) -> dict[Names, Names]:
    """The entries of several cells, ``theirs=ours`` with spaces between them; one name where they share it."""
    pairs = (name.partition("=") for name in names.split())
    return {k: v for own, _, other in pairs for k, v in entries(f"{theirs}.{own}", f"{ours}.{other or own}").items()}


_BLOCK, _H = "backbone.blocks.{}", "transformer.h.{}"
GPT2 = {
    "backbone.embedding.word_embedding.embedding_table": "transformer.wte.weight",
    "backbone.embedding.position_embedding.embedding_table": "transformer.wpe.weight",
    **_each(_norm, _BLOCK, _H, "layernorm1=ln_1 layernorm2=ln_2"),
    **_both(_parts(f"{_BLOCK}.attention", "dense1", "dense2", "dense3"), f"{_H}.attn.c_attn"),
    **_both(f"{_BLOCK}.attention.projection", f"{_H}.attn.c_proj"),
    **_each(_both, f"{_BLOCK}.output", f"{_H}.mlp", "mapping=c_fc projection=c_proj"),
    **_norm("backbone.layernorm", "transformer.ln_f"),
}

_LAYER = "model.layers.{}"
_ATTENTION, _QKV = f"{_LAYER}.attention", _parts(f"{_LAYER}.self_attn", "q_proj", "k_proj", "v_proj")
LLAMA = {
    "model.tok_embeddings.embedding_weight": "model.embed_tokens.weight",
    f"{_LAYER}.attention_norm.weight": f"{_LAYER}.input_layernorm.weight",
    **_each(_both, _ATTENTION, f"{_LAYER}.self_attn", "wq=q_proj wk=k_proj wv=v_proj wo=o_proj"),
    f"{_LAYER}.ffn_norm.weight": f"{_LAYER}.post_attention_layernorm.weight",
    **_each(_both, f"{_LAYER}.feed_forward", f"{_LAYER}.mlp", "w1=gate_proj w3=up_proj w2=down_proj"),
    "model.norm_out.weight": "model.norm.weight",
    "lm_head.weight": "lm_head.weight",
}
# qkv_concat: True
LLAMA_JOINED = {
    **_both(f"{_ATTENTION}.w_qkv", _QKV),
    **_both(f"{_LAYER}.feed_forward.w_gate_hidden", _parts(f"{_LAYER}.mlp", "gate_proj", "up_proj")),
}

_LAYER_1 = "transformer.layers.{}"
GLM = {
    "transformer.word_embeddings.embedding_table": "transformer.word_embeddings.weight",
    **_each(_norm, _LAYER_1, _LAYER_1, "input_layernorm post_attention_layernorm"),
    **_each(_both, f"{_LAYER_1}.attention", f"{_LAYER_1}.attention", "query_key_value dense"),
    **_each(_both, f"{_LAYER_1}.mlp", f"{_LAYER_1}.mlp", "dense_h_to_4h dense_4h_to_h"),
    **_norm("transformer.final_layernorm", "transformer.final_layernorm"),
    "lm_head.weight": "lm_head.weight",
}

_LAYER_2 = "transformer.encoder.layers.{}"
_QKV_2, _UP_2 = f"{_LAYER_2}.self_attention.query_key_value", f"{_LAYER_2}.mlp.dense_h_to_4h"
GLM2 = {
    "transformer.embedding.embedding_weight": "transformer.embedding.word_embeddings.weight",
    **{name: name for name in _parts(_LAYER_2, "input_layernorm.weight", "post_attention_layernorm.weight")},
    **_each(_both, f"{_LAYER_2}.self_attention", f"{_LAYER_2}.self_attention", "query_key_value dense"),
    **_each(_both, f"{_LAYER_2}.mlp", f"{_LAYER_2}.mlp", "dense_h_to_4h dense_4h_to_h"),
    **{name: name for name in _parts("transformer", "encoder.final_layernorm.weight", "output_layer.weight")},
}
# qkv_concat: False, mlp_concat: False
GLM2_QKV = _both(_parts(f"{_LAYER_2}.self_attention", "wq", "wk", "wv"), _QKV_2)
GLM2_MLP = _both(_parts(f"{_LAYER_2}.mlp", "dense_left", "dense_right"), _UP_2)
# before MindFormers 1.2
GLM2_OLD = {"transformer.embedding.embedding_table": "transformer.embedding.word_embeddings.weight"}

TABLES = {"gpt2": GPT2, "llama": LLAMA, "chatglm": GLM, "chatglm2": GLM2}

# What a checkpoint of a training run or of incremental inference holds beside the weights.
NO_WEIGHTS = (
    r"(adam_[mv]|moments?[12]?|(max_)?exp_avg(_sq)?|accu_grads|accum|momentum)\..*",
    r"exp_avg_(sq|insta)_.*",
    r"(global_step|learning_rate|beta[12]_power|loss_scale|scale_sense|epoch_num|step_num|global_batch_size)",
    r"(current_iterator_step|last_overflow_iterator_step|scale_window.*|list_index|afactor_step|__exception_save__)",
    r"(state|lr|network_version|cur_.*_num)",
    r".*\.(key_past|value_past|key_cache|value_cache)",
    r"backbone\.blocks\.\d+\.attention\.(beta|masked_beta)",
    r"transformer\.rotary_pos_emb\.inv_freq",
)
PREFIX = re.compile(
    r"(?:.*\.)?mindpet_delta_(?:ptuning2|prefixtuning)_(?P<part>prefix|embedding\.\w+|trans\.[02]\.(?:weight|bias))"
)
LORA = re.compile(r"(?P<stem>.+)\.(mindpet|tk)_delta_lora_(?P<part>[aAbB])")


@dataclasses.dataclass(frozen=True)
class Form:
    """How MindFormers' configuration divides the matrices; the names are those of its model_config.

    Attributes:
        qkv_concat: one matrix for query, key and value (LLaMA: and one for gate and up). Default: as there, which is
            no for LLaMA, yes for ChatGLM2.
        mlp_concat: ChatGLM2: one matrix for gate and up. Default: yes.
        use_rearrange_rope: ChatGLM2: even outputs of each query and key head first, then the odd ones. LLaMA: as in
            release 0.6, in which they alternate.
        old_names: ChatGLM2: the embedding's name before MindFormers 1.2.
        plain_concat: LLaMA: joined matrices one behind the other, as before MindFormers 1.4. Since then query, key and
            value take turns by key heads, gate and up by rows.
    """

    qkv_concat: bool | None = None
    mlp_concat: bool | None = None
    use_rearrange_rope: bool = False
    old_names: bool = False
    plain_concat: bool = False


def form_of(names: Iterable[str], given: Form | None = None) -> Form:
    """The form of a checkpoint by its names; of what they do not tell, the order of outputs, `given` does."""
    given, last = given or Form(), {part for name in names for part in name.split(".")}
    joined = not last.isdisjoint(("w_qkv", "w_gate_hidden"))
    if joined and not given.plain_concat:
        warn_once("w_qkv, w_gate_hidden: read as of MindFormers 1.4; of earlier releases: pet convert --plain-concat")
    return dataclasses.replace(
        given,
        qkv_concat=joined or "query_key_value" in last,
        mlp_concat=last.isdisjoint(("dense_left", "dense_right")),
        old_names="transformer.embedding.embedding_table" in set(names),
    )


@dataclasses.dataclass(frozen=True)
class Group:
    """Tensors of theirs and of ours that hold the same numbers.

    Attributes:
        theirs, ours: names; on one side there is one.
        rows: outputs of each part on the side that has several; of the one where there is no such side.
        pieces: by how many pieces of each the parts take turns in theirs.
        transposed: ours is stored (in, out), the parts (out, in).
        rearranged: per part, the width of the heads whose even outputs come first in theirs, or 0; below 0, in ours.
    """

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    rows: tuple[int, ...]
    pieces: int = 1
    transposed: bool = False
    rearranged: tuple[int, ...] = ()


def shapes_of(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of all tensors; also of a tied head, which MindFormers' files hold, but for GPT-2's."""
    shapes = dict(parameter_shapes(config))
    if (head := tied_head(config)) is not None and layout_of(config) != "gpt2":
        shapes[head[0]] = shapes[head[1]]
    return shapes


def groups(config: Mapping[str, Any], form: Form | None = None) -> list[Group]:
    """All tensors of a model, theirs beside ours.

    Args:
        config: the dictionary of a config.json.
        form: how MindFormers divides the matrices; its own way by default.

    Raises:
        InputError: a model that MindFormers' tables have no names for, or a form that it does not have.
    """
    layout, form = layout_of(config), form or Form()
    if layout not in TABLES:
        kind = str(config.get("model_type"))
        why = ": its GLM-4 is of ChatGLM's layout" if kind.startswith("glm") else ""
        raise InputError(f"MindFormers has no names for model_type {kind!r}{why}")
    if layout == "gpt2" and config.get("tie_word_embeddings") is False:
        raise InputError("MindFormers' GPT-2 has no head of its own, this model has (tie_word_embeddings: false)")
    shapes, n = shapes_of(config), sizes(config)
    found, covered = [], set()
    for theirs, ours in _table(layout, form).items():
        for layer in range(n.layers if "{}" in str(theirs) else 1):
            one = Group(_filled(theirs, layer), _filled(ours, layer), ())
            if all(name in shapes for name in one.ours):
                found.append(_measured(one, shapes, n, layout, form))
                covered.update(one.ours)
    left = [name for name in shapes if name not in covered]
    if left:
        raise InputError(f"MindFormers has no names for {', '.join(left[:3])}, of {len(left)} tensors of this model")
    order = {name: place for place, name in enumerate(shapes)}
    return sorted(found, key=lambda group: order[group.ours[0]])


def unheeded(config: Mapping[str, Any], form: Form) -> list[str]:
    """The fields of a form that the matrices of a model, as it otherwise divides them, are the same by at any value."""

    def heeds(name: str) -> bool:
        first, second = (groups(config, dataclasses.replace(form, **{name: value})) for value in (True, False))
        return first != second

    return [field.name for field in dataclasses.fields(form) if not heeds(field.name)]


def _table(layout: str, form: Form) -> dict[Names, Names]:
    """The family's table in a form."""
    table = dict(TABLES[layout])
    replaced: list[dict[Names, Names]] = []
    if layout == "llama":
        replaced = [LLAMA_JOINED] if form.qkv_concat else []
    elif layout == "chatglm2":
        replaced += [GLM2_QKV] if form.qkv_concat is False else []
        replaced += [GLM2_MLP] if form.mlp_concat is False else []
        replaced += [GLM2_OLD] if form.old_names else []
    for entries in replaced:
        gone = {name for ours in entries.values() for name in ([ours] if isinstance(ours, str) else ours)}
        table = {theirs: ours for theirs, ours in table.items() if ours not in gone} | entries
    return table


def _filled(names: Names, layer: int) -> tuple[str, ...]:
    return tuple(name.format(layer) for name in ([names] if isinstance(names, str) else names))


def _measured(group: Group, shapes: Mapping[str, tuple[int, ...]], n: Dims, layout: str, form: Form) -> Group:
    """The group with the sizes of its parts."""
    shape = shapes[group.ours[0]]
    transposed = layout == "gpt2" and len(group.theirs) == 3 and len(shape) == 2
    outputs = shape[1] if transposed else shape[0]
    qkv = (n.heads * n.head_dim, n.kv_heads * n.head_dim, n.kv_heads * n.head_dim)
    rearranged: tuple[int, ...] = ()
    pieces = 1
    if len(group.ours) > 1:
        rows = tuple(shapes[name][0] for name in group.ours)
        pieces = 1 if form.plain_concat else n.kv_heads if len(rows) == 3 else rows[0]
    elif len(group.theirs) == 1:
        rows = (outputs,)
    else:
        rows = (outputs // 2,) * 2 if len(group.theirs) == 2 else qkv
    if layout == "chatglm2" and form.use_rearrange_rope and "query_key_value" in group.ours[0]:
        rows, rearranged = qkv, (n.head_dim, n.head_dim, 0)
    elif form.use_rearrange_rope and group.theirs[0].split(".")[-2] in ("wq", "wk"):
        rearranged = (-n.head_dim,)
    return Group(group.theirs, group.ours, rows, pieces, transposed, rearranged)
