"""One adapter on a model."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from mindspore import Parameter, nn

from adapters import replacement
from adapters.cells import Site
from adapters.method import AdapterModule, MethodConfig
from adapters.naming import trained_in
from model_zoo.errors import InputError
from model_zoo.labels import SCORE, Labels

new_version = itertools.count(1).__next__


@dataclasses.dataclass
class Adapter:
    """One named adapter: its configuration, its modules by cell path, and what it replaces whole.

    ``companions``: paths among `sites` that no target named (`MethodConfig.companions`). ``source``: what the files it
    was loaded from held beside the tensors. ``named``: `labels` as given. ``earlier``: what it was before it was begun
    anew (`adapters.relora`). ``learnt``: it was trained here, or made of others, and is no start. No two adapters, or
    states of one that compiled graphs tell apart, have one ``version``.
    """

    name: str
    config: MethodConfig
    sites: dict[str, Site]
    modules: dict[str, AdapterModule]
    replaced: list[replacement.Replacement]
    source: dict[str, Any] = dataclasses.field(default_factory=dict)
    companions: tuple[str, ...] = ()
    named: Labels | None = None
    earlier: Adapter | None = None
    learnt: bool = False
    version: int = dataclasses.field(default_factory=new_version)

    @property
    def labels(self) -> Labels | None:
        """What the numbers of its head mean, where it has one that judges texts (`adapters.score`)."""
        rows = next((item.own.shape[0] for item in self.replaced if item.saved_name == f"{SCORE}.weight"), 0)
        return (self.named or Labels.plain(rows)) if rows else None

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
        held = [value for module in self.modules.values() for value in trained_in(module)]
        own = list({id(value): value for value in held}.values())
        return own + [item.own for item in self.replaced if item.attribute not in replacement.STATISTICS]

    def train(self, trained: bool) -> None:
        """Trains or freezes all its parameters."""
        for parameter in self.parameters():
            parameter.requires_grad = trained

    def refuse_lost(self, model: nn.Cell) -> None:
        """Raises InputError where a cell that it is on is no part of the model any more, but for one stage of many."""
        if getattr(model, "incomplete", False):
            return
        there = {id(cell) for _, cell in model.cells_and_names()}
        cells = [(path, site.cell) for path, site in self.sites.items()]
        cells += [(item.saved_name.rpartition(".")[0], item.cell) for item in self.replaced]
        for path, cell in cells:
            if id(cell) not in there:
                raise InputError(
                    f"adapter {self.name!r} is on the cell that was {path} when it was applied, which is no part of "
                    "the network any more: put it back, or delete the adapter and apply it anew"
                )

    def refuse_merged(self, merged: tuple[str, ...], what: str) -> None:
        """Raises InputError where it, or what it was earlier, is among these adapters, which are merged."""
        if self.name in merged:
            raise InputError(f"adapter {self.name!r} is merged into the weights; unmerge before {what}")
        if self.earlier is not None and self.earlier.name in merged:
            raise InputError(
                f"adapter {self.name!r} was begun anew, and what it had learnt is in the weights; before {what} save "
                "it, delete it, and load it, as one adapter of all that it learnt"
            )
