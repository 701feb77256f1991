"""Merging: W + ΣΔW computed in float64 and rounded once, and back again bit for bit.

All deltas are taken against the untouched base, and summed in the order of the adapters' names: merging a, then b,
or b, then a, or both at once gives the same bits.
"""

from __future__ import annotations

import dataclasses

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from adapters.registry import Registry, registry
from adapters.replacement import plain_cells, put
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
        shared: whether another cell uses the same Parameter and must keep its value.
        before: the array as it was, while merged.
        parameter: the cell's Parameter before the merge.
        own: the cell's own Parameter while merged, where it shared one before.
    """

    path: str
    cell: nn.Cell
    attribute: str
    parameter: Parameter
    shared: bool = False
    before: np.ndarray | None = None
    after: np.ndarray | None = None
    own: Parameter | None = None

    @property
    def key(self) -> tuple[int, str]:
        return id(self.cell), self.attribute

    def put_merged(self) -> None:
        """Makes the cell use its own merged weight, where it has one."""
        if self.own is not None:
            put(self.cell, self.attribute, self.own)


def merge(model: nn.Cell, names=None, safe: bool = False) -> MergeReport:
    """Makes adapters part of the weights, in place.

    Args:
        model: with adapters.
        names: one or several; default the active ones. Adapters that are merged already stay so.
        safe: look at every merged value first, and refuse when one is NaN or infinite.

    Raises:
        InputError: an unknown name, a method that cannot be merged (with the reason), nothing to merge, or with
            ``safe`` a value that is not finite. The model is unchanged then.
    """
    state = registry(model)
    if names is None:
        names = state.active or state.merged_names
    names = (names,) if isinstance(names, str) else tuple(names)
    if not names:
        raise InputError("merge: there is no active adapter")
    for name in names:
        refuse_unmergeable(state, name)
    every = tuple(sorted({*names, *state.merged_names}))
    refuse_over_changed_base(state, every)
    active = state.active
    previous = state.merged_names
    unmerge(model)
    try:
        targets, error = merged_values(state, every)
        if safe:
            bad = [target.path for target in targets if not np.isfinite(target.after.astype(np.float64)).all()]
            if bad:
                raise InputError(f"merge: {', '.join(bad[:3])} would hold NaN or Inf; nothing was merged")
    except BaseException:
        if previous:
            merge(model, previous)
        raise
    state.active = tuple(name for name in active if name not in every)
    state.refresh()
    for target in targets:
        write(state, target)
    state.merged = {target.key: target for target in targets}
    state.merged_names = every
    state.merged_active = tuple(dict.fromkeys((*active, *names)))
    state.refresh()
    untied = tuple(target.path for target in targets if target.shared)
    if untied and getattr(model, "config", None) is not None and hasattr(model.config, "tie_word_embeddings"):
        model.config.tie_word_embeddings = False
    return MergeReport(every, len(targets), error, untied)


def unmerge(model: nn.Cell) -> None:
    """Takes every merged adapter out of the weights again, bit for bit, and makes it active as before."""
    state = registry(model)
    if not state.merged_names:
        return
    for target in state.merged.values():
        if target.shared:
            put(target.cell, target.attribute, target.parameter)
            if hasattr(model.config, "tie_word_embeddings"):
                model.config.tie_word_embeddings = True
        else:
            assign(target.parameter, target.before)
    state.merged, state.merged_names = {}, ()
    state.active = state.merged_active
    state.refresh()


def refuse_unmergeable(state: Registry, name: str) -> None:
    """Raises InputError with the reason when an adapter cannot become part of the weights."""
    for module in state.get(name).modules.values():
        reason = module.why_unmergeable()
        if reason is not None:
            raise InputError(f"adapter {name!r} cannot be merged: {reason}")


def refuse_over_changed_base(state: Registry, merged: tuple[str, ...]) -> None:
    """Raises InputError where an adapter that stays active goes by the base weight of a cell that would change."""
    for name in state.active:
        if name in merged:
            continue
        for path, module in state.adapters[name].modules.items():
            other = next((other for other in merged if path in state.adapters[other].modules), None)
            if module.needs_base and other is not None:
                raise InputError(
                    f"merge: {name!r} is active and rescales {path}, whose weight {other!r} would change; "
                    f"merge both, or deactivate {name!r} first"
                )


def merged_values(state: Registry, names: tuple[str, ...]) -> tuple[list[Target], float]:
    """What each touched parameter would hold with these adapters merged, and the largest rounding error."""
    from adapters.replacement import check_compatible
    from adapters.sites import weight_of

    check_compatible([state.adapters[name] for name in names])
    users: dict[int, list[tuple[str, nn.Cell, str]]] = {}
    targets: dict[tuple[int, str], Target] = {}
    exact: dict[tuple[int, str], np.ndarray] = {}

    def target_for(path, cell, attribute, parameter) -> Target:
        key = (id(cell), attribute)
        if key not in targets:
            targets[key] = Target(f"{path}.{attribute}", cell, attribute, parameter)
            targets[key].before = parameter.asnumpy().copy()
            exact[key] = wide(parameter)
        return targets[key]

    with state.disabled():
        for path, cell in plain_cells(state.model):
            for attribute, parameter in cell._params.items():
                if parameter is not None:
                    users.setdefault(id(parameter), []).append((path, cell, attribute))
        for name in names:
            for path, module in state.adapters[name].modules.items():
                cell = state.adapters[name].sites[path].cell
                weight = weight_of(cell)
                attribute = "weight" if getattr(cell, "weight", None) is weight else "embedding_table"
                target = target_for(path, cell, attribute, weight)
                change = module.delta(wide(weight))
                exact[target.key] = exact[target.key] + change
                bias = getattr(cell, "bias", None)
                if bias is not None:
                    change = module.delta_bias(wide(bias))
                    if change is not None:
                        target = target_for(path, cell, "bias", bias)
                        exact[target.key] = exact[target.key] + change
        for name in names:
            for item in state.adapters[name].replaced:
                path = item.saved_name.rsplit(".", 1)[0]
                target = target_for(path, item.cell, item.attribute, item.base)
                exact[target.key] = exact[target.key] - wide(item.base) + wide(item.own)
    error = 0.0
    for key, target in targets.items():
        stored = float_name(target.parameter.dtype)
        target.after = convert(exact[key], "float64", stored)
        rounded = from_bfloat16(target.after) if stored == "bfloat16" else target.after
        with np.errstate(invalid="ignore", over="ignore"):
            difference = np.abs(rounded.astype(np.float64) - exact[key])
        if np.isfinite(difference).any():
            error = max(error, float(np.nanmax(np.where(np.isfinite(difference), difference, 0))))
    return split_shared(targets, users), error


def split_shared(targets: dict, users: dict) -> list[Target]:
    """Of cells that share a changed Parameter, the first keeps it and every other gets a copy with its own change."""
    for target in list(targets.values()):
        sharing = users.get(id(target.parameter), [])
        for path, cell, attribute in sharing[1:]:
            key = (id(cell), attribute)
            first = targets.get((id(sharing[0][1]), sharing[0][2]))
            if key in targets and first is not None and same_values(first.after, targets[key].after):
                continue  # both change alike, so they go on sharing
            if key not in targets:  # it stays as it is while the first one changes
                targets[key] = Target(f"{path}.{attribute}", cell, attribute, target.parameter)
                targets[key].before = targets[key].after = target.before
            targets[key].shared = True
    return list(targets.values())


def same_values(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two arrays of one type hold the same bits, NaN and all."""
    return first.tobytes() == second.tobytes()


def wide(parameter: Parameter) -> np.ndarray:
    """A parameter's values in float64."""
    value = parameter.astype(ms.float32) if parameter.dtype == ms.bfloat16 else parameter
    return value.asnumpy().astype(np.float64)


def write(state: Registry, target: Target) -> None:
    """Puts the merged value in place; a shared Parameter is left alone and the cell gets its own."""
    if not target.shared:
        assign(target.parameter, target.after)
        return
    values = as_tensor(target.after, target.parameter.dtype)
    target.own = Parameter(values, name=target.path, requires_grad=False)
    target.put_merged()


def assign(parameter: Parameter, values: np.ndarray) -> None:
    """Writes values into a parameter; compiled graphs see them."""
    write_parameter(parameter, values)


def as_tensor(values: np.ndarray, dtype) -> Tensor:
    """An array, for bfloat16 one of bits or of MindSpore's NumPy type, as a Tensor of this type."""
    if dtype == ms.bfloat16 and values.dtype == np.uint16:
        values = from_bfloat16(values)
    return Tensor(np.ascontiguousarray(values)).astype(dtype)
