"""From target names to a plan: which cell gets what. A pure function of names, so it prints and tests without a run.

A target is one of

- a name: the whole path of a cell, or its last parts (``q_proj``, ``mlp.c_proj``);
- a glob over whole paths (``model.layers.*.self_attn.*_proj``), when it holds ``*``, ``?`` or ``[``;
- ``re:`` and a regular expression that the whole path must match;
- ``attention`` or ``mlp``: the Dense of that sublayer; ``all-linear``: every Dense but the head, and what chooses
  among experts.

Every entry must match something: a misspelt one is an error that names what there is.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Iterable

from mindspore import nn

from adapters.method import MethodConfig, check_config
from adapters.patterns import as_list, full_match, is_glob, named, pattern_matches
from adapters.replacement import wanted
from adapters.sites import Site, plain_cells, sites
from model_zoo.arguments import check_argument
from model_zoo.errors import LISTED, InputError, nearest
from model_zoo.labels import SCORE


@dataclasses.dataclass(frozen=True)
class Planned:
    """One line of a plan: a cell, and how many parameters it would get.

    ``whole`` names the parameter of the cell that the adapter would train in full, as a copy of its own.
    """

    site: Site
    parameters: int
    whole: str = ""
    whole_shape: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.site.path}.{self.whole}" if self.whole else self.site.path or "(model)"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.whole_shape if self.whole else self.site.shape


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a method would add to a model: prints as a table of cell, shape and parameters."""

    method: str
    entries: tuple[Planned, ...]

    @property
    def parameters(self) -> int:
        """All parameters that the plan would add."""
        return sum(entry.parameters for entry in self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __str__(self) -> str:
        rows = [(entry.name, str(entry.shape), f"{entry.parameters:,}") for entry in self.entries]
        rows = [("cell", "shape", "parameters"), *rows, (f"{len(self)} cells", "", f"{self.parameters:,}")]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        return "\n".join(f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows)


def matches(entry: str, site: Site, family) -> bool:
    """Whether a target entry means this site."""
    if entry == "all-linear":
        others = () if family is None else (family.head, SCORE, *family.routers)
        return site.kind == "linear" and not any(named(site.path, name) for name in others)
    if entry in ("attention", "mlp") and family is not None:
        return site.kind == "linear" and any(named(site.path, name) for name in getattr(family, entry))
    if entry.startswith("re:"):
        return full_match(entry[3:], site.path)
    return fnmatch.fnmatchcase(site.path, entry) if is_glob(entry) else named(site.path, entry)


def is_expression(entry: str, candidates: list[Site]) -> bool:
    """Whether an entry, read as the regular expression that it does not say it is, would match a cell."""
    try:
        return any(full_match(entry, site.path) for site in candidates)
    except re.error:
        return False


def select(entries: Iterable[str], candidates: list[Site], family, what: str, model=None) -> list[Site]:
    """The sites that any of the entries means, in the model's order.

    Args:
        model: whose other cells an error tells from a misspelt name.

    Raises:
        InputError: names every entry that matches nothing or is no valid expression.
    """
    chosen, problems = set(), []
    for entry in entries:
        if not isinstance(entry, str) or not entry:
            problems.append(f"{what}: {entry!r} is no name")
            continue
        if entry in ("attention", "mlp") and family is None:
            problems.append(f"{what}: {entry!r} needs a model of a known family; name the cells")
            continue
        try:
            found = {site.path for site in candidates if matches(entry, site, family)}
        except re.error as error:
            problems.append(f"{what}: {entry!r} is no valid regular expression: {error}")
            continue
        if not found:
            if other := unfit_cell(model, entry, candidates):
                problems.append(f"{what}: {other}")
                continue
            names = {name for site in candidates for name in (site.path.rsplit(".", 1)[-1], site.path)}
            short = {site.path.rsplit(".", 1)[-1] for site in candidates} - {""}
            expression = is_expression(entry, candidates)
            hint = f" (did you mean 're:{entry}'?)" if expression else nearest(entry, names if "." in entry else short)
            problems.append(f"{what}: {entry!r} matches no cell{hint}")
        chosen |= found
    InputError.raise_any(problems)
    return [site for site in candidates if site.path in chosen]


def unfit_cell(model, name: str, candidates: list[Site]) -> str | None:
    """A sentence on the first cell of this name, which is no site; None where there is no such cell."""
    cells = plain_cells(model) if isinstance(model, nn.Cell) else ()
    for path, cell in cells:
        if named(path, name):
            within = [site.path for site in candidates if site.path.startswith(f"{path}.") and site.kind != "none"]
            there = f"; name cells within it, such as {within[0]}, or 're:{path}.*'" if within else ""
            return f"{path} is a {type(cell).__name__}, which no adapter fits{there}"
    return None


def layer_numbers(layers, existing: set[int]) -> set[int] | None:
    """Indices and ranges (``"0-5"``, ``"20-"``) as a set; None for all.

    Raises:
        InputError: an entry of another form, or one with no layer in it.
    """
    if layers is None:
        return None
    chosen, problems = set(), []
    for entry in as_list(layers):
        match = re.fullmatch(r"(\d+)(?:(-)(\d*))?", str(entry).strip())
        if match is None or isinstance(entry, bool):
            problems.append(f"layers: {entry!r}; an index (3) or a range ('0-5', '20-') was expected")
            continue
        first = int(match[1])
        last = first if match[2] is None else int(match[3]) if match[3] else max(existing, default=first)
        found = {number for number in existing if first <= number <= last}
        outside = match[2] is not None and match[3] and int(match[3]) not in existing
        if not found or outside:
            there = f"0-{max(existing)}" if existing else "none"
            problems.append(f"layers: {entry!r} names a layer that does not exist (there is: {there})")
        chosen |= found
    InputError.raise_any(problems)
    return chosen


def check_patterns(name: str, patterns: dict | None, chosen: list[Site]) -> None:
    """Raises InputError for a key of rank_pattern or alpha_pattern that matches none of the chosen cells."""
    problems = []
    for key in patterns or {}:
        try:
            if not any(pattern_matches(key, site.path) for site in chosen):
                names = {site.path.rsplit(".", 1)[-1] for site in chosen}
                problems.append(f"{name}: {key!r} matches no target{nearest(key, names)}")
        except re.error as error:
            problems.append(f"{name}: {key!r} is no valid regular expression: {error}")
    InputError.raise_any(problems)


def chosen_sites(model, config: MethodConfig) -> list[Site]:
    """The cells that a configuration means in this model.

    Raises:
        InputError: every entry that matches nothing, a cell that the method does not fit, or nothing left.
    """
    config.validate()
    fixed = config.fixed_sites(model)
    if fixed is not None:
        return fixed
    family = getattr(model, "family", None)
    everything = sites(model)
    fitting = [site for site in everything if site.kind in config.kinds]
    entries = as_list(config.targets)
    if not entries:
        defaults = config.family_targets(family)
        if defaults is None:
            raise InputError(no_default(config, fitting))
        entries = list(defaults)
    chosen = select(entries, everything, family, "targets", model)
    chosen = refuse_misfits(entries, chosen, family, config)
    excluded = {site.path for site in select(as_list(config.exclude), everything, family, "exclude", model)}
    numbers = layer_numbers(config.layers, {site.layer for site in everything if site.layer is not None})
    left = [site for site in chosen if site.path not in excluded and (numbers is None or site.layer in numbers)]
    if not left:
        raise InputError("targets: nothing is left after exclude and layers")
    for pattern in ("rank_pattern", "alpha_pattern"):
        check_patterns(pattern, getattr(config, pattern, None), left)
    return config.relocated(model, left)


def no_default(config: MethodConfig, fitting: list[Site]) -> str:
    """What is said where neither the user nor a family says which cells are meant."""
    last = [site.path.rsplit(".", 1)[-1] for site in fitting]
    names = list(
        dict.fromkeys(name if not name.isdigit() else site.path for name, site in zip(last, fitting, strict=True))
    )
    if not names:
        return f"targets: the network has no cell that {config.method} fits ({', '.join(config.kinds)})"
    there = ", ".join(names[:LISTED]) + (", …" if len(names) > LISTED else "")
    return f"targets: the model is of no known family; name its cells (there is: {there}), or 'all-linear'"


def refuse_misfits(entries, chosen: list[Site], family, config: MethodConfig) -> list[Site]:
    """The chosen sites of the method's kinds. A pattern may sweep over others; a name, or a pattern that finds nothing
    else, is an InputError."""
    for entry in entries:
        found = [site for site in chosen if matches(entry, site, family)]
        wrong = [site for site in found if site.kind not in config.kinds]
        pattern = is_glob(entry) or entry.startswith("re:")
        if wrong and (not pattern or len(wrong) == len(found)):
            why = wrong[0].misfit or f"is of kind {wrong[0].kind}; {config.method} fits {', '.join(config.kinds)}"
            raise InputError(f"targets: {wrong[0].path} {why}")
    return [site for site in chosen if site.kind in config.kinds]


def plan(model, config: MethodConfig) -> Plan:
    """What `apply` would do, without doing it: one line per cell with its shape and its new parameters."""
    check_config(config)
    if not hasattr(model, "adapter_sites"):  # which a model of shapes alone has
        check_argument("model", "nn.Cell", model)
    config = config.resolved(model)
    chosen = chosen_sites(model, config)
    entries = [Planned(site, config.parameters_at(site)) for site in chosen]
    entries += [Planned(companion.site, companion.parameters) for companion in config.companions(model, chosen)]
    if not hasattr(model, "adapter_sites"):  # a model of shapes alone has no parameters to copy
        for path, cell, attribute in wanted(model, config, chosen):
            parameter = cell._params[attribute]
            site = Site(path, cell, "whole", 0, 0)
            entries.append(Planned(site, int(parameter.size), attribute, tuple(parameter.shape)))
    return Plan(config.method, tuple(entries))
