"""Merging: W + ΣΔW computed in float64 and rounded once, and back again bit for bit.

All deltas are taken against the untouched base, and summed in the order of the adapters' names: merging a, then b,
or b, then a, or both at once gives the same bits. Only where a method scales what others compute (IA3) the order in
which they are active counts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from adapters.method import AdapterModule
from adapters.registry import Registry, new_version, registry
from adapters.replacement import check_compatible, own_parameters, put
from adapters.sites import plain_cells
from model_zoo import progress
from model_zoo.checkpoint.dtypes import convert, float_name, from_bfloat16
from model_zoo.checkpoint.reading import write_parameter
from model_zoo.errors import InputError


@dataclasses.dataclass(frozen=True)
class MergeReport:
    """What a merge did; prints as one line.

    Attributes:
        names: the adapters that are merged now.
        changed: how many weights got new values.
        error: the largest difference between a merged weight and its rounding to the type it is stored in.
        untied: weights that were shared and had to become two.
    """

    names: tuple[str, ...]
    changed: int
    error: float
    untied: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"merged {', '.join(self.names)} into {self.changed} weights, rounding error at most {self.error:.2e}"
        return text + "".join(f"; {name} now has a weight of its own" for name in self.untied)


@dataclasses.dataclass
class Target:
    """One parameter of one cell that a merge writes to.

    Attributes:
        parameter: the cell's Parameter before the merge.
        kept: what is not in the parameter now: the merged values at first, the base's while merged.
        finite: whether no merged value is NaN or infinite.
        own: the cell's own merged Parameter, where it shares `parameter` with another cell that must keep its value.
    """

    path: str
    cell: nn.Cell
    attribute: str
    parameter: Parameter
    kept: np.ndarray | None = None
    finite: bool = True
    own: Parameter | None = None

    @property
    def key(self) -> tuple[int, str]:
        return id(self.cell), self.attribute

    def exchange(self) -> None:
        """Puts what is kept into the parameter, and keeps what was there. Compiled graphs see it."""
        if self.own is None:
            there = self.parameter.asnumpy().copy()
            write_parameter(self.parameter, self.kept)
            self.kept = there


@dataclasses.dataclass
class Merged:
    """What is merged, and how to undo it.

    Attributes:
        names: the adapters, in the order in which they were merged.
        error: see `MergeReport`.
        config: the model's, where it says whether the head is tied.
        frozen: parameters of the adapters that were trained until then, and will be again.
        inside: whether the merged values are in the weights; they are not while adapters are disabled.
        version: above 0, and never the same, where cells have weights of their own, which compiled graphs hold.
    """

    names: tuple[str, ...]
    targets: list[Target]
    error: float
    config: Any
    frozen: list[Parameter] = dataclasses.field(default_factory=list)
    inside: bool = False
    version: int = 0

    def __post_init__(self):
        self.version = new_version() if self.untied else 0

    @property
    def untied(self) -> tuple[str, ...]:
        """The weights that were shared and are two while merged."""
        return tuple(target.path for target in self.targets if target.own is not None)

    def put(self, inside: bool) -> None:
        """Puts the merged values into the weights, or the base's back, bit for bit."""
        for target in self.targets:
            if inside != self.inside:
                target.exchange()
            if target.own is not None:
                put(target.cell, target.attribute, target.own if inside else target.parameter)
        self.inside = inside
        if self.untied and hasattr(self.config, "tie_word_embeddings"):
            self.config.tie_word_embeddings = not inside

    def freeze(self, state: Registry) -> None:
        """What is merged is not trained."""
        for name in self.names:
            self.frozen += [one for one in state.adapters[name].parameters() if one.requires_grad]
            state.adapters[name].train(False)

    def anew(self, state: Registry) -> Merged:
        """The same merge over the weights of now; they are the base's."""
        return dataclasses.replace(planned(state, self.names), frozen=self.frozen)

    def settle(self, was_trainable: dict[str, bool]) -> None:
        """Leaves the merged values in the weights for good; weights of their own are trained as the shared one was."""
        self.put(inside=True)
        for target in self.targets:
            if target.own is not None:
                target.own.requires_grad = was_trainable.get(target.parameter.name, True)


def merge(model: nn.Cell, names=None, safe: bool = False) -> MergeReport:
    """Makes adapters part of the weights, in place.

    The output stays what it is with all these adapters active, but for rounding. What is selected stays selected:
    `unmerge` gives back just the state before.

    Args:
        model: with adapters.
        names: one or several; default the active ones. Adapters that are merged already stay so.
        safe: look at every merged value first, and refuse when one is NaN or infinite.

    Raises:
        InputError: an unknown name, a method that cannot be merged (with the reason), an adapter that stays active and
            computes otherwise over the merged weights, nothing to merge, a block of `disable_adapters` or
            `adapter_names`, or with ``safe`` a value that is not finite. The model is unchanged then.
    """
    state = registry(model)
    state.refuse_within_blocks("merge")
    if names is None:
        names = state.active or state.merged_names
    names = (names,) if isinstance(names, str) else tuple(names)
    if not names:
        raise InputError("merge: there is no active adapter")
    for name in names:
        refuse_unmergeable(state, name)
    every = tuple(dict.fromkeys((*state.merged_names, *names)))
    refuse_over_changed_base(state, every)
    with state.disabled():
        merged = planned(state, every)
        if safe:
            bad = [target.path for target in merged.targets if not target.finite]
            if bad:
                raise InputError(f"merge: {', '.join(bad[:3])} would hold NaN or Inf; nothing was merged")
        if state.merged is not None:
            merged.frozen = state.merged.frozen
        state.merged = merged
    merged.freeze(state)
    return MergeReport(every, len(merged.targets), merged.error, merged.untied)


