"""A checkpoint as a model that packs it while loading has it. Without MindSpore."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from model_zoo.checkpoint.changed import ChangedCheckpoint
from model_zoo.checkpoint.dtypes import convert
from model_zoo.checkpoint.reading import assignment
from model_zoo.configs import Config
from model_zoo.errors import InputError
from model_zoo.quantization import codec
from model_zoo.quantization.files import quantize_stored
from model_zoo.quantization.plan import Quantization


class Dequantized(ChangedCheckpoint):
    """A checkpoint whose projections are what quantising them leaves of them; of a packed one, itself.

    Args:
        checkpoint: see `ChangedCheckpoint`.
        config: the model's.
        quantization: the form; None for a packed checkpoint.
    """

    def __init__(self, checkpoint, config: Config, quantization: Quantization | None):
        super().__init__(checkpoint)
        self.cells, self.quantization = config.cells(), quantization
        self.places = quantization.places(config) if quantization is not None else {}
        sources, _ = assignment(checkpoint, config.shapes(), config.family.tied, ignored=(".",))
        paths = {stored: name.removesuffix(".weight") for name, stored in sources.items()}
        self.paths = {stored: path for stored, path in paths.items() if path in self.places}
        self.taken: dict[str, Callable[[slice], np.ndarray]] = {}

    def changes(self, name: str) -> bool:
        return name in self.paths

    def info(self, name: str):
        info = super().info(name)
        return info._replace(dtype="float32") if self.changes(name) else info

    def take_off(self, name: str | None, rows: Callable[[slice], np.ndarray]) -> None:
        """Of a projection quantises what is left without this, given in float64 by rows ``(out, in)``, and adds it.

        Raises:
            InputError: something else is taken off it already.
        """
        if name in self.paths and self.taken.setdefault(name, rows) is not rows:
            raise InputError(f"{name}: two adapters took their first factors off it; merge them one by one")

    def raw(self, name: str, dtype: str | None = None) -> np.ndarray:
        path = self.paths.get(name)
        if path is None:
            return super().raw(name, dtype)
        shape, transposed = self.places[path], self.cells[path].transposed
        storage, taken = self.quantization.storage, self.taken.get(name)
        matrix = codec.dequantize(
            storage, quantize_stored(self.checkpoint, name, storage, shape, transposed, taken=taken), shape
        )
        matrix = matrix if taken is None else codec.with_taken(matrix, taken(slice(None)))
        return convert(np.ascontiguousarray(matrix.T) if transposed else matrix, "float32", dtype or "float32")
