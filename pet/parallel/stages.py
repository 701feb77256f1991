"""Cutting a model into pipeline stages: which layers go where, and what stands in for the absent ones.

A stage is the whole model with most of its cells replaced by ones that do nothing. Paths, layer numbers and parameter
names stay what they are, so that loading, adapters and files work as on the whole model::

    stage 0   embedding   layer 0   layer 1   ·         ·         ·      ·
    stage 1   ·           ·         ·         layer 2   layer 3   norm   head        · passes its input on

A later stage is given the activations ``(B·S, H)`` in place of the token ids, and its embedding passes them through.
"""

from __future__ import annotations

from mindspore import nn, ops

from adapters.registry import registry
from model_zoo.errors import InputError
from model_zoo.layers import Embedding, LayerNorm, RMSNorm
from pet.parallel.checks import check_stages
from pet.parallel.mesh import Mesh
from pet.parallel.split import mark

TIED = "tied"
"""Held by the first and the last stage, each of which computes one term of the gradient."""


class PassThrough(nn.Cell):
    """Stands in for an absent cell: gives its first input on."""

    def construct(self, x, *rest):
        return x


class Nothing(nn.Cell):
    """Stands in for an absent position embedding: adds zero."""

    def construct(self, positions):
        return ops.zeros((1,))


def balance(costs: list[int], first: int, last: int, stages: int) -> list[range]:
    """Consecutive layers for each stage, so that the largest stage is as small as can be.

    Args:
        costs: of each layer, in parameters.
        first, last: what the first and the last stage hold besides: the embedding; the final norm and the head.
        stages: how many; each gets a layer at least.

    Raises:
        InputError: more stages than layers.
    """
    count = len(costs)
    check_stages(count, stages)

    def cost(begin: int, end: int, stage: int) -> int:
        return sum(costs[begin:end]) + (first if stage == 0 else 0) + (last if stage == stages - 1 else 0)

    # best[end]: the smallest possible largest stage when the stages so far hold the layers before `end`
    best = {end: (cost(0, end, 0), (end,)) for end in range(1, count + 1)}
    for stage in range(1, stages):
        best = {
            end: min(
                (max(best[begin][0], cost(begin, end, stage)), (*best[begin][1], end))
                for begin in range(stage, end)
                if begin in best
            )
            for end in range(stage + 1, count + 1)
        }
    ends = best[count][1]
    return [range(begin, end) for begin, end in zip((0, *ends), ends, strict=False)]


def stage_layers(model: nn.Cell, stages: int) -> list[range]:
    """The layers of each stage, by parameter count; embedding, final norm and head are counted."""
    layers = cell_at(model, model.family.layers)
    costs = [_size(layer.get_parameters()) for layer in layers]
    embeddings, others = 0, 0
    for _, cell in outer_cells(model):
        own = _size(cell.get_parameters(expand=False))
        if isinstance(cell, Embedding):
            embeddings += own
        else:
            others += own
    return balance(costs, embeddings, others, stages)


def cut_stage(model: nn.Cell, mesh: Mesh) -> list[range]:
    """Leaves in a model the cells of this process's stage. Returns the layers of all stages.

    Raises:
        InputError: more stages than layers, or an adapter that acts on the whole model.
    """
    if mesh.pipeline == 1:
        return [range(len(cell_at(model, model.family.layers)))]
    family = model.family
    parts = stage_layers(model, mesh.pipeline)
    if any("" in adapter.modules for adapter in registry(model).adapters.values()):
        raise InputError("parallel.pipeline: an adapter on the whole model (prompt tuning) cannot be cut into stages")
    for adapter in registry(model).adapters.values():
        if getattr(adapter.config, "projection", False):
            raise InputError(
                f"parallel.pipeline: adapter {adapter.name!r} has a projection that all layers share, which cannot be "
                "cut into stages; set adapter.projection to false"
            )
    embedding, head = cell_at(model, family.embedding), cell_at(model, family.head)
    if head.weight is embedding.weight and (mesh.is_first or mesh.is_last):
        mark(embedding.weight, TIED)
    layers = cell_at(model, family.layers)
    for index in range(len(layers)):
        if index not in parts[mesh.stage]:
            layers[index] = PassThrough()
    for path, cell in outer_cells(model):
        if isinstance(cell, Embedding):
            if not mesh.is_first:
                replace(model, path, PassThrough() if path == family.embedding else Nothing())
        elif (path == family.head or isinstance(cell, (LayerNorm, RMSNorm))) and not mesh.is_last:
            replace(model, path, PassThrough())
    model.__class__ = stage_class(type(model))
    return parts


def stage_class(cls: type) -> type:
    """A model's class, for a model that is one stage: it cannot answer by itself."""

    class Stage(cls):
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


def cell_at(model: nn.Cell, path: str) -> nn.Cell:
    """The cell at a dotted path."""
    for part in path.split("."):
        model = getattr(model, part)
    return model


def replace(model: nn.Cell, path: str, cell: nn.Cell) -> None:
    """Puts another cell at a path."""
    parent, _, name = path.rpartition(".")
    setattr(cell_at(model, parent) if parent else model, name, cell)


def _size(parameters) -> int:
    return sum(int(parameter.size) for parameter in parameters)
