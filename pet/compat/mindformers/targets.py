"""MindFormers' expressions for the matrices that LoRA adapts, on whatever layout the base has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from adapters.patterns import named
from model_zoo.counting import parameter_shapes
from pet.recipe.translation import Translation

QUERY, KEY, VALUE, OUTPUT, GATE, UP, DOWN = range(7)
QKV, UPWARD = {QUERY, KEY, VALUE}, {GATE, UP}
# what each cell of MindFormers' models computes, by its own name: expressions are matched against that, not its path
GLM = {"query_key_value": QKV, "dense": {OUTPUT}, "dense_h_to_4h": UPWARD, "dense_4h_to_h": {DOWN}}
PARTS = {"wq": {QUERY}, "wk": {KEY}, "wv": {VALUE}}
THEIRS = {
    "GPT2Config": {"dense1": {QUERY}, "dense2": {KEY}, "dense3": {VALUE}}
    | {"projection": {OUTPUT, DOWN}, "mapping": UPWARD},
    "LlamaConfig": PARTS
    | {"w_qkv": QKV, "wo": {OUTPUT}, "w1": {GATE}, "w3": {UP}, "w_gate_hidden": UPWARD, "w2": {DOWN}},
    "GLMConfig": GLM,
    "ChatGLM2Config": GLM | PARTS | {"dense_left": {GATE}, "dense_right": {UP}},
    "": {"linear_qkv": QKV, "linear_proj": {OUTPUT}, "linear_fc1": UPWARD, "linear_fc2": {DOWN}},
}
"""By ``model_config.type``; the last are those of files without one (``use_legacy: False``, releases 1.6 to 1.8), whose
``word_embeddings`` gets no matrices."""
OURS = {
    QUERY: ("q_proj", "qkv_proj", "query_key_value", "c_attn"),
    KEY: ("k_proj", "qkv_proj", "query_key_value", "c_attn"),
    VALUE: ("v_proj", "qkv_proj", "query_key_value", "c_attn"),
    OUTPUT: ("o_proj", "self_attention.dense", "attention.dense", "attn.c_proj"),
    GATE: ("gate_proj", "gate_up_proj", "dense_h_to_4h", "c_fc"),
    UP: ("up_proj", "gate_up_proj", "dense_h_to_4h", "c_fc"),
    DOWN: ("down_proj", "dense_4h_to_h", "mlp.c_proj"),
}
"""The names that Hugging Face's layouts have for them, of which a model has one."""


def targets_of(t: Translation, expression: Any, kind: str | None, config: Mapping[str, Any]) -> list[str] | None:
    """Our names for an expression over MindFormers' own: ``.*wq|.*wv`` → ``["q_proj", "v_proj"]``.

    Args:
        t: gets a note where a matrix is adapted of which the expression names a part.
        expression: a regular expression, or several; such that fit none of MindFormers' names are taken as ours.
        kind: ``model_config.type``.
        config: config.json's dictionary of the base.
    """
    parts = [expression] if isinstance(expression, str) else [str(part) for part in expression]
    theirs = THEIRS.get(kind, {}) or {name: work for names in THEIRS.values() for name, work in names.items()}
    wanted = {work for name, works in theirs.items() if any(re.match(part, name) for part in parts) for work in works}
    if not wanted:
        words = [word for part in parts for word in ([part] if "(" in part else part.split("|"))]
        bare = [re.sub(r"^\^?(\.\*)?(\\?\.)?|(\.?\*)?\$?$", "", word) for word in words]
        return [name if re.fullmatch(r"[\w.]+", name) else f"re:{word}" for name, word in zip(bare, words, strict=True)]
    modules = [name.rpartition(".")[0] for name in dict(parameter_shapes(config))]
    there = {work: next((n for n in names if any(named(m, n) for m in modules)), None) for work, names in OURS.items()}
    found = list(dict.fromkeys(there[work] for work in sorted(wanted) if there[work]))
    whole = [name for name in found if any(there[work] == name and work not in wanted for work in (*QKV, *UPWARD))]
    if whole:
        t.ignore(
            "pet_config.target_modules",
            f"names a part of {', '.join(whole)}, which is one matrix here and adapted whole",
        )
    return found
