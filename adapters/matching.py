"""From target names to a plan: which cell gets what. A pure function of names, so it prints and tests without a run.

It serves live models and models of shapes alone (`pet.meta_model`): what is applied, loaded, merged on disk, planned
and validated is matched here. Without MindSpore, unless the model has it.

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
from typing import TYPE_CHECKING, Any

from adapters.cells import Site, is_bias, own_parameters, plain_cells, weight_of
from adapters.patterns import as_list, full_match, is_glob, layer_numbers, named, pattern_key, pattern_matches, within
from adapters.schema import Settings
from adapters.settings import IA3, Tokens
from model_zoo.arguments import check_argument
from model_zoo.errors import LISTED, InputError, nearest, warn_once
from model_zoo.labels import SCORE
from model_zoo.quantization.storage import is_quantized

if TYPE_CHECKING:
    from adapters.method import MethodConfig


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


def sites(model) -> list[Site]:
    """Every cell of a model that an adapter may sit on, in the model's order; the model itself comes last. Cells with a
    weight that no adapter fits are of kind ``none``.

    A model of shapes alone gives its sites itself, by ``adapter_sites()``.
    """
    if hasattr(model, "adapter_sites"):
        return model.adapter_sites()
    from adapters.sites import live_sites  # which needs MindSpore

    return live_sites(model)


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


def means(entries, site: Site, family) -> bool:
    """Whether any of the entries means this site."""
    return any(matches(entry, site, family) for entry in as_list(entries))


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
            chosen |= (found := {site.path for site in candidates if matches(entry, site, family)})
        except re.error as error:
            problems.append(f"{what}: {entry!r} is no valid regular expression: {error}")
            continue
        if not found:
            if other := unfit_cell(model, family, entry, candidates):
                problems.append(f"{what}: {other}")
                continue
            names = {name for site in candidates for name in (site.path.rsplit(".", 1)[-1], site.path)}
            short = {site.path.rsplit(".", 1)[-1] for site in candidates} - {""}
            near = nearest(entry, names if "." in entry else short)
            hint = f" (did you mean 're:{entry}'?)" if is_expression(entry, candidates) else near
            problems.append(f"{what}: {entry!r} matches no cell{hint}")
    InputError.raise_any(problems)
    return [site for site in candidates if site.path in chosen]


def unfit_cell(model, family, name: str, candidates: list[Site]) -> str | None:
    """A sentence on the first cell of this name, which is no site; None where there is no such cell."""
    for path, cell in plain_cells(model) if model is not None else ():
        if named(path, name):
            inner = [site.path for site in candidates if site.path.startswith(f"{path}.") and site.kind != "none"]
            if family is not None and not inner and not own_parameters(cell):
                continue  # an activation, say, of which shapes alone know nothing
            there = f"; name cells within it, such as {inner[0]}, or 're:{path}.*'" if inner else ""
            kind = f"a {type(cell).__name__}" if family is None else "no matrix and no embedding"
            return f"{path} is {kind}, which no adapter fits{there}"
    return None


def check_patterns(name: str, patterns: dict | None, chosen: list[Site]) -> None:
    """Raises InputError for a key of a pattern that matches none of the chosen cells; warns of one that is too late."""
    problems = []
    for key in patterns or {}:
        try:
            if not any(pattern_matches(key, site.path) for site in chosen):
                names = {site.path.rsplit(".", 1)[-1] for site in chosen}
                problems.append(f"{name}: {key!r} matches no target{nearest(key, names)}")
            elif all(pattern_key(patterns, site.path) != key for site in chosen):
                warn_once(f"{name}: {key!r} has no effect: keys before it match the same targets")
        except re.error as error:
            problems.append(f"{name}: {key!r} is no valid regular expression: {error}")
    InputError.raise_any(problems)


def chosen_sites(model, config: Settings) -> list[Site]:
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
    chosen = [site for site in chosen if numbers is None or site.layer in numbers]
    InputError.raise_any(
        f"targets: layers leaves nothing of {entry!r}; leave out one of the two, or name all cells in full"
        for entry in entries
        if not any(matches(entry, site, family) for site in chosen)
    )
    for entry in (one for one in as_list(config.exclude) if not any(matches(one, site, family) for site in chosen)):
        warn_once(f"exclude: {entry!r} has no effect: no target is of these cells")
    left = [site for site in chosen if site.path not in excluded]
    if not left:
        raise InputError("targets: nothing is left after exclude and layers")
    for pattern in ("rank_pattern", "alpha_pattern"):
        check_patterns(pattern, getattr(config, pattern, None), left)
    for site in left:
        config.check_site(site)
    return config.relocated(model, left)


def no_default(config: Settings, fitting: list[Site]) -> str:
    """What is said where neither the user nor a family says which cells are meant."""
    last = [site.path.rsplit(".", 1)[-1] for site in fitting]
    every = zip(last, fitting, strict=True)
    names = list(dict.fromkeys(name if not name.isdigit() else site.path for name, site in every))
    if not names:
        return f"targets: the network has no cell that {config.method} fits ({', '.join(config.kinds)})"
    there = ", ".join(names[:LISTED]) + (", …" if len(names) > LISTED else "")
    other = ", or 'all-linear'" if any(site.kind == "linear" for site in fitting) else ""
    return f"targets: the model is of no known family; name its cells (there is: {there}){other}"


def refuse_misfits(entries, chosen: list[Site], family, config: Settings) -> list[Site]:
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


# What is trained beside the cells' modules -------------------------------------------------------------------------


def wanted(model, config: Settings, chosen: list[Site]) -> list[tuple[str, Any, str]]:
    """What a configuration trains whole by ``bias`` and ``modules_to_save``: (path, cell, attribute) of each parameter.

    Raises:
        InputError: an entry of modules_to_save that matches no cell with parameters, or a cell that is adapted too; no
            bias where nothing else would be trained.
    """
    cells = [(path, cell) for path, cell in plain_cells(model) if own_parameters(cell)]
    biased = {"all": cells, "lora_only": [(site.path, site.cell) for site in chosen]}
    found_so_far: dict[tuple[int, str], tuple[str, Any, str]] = {}
    adapted = {id(site.cell) for site in chosen}

    def want(path: str, cell, attributes: Iterable[str]) -> None:
        for attribute in attributes:
            found_so_far.setdefault((id(cell), attribute), (path, cell, attribute))

    for path, cell in biased.get(bias := getattr(config, "bias", "none"), ()):
        want(path, cell, filter(is_bias, own_parameters(cell)))
    if bias in biased and not found_so_far and not hasattr(config, "add_missing"):
        warn_once(f"bias: {bias!r} has no effect: {'the model has' if bias == 'all' else 'the targets have'} no bias")
    problems = []
    for entry in config.modules_to_save or []:
        found = [(path, cell) for path, cell in cells if within(path, entry)]
        if not found:
            hint = nearest(entry, {path.rsplit(".", 1)[-1] for path, _ in cells})
            problems.append(f"modules_to_save: {entry!r} matches no cell with parameters{hint}")
        for path, cell in found:
            if is_quantized(cell):
                problems.append(
                    f"modules_to_save: {path} is stored in {cell.storage} and cannot be trained; keep it out of the "
                    "quantization (skip)"
                )
            if id(cell) in adapted:
                problems.append(f"modules_to_save: {path} is a target too; train it whole or adapt it, not both")
            want(path, cell, own_parameters(cell))
    InputError.raise_any(problems)
    if not found_so_far and hasattr(config, "add_missing") and not (config.add_missing and chosen):
        hint = "; add_missing=True gives each Dense one" if chosen else ""
        raise InputError(f"{config.method}: there is no bias to train{hint}")
    return list(found_so_far.values())


def saved_in_full(config: Settings, path: str) -> bool:
    """Whether modules_to_save names a cell."""
    return any(within(path, entry) for entry in config.modules_to_save or [])


def with_tokens(model) -> list[Site]:
    """The sites that have a row for every token, or may have."""
    return [site for site in sites(model) if site.kind in ("embedding", "linear")]


def token_rows(model, config: Settings, chosen: list[Site]) -> list[tuple[Site, list[int], Site | None]]:
    """The embeddings, and heads, of which single rows are trained: each with the ids, and for a head that is tied the
    embedding whose rows they are.

    Raises:
        InputError: a name that matches no embedding, an id beyond the vocabulary, a cell that is a target or whole.
    """
    tokens = getattr(config, "trainable_tokens", None)
    if not tokens:
        return []
    everything, family = with_tokens(model), getattr(model, "family", None)
    if isinstance(config, Tokens) and config.targets is not None:
        tokens = {site.path: tokens for site in select(as_list(config.targets), everything, family, "targets")}
    elif not isinstance(tokens, dict):
        if family is None:
            raise InputError("trainable_tokens: the model is of no known family; give {embedding name: ids}")
        tokens = {family.embedding: list(tokens)}
    adapted = {site.path for site in chosen}
    asked: dict[str, list[int]] = {}
    for name, ids in tokens.items():
        matching = [site for site in everything if named(site.path, name)]
        if not matching:
            names = {site.path.rsplit(".", 1)[-1] for site in everything if site.kind == "embedding"}
            raise InputError(f"trainable_tokens: {name!r} matches no embedding{nearest(name, names)}")
        for site in matching:
            if site.transposed or (site.kind == "linear" and len(matching) > 1):
                raise InputError(f"trainable_tokens: {site.path} is no embedding or head")
            if site.path in adapted:
                raise InputError(f"trainable_tokens: {site.path} is a target too; choose one of the two")
            if max(ids) >= site.shape[0]:
                raise InputError(f"trainable_tokens: id {max(ids)}, but {site.path} has ids 0 … {site.shape[0] - 1}")
            asked[site.path] = list(ids)
    covered: set[str] = set()
    found: list[tuple[Site, list[int], Site | None]] = []
    ordered = sorted((site for site in everything if site.path in asked), key=lambda site: site.kind != "embedding")
    for site in ordered:
        if site.path in covered:
            continue
        ids, weight = asked[site.path], weight_of(site.cell)
        found.append((site, ids, None))
        for other in everything if site.kind == "embedding" and weight is not None else ():
            if other.path == site.path or weight_of(other.cell) is not weight:
                continue
            if asked.get(other.path, ids) != ids:
                raise InputError(f"trainable_tokens: {other.path} shares {site.path}'s weight; same ids expected")
            covered.add(other.path)
            found.append((other, ids, site))
    InputError.raise_any(
        f"trainable_tokens: {site.path} is in modules_to_save too; train it whole or some rows of it, not both"
        for site, *_ in found
        if saved_in_full(config, site.path)
    )
    return found


def live_token_rows(model, config: Settings, chosen: list[Site]) -> list[tuple[Site, list[int], Site | None]]:
    """The same for a model in memory, where a cell has one module of an adapter. On disk a tied head may have both."""
    rows, adapted = token_rows(model, config, chosen), {site.path for site in chosen}
    InputError.raise_any(
        f"trainable_tokens: {site.path} has {shared.path}'s weight, so these rows too, and is a target, which is not "
        "supported in a model; choose one of the two (pet merge takes an adapter with both)"
        for site, _, shared in rows
        if shared is not None and site.path in adapted
    )
    return rows


def check_feedforward(config: IA3, chosen: list[Site], family) -> None:
    """Raises InputError for an entry of IA3's ``feedforward`` that names no target; the family's default may."""
    if family is None or config.feedforward not in (None, [family.mlp[-1]]):
        select(as_list(config.feedforward), chosen, family, "feedforward")


def check_names(model, config: Settings) -> None:
    """Raises InputError where a configuration names what a model does not have, as applying it does."""
    chosen = chosen_sites(model, config)
    wanted(model, config, chosen)
    live_token_rows(model, config, chosen)
    if isinstance(config, IA3):
        check_feedforward(config, chosen, getattr(model, "family", None))


def plan(model, config: MethodConfig) -> Plan:
    """What `apply` would do, without doing it: one line per cell with its shape and its new parameters."""
    from adapters.method import check_config

    check_config(config)
    if not hasattr(model, "adapter_sites"):  # which a model of shapes alone has
        check_argument("model", "nn.Cell", model)
    config = config.resolved(model)
    chosen = chosen_sites(model, config)
    entries = [Planned(site, config.parameters_at(site)) for site in chosen]
    entries += [Planned(companion.site, companion.parameters) for companion in config.companions(model, chosen)]
    for path, cell, attribute in wanted(model, config, chosen):
        parameter = cell._params[attribute]
        site = Site(path, cell, "whole", 0, 0)
        entries.append(Planned(site, int(parameter.size), attribute, tuple(parameter.shape)))
    return Plan(config.method, tuple(entries))
