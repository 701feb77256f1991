"""Texts with labels."""

from __future__ import annotations

import json

import numpy as np

BASES = {"gpt_tiny": ["c_attn", "c_proj"], "llama_tiny": ["q_proj", "v_proj", "down_proj"]}


def texts(count: int = 8):
    random = np.random.default_rng(1)
    return [random.integers(10, 200, random.integers(2, 12)).tolist() for _ in range(count)]


def padded(rows, pad: int, side: str):
    """(ids, mask) of equally long rows."""
    length = max(map(len, rows))
    ids, mask = np.full((len(rows), length), pad), np.zeros((len(rows), length), np.int64)
    for row, given in enumerate(rows):
        place = slice(0, len(given)) if side == "right" else slice(length - len(given), length)
        ids[row, place], mask[row, place] = given, 1
    return ids, mask


NAMES = ("bad", "good", "plain")
WORDS = ("awful", "great", "usual")


def rows_of(count: int = 48):
    return [{"text": f"Shirt {n} is {WORDS[n % 3]}.", "label": NAMES[n % 3]} for n in range(count)]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
