"""Where an adapter may sit, and how it is attached: by swapping the class of the cell in place.

The cell object stays where it is, with its parameters, their names, and whoever refers to it. Its class becomes a
sub-class whose forward runs the original first and then lets the active modules change the result:

    Linear                      AdaptedLinear(Linear)
      weight, bias      →         weight, bias             the same Parameter objects
                                  adapter_default          an AdapterModule

Taking the last adapter off swaps the class back, and the plain cell is there again.
"""

from __future__ import annotations

import functools
from types import FunctionType

import numpy as np
from mindspore import nn, ops

from adapters.cell_forms import OURS, Form, changing_arguments, form_of, refuse_changing, uncalled
from adapters.cells import Site, layer_index, plain_cells, weight_attribute, weight_of
from adapters.method import AdapterModule
from model_zoo.checkpoint.dtypes import as_storage, convert
from model_zoo.checkpoint.parameters import read_parameter
from model_zoo.errors import InputError, warn_once
from model_zoo.layers import AttentionCore
from model_zoo.quantization.cells import QuantizedLinear


def site_of(path: str, cell: nn.Cell, layer: int | None, form: Form) -> Site:
    """The site that a cell of this form is."""
    kind = form.kind
    if kind == "attention":
        return Site(path, cell, kind, cell.kv_heads, cell.head_dim, layer=layer)
    shape = cell.shape if isinstance(cell, QuantizedLinear) else weight_of(cell).shape
    if kind == "embedding":
        return Site(path, cell, kind, shape[0], shape[1], layer=layer)
    into, out = (shape[0], shape[1]) if form.transposed else (shape[1], shape[0])
    return Site(path, cell, kind, into, out, form.transposed, layer, form.misfit)


def live_sites(model: nn.Cell) -> list[Site]:
    """`adapters.matching.sites` of a model that is there."""
    family = getattr(model, "family", None)
    layers = getattr(family, "layers", None)
    found = []
    if family is None:
        tell_unseen(model)
    misfits = {id(child): Form("none", misfit=why) for child, why in uncalled(model)}
    for path, cell in plain_cells(model):
        misfits.update((id(child), Form("none", misfit=why)) for child, why in uncalled(cell))
        form = form_of(cell, tried=family is None)
        if form is not None:
            found.append(site_of(path, cell, layer_index(path, layers), misfits.get(id(cell), form)))
    if hasattr(model, "hidden_states"):
        found.append(Site("", model, "model", 0, 0))
    return found


def tell_unseen(model: nn.Cell) -> None:
    """Warns of cells in plain lists, tuples and dictionaries: MindSpore has neither them nor their parameters."""
    every = list(model.cells_and_names())
    seen = {id(cell) for _, cell in every}
    for path, cell in every:
        for name, held in vars(cell).items():
            within = held.values() if isinstance(held, dict) else held if isinstance(held, (list, tuple)) else ()
            if any(isinstance(one, nn.Cell) and id(one) not in seen for one in within):
                kind, where = type(held).__name__, f"{path}.{name}".lstrip(".")
                warn_once(
                    f"{where}: MindSpore does not see cells in a {kind}: they are neither adapted nor saved; "
                    "use nn.CellList or nn.CellDict"
                )


# Wrapping ------------------------------------------------------------------------------------------------------------


@functools.cache
def adapted_class(cls: type, weight: str, has_bias: bool) -> type:
    """The sub-class of a cell's class that lets adapter modules change its forward: of cells which call their weight
    so, and have a ``bias``, which may be None."""
    if issubclass(cls, AttentionCore):
        made = _adapted_core(cls)
    elif hasattr(cls, "hidden_states"):
        made = _adapted_model(cls)
    else:
        made = _adapted_cell(cls, weight, has_bias)
    made.__name__ = made.__qualname__ = f"Adapted{cls.__name__}"
    made.plain = cls
    return made


