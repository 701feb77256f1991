"""MindSpore's compiled graphs hold the adapters that took part when they were compiled.

One of a cell around a model (a training step, an evaluation) or of a function that calls it (``mindspore.jit``) would
go on with adapters that are off by now, or count merged ones twice. MindSpore finds such a graph by its name in the
cell's list of names, or in its own. So the names of what was compiled in one state of the adapters are taken off the
lists in another, and put back where that state is there again and nothing was compiled under them since. MindSpore
frees a cell's graphs by that list when the cell goes, so those of states that cannot come again are freed here.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Collection, Hashable

from mindspore import nn
from mindspore._c_expression import JitExecutor_
from mindspore.common._register_for_recompute import recompute_registry

from model_zoo.graph import api

OURS = "model_zoo."
"""In the names of graphs of functions of ours, which are kept apart by what they belong to."""

_states: weakref.WeakKeyDictionary[nn.Cell, Hashable] = weakref.WeakKeyDictionary()
_compiled_in: dict[tuple[int, str], Hashable] = {}


def state_changed(model: nn.Cell, state: Hashable, gone: Collection[Hashable] = ()) -> None:
    """Lets no graph run that was compiled with other adapters on this model.

    Args:
        state: what no other state of this model's adapters, and none of another model's, is.
        gone: states that will not come again.
    """
    before = everything()
    _states[model] = state
    after = everything()
    if before == after and not gone:
        return
    lists = {0: api.ms_compile_cache, **api.cells_compile_cache}  # the names of compiled functions, those of each cell
    for place, names in lists.items() if before != after else ():
        foreign = {name for name in names if OURS not in name}
        _compiled_in.update(((place, name), before) for name in foreign)
        names -= foreign
    for (place, name), compiled_in in list(_compiled_in.items()):
        names = lists.get(place)
        if names is None or not compiled_in.isdisjoint(gone):
            del _compiled_in[place, name]
            if not names or name not in names:  # else it has been compiled anew since
                executor = api._cell_graph_executor if place else JitExecutor_.get_instance()
                executor.del_net_res(None, {name})
        elif before != after and compiled_in == after:
            names.add(name)


def everything() -> Hashable:
    """The states of all models."""
    return frozenset(_states.values())


def recompute_what_is_there(model: nn.Cell) -> None:
    """Lets cells on which ``recompute()`` was called run what they are now, and train what is lent to them. Outside of
    compiled graphs MindSpore goes on with the forward, and the trained parameters, that they had at that call."""
    for _, cell in list(model.cells_and_names()):
        kept, settings = getattr(cell, "_recompute_cell", None), {}
        if inspect.isfunction(kept):
            settings = {**inspect.getclosurevars(kept).nonlocals, "use_reentrant": False}
            del settings["block"]
        elif not isinstance(kept, nn.Cell):
            continue
        cell._cells.pop("_recompute_cell", None)
        object.__setattr__(cell, "_recompute_cell", functools.partial(recomputed, cell, settings))


def recomputed(cell: nn.Cell, settings: dict, *arguments, **named):
    """A cell's output, of which nothing is kept for the backward pass."""
    made = recompute_registry.get()(cell.construct, **settings)
    if isinstance(made, nn.Cell):  # which gives gradients to the cell's own parameters alone
        lent = (part for _, one in cell.cells_and_names() for part in getattr(one, "lent", ()))
        made.internal_params = [*made.internal_params, *(weight for part in lent for weight in part.trainable_params())]
    return made(*arguments, **named)
