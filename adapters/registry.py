"""The adapters on a model: which there are, which take part, and the state of the base beneath them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from adapters import replacement
from adapters.matching import chosen_sites
from adapters.method import AdapterModule, MethodConfig
from adapters.sites import Site, activate, attach, detach
from model_zoo.errors import InputError, nearest

BASE = "__base__"
"""Stands for no adapter where rows of a batch are given one each."""


@dataclasses.dataclass
class Adapter:
    """One named adapter: its configuration, its modules by cell path, and what it replaces whole.

    ``companions`` are paths among `sites` that no target named (`MethodConfig.companions`). ``source`` is what the
    files it was loaded from held beside the tensors, kept so that saving gives them back.
    """

    name: str
    config: MethodConfig
    sites: dict[str, Site]
    modules: dict[str, AdapterModule]
    replaced: list[replacement.Replacement]
    source: dict[str, Any] = dataclasses.field(default_factory=dict)
    companions: tuple[str, ...] = ()

    def tensors(self) -> dict[str, Parameter]:
        """Every parameter of the adapter by its name in a file, without PEFT's prefix."""
        found = {}
        for path, module in self.modules.items():
            for key, value in module.tensors().items():
                found[f"{path}.{key}" if path else key] = value
        for item in self.replaced:
            found[item.saved_name] = item.own
        return found

    def parameters(self) -> list[Parameter]:
        """What an optimizer trains."""
        own = [value for module in self.modules.values() for value in module.get_parameters() if is_trained(value)]
        own = list({id(value): value for value in own}.values())
        return own + [item.own for item in self.replaced]


def is_trained(parameter: Parameter) -> bool:
    """Whether a parameter of a module is a weight rather than a buffer."""
    return getattr(parameter, "adapter", None) is None or not getattr(parameter, "buffer", False)


