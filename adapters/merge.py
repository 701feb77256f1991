"""Merging: W + ΣΔW computed in float64 and rounded once, and back again bit for bit.

All deltas are taken against the untouched base, and summed in the order of the adapters' names: merging a, then b,
or b, then a, or both at once gives the same bits. Only where a method scales what others compute (IA3) the order in
which they are active counts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
from mindspore import Parameter, nn

from adapters.adapter import new_version
from adapters.cells import own_parameters, plain_cells, weight_attribute
from adapters.merge_rules import (
    in_order,
    refuse_over_changed_base,
    refuse_packed,
    refuse_unknown_base,
    refuse_unmergeable,
)
from adapters.merge_values import as_tensor, packed_in, rounded, wide
from adapters.method import AdapterModule
from adapters.registry import Registry, registry
from adapters.replacement import check_compatible, put
from model_zoo import progress
from model_zoo.arguments import checked
from model_zoo.checkpoint.parameters import read_parameter, write_parameter
from model_zoo.errors import InputError, warn_caller
from model_zoo.turns import turn

Model = TypeVar("Model", bound=nn.Cell)


@dataclasses.dataclass(frozen=True)
class MergeReport:
    """What a merge did; prints as one line.

    Attributes:
        names: the adapters that are merged now.
        changed: how many weights got new values.
        error: the largest difference between a merged weight and its rounding to the type it is stored in.
        untied: weights that were shared and had to become two.
        requantized: how many of the changed weights were quantised again.
        rms: root of the mean square of the difference over these.
    """

    names: tuple[str, ...]
    changed: int
    error: float
    untied: tuple[str, ...] = ()
    requantized: int = 0
    rms: float = 0.0

    def __str__(self) -> str:
        text = f"merged {', '.join(self.names)} into {self.changed} weights, rounding error at most {self.error:.2e}"
        if self.requantized:
            text += f"; {self.requantized} of them were quantised again, which changes them by {self.rms:.2e} (rms)"
        return text + "".join(f"; {name} now has a weight of its own" for name in self.untied)


@dataclasses.dataclass
class Target:
    """One parameter of one cell that a merge writes to.

    Attributes:
        parameter: the cell's Parameter before the merge.
        kept: what is not in the parameter now: the merged values at first, the base's while merged. Of a packed weight
            the arrays of its parts and what was taken off it.
        finite: whether no merged value is NaN or infinite.
        own: the cell's own merged Parameter, where it shares `parameter` with another cell that must keep its value.
    """

    path: str
    cell: nn.Cell
    attribute: str
    parameter: Parameter
    kept: np.ndarray | tuple[dict[str, np.ndarray], nn.Cell | None] | None = None
    finite: bool = True
    own: Parameter | None = None

    @property
    def key(self) -> tuple[int, str]:
        return id(self.cell), self.attribute

    def exchange(self) -> None:
        """Puts what is kept into the parameter, and keeps what was there. Compiled graphs see it."""
        packed = packed_in(self.parameter)
        if packed is not None:
            there = {part: array.copy() for part, array in packed.arrays().items()}, packed.taken
            arrays, taken = self.kept
            packed.put(arrays)
            object.__setattr__(packed, "taken", taken)
            self.kept = there
        elif self.own is None:
            there = read_parameter(self.parameter).copy()
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
        squares: sum of the squares of the differences over packed weights, and how many numbers these are.
        version: above 0, and never the same, where cells have weights of their own, which compiled graphs hold.
        first: what sums begin with; see `planned`.
    """

    names: tuple[str, ...]
    targets: list[Target]
    error: float
    config: Any
    frozen: list[Parameter] = dataclasses.field(default_factory=list)
    inside: bool = False
    squares: tuple[float, int] = (0.0, 0)
    version: int = 0
    first: Callable[[Parameter], np.ndarray] | None = None

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
        return dataclasses.replace(planned(state, self.names, True, self.first), frozen=self.frozen)

    def settle(self, was_trainable: dict[Parameter, bool]) -> None:
        """Leaves the merged values in the weights for good; weights of their own are trained as the shared one was."""
        self.put(inside=True)
        for target in self.targets:
            if target.own is not None:
                target.own.requires_grad = was_trainable.get(target.parameter, True)


