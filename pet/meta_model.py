"""A model of shapes alone: what a plan for an adapter needs of a model, without a single weight.

`MetaModel` stands in for a `CausalLM` where adapters are matched and counted: the same matching and the same counts as
on the real model, for 65 billion parameters in milliseconds. Without MindSpore.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import prod
from types import SimpleNamespace
from typing import Any

from adapters.cells import Site, layer_index
from model_zoo.configs import CellSpec, Config, linear
from model_zoo.counting import config_of


class MetaModel:
    """The sites, family and configuration of a model.

    Args:
        config: config.json's dictionary, or what was read of it.

    Raises:
        InputError: an unknown model type, or a value that the family does not support.
    """

    def __init__(self, config: Mapping[str, Any] | Config):
        self.config = config if isinstance(config, Config) else config_of(config)
        self.values = dict(self.config.flat(config.to_dict() if isinstance(config, Config) else config))
        self.family = self.config.family
        self.shapes = self.config.shapes()
        self.specs = self.config.cells()
        self.cells = {path: self._cell(spec) for path, spec in self.specs.items()}
        head = self.config.tied_head()
        if head is not None:
            path, embedding = (name.rpartition(".")[0] for name in head)
            self.specs[path] = linear(*self.specs[embedding].weight)
            held = self.cells[embedding]._params  # one tensor of two cells
            self.cells[path] = SimpleNamespace(**{"bias": None, **held}, _params=held)

    @staticmethod
    def _cell(spec: CellSpec) -> SimpleNamespace:
        """A cell's parameters."""
        held = {key: SimpleNamespace(shape=shape, size=prod(shape)) for key, shape in spec.shapes.items()}
        return SimpleNamespace(**{"weight": None, "bias": None, **held}, _params=held)

    def cells_and_names(self) -> list[tuple[str, SimpleNamespace]]:
        """As `nn.Cell` gives them: those with weights, and what holds them."""
        return self._named

    def adapter_sites(self) -> list[Site]:
        """What `adapters.matching.sites` finds in the real model."""
        return self._sites

    @cached_property
    def _named(self) -> list[tuple[str, SimpleNamespace]]:
        found: dict[str, SimpleNamespace] = {}
        for path, cell in self.cells.items():
            parts = path.split(".")
            for count in range(1, len(parts)):
                found.setdefault(".".join(parts[:count]), SimpleNamespace(_params={}))
            found[path] = cell
        return list(found.items())

    @cached_property
    def _sites(self) -> list[Site]:
        found = []
        for path, spec in self.specs.items():
            if len(spec.weight) != 2:
                continue
            layer = layer_index(path, self.family.layers)
            if spec.kind == "embedding":
                found.append(Site(path, self.cells[path], spec.kind, *spec.weight, layer=layer))
            else:
                widths = spec.weight if spec.transposed else spec.weight[::-1]
                found.append(Site(path, self.cells[path], "linear", *widths, spec.transposed, layer))
        size = self.config.dims
        for index in range(size.layers):
            path = f"{self.family.layers}.{index}.{self.family.attention_core}"
            cell = SimpleNamespace(heads=size.heads, kv_heads=size.kv_heads, head_dim=size.head_dim)
            found.append(Site(path, cell, "attention", size.kv_heads, size.head_dim, layer=index))
        return [*found, Site("", self, "model", 0, 0)]
