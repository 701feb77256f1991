"""MindFormers' names and shapes of the families' tensors."""

from __future__ import annotations

import json

from model_zoo.checkpoint.ckpt_io import CkptFile
from model_zoo.checkpoint.safetensors_io import read_file


def dimensions(directory):
    from model_zoo.counting import sizes

    n = sizes(json.loads((directory / "config.json").read_text()))
    q, k = n.heads * n.head_dim, n.kv_heads * n.head_dim
    table = {"h": n.hidden, "f": n.ffn, "v": n.vocab, "c": n.context, "q": q, "k": k}
    return n, {**table, "3h": 3 * n.hidden, "2f": 2 * n.ffn, "q+2k": q + 2 * k}


def weights(directory):
    """A directory's tensors, without buffers that are no parameters."""
    return {name: value for name, value in read_file(directory / "model.safetensors").items() if "inv_freq" not in name}


def bits(path):
    with CkptFile(path) as file:
        return {name: (info, file.read(name).tobytes()) for name, info in file.tensors.items()}
