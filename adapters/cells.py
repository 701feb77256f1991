"""What matching reads of a model's cells, be they live ones or shapes alone; without MindSpore.

A model of shapes (`pet.meta_model`) has ``cells_and_names`` as an ``nn.Cell`` has, and ``adapter_sites``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from model_zoo.quantization.storage import is_quantized

WEIGHTS = ("weight", "embedding_table", "embedding_weight")
"""What cells call it: nearly all, MindSpore's embedding, MindFormers' embedding."""


@dataclasses.dataclass(frozen=True)
class Site:
    """A cell that an adapter may be attached to.

    Attributes:
        path: its dotted name in the model.
        kind: ``linear``, ``embedding``, ``conv``, ``attention`` (an attention core), ``model`` (the whole) or ``none``.
        in_features, out_features: widths of a linear cell; vocabulary and width of an embedding; channels of a
            convolution; key/value heads and head width of an attention core.
        transposed: whether the weight is stored ``(in, out)``.
        layer: index of the decoder layer that it stands in, or None.
        misfit: of kind ``none``, why no adapter fits.
    """

    path: str
    cell: Any
    kind: str
    in_features: int
    out_features: int
    transposed: bool = False
    layer: int | None = None
    misfit: str = ""

    @property
    def output_scale(self) -> float:
        """What an embedding's rows are multiplied by behind the weight."""
        return getattr(self.cell, "output_scale", 1.0)

    @property
    def padding_row(self) -> int:
        """The id whose row of an embedding no lookup trains, or -1."""
        return getattr(self.cell, "padding_row", -1)

    @property
    def published_transposed(self) -> bool:
        """Whether checkpoints have the weight as ``(in, out)``, which a packed one no longer is."""
        return self.transposed or getattr(self.cell, "published_transposed", False)

    @property
    def shape(self) -> tuple[int, ...]:
        """The weight's shape as it is stored, of a packed one ``(out, in)``; for an attention core (key heads, head
        width)."""
        if is_quantized(self.cell):
            return self.cell.shape
        weight = weight_of(self.cell)
        return tuple(weight.shape) if weight is not None else (self.in_features, self.out_features)


def weight_of(cell):
    """The weight Parameter of a linear, convolution or embedding cell; None when it has none."""
    return getattr(cell, weight_attribute(cell), None)


def weight_attribute(cell) -> str:
    """What a cell calls its weight."""
    return next((name for name in WEIGHTS if getattr(cell, name, None) is not None), WEIGHTS[0])


def own_parameters(cell) -> dict[str, Any]:
    """The parameters that a cell holds itself, by attribute."""
    return {name: value for name, value in cell._params.items() if value is not None}


def is_bias(attribute: str) -> bool:
    """Whether a cell adds the parameter of this name: ``beta`` in MindSpore's norms, ``bias_ih_l0`` in its LSTM,
    ``in_proj_bias`` in its attention."""
    words = attribute.split("_")
    return attribute == "beta" or "bias" in (words[0], words[-1])


def plain_cells(model) -> Iterator[tuple[str, Any]]:
    """The model's own cells with their paths, without those that adapters added."""
    added = None
    for path, cell in model.cells_and_names():  # a cell comes right before what it holds
        if added is not None and path.startswith(added):
            continue
        if getattr(type(cell), "added", False):
            added = path + "."
        elif path:
            yield path, cell


def layer_index(path: str, layers: str | None) -> int | None:
    """The decoder layer in a path: the number behind the family's layer list, or the first number there is."""
    if layers is not None:
        path = path[len(layers) + 1 :] if path.startswith(layers + ".") else ""
    for part in path.split("."):
        if part.isdigit():
            return int(part)
    return None
