"""What may be merged: reasons against it, and the order in which several adapters act on one cell."""

from __future__ import annotations

from collections.abc import Iterator

from mindspore import nn

from adapters.cells import weight_attribute
from adapters.method import AdapterModule
from adapters.readers import weights_read
from adapters.registry import Registry
from model_zoo.errors import InputError
from model_zoo.quantization.storage import is_quantized


def refuse_unmergeable(state: Registry, name: str) -> None:
    """Raises InputError with the reason when an adapter cannot become part of the weights."""
    adapter = state.get(name)
    adapter.refuse_lost(state.model)
    if adapter.labels is not None and hasattr(state.model, "add_score"):
        state.model.config.as_classifier(adapter.labels)  # or there is none
    for reason in (adapter.config.unmergeable, *(module.why_unmergeable() for module in adapter.modules.values())):
        if reason:
            raise InputError(f"adapter {name!r} cannot be merged: {reason}")
    for path, reader in read_besides(state, name):
        raise InputError(
            f"adapter {name!r} cannot be merged: {reader} reads the weight of {path} besides calling it, for a tied "
            "head, say, and would read the merged one there, too; leave it out of the targets"
        )


def read_besides(state: Registry, name: str) -> Iterator[tuple[str, str]]:
    """The cells with a module whose weights a forward reads otherwise, and the class of the cell that does. Of a
    bundled model the shared Parameter says so."""
    if getattr(state.model, "family", None) is not None:
        return
    for tables in (True, False):
        sites = state.adapters[name].sites.values()
        wanted = {id(site.cell): site.path for site in sites if (site.kind == "embedding") is tables}
        if wanted:
            yield from weights_read(state.model, wanted, tables)


def refuse_packed(state: Registry, names: tuple[str, ...]) -> None:
    """Raises InputError where adapters would change a weight in 8 or 4 bits."""
    for name in names:
        for cell, attribute, path in changes(state, name):
            if attribute == "weight" and is_quantized(cell):
                raise InputError(
                    f"merge: {path} is stored in {cell.storage}, and its merged values would be quantised again; "
                    "requantize=True does that, pet merge merges into the unquantised base"
                )


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
            # an embedding's input is ids
            scales_input = module.changes_input and state.adapters[name].sites[path].kind != "embedding"
            for other in order:
                theirs = state.adapters[other].modules.get(path)
                if theirs is None:
                    continue
                if module.needs_base:
                    raise InputError(
                        f"merge: {name!r} is active and rescales {path}, whose weight {other!r} would change; {both}"
                    )
                # the one scales what the base reads, wherever it stands, the other what the base gives
                if theirs.changes_input or (module.changes_input and theirs.reads_output):
                    continue
                behind = other in state.selected and state.selected.index(name) < state.selected.index(other)
                reads = behind and (module.reads_output or theirs.reads_output)
                if reads or scales_input:
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


def refuse_unknown_base(path: str, modules: dict[str, AdapterModule], replaced: bool) -> None:
    """Raises InputError where a module that is computed from the bare base follows one that replaces or scales it."""
    for name, module in modules.items():
        others = [other for other, theirs in modules.items() if theirs.changes_input]
        if module.needs_base and (others or replaced):
            what = f"whose input {others[0]!r} scales" if others else "whose weight another adapter replaces"
            raise InputError(f"merge: {name!r} rescales {path}, {what}; these two cannot be merged together")


def in_order(state: Registry, names: tuple[str, ...]) -> list[str]:
    """These adapters in the order in which they act; adapters that are not selected come first."""
    return sorted(names, key=lambda name: state.selected.index(name) if name in state.selected else -1)


def changes(state: Registry, name: str) -> Iterator[tuple[nn.Cell, str, str]]:
    """The parameters that an adapter's modules change when merged: (cell, attribute, the cell's path)."""
    for path, module in state.adapters[name].modules.items():
        cell = state.adapters[name].sites[path].cell
        yield cell, weight_attribute(cell), path
        if module.reads_output and getattr(cell, "bias", None) is not None:
            yield cell, "bias", path