@checked
def merge(
    model: nn.Cell, names: str | Iterable[str] | None = None, safe: bool = False, requantize: bool = False
) -> MergeReport:
    """Makes adapters part of the weights, in place.

    The output stays what it is with all these adapters active, but for rounding. What is selected stays selected:
    `unmerge` gives back just the state before.

    Args:
        model: with adapters.
        names: one or several; default the active ones. Adapters that are merged already stay so.
        safe: look at every merged value first, and refuse when one is NaN or infinite.
        requantize: change weights that are stored in 8 or 4 bits too, by quantising their merged values anew. The
            report says what that costs; `unmerge` restores the bits all the same.

    Raises:
        InputError: an unknown name, a method that cannot be merged (with the reason), a weight in 8 or 4 bits without
            ``requantize``, an adapter that stays active and computes otherwise over the merged weights, nothing to
            merge, a block of `disable_adapters` or `adapter_names`, or with ``safe`` a value that is not finite. The
            model is unchanged then.
    """
    return merged_into(registry(model), names, safe, requantize)


def merged_into(
    state: Registry,
    names: str | Iterable[str] | None = None,
    safe: bool = False,
    requantize: bool = False,
    first: Callable[[Parameter], np.ndarray] | None = None,
) -> MergeReport:
    """`merge`, with `first` as for `planned`; default: that of what is merged."""
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
        merged = planned(state, every, requantize, first or (state.merged.first if state.merged else None))
        bad = ", ".join([target.path for target in merged.targets if not target.finite][:3])
        if bad and safe:
            raise InputError(f"merge: {bad} would hold NaN or Inf; nothing was merged")
        if bad:
            warn_caller(f"merge: {bad} holds NaN or Inf now; safe=True refuses such a merge")
        if state.merged is not None:
            merged.frozen = state.merged.frozen
        state.merged = merged
    merged.freeze(state)
    total, count = merged.squares
    again = sum(packed_in(target.parameter) is not None for target in merged.targets)
    rms = (total / count) ** 0.5 if count else 0.0
    return MergeReport(every, len(merged.targets), merged.error, merged.untied, again, rms)


def unmerge(model: nn.Cell) -> None:
    """Takes every merged adapter out of the weights again, bit for bit. What was active, and what was trained, is so
    again. What an adapter had learnt before it was begun anew (`adapters.relora`) stays, as it was before the merge.

    Raises:
        InputError: nothing else is merged, or a block of `disable_adapters`.
    """
    state, merged = registry(model), registry(model).merged
    if merged is None:
        return
    state.refuse_within_blocks("unmerge")
    begun = {adapter.earlier.name: adapter for adapter in state.adapters.values() if adapter.earlier is not None}
    if begun.keys() >= set(merged.names):
        begun[merged.names[0]].refuse_merged(merged.names, "unmerging")
    with turn.lock:  # no decorator: its type is a public name's
        state.take_out()
        if begun:
            merged_into(state, tuple(begun), requantize=True, first=merged.first)


@checked
def merge_and_unload(
    model: Model, names: str | Iterable[str] | None = None, safe: bool = False, requantize: bool = False
) -> Model:
    """Merges adapters for good and takes all of them off: the plain model again, with their weights in it.

    Args:
        model, names, safe, requantize: as for `merge`. Adapters that are not merged are lost.

    Returns:
        The model, changed in place. It is trainable as it was before its first adapter.

    Raises:
        InputError: as `merge`. The model is unchanged then.
    """
    report = merge(model, names, safe, requantize)
    registry(model).keep_merged()
    if report.untied and getattr(model, "family", None) is None:  # a bundled model's configuration says so
        warn_caller(
            f"{', '.join(report.untied)}: shared a Parameter with another cell, and is a Parameter of its own now; a "
            "network that ties the two loses it in loading"
        )
    return model