def select_rows(rows, changed, unchanged, flat=True):
    """`changed` where the row's flag is set, else `unchanged`; without flags `changed`. The leading axis is the batch
    or batch × length; only where it may be `flat` also of more axes."""
    if rows is None:
        return changed
    batch = rows.shape[0]
    if not flat and changed.shape[0] != batch and (changed.ndim > 2 or changed.shape[0] % batch):  # length × batch, say
        raise ValueError(
            f"adapter_names: an adapted cell got {changed.shape[0]} rows for a batch of {batch}; the batch was "
            "expected as their first axis"
        )
    wide = (batch, changed.size // batch)
    flags = ops.broadcast_to(rows.reshape(batch, 1) != 0, wide)
    return ops.select(flags, changed.reshape(wide), unchanged.reshape(wide)).reshape(changed.shape)


def traced_input(tracer, cell, x):
    """What the product of a traced cell gets: x, behind the adapters that change it."""
    if any(module.rows is not None for module in cell.active):
        tracer.refuse(type(cell))
    for module in cell.active:
        if module.changes_input:
            x = tracer.follow(type(module), module, x, method="before")
    return x


def _adapted_cell(cls: type, weight_name: str, has_bias: bool) -> type:
    base, own_methods = below_super(cls)
    flat = issubclass(cls, OURS)

    class Adapted(base):
        activates = False

        def construct(self, x, *others, **named):
            if others or named:
                refuse_changing(self, others, named)
            inner = x
            for module in self.active:
                if module.changes_input:
                    inner = select_rows(module.rows, module.before(inner), inner, flat)
            base = self.bare_construct(inner, *others, **named)
            y = base
            for module in self.active:
                if module.needs_base:
                    changed = module.on_base(x, y, base, self.base_weight(), self.base_bias())
                else:
                    changed = module(x, y)
                y = select_rows(module.rows, changed, y, flat)
            return self.activation(y) if self.activates else y

        def trace(self, tracer, x):
            if self.activates:
                tracer.refuse(type(self))
            y = base = tracer.follow(cls, self, traced_input(tracer, self, x))
            for module in self.active:
                if module.needs_base:
                    if y is not base:
                        tracer.refuse(type(module))
                    packed = issubclass(cls, QuantizedLinear)
                    weight = self.traced_matrix(tracer, module) if packed else self.base_weight()
                    y = tracer.call(module, x, y, weight, self.base_bias())
                else:
                    y = module(x, y)
            return y

    def weight(self):
        return self.weight

    def embedding_table(self):
        return self.embedding_table

    def embedding_weight(self):
        return self.embedding_weight

    def unpacked(self):
        return self.matrix()

    def bias(self):
        return self.bias

    def none(self):
        return None

    for name, method in own_methods.items():
        if name not in vars(Adapted):
            setattr(Adapted, name, method)
    # not super(): the graph parser takes that as of the object's class, which may be derived from this one (NEFTune's)
    Adapted.bare_construct = uncompiled(cls.construct)
    weights = {"weight": weight, "embedding_table": embedding_table, "embedding_weight": embedding_weight}
    Adapted.base_weight = unpacked if issubclass(cls, QuantizedLinear) else weights[weight_name]
    Adapted.base_bias = bias if has_bias else none
    return Adapted


def uncompiled(method: FunctionType) -> FunctionType:
    """A method without the ``mindspore.jit`` on it, which compiles whatever its object calls so: of an adapted cell the
    forward with the adapters, which would act twice."""
    return method.__wrapped__ if hasattr(method, "__wrapped_by_jit__") else method


def below_super(cls: type) -> tuple[type, dict[str, FunctionType]]:
    """A base for a class derived from a cell's class whose methods may use ``super()``, and what to take over from it.

    The graph parser reads a bare ``super()`` as of the object's own class. So what the derived class finds there has to
    be what the cell's class would find: between the two stands a class with the methods of its bases, and its own
    methods are the derived class's.
    """
    own = {key: value for key, value in vars(cls).items() if isinstance(value, FunctionType) and key[:2] != "__"}
    if not any("__class__" in uncompiled(method).__code__.co_freevars for method in own.values()):
        return cls, {}
    above = {key: getattr(super(cls, cls), key) for key in own if hasattr(super(cls, cls), key)}
    return type(cls.__name__, (cls,), above), own


def _adapted_core(cls: type) -> type:
    class Adapted(cls):
        def extend(self, keys, values):
            real = keys.shape[2]
            seen = None
            for module in self.active:
                before = keys.shape[2]
                keys, values = module.extend(keys, values)
                seen = module.seen(seen, before - real, keys.shape[2] - before, keys.shape[0])
            return keys, values, seen

        def trace(self, tracer, query, keys, values, start, end, keep):
            (first, *others) = self.active
            if others or first.rows is not None or cls.trace is not AttentionCore.trace:
                tracer.refuse(type(self))
            return first(query, keys, values, self.numbers)

    return Adapted


def _adapted_model(cls: type) -> type:
    class Adapted(cls):
        def hidden_states(self, input_ids, position_ids, start, end, keep=None):
            ids = input_ids
            if self.decoding:  # the prompt's columns are in the cache already
                return super().hidden_states(input_ids, position_ids, start, end, keep)
            for module in self.active:
                ids, position_ids, start, end, keep = module.widen(ids, position_ids, start, end, keep)
            hidden = super().hidden_states(ids, position_ids, start, end, keep)
            for module in self.active:
                hidden = module.narrow(hidden, input_ids)
            return hidden

    return Adapted


def check_vacant(site: Site, name: str) -> None:
    """Raises InputError where a cell has something of its own under the name that an adapter's module would get."""
    if hasattr(site.cell, f"adapter_{name}"):
        raise InputError(f"{site.path} has an adapter_{name} of its own; choose another name than {name!r}")


def attach(cell: nn.Cell, name: str, module: AdapterModule) -> None:
    """Puts a module on a cell under an adapter's name; it takes part once `activate` names it."""
    if not hasattr(type(cell), "plain"):
        made = adapted_class(type(cell), weight_attribute(cell), hasattr(cell, "bias"))
        object.__setattr__(cell, "__class__", made)
        object.__setattr__(cell, "active", ())
        object.__setattr__(cell, "changing", changing_arguments(cell))
        if getattr(cell, "activation_flag", False):  # it comes behind the adapters
            object.__setattr__(cell, "activation_flag", False)
            object.__setattr__(cell, "activates", True)
    cell.insert_child_to_cell(f"adapter_{name}", module)
    module.set_train(cell.training)


def detach(cell: nn.Cell, name: str) -> None:
    """Takes a module off; a cell with none left is its plain class again."""
    module = module_at(cell, name)
    object.__setattr__(cell, "active", tuple(other for other in cell.active if other is not module))
    del cell._cells[f"adapter_{name}"]
    if not any(isinstance(child, AdapterModule) for child in cell._cells.values()):
        del cell.__dict__["active"], cell.__dict__["changing"]
        if cell.__dict__.pop("activates", False):
            object.__setattr__(cell, "activation_flag", True)
        object.__setattr__(cell, "__class__", type(cell).plain)


def module_at(cell: nn.Cell, name: str) -> AdapterModule | None:
    """The module of the named adapter on a cell, or None."""
    return cell._cells.get(f"adapter_{name}")


def activate(cell: nn.Cell, names) -> None:
    """Lets just these adapters take part, in this order but for those that come last."""
    modules = [module for name in names if (module := module_at(cell, name)) is not None]
    object.__setattr__(cell, "active", tuple(sorted(modules, key=lambda module: module.comes_last)))


def weight_array(site: Site, rows: slice = slice(None)) -> np.ndarray:
    """The base weight in float64, as it is stored, or some rows of it; a packed one unpacked, ``(out, in)``."""
    if isinstance(site.cell, QuantizedLinear):
        return site.cell.dequantized(rows).astype(np.float64)
    bits, word = as_storage(read_parameter(weight_of(site.cell)))
    return convert(bits[rows], word, "float64")
