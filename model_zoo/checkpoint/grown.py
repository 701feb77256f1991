"""A checkpoint with a larger vocabulary than its files have. Without MindSpore."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from model_zoo.checkpoint.dtypes import convert
from model_zoo.checkpoint.made import MadeTensor, Slices
from model_zoo.checkpoint.reading import Checkpoint, assignment
from model_zoo.configs import Config


class _GrownTensor(MadeTensor):
    """A stored tensor with further rows, in float64, which are rounded once."""

    def __init__(self, checkpoint: Checkpoint, name: str, rows: np.ndarray):
        info = checkpoint.info(name)
        super().__init__(info._replace(shape=(info.shape[0] + len(rows), *info.shape[1:])))
        self.checkpoint, self.rows = checkpoint, rows

    def read(self, name: str, slices: Slices | None = None, dtype: str | None = None) -> np.ndarray:
        kept = dtype or self.checkpoint.dtype(name)
        whole = np.concatenate([self.checkpoint.raw(name, kept), convert(self.rows, "float64", kept)])
        return whole[slices or ...]


def grown(checkpoint: Checkpoint, config: Config, rows: Mapping[str, np.ndarray]) -> Checkpoint:
    """A checkpoint whose embedding and head have further rows.

    Args:
        rows: {weight's name: its further rows ``(n, width)``, in float64}.
    """
    sources, _ = assignment(checkpoint, config.shapes(), config.family.tied, ignored=(".",))
    places = {sources[name]: array for name, array in rows.items() if name in sources}
    return checkpoint.with_tensors({name: _GrownTensor(checkpoint, name, array) for name, array in places.items()})


def vocabulary_of(config: Config) -> tuple[str, str]:
    """The names of the weights that have a row for each token: embedding and head."""
    return f"{config.family.embedding}.weight", f"{config.family.head}.weight"


def with_vocabulary(values: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """A config.json's dictionary with another size of the vocabulary, where that stands."""
    values = copy.deepcopy(dict(values))
    section = values.get("text_config", values)
    section["padded_vocab_size" if "padded_vocab_size" in section else "vocab_size"] = rows
    return values
