"""Parameters that an adapter trains whole: its own copies stand in for the base's while it is active.

So are the biases of LoRA's ``bias`` modes and of BitFit, and PEFT's ``modules_to_save``. The base's Parameter objects
are set aside, never written to, and put back when the adapter is not active.
"""

from __future__ import annotations

import dataclasses

from mindspore import Parameter, ParameterTuple, Tensor, nn

from adapters.cells import plain_cells
from adapters.matching import wanted
from model_zoo.errors import InputError

STATISTICS = ("moving_mean", "moving_variance", "running_mean", "running_var")
"""What a batch norm of ``nn``, or of ``mint.nn``, notes in training: saved with the cell, but no optimizer's."""


@dataclasses.dataclass
class Replacement:
    """One parameter of one cell, and the adapter's copy of it.

    Attributes:
        saved_name: the tensor's name in an adapter file, without PEFT's prefix.
    """

    adapter: str
    cell: nn.Cell
    attribute: str
    base: Parameter
    own: Parameter
    saved_name: str


def own_copy(adapter: str, path: str, cell: nn.Cell, attribute: str, dtype) -> Replacement:
    """The adapter's copy of a cell's parameter, equal to the base's to begin with, in the type that is trained."""
    base = getattr(cell, attribute)
    own = Parameter(
        Tensor(base.asnumpy().copy(), base.dtype).astype(dtype or base.dtype),
        name=f"{path}.modules_to_save.{adapter}.{attribute}",
    )
    own.adapter = adapter
    own.buffer = attribute in STATISTICS
    own.requires_grad = not own.buffer
    return Replacement(adapter, cell, attribute, base, own, f"{path}.{attribute}")


def planned(model: nn.Cell, config, chosen, adapter: str) -> list[Replacement]:
    """The copies that a configuration asks for (`wanted`). Whole numbers (indices, counts) stay the base's."""
    known = getattr(model, "family", None) is not None  # another library's dtype may be a name, or of its inputs
    dtype = getattr(model, "dtype", None) if known else None
    found = [one for one in wanted(model, config, chosen) if getattr(one[1], one[2]).is_floating_point()]
    return [own_copy(adapter, path, cell, attribute, dtype) for path, cell, attribute in found]


def restore(items: list[Replacement]) -> None:
    """Puts the base's parameters in place."""
    for item in items:
        put(item.cell, item.attribute, item.base)


def stand_in(items: list[Replacement], names: tuple[str, ...]) -> None:
    """Puts the copies of the named adapters in place."""
    for item in items:
        if item.adapter in names:
            put(item.cell, item.attribute, item.own)


def put(cell: nn.Cell, attribute: str, parameter: Parameter) -> None:
    """Makes a parameter the cell's attribute, under the name that it has."""
    name, before = parameter.name, cell._params.get(attribute)
    if before is not parameter:
        cell._params[attribute] = parameter
        cell.__dict__.pop(attribute, None)
        for key, held in list(cell.__dict__.items()):  # an LSTM reads its weights there
            if isinstance(held, ParameterTuple) and any(one is before for one in held):
                object.__setattr__(cell, key, ParameterTuple([parameter if one is before else one for one in held]))
    parameter.name = name


def with_statistics(model: nn.Cell) -> list[nn.Cell]:
    """The batch norms that note statistics whenever they are in training."""
    cells = (cell for _, cell in plain_cells(model))
    return [cell for cell in cells if getattr(cell, "use_batch_statistics", True) is None]


def keep_statistics(cells: list[nn.Cell], items: list[Replacement], names: tuple[str, ...]) -> None:
    """Lets batch norms go by the base's statistics and leave them alone, in training too: they are the base's, and no
    adapter file holds them. Those that a named adapter trains whole note statistics of their own."""
    own = {id(item.cell) for item in items if item.adapter in names and item.attribute in STATISTICS}
    for cell in cells:
        cell.use_batch_statistics = None if id(cell) in own else False


def check_compatible(adapters) -> None:
    """Raises InputError when two adapters would replace the same parameter."""
    owner: dict[tuple[int, str], str] = {}
    for adapter in adapters:
        for item in adapter.replaced:
            key = (id(item.cell), item.attribute)
            if key in owner:
                raise InputError(
                    f"adapters {owner[key]!r} and {adapter.name!r} both replace {item.saved_name}; "
                    "only one of them can be active"
                )
            owner[key] = adapter.name