class Registry:
    """All adapters of one model. Every change is checked first: an error leaves the model as it was."""

    def __init__(self, model: nn.Cell):
        self.model = model
        self.adapters: dict[str, Adapter] = {}
        self.active: tuple[str, ...] = ()
        self.merged: dict[Any, Any] = {}  # what `adapters.merge` needs to undo itself
        self.merged_names: tuple[str, ...] = ()
        self.merged_active: tuple[str, ...] = ()
        self.was_trainable: dict[str, bool] = {}
        self.row_flags: list[str] = []  # while a batch mixes adapters: one name per row
        # asked for by `model_zoo.checkpoint.reading.load_into`, which knows nothing of adapters
        object.__setattr__(model, "base_loading", self.base_loading)

    def get(self, name: str) -> Adapter:
        """The adapter of this name; InputError names those that there are."""
        if name not in self.adapters:
            raise InputError(f"there is no adapter {name!r}{nearest(name, self.adapters) or '; the model has none'}")
        return self.adapters[name]

    def check_new(self, name: str) -> None:
        """Raises InputError for a name that is taken or that no file or parameter could bear."""
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) or name == BASE:
            raise InputError(f"adapter name {name!r}: letters, digits, '_' and '-' were expected")
        if name in self.adapters:
            raise InputError(f"there is an adapter {name!r} already; choose another name or delete it first")

    def refuse_while_merged(self, what: str) -> None:
        """Raises InputError while any adapter is merged."""
        if self.merged_names:
            raise InputError(f"cannot {what} while {', '.join(self.merged_names)} is merged; unmerge first")

    def add(self, config: MethodConfig, name: str) -> Adapter:
        """Builds an adapter and attaches it, not yet active."""
        self.check_new(name)
        self.refuse_while_merged("add an adapter")
        config = config.resolved(self.model)
        chosen = chosen_sites(self.model, config)
        with self.disabled():  # what starts from the weights starts from the base's
            replaced = replacement.planned(self.model, config, chosen, name)
            modules = config.build_all(self.model, chosen)
            companions = config.companions(self.model, chosen)
            modules.update({companion.site.path: companion.build() for companion in companions})
        chosen = [site for site in chosen if site.path in modules] + [companion.site for companion in companions]
        adapter = Adapter(name, config, {site.path: site for site in chosen}, modules, replaced)
        adapter.companions = tuple(companion.site.path for companion in companions)
        if not self.adapters:
            for parameter in self.model.get_parameters():
                self.was_trainable[parameter.name] = parameter.requires_grad
                parameter.requires_grad = False
        for site in chosen:
            attach(site.cell, name, modules[site.path])
            name_module(modules[site.path], site.path, name)
        self.adapters[name] = adapter
        self.refresh()
        return adapter

    def set(self, names: str | Iterable[str]) -> None:
        """Lets just these adapters take part."""
        names = (names,) if isinstance(names, str) else tuple(names)
        for name in names:
            self.get(name)
        if len(set(names)) != len(names):
            raise InputError(f"set_adapter: {', '.join(names)} names an adapter twice")
        self.refuse_while_merged("change the active adapters")
        replacement.check_compatible([self.adapters[name] for name in names])
        alone = [name for name in names if not self.adapters[name].config.stackable]
        if len(alone) > 1:
            raise InputError(f"adapters {alone[0]!r} and {alone[1]!r} both put a prompt first; only one can be active")
        self.active = names
        self.refresh()

    def delete(self, name: str) -> None:
        """Takes an adapter off; with the last one gone the model is what it was."""
        adapter = self.get(name)
        if name in self.merged_names:
            raise InputError(f"adapter {name!r} is merged into the weights; unmerge before deleting it")
        self.active = tuple(other for other in self.active if other != name)
        self.refresh()
        for site in adapter.sites.values():
            detach(site.cell, name)
        del self.adapters[name]
        self.refresh()
        if not self.adapters:
            for parameter in self.model.get_parameters():
                parameter.requires_grad = self.was_trainable.get(parameter.name, parameter.requires_grad)

    def refresh(self, names: tuple[str, ...] | None = None) -> None:
        """Makes the cells follow `active` (or `names`, while something is disabled)."""
        names = self.active if names is None else names
        cells = {id(site.cell): site.cell for adapter in self.adapters.values() for site in adapter.sites.values()}
        for cell in cells.values():
            activate(cell, names)
        replacement.switch([item for adapter in self.adapters.values() for item in adapter.replaced], names)
        for target in self.merged.values():
            target.put_merged()
        for name, adapter in self.adapters.items():
            for parameter in adapter.parameters():
                parameter.requires_grad = name in names
        if hasattr(self.model, "position_offset"):
            self.refresh_columns(names)
        # Compiled graphs are kept by this. Names alone would not do: one may be deleted and added anew.
        adapters = tuple((name, id(self.adapters[name])) for name in names)
        rows = any(module.rows is not None for name in names for module in self.adapters[name].modules.values())
        self.model.adapter_state = (adapters, self.merged_names, rows and id(self.row_flags))

    def refresh_columns(self, names: tuple[str, ...]) -> None:
        """Tells the model how far its tokens are moved, and how many columns stand in front of them.

        While a batch mixes adapters both may differ from row to row: the offset is ``(B, 1)`` then, and
        ``virtual_keep`` ``(B, T)`` says which of the columns in front are a row's own.
        """
        configs = {name: self.adapters[name].config for name in names}
        self.model.position_offset = sum(config.position_offset for config in configs.values())
        self.model.virtual_tokens = sum(config.virtual_tokens for config in configs.values())
        self.model.virtual_keep = None
        if not any(module.rows is not None for name in names for module in self.adapters[name].modules.values()):
            return
        if self.model.position_offset:
            offsets = [[configs[row].position_offset if row in configs else 0] for row in self.row_flags]
            self.model.position_offset = Tensor(offsets, ms.int32)
        if self.model.virtual_tokens:
            blocks = [  # the last one widened stands in front
                np.array([[row == name] * config.virtual_tokens for row in self.row_flags], np.int32)
                for name, config in reversed(configs.items())
            ]
            self.model.virtual_keep = np.concatenate(blocks, 1)

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """The bare base within; afterwards the state before, merged or not, also after an error."""
        merged, names = self.merged_names, self.active
        if merged:
            from adapters.merge import unmerge

            unmerge(self.model)
        self.refresh(())
        try:
            yield
        finally:
            self.active = names
            self.refresh()
            if merged:
                from adapters.merge import merge

                merge(self.model, merged)

    def base_loading(self):
        """A context in which the base is bare, to load other weights into it (`adapters.restart`)."""
        from adapters.restart import base_loading

        return base_loading(self)

    @contextmanager
    def rows(self, names: list[str]) -> Iterator[None]:
        """Row i of every batch within goes through adapter ``names[i]``, or through the base for ``"__base__"``."""
        self.refuse_while_merged("mix adapters in a batch")
        used = tuple(dict.fromkeys(name for name in names if name != BASE))
        for name in used:
            if self.get(name).replaced:
                raise InputError(f"adapter {name!r} replaces whole weights and cannot be mixed with others in a batch")
        before = self.active
        self.row_flags = list(names)
        for name in used:
            flags = Tensor([int(row == name) for row in names])
            for module in self.adapters[name].modules.values():
                module.rows = flags
        self.active = used
        try:
            self.refresh()
            yield
        finally:
            for name in used:
                for module in self.adapters[name].modules.values():
                    module.rows = None
            self.active = before
            self.refresh()


def registry(model: nn.Cell) -> Registry:
    """The registry of a model, made when it is first asked for."""
    found = model.__dict__.get("_adapter_registry")
    if found is None:
        found = Registry(model)
        object.__setattr__(model, "_adapter_registry", found)
    return found


def name_module(module: AdapterModule, path: str, adapter: str) -> None:
    """Names a module's parameters after the cell: ``q_proj.lora_A.weight``, and with the adapter's name in it
    (``q_proj.lora_A.second.weight``) for any adapter but ``default``."""
    keys = {id(value): key for key, value in module.tensors().items()}
    for structural, parameter in module.parameters_and_names():
        key = keys.get(id(parameter), structural)
        parameter.buffer = id(parameter) not in keys
        if adapter != "default":
            first, _, rest = key.partition(".")
            key = f"{first}.{adapter}.{rest}" if rest else f"{first}.{adapter}"
        parameter.name = f"{path}.{key}" if path else key
        parameter.adapter = adapter
        parameter.requires_grad = not parameter.buffer