def unmerge(model: nn.Cell) -> None:
    """Takes every merged adapter out of the weights again, bit for bit. What was active, and what was trained, is so
    again. Raises InputError within a block of `disable_adapters`."""
    state = registry(model)
    if state.merged is None:
        return
    state.refuse_within_blocks("unmerge")
    merged, state.merged = state.merged, None
    merged.put(inside=False)
    state.refresh()
    for parameter in merged.frozen:
        parameter.requires_grad = True


def merge_and_unload(model: nn.Cell, names=None, safe: bool = False) -> nn.Cell:
    """Merges adapters for good and takes all of them off: the plain model again, with their weights in it.

    Args:
        model, names, safe: as for `merge`. Adapters that are not merged are lost.

    Returns:
        The model, changed in place. It is trainable as it was before its first adapter.

    Raises:
        InputError: as `merge`. The model is unchanged then.
    """
    merge(model, names, safe)
    registry(model).keep_merged()
    return model


def refuse_unmergeable(state: Registry, name: str) -> None:
    """Raises InputError with the reason when an adapter cannot become part of the weights."""
    for module in state.get(name).modules.values():
        reason = module.why_unmergeable()
        if reason is not None:
            raise InputError(f"adapter {name!r} cannot be merged: {reason}")


# Several adapters on one cell -----------------------------------------------------------------------------------------


def in_order(state: Registry, names: tuple[str, ...]) -> list[str]:
    """These adapters in the order in which they act: those that are not selected stand in front."""
    return sorted(names, key=lambda name: state.selected.index(name) if name in state.selected else -1)


def refuse_over_changed_base(state: Registry, merged: tuple[str, ...]) -> None:
    """Raises InputError where an adapter that stays active would compute something else over the merged weights.

    What is merged moves in front of what stays, and the base that this sees is no longer the bare one.
    """
    order = in_order(state, merged)
    for name in state.active:
        if name in merged:
            continue
        both = f"merge both, or deactivate {name!r} first"
        for path, module in state.adapters[name].modules.items():
            for other in order:
                theirs = state.adapters[other].modules.get(path)
                if theirs is None:
                    continue
                if module.needs_base:
                    raise InputError(
                        f"merge: {name!r} is active and rescales {path}, whose weight {other!r} would change; {both}"
                    )
                if theirs.changes_input:  # it scales what the base reads, wherever it stands
                    continue
                behind = other in state.selected and state.selected.index(name) < state.selected.index(other)
                reads = behind and (module.reads_output or theirs.reads_output)
                if reads or scales_input(state, name, path):
                    raise InputError(
                        f"merge: {name!r} is active at {path}, where {other!r} does not act on the base alone; {both}"
                    )
        kept = {(id(item.cell), item.attribute): item for item in state.adapters[name].replaced}
        for other in order:
            for cell, attribute, path in changes(state, other):
                if (id(cell), attribute) in kept:
                    raise InputError(
                        f"merge: {name!r} is active and has its own {path}.{attribute}, where {other!r} would change "
                        f"the base's; {both}"
                    )


def scales_input(state: Registry, name: str, path: str) -> bool:
    """Whether an adapter scales the input of the weight at a cell. An embedding's is ids."""
    adapter = state.adapters[name]
    return adapter.modules[path].changes_input and adapter.sites[path].kind != "embedding"


def changes(state: Registry, name: str) -> Iterator[tuple[nn.Cell, str, str]]:
    """The parameters that an adapter's modules change when merged: (cell, attribute, the cell's path)."""
    for path, module in state.adapters[name].modules.items():
        cell = state.adapters[name].sites[path].cell
        yield cell, weight_attribute(cell), path
        if module.reads_output and getattr(cell, "bias", None) is not None:
            yield cell, "bias", path


def weight_attribute(cell: nn.Cell) -> str:
    """What a cell calls its weight."""
    return "weight" if getattr(cell, "weight", None) is not None else "embedding_table"


