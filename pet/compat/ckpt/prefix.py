"""Prefixes in MindFormers' ``.ckpt`` files, of prefix tuning and P-Tuning v2, as an adapter directory of P-Tuning v2,
whose tokens keep their positions as there.

A file has ``mindpet_delta_ptuning2_embedding.embedding_table`` (tokens, layers · 2 · width), in the same order, and
with ``prefix_projection`` the two layers behind it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from adapters.ptuning import PROJECTED, TRANS
from model_zoo.checkpoint.mindspore_files import opened
from model_zoo.counting import config_of
from model_zoo.errors import InputError
from pet.compat.ckpt.doors import Report, config_for, find_ckpt, write_adapter
from pet.compat.ckpt.names import PREFIX


def to_prefix(
    source: str | os.PathLike, output: str | os.PathLike, config: str | os.PathLike | Mapping[str, Any] | None = None
) -> Report:
    """Writes the prefix of a ``.ckpt`` file as an adapter directory.

    Raises:
        InputError: a part of it is missing, or it is that of another model.
    """
    path = find_ckpt(source)
    with opened(path) as file:
        parts = {
            found["part"]: file.read(found[0]).astype(np.float32)
            for found in map(PREFIX.fullmatch, file.tensors)
            if found
        }
    dims = config_of(config_for(path, config)).dims
    table, whole = "embedding.embedding_table", 2 * dims.layers * dims.kv_heads * dims.head_dim
    projected = "trans.0.weight" in parts
    names = dict(zip((table, *TRANS) if projected else (table,), PROJECTED, strict=False))
    InputError.raise_any(f"{path}: {name} of its prefix is missing" for name in names if name not in parts)
    last = parts["trans.2.weight"] if projected else parts[table].T
    if len(last) != whole:
        raise InputError(f"{path}: its prefix is {len(last)} wide, this model's {whole}")
    tokens, width = parts[table].shape
    settings = {
        "peft_type": "PTUNING_V2",
        "pre_seq_len": tokens,
        "prefix_projection": projected,
        "encoder_hidden_size": last.shape[1] if projected else None,
        "embedding_size": width if projected else None,
    }
    write_adapter(output, {ours: parts[name] for name, ours in names.items()}, settings)
    return Report(Path(output), len(names), note=f"a prefix of {tokens} tokens")
