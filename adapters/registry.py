"""The adapters on a model: which there are, which take part, and the state of the base beneath them."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from adapters import replacement
from adapters.adapter import Adapter, new_version
from adapters.graphs import recompute_what_is_there, state_changed
from adapters.matching import chosen_sites
from adapters.method import MethodConfig, check_config
from adapters.naming import name_module
from adapters.restart import base_loading
from adapters.sites import activate, attach, check_vacant, detach
from model_zoo.arguments import check_argument
from model_zoo.errors import InputError, nearest
from model_zoo.labels import Labels
from model_zoo.turns import between_turns, undivided

BASE = "__base__"
"""Stands for no adapter where rows of a batch are given one each."""


class Registry:
    """All adapters of one model. Every change is checked first: an error leaves the model as it was.

    What the user asks for is kept in four places, and none of them changes another:

        selected   the adapters that take part, in this order     `set`, `delete`
        merged     those that are part of the weights             `adapters.merge`
        disabled   how many blocks without adapters are open      `disabled`
        row_names  one adapter per row, within a mixed batch      `rows`

    `running` follows from these, and `refresh` makes the cells follow `running`. Which parameters are trained is no
    part of it: ``requires_grad`` is written where adapters are added, selected, merged or deleted, and nowhere else.
    """

    def __init__(self, model: nn.Cell):
        self.model = model
        self.adapters: dict[str, Adapter] = {}
        self.selected: tuple[str, ...] = ()
        self.merged: Any = None  # an `adapters.merge.Merged`
        self.blocks = 0
        self.row_names: tuple[str, ...] | None = None
        self.was_trainable: dict[Parameter, bool] = {}  # names change where the model becomes part of another
        self.statistics: list[nn.Cell] = []
        self.settled = 0  # changes with every merge that was kept for good, and where the base is packed anew
        self.graphs: dict[tuple, int] = {}
        self.states = 0
        self.created = model.create_time
        # asked for by `model_zoo.checkpoint.reading.load_into`, which knows nothing of adapters
        object.__setattr__(model, "base_loading", functools.partial(base_loading, self))

    @property
    def merged_names(self) -> tuple[str, ...]:
        """The adapters that are merged, in the order in which they were."""
        return self.merged.names if self.merged is not None else ()

    @property
    def active(self) -> tuple[str, ...]:
        """The selected adapters that are not merged."""
        return tuple(name for name in self.selected if name not in self.merged_names)

    @property
    def running(self) -> tuple[str, ...]:
        """The adapters that a forward goes through now."""
        if self.blocks:
            return ()
        if self.row_names is None:
            return self.active
        return tuple(dict.fromkeys(name for name in self.row_names if name != BASE))

    @property
    def base_labels(self) -> Labels | None:  # those of a classifier's own head
        return self.model.config.labels if hasattr(self.model, "add_score") else None

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

    def refuse_within_blocks(self, what: str) -> None:
        """Raises InputError within `disabled` and `rows`."""
        if self.blocks or self.row_names is not None:
            block = "disable_adapters" if self.blocks else "adapter_names"
            raise InputError(f"cannot {what} within a block of {block}; leave the block first")

    @between_turns
    def add(self, config: MethodConfig, name: str) -> Adapter:
        """Builds an adapter and attaches it, not yet active."""
        check_config(config)
        self.check_new(name)
        self.refuse_while_merged("add an adapter")
        config = copy.deepcopy(config.resolved(self.model))  # the caller's, its lists too, stay the caller's
        chosen = chosen_sites(self.model, config)
        with self.disabled():  # what starts from the weights starts from the base's
            replaced = replacement.planned(self.model, config, chosen, name)
            modules = config.build_all(self.model, chosen)
            companions = config.companions(self.model, chosen)
            modules.update({companion.site.path: companion.build() for companion in companions})
        chosen = [site for site in chosen if site.path in modules] + [companion.site for companion in companions]
        for site in chosen:
            check_vacant(site, name)
        adapter = Adapter(name, config, {site.path: site for site in chosen}, modules, replaced)
        adapter.companions = tuple(companion.site.path for companion in companions)
        adapter.named = self.base_labels
        try:
            with undivided():
                if not self.adapters:
                    self.was_trainable = {one: one.requires_grad for one in self.model.get_parameters()}
                    for parameter in self.was_trainable:
                        parameter.requires_grad = False
                    self.statistics = replacement.with_statistics(self.model)
                for site in chosen:
                    attach(site.cell, name, modules[site.path])
                    name_module(modules[site.path], site, name)
                recompute_what_is_there(self.model)
                self.adapters[name] = adapter
                adapter.train(False)
            self.note_base([modules[site.path].attached(site) for site in chosen])
            self.refresh()
        except BaseException:
            if name in self.adapters:
                self.delete(name)
            raise
        return adapter

    def note_base(self, changed: list[bool]) -> None:
        """Makes graphs of the bare base be compiled anew where cells compute otherwise."""
        if any(changed):
            self.settled = new_version()

    @undivided()
    def set(self, names: str | Iterable[str]) -> None:
        """Lets just these adapters take part, and be trained."""
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
        self.selected = names
        recompute_what_is_there(self.model)  # it may have been asked for while others were trained
        self.refresh()
        for name, adapter in self.adapters.items():
            adapter.train(name in names)

    @between_turns
    @undivided()
    def delete(self, name: str) -> None:
        """Takes an adapter off, with what it was earlier; with the last one gone the model is what it was."""
        adapter = self.get(name)
        if adapter.earlier is not None and self.merged_names == (adapter.earlier.name,):
            self.take_out()
            self.delete(adapter.earlier.name)
        adapter.refuse_merged(self.merged_names, "deleting it")
        if self.row_names is not None and name in self.row_names:
            raise InputError(f"adapter {name!r} takes part in a block of adapter_names; leave the block first")
        self.note_base([adapter.modules[path].detached(site) for path, site in adapter.sites.items()])
        self.selected = tuple(other for other in self.selected if other != name)
        self.refresh()
        for site in adapter.sites.values():
            detach(site.cell, name)
        del self.adapters[name]
        self.refresh()
        if not self.adapters:
            for parameter, trained in self.was_trainable.items():
                parameter.requires_grad = trained
            for cell in self.statistics:
                cell.use_batch_statistics = None
            self.statistics = []

    @between_turns
    @undivided()
    def take_out(self) -> None:
        """Takes what is merged out of the weights; what was trained until then is trained again."""
        merged, self.merged = self.merged, None
        merged.put(inside=False)
        self.refresh()
        for parameter in merged.frozen:
            parameter.requires_grad = True

    @between_turns
    @undivided()
    def keep_merged(self) -> None:
        """Takes every adapter off and leaves what is merged in the weights for good."""
        merged, self.merged = self.merged, None
        labels = next(filter(None, (self.adapters[name].labels for name in merged.names)), None)
        self.settled = new_version()
        for name in list(self.adapters):
            self.delete(name)
        merged.settle(self.was_trainable)
        if labels is not None and hasattr(self.model, "add_score"):
            self.model.become_classifier(labels)

    @between_turns
    @undivided()
    def refresh(self) -> None:
        """Makes the cells follow `running` and `merged`."""
        names, adapters = self.running, self.adapters.values()
        cells = {id(site.cell): site.cell for adapter in adapters for site in adapter.sites.values()}
        for cell in cells.values():
            activate(cell, names)
        rows = self.row_names if self.row_names is not None and not self.blocks else ()
        for name, adapter in self.adapters.items():
            flags = Tensor([int(row == name) for row in rows]) if name in rows else None
            for module in adapter.modules.values():
                module.rows = flags
        replaced = [item for adapter in adapters for item in adapter.replaced]
        replacement.restore(replaced)
        if self.merged is not None:
            self.merged.put(inside=not self.blocks)
        replacement.stand_in(replaced, names)
        replacement.keep_statistics(self.statistics, replaced, names)
        for adapter in adapters:
            for path, module in adapter.modules.items():
                module.noticed(adapter.sites[path].cell)
        if hasattr(self.model, "position_offset"):
            self.model.mixed_rows = len(rows) or None
            self.refresh_columns(names, rows)
        if hasattr(self.model, "add_score"):
            heads = (*names, *(() if self.blocks else self.merged_names))
            self.model.labels = next(filter(None, (self.adapters[name].labels for name in heads)), self.base_labels)
            self.model.scoring = self.model.labels is not None
        # Compiled graphs are kept by this. Names alone would not do: one may be deleted and added anew.
        versions = tuple((name, self.adapters[name].version) for name in names)
        merged = (self.merged.names, self.merged.version) if self.merged is not None and not self.blocks else ()
        state = self.model.adapter_state = (versions, merged, rows, self.settled)
        # MindSpore's own (GRAPH_MODE) are kept by the time at which the cell was made.
        number = self.graphs.setdefault(state, self.states)
        self.states = max(self.states, number + 1)
        object.__setattr__(self.model, "_create_time", self.created + number)
        there = {(name, adapter.version) for name, adapter in self.adapters.items()}
        gone = [self.graphs.pop(former) for former in list(self.graphs) if not there.issuperset(former[0])]
        numbered = [(id(self), self.created, one) for one in (number, *gone)]
        state_changed(self.model, numbered[0], numbered[1:])

    def refresh_columns(self, names: tuple[str, ...], rows: tuple[str, ...]) -> None:
        """Sets the model's position offset and its number of virtual tokens.

        While a batch mixes adapters both may differ from row to row: the offset is ``(B, 1)`` then, and
        ``virtual_keep`` ``(B, T)`` says which of the columns in front are a row's own.
        """
        configs = {name: self.adapters[name].config for name in names}
        self.model.position_offset = sum(config.position_offset for config in configs.values())
        self.model.virtual_tokens = sum(config.virtual_tokens for config in configs.values())
        self.model.virtual_keep = None
        if not rows:
            return
        if self.model.position_offset:
            offsets = [[configs[row].position_offset if row in configs else 0] for row in rows]
            self.model.position_offset = Tensor(offsets, ms.int32)
        if self.model.virtual_tokens:
            blocks = [  # the last one widened stands in front
                np.array([[row == name] * config.virtual_tokens for row in rows], np.int32)
                for name, config in reversed(configs.items())
            ]
            self.model.virtual_keep = np.concatenate(blocks, 1)

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """The bare base within; afterwards, also after an error, what takes part now does so again. Blocks nest."""
        self.blocks += 1
        try:
            self.refresh()
            yield
        finally:
            self.blocks -= 1
            self.refresh()

    @contextmanager
    def only(self, names: Iterable[str]) -> Iterator[None]:
        """These adapters within, whatever is selected; nothing is trained or frozen by it."""
        before, self.selected = self.selected, tuple(names)
        try:
            self.refresh()
            yield
        finally:
            self.selected = before
            self.refresh()

    @contextmanager
    def rows(self, names: Iterable[str]) -> Iterator[None]:
        """Row i of every batch within goes through adapter ``names[i]``, or through the base for ``"__base__"``.
        Blocks nest: the inner one's names count. Nothing is trained or frozen by it."""
        self.refuse_while_merged("mix adapters in a batch")
        names = tuple(names)
        if not names:
            raise InputError("adapter_names: no name is given; one per row of the batch was expected")
        for name in dict.fromkeys(name for name in names if name != BASE):
            if self.get(name).replaced:
                raise InputError(f"adapter {name!r} replaces whole weights and cannot be mixed with others in a batch")
        before, self.row_names = self.row_names, names
        try:
            self.refresh()
            # a bundled model counts the rows itself, where it checks the ids
            with nullcontext() if hasattr(self.model, "mixed_rows") else self.counted_calls():
                yield
        finally:
            self.row_names = before
            self.refresh()

    @contextmanager
    def counted_calls(self) -> Iterator[None]:
        """Every call of the model goes through `check_rows` first."""
        if ms.get_context("mode") == ms.PYNATIVE_MODE:
            hook = self.model.register_forward_pre_hook(self.check_rows)
            try:
                yield
            finally:
                hook.remove()
            return
        check = self.model._check_construct_args  # a hook would be compiled; this is Python before every call

        def checked(*arguments):
            self.check_rows(self.model, arguments)
            return check(*arguments)

        object.__setattr__(self.model, "_check_construct_args", checked)
        try:
            yield
        finally:
            object.__setattr__(self.model, "_check_construct_args", check)

    def check_rows(self, cell: nn.Cell, arguments: tuple) -> None:
        """Raises InputError where a batch has another number of rows than names were given."""
        rows = next((len(value) for value in arguments if isinstance(value, Tensor) and value.ndim), None)
        if not self.blocks and rows not in (None, len(self.row_names)):
            raise InputError(f"adapter_names: {len(self.row_names)} adapter names, {rows} rows in the batch")


def check_model(model: Any) -> None:
    """Raises InputError for what is no network: a name in its place, say."""
    check_argument("model", "nn.Cell", model)


def registry(model: nn.Cell) -> Registry:
    """The registry of a model, made when it is first asked for."""
    check_model(model)
    found = model.__dict__.get("_adapter_registry")
    if found is None:
        found = Registry(model)
        object.__setattr__(model, "_adapter_registry", found)
    return found


def started_from_file(model: nn.Cell) -> bool:
    """Whether an adapter that takes part in a model, also as part of its weights, was loaded."""
    state = model.__dict__.get("_adapter_registry")
    return state is not None and any(state.get(name).source for name in (*state.running, *state.merged_names))