class Sums:
    """The merged values of every touched parameter, in float64."""

    def __init__(self):
        self.targets: dict[tuple[int, str], Target] = {}
        self.exact: dict[tuple[int, str], np.ndarray] = {}

    def key(self, path: str, cell: nn.Cell, attribute: str, parameter: Parameter) -> tuple[int, str]:
        """The place of a parameter's sum, which begins as the base."""
        key = (id(cell), attribute)
        if key not in self.targets:
            self.targets[key] = Target(f"{path}.{attribute}", cell, attribute, parameter)
            self.exact[key] = wide(parameter)
        return key

    def add(self, path: str, cell: nn.Cell, modules: list[AdapterModule]) -> None:
        """Adds what the modules of one cell change, as if they acted in this order.

        Those that scale act on what is there so far, the others on the untouched base. Scaled inputs come first: the
        base alone reads them.
        """
        attribute = weight_attribute(cell)
        bare = wide(getattr(cell, attribute))
        key = self.key(path, cell, attribute, getattr(cell, attribute))
        bias = getattr(cell, "bias", None)
        for module in sorted(modules, key=lambda module: not module.changes_input):
            scales = module.changes_input or module.reads_output
            self.exact[key] = self.exact[key] + module.delta(self.exact[key] if scales else bare)
            if bias is not None and module.reads_output:
                place = self.key(path, cell, "bias", bias)
                self.exact[place] = self.exact[place] + module.delta_bias(self.exact[place])


def planned(state: Registry, names: tuple[str, ...]) -> Merged:
    """What each touched parameter would hold with these adapters merged. The weights are the bare base's."""
    check_compatible([state.adapters[name] for name in names])
    sums = Sums()
    for name in names:
        for item in state.adapters[name].replaced:
            key = sums.key(item.saved_name.rsplit(".", 1)[0], item.cell, item.attribute, item.base)
            sums.exact[key] = wide(item.own)
    sites = {site.path: site for name in names for site in state.adapters[name].sites.values()}
    for path, site in sites.items():
        own = {
            name: state.adapters[name].modules[path]
            for name in in_order(state, names)
            if path in state.adapters[name].modules
        }
        refuse_unknown_base(path, own, (id(site.cell), weight_attribute(site.cell)) in sums.targets)
        if not any(module.reads_output for module in own.values()):
            own = dict(sorted(own.items()))  # no order counts: any order of merging gives the same bits
        sums.add(path, site.cell, list(own.values()))
    error = 0.0
    for key, target in sums.targets.items():
        progress.tick()
        stored = float_name(target.parameter.dtype)
        target.kept = convert(sums.exact[key], "float64", stored)
        rounded = (from_bfloat16(target.kept) if stored == "bfloat16" else target.kept).astype(np.float64)
        finite = np.isfinite(rounded)
        target.finite = bool(finite.all())
        difference = np.subtract(rounded, sums.exact[key], where=finite, out=np.zeros_like(rounded))
        error = max(error, float(np.abs(difference).max()))
    return Merged(names, split_shared(state.model, sums.targets), error, getattr(state.model, "config", None))


def refuse_unknown_base(path: str, modules: dict[str, AdapterModule], replaced: bool) -> None:
    """Raises InputError where a module that goes by the bare base stands on one that others replace or scale."""
    for name, module in modules.items():
        others = [other for other, theirs in modules.items() if theirs.changes_input]
        if module.needs_base and (others or replaced):
            what = f"whose input {others[0]!r} scales" if others else "whose weight another adapter replaces"
            raise InputError(f"merge: {name!r} rescales {path}, {what}; these two cannot be merged together")


def split_shared(model: nn.Cell, targets: dict[tuple[int, str], Target]) -> list[Target]:
    """Of cells that share a changed Parameter, the first keeps it and every other gets a copy with its own change."""
    users: dict[int, list[tuple[str, nn.Cell, str]]] = {}
    for path, cell in plain_cells(model):
        for attribute, parameter in own_parameters(cell).items():
            users.setdefault(id(parameter), []).append((path, cell, attribute))
    for (_, first_cell, first_attribute), *others in users.values():
        first = targets.get((id(first_cell), first_attribute))
        for path, cell, attribute in others:
            target = targets.get((id(cell), attribute))
            if target is None and first is None:
                continue
            if target is None:  # it stays as it is while the first one changes
                target = Target(f"{path}.{attribute}", cell, attribute, first.parameter)
                target.kept = first.parameter.asnumpy().copy()
                targets[target.key] = target
            elif first is not None and same_values(first.kept, target.kept):
                del targets[target.key]  # both change alike, so they go on sharing
                continue
            values = as_tensor(target.kept, target.parameter.dtype)
            target.own = Parameter(values, name=target.path, requires_grad=False)
    return list(targets.values())


def same_values(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two arrays of one type hold the same bits, NaN and all."""
    return first.tobytes() == second.tobytes()


def wide(parameter: Parameter) -> np.ndarray:
    """A parameter's values in float64."""
    progress.tick()
    value = parameter.astype(ms.float32) if parameter.dtype == ms.bfloat16 else parameter
    return value.asnumpy().astype(np.float64)


def as_tensor(values: np.ndarray, dtype) -> Tensor:
    """An array, for bfloat16 one of bits or of MindSpore's NumPy type, as a Tensor of this type."""
    if dtype == ms.bfloat16 and values.dtype == np.uint16:
        values = from_bfloat16(values)
    return Tensor(np.ascontiguousarray(values)).astype(dtype)
