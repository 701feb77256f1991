"""A checkpoint with a larger vocabulary than its files have. Without MindSpore."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from model_zoo.checkpoint.changed import ChangedCheckpoint
from model_zoo.checkpoint.dtypes import convert
from model_zoo.checkpoint.reading import assignment
from model_zoo.configs import Config


class Grown(ChangedCheckpoint):
    """A checkpoint whose embedding and head have further rows.

    Args:
        checkpoint: see `ChangedCheckpoint`.
        config: of its model.
        rows: {weight's name: its further rows ``(n, width)``, in float64}.
    """

    def __init__(self, checkpoint, config: Config, rows: Mapping[str, np.ndarray]):
        super().__init__(checkpoint)
        sources, _ = assignment(checkpoint, config.shapes(), config.family.tied, ignored=(".",))
        self.rows = {sources[name]: array for name, array in rows.items() if name in sources}

    def changes(self, name: str) -> bool:
        return name in self.rows

    def info(self, name: str):
        info = super().info(name)
        count = len(self.rows[name]) if self.changes(name) else 0
        return info._replace(shape=(info.shape[0] + count, *info.shape[1:])) if count else info

    def raw(self, name: str, dtype: str | None = None) -> np.ndarray:
        array = super().raw(name, dtype)
        if not self.changes(name):
            return array
        return np.concatenate([array, convert(self.rows[name], "float64", dtype or self.checkpoint.dtype(name))])


def vocabulary_of(config: Config) -> tuple[str, str]:
    """The names of the weights that have a row for each token: embedding and head."""
    return f"{config.family.embedding}.weight", f"{config.family.head}.weight"


def with_vocabulary(values: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """A config.json's dictionary with another size of the vocabulary, where that stands."""
    values = copy.deepcopy(dict(values))
    section = values.get("text_config", values)
    section["padded_vocab_size" if "padded_vocab_size" in section else "vocab_size"] = rows
    return values