class Sums:
    """The merged values of every touched parameter, in float64 until they are rounded, which a cell's are at once.

    Args:
        first: gives what a parameter's sum begins with.
    """

    def __init__(self, first: Callable[[Parameter], np.ndarray]):
        self.first = first
        self.targets: dict[tuple[int, str], Target] = {}
        self.exact: dict[tuple[int, str], np.ndarray] = {}
        self.error, self.squares = 0.0, (0.0, 0)

    def key(self, path: str, cell: nn.Cell, attribute: str, parameter: Parameter) -> tuple[int, str]:
        """The place of a parameter's sum, which begins as the base."""
        key = (id(cell), attribute)
        if key not in self.targets:
            self.targets[key] = Target(f"{path}.{attribute}", cell, attribute, parameter)
            self.exact[key] = self.first(parameter)
        return key

    def add(self, path: str, cell: nn.Cell, modules: list[AdapterModule]) -> None:
        """Adds what the modules of one cell change, as if they acted in this order, and rounds it.

        Those that scale act on what is there so far, the others on the untouched base. Scaled inputs come first: the
        base alone reads them.
        """
        attribute = weight_attribute(cell)
        replaced = (id(cell), attribute) in self.targets
        key = self.key(path, cell, attribute, getattr(cell, attribute))
        bare = self.first(getattr(cell, attribute)) if replaced else self.exact[key]
        bias, places = getattr(cell, "bias", None), {key}
        for module in sorted(modules, key=lambda module: not module.changes_input):
            scales = module.changes_input or module.reads_output
            self.exact[key] = self.exact[key] + module.delta(self.exact[key] if scales else bare)
            if bias is not None and module.reads_output:
                place = self.key(path, cell, "bias", bias)
                places.add(place)
                self.exact[place] = self.exact[place] + module.delta_bias(self.exact[place])
        self.round(places)

    def round(self, places: Iterable[tuple[int, str]]) -> None:
        """Rounds sums to what their parameters can hold."""
        for place in tuple(places):
            progress.tick()
            exact, target = self.exact.pop(place), self.targets[place]
            target.kept, stored = rounded(target.parameter, exact)
            finite = np.isfinite(stored)
            target.finite = bool(finite.all())
            difference = np.subtract(stored, exact, where=finite, out=np.zeros_like(stored))
            self.error = max(self.error, float(np.abs(difference).max()))
            if packed_in(target.parameter) is not None:
                total, count = self.squares
                self.squares = total + float((difference * difference).sum()), count + difference.size


def planned(
    state: Registry,
    names: tuple[str, ...],
    requantize: bool = False,
    first: Callable[[Parameter], np.ndarray] | None = None,
) -> Merged:
    """What each touched parameter would hold with these adapters merged. The weights are the bare base's.

    Args:
        first: gives what a parameter's sum begins with, in float64; default `wide`.
    """
    if not requantize:
        refuse_packed(state, names)
    check_compatible([state.adapters[name] for name in names])
    sums = Sums(first or wide)
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
    sums.round(sums.exact)
    targets, config = split_shared(state.model, sums.targets), getattr(state.model, "config", None)
    return Merged(names, targets, sums.error, config, squares=sums.squares, first=first)


def split_shared(model: nn.Cell, targets: dict[tuple[int, str], Target]) -> list[Target]:
    """Of cells that share a changed Parameter, the first keeps it and every other gets a copy with its own change."""
    users: dict[int, list[tuple[str, nn.Cell, str]]] = {}
    for path, cell in (*plain_cells(model), ("", model)):
        for attribute, parameter in own_parameters(cell).items():
            users.setdefault(id(parameter), []).append((path, cell, attribute))
    for (_, first_cell, first_attribute), *others in users.values():
        first = targets.get((id(first_cell), first_attribute))
        for path, cell, attribute in others:
            target = targets.get((id(cell), attribute))
            if target is None and first is None:
                continue
            if target is None:  # it stays as it is while the first one changes
                target = Target(f"{path}.{attribute}".lstrip("."), cell, attribute, first.parameter)
                target.kept = read_parameter(first.parameter).copy()
                targets[target.key] = target
            elif first is not None and first.kept.tobytes() == target.kept.tobytes():
                del targets[target.key]  # both change alike, NaN and all, so they go on sharing
                continue
            values = as_tensor(target.kept, target.parameter.dtype)
            target.own = Parameter(values, name=target.path, requires_grad=False)
    return list(targets.values())
