"""A checkpoint as a model that packs it while loading has it. Without MindSpore."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from model_zoo.checkpoint.made import MadeTensor, Slices
from model_zoo.checkpoint.reading import Checkpoint, assignment
from model_zoo.configs import CellSpec, Config
from model_zoo.errors import InputError
from model_zoo.quantization import codec
from model_zoo.quantization.files import quantize_stored
from model_zoo.quantization.plan import Quantization
from model_zoo.quantization.storage import Storage


class Requantized(MadeTensor):
    """A projection of a checkpoint as quantising it leaves it, in float32.

    Attributes:
        taken: gives rows ``(out, in)`` of what is taken off before and added behind, in float64; None for nothing.
    """

    def __init__(self, checkpoint: Checkpoint, name: str, storage: Storage, cell: CellSpec):
        super().__init__(checkpoint.info(name)._replace(dtype="float32"))
        self.checkpoint, self.name, self.storage, self.cell = checkpoint, name, storage, cell
        self.taken: Callable[[slice], np.ndarray] | None = None

    def take_off(self, rows: Callable[[slice], np.ndarray]) -> None:
        """Sets what is taken off. Raises InputError: something else is taken off already."""
        if self.taken is not None:
            raise InputError(f"{self.name}: two adapters took their first factors off it; merge them one by one")
        self.taken = rows

    def make(self, slices: Slices) -> np.ndarray:
        transposed, taken = self.cell.transposed, self.taken
        shape = self.cell.weight[:: -1 if transposed else 1]
        parts = quantize_stored(self.checkpoint, self.name, self.storage, shape, transposed, taken=taken)
        matrix = codec.dequantize(self.storage, parts, shape)
        matrix = matrix if taken is None else codec.with_taken(matrix, taken(slice(None)))
        return (matrix.T if transposed else matrix)[slices or ...]


def dequantized(checkpoint: Checkpoint, config: Config, quantization: Quantization | None) -> Checkpoint:
    """A checkpoint whose projections are `Requantized`; of a packed one (None), itself."""
    cells = config.cells()
    sources, _ = assignment(checkpoint, config.shapes(), config.family.tied, ignored=(".",))
    places = {sources[f"{path}.weight"]: path for path in (quantization.places(config) if quantization else ())}
    return checkpoint.with_tensors(
        {name: Requantized(checkpoint, name, quantization.storage, cells[path]) for name, path in places.items()}
    )
