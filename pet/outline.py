"""A model of shapes alone: what a plan for an adapter needs of a model, without a single weight.

`Outline` stands in for a `CausalLM` where adapters are matched and counted: the same matching and the same counts as
on the real model, for 65 billion parameters in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import SimpleNamespace
from typing import Any

from adapters.sites import Site, layer_index
from model_zoo.auto import classes_for
from model_zoo.counting import parameter_shapes, sizes, stored_transposed, tied_head


class Outline:
    """The sites, family and configuration of a model.

    Args:
        config: config.json's dictionary.

    Raises:
        InputError: an unknown model type, or a value that the family does not support.
    """

    def __init__(self, config: Mapping[str, Any]):
        config_class, model_class = classes_for(dict(config))
        self.values = dict(config)
        self.config = config_class.from_dict(dict(config))
        self.family = model_class.family
        self.shapes = parameter_shapes(config)
        self.cells = self._cells()

    def _cells(self) -> dict[str, SimpleNamespace]:
        """{path: a cell's parameters} of every cell that holds some, a tied head included."""
        shapes = dict(self.shapes)
        head = tied_head(self.values)
        if head is not None:
            shapes[head[0]] = shapes[head[1]]
        cells: dict[str, SimpleNamespace] = {}
        for name, shape in shapes.items():
            path, _, attribute = name.rpartition(".")
            cell = cells.setdefault(path, SimpleNamespace(weight=None, bias=None, _params={}))
            cell._params[attribute] = SimpleNamespace(shape=shape, size=prod(shape))
            setattr(cell, attribute, cell._params[attribute])
        return cells

    def cells_and_names(self) -> list[tuple[str, SimpleNamespace]]:
        """As `nn.Cell` gives them."""
        return list(self.cells.items())

    def adapter_sites(self) -> list[Site]:
        """What `adapters.sites.sites` finds in the real model."""
        embeddings = {self.family.embedding, "transformer.wpe"}
        found = []
        for path, cell in self.cells.items():
            shape = cell.weight.shape
            if len(shape) != 2:
                continue
            layer = layer_index(path, self.family.layers)
            if path in embeddings:
                found.append(Site(path, cell, "embedding", *shape, layer=layer))
            else:
                transposed = stored_transposed(self.values, f"{path}.weight")
                into, out = shape if transposed else shape[::-1]
                found.append(Site(path, cell, "linear", into, out, transposed, layer))
        size = sizes(self.values)
        for index in range(size.layers):
            path = f"{self.family.layers}.{index}.{self.family.attention_core}"
            cell = SimpleNamespace(heads=size.heads, kv_heads=size.kv_heads, head_dim=size.head_dim)
            found.append(Site(path, cell, "attention", size.kv_heads, size.head_dim, layer=index))
        return [*found, Site("", self, "model", 0, 0)]
