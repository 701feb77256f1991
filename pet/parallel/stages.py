"""Cutting a model into pipeline stages: which layers go where, and what stands in for the absent ones.

A stage is the whole model with most of its cells replaced by ones that do nothing. Paths, layer numbers and parameter
names stay what they are, so that loading, adapters and files work as on the whole model::

    stage 0   embedding   layer 0   layer 1   ·         ·         ·      ·
    stage 1   ·           ·         ·         layer 2   layer 3   norm   head        · passes its input on

A later stage is given the activations ``(B·S, H)`` in place of the token ids, and its embedding passes them through.
"""

from __future__ import annotations

from operator import attrgetter

import numpy as np
from mindspore import Tensor, nn

from adapters.registry import registry
from adapters.tokens import TokenOutputs
from model_zoo.errors import InputError
from model_zoo.layers import weights_of
from pet.parallel.mesh import Mesh
from pet.parallel.specs import TIED, check_whole, place_of, stage_layers
from pet.parallel.split import mark


class PassThrough(nn.Cell):
    """Stands in for an absent cell: gives its first input on."""

    def construct(self, x, *rest):
        return x


class Nothing(nn.Cell):
    """Stands in for an absent position embedding: adds zero."""

    def __init__(self):
        super().__init__()
        self.zero = Tensor(np.zeros(1, np.float32))

    def construct(self, positions):
        return self.zero


def cut_stage(model: nn.Cell, mesh: Mesh) -> list[range]:
    """Leaves in a model the cells of this process's stage. Returns the layers of all stages.

    Raises:
        InputError: more stages than layers, or an adapter that acts on the whole model.
    """
    if mesh.pipeline == 1:
        return [range(len(model.layer_list))]
    family, layers = model.family, model.layer_list
    for adapter in registry(model).adapters.values():
        check_whole(adapter.config)
    sizes = [(f"{family.layers}.{i}", _size(layer)) for i, layer in enumerate(layers)]
    sizes += [(f"{path}.", _size(cell, expand=False)) for path, cell in outer_cells(model)]
    parts = stage_layers(model.config, sizes, mesh.pipeline)
    embedding, head = attrgetter(family.embedding, family.head)(model)
    if head is not None and head.weight is embedding.weight and (mesh.is_first or mesh.is_last):
        mark(embedding.weight, TIED)
        for module in (module for adapter in registry(model).adapters.values() for module in adapter.modules.values()):
            if isinstance(module, TokenOutputs) and module.owner[0] is not module:
                mark(module.owner[0].trained, TIED)
                module.insert_child_to_cell("shared", module.owner[0])  # the last stage has no embedding
    for index in range(len(layers)):
        if index not in parts[mesh.stage]:
            layers[index] = PassThrough()
    for path, _ in outer_cells(model):
        place = place_of(family, f"{path}.")
        if not (mesh.is_first if place == "first" else mesh.is_last):
            replace(model, path, Nothing() if path == family.positions else PassThrough())
    model.__class__ = stage_class(type(model))
    return parts


def stage_class(cls: type) -> type:
    """A model's class, for a model that is one stage: it cannot answer by itself."""

    class Stage(cls):
        incomplete = True  # as `adapters.adapter` asks

        def __call__(self, *arguments, **settings):
            raise InputError(
                "parallel.pipeline: this process has one stage of the model; logits need parallel.pipeline=1"
            )

        def generate(self, *arguments, **settings):
            raise InputError("parallel.pipeline: generation needs parallel.pipeline=1; parallel.tensor may be any")

    Stage.__name__ = Stage.__qualname__ = f"Stage{cls.__name__}"
    return Stage


def outer_cells(model: nn.Cell) -> list[tuple[str, nn.Cell]]:
    """The cells with parameters of their own that stand outside the layers: embeddings, final norm, head."""
    inside = model.family.layers + "."
    return [
        (path, cell)
        for path, cell in model.cells_and_names()
        if path and not path.startswith(inside) and ".adapter_" not in path and list(cell.get_parameters(expand=False))
    ]


def replace(model: nn.Cell, path: str, cell: nn.Cell) -> None:
    """Puts another cell at a path."""
    parent, _, name = path.rpartition(".")
    setattr(attrgetter(parent)(model) if parent else model, name, cell)


def _size(cell: nn.Cell, expand: bool = True) -> int:
    """Numbers in a cell's parameters, of a packed weight those that it stands for: as plans count them."""
    return sum(weights_of(one) for one in cell.get_parameters(expand))
