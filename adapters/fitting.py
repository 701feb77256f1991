"""The configuration of an adapter file on the model that it is loaded into, or on the shapes of the base that it is
merged into on disk; without MindSpore.

A file's tensors say what was adapted. PEFT passes over entries of the configuration that mean nothing on the model at
hand, and so it is here, with one warning. What a user asks for stays strict (`adapters.matching.chosen_sites`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from adapters.cells import Site, is_bias, own_parameters, plain_cells
from adapters.matching import chosen_sites, matches, means, saved_in_full, sites
from adapters.patterns import GROUPS, as_list, in_linear_time, is_glob, layer_numbers, pattern_matches, within
from adapters.schema import Settings
from adapters.settings import LoRA
from model_zoo.errors import InputError, first_of, nearest
from model_zoo.labels import SCORE

PATTERNS = ("rank_pattern", "alpha_pattern")
EXPERTS = ".experts."
"""In the paths of an expert's cells."""


def fit(model, config: Settings, tensors: Collection[str], parameters: Collection[str] = ()) -> list[str]:
    """Takes out of a configuration, in place, what means nothing on this model.

    Args:
        tensors: the names of the file's tensors, without PEFT's prefix.
        parameters: the cells whose weight the file adapts as a parameter (`adapters.stacked`).

    Returns:
        A phrase for every entry that was taken out.

    Raises:
        InputError: no target is left, or any other fault of the configuration that the tensors do not make good; a
            parameter that is stored (in, out), whose factors PEFT takes for the opposite sides.
    """
    family = getattr(model, "family", None)
    everything = sites(model)
    if turned := [
        f"{site.path}.weight" for site in everything if site.published_transposed and site.path in parameters
    ]:
        raise InputError(f"target_parameters: {first_of(turned)}: stored as (in, out); name the cell in target_modules")
    fitting = [site for site in everything if site.kind in config.kinds]
    dropped: list[str] = []

    def keep(setting: str, fits: Callable[[object], bool]) -> None:
        entries = getattr(config, setting, None)
        left = [entry for entry in as_list(entries) if fits(entry)]
        lost = [entry for entry in as_list(entries) if entry not in left]
        if lost and (left or setting not in ("targets", "layers")):  # else the error names them
            dropped.extend(f"{setting}: {entry!r} matches nothing here" for entry in lost)
            if setting in PATTERNS:
                left = {key: entries[key] for key in left}
            setattr(config, setting, left if left or setting == "feedforward" else None)

    def among(candidates):
        return lambda entry: any(matches(entry, site, family) for site in candidates)

    entries = as_list(config.targets) + as_list(config.exclude)
    expressions = [entry[3:] for entry in entries if isinstance(entry, str) and entry.startswith("re:")]
    holds = [site.path for site in fitting if any(f"{site.path}.{mark}" in tensors for mark in config.marks)]
    swept = [entry for entry in as_list(config.targets) if entry in GROUPS or (is_glob(entry) and entry[:3] != "re:")]
    meant = {site.path for site in fitting if means(config.targets, site, family)} if swept else set()
    if config.marks and any(in_linear_time(expression) is None for expression in expressions):
        said = "no bounded match for an expression"
    elif holds and meant != set(holds) and swept:
        said = f"{swept[0]!r} means other cells here"
    else:
        said = ""
    if said:
        dropped.append(f"targets: {said}; the tensors name the cells")
        config.targets, config.exclude, config.layers = holds, None, None
    experts = [site.path for site in fitting if EXPERTS in site.path and means(config.targets, site, family)]
    if holds and experts and not any(EXPERTS in path for path in holds):  # PEFT finds no cells in stacked ones
        dropped.append("targets: no expert is adapted in the file")
        config.exclude = [*as_list(config.exclude), *experts]
    head = next((site for site in fitting if family is not None and site.path == family.head), None)
    if head and f"{SCORE}.weight" in tensors and head.path not in holds and means(config.targets, head, family):
        dropped.append(f"targets: a model that judges texts has no {head.path}")
        config.exclude = [*as_list(config.exclude), head.path]
    there = {site.layer for site in everything}
    if getattr(config, "layers", None) is not None:
        name_in_full(config, everything, family)
    keep("targets", among(everything))
    keep("exclude", among(fitting))
    keep("layers", lambda entry: not isinstance(entry, int) or entry in there)
    numbers = layer_numbers(getattr(config, "layers", None), {one for one in there if one is not None})
    keep("targets", among([site for site in everything if numbers is None or site.layer in numbers]))
    in_full = [path for path, cell in plain_cells(model) if own_parameters(cell)]
    if family is not None and f"{SCORE}.weight" in tensors and f"{family.head}.weight" not in tensors:
        in_full = [path for path in in_full if path != family.head]
    saved_as_peft_reads_it(config, in_full, tensors)
    keep("modules_to_save", lambda entry: any(within(path, entry) for path in in_full))
    patterns = {name: getattr(config, name) for name in PATTERNS if getattr(config, name, None)}
    for name in patterns:
        setattr(config, name, None)
    chosen = chosen_sites(model, config)
    both = [site.path for site in chosen if saved_in_full(config, site.path)]
    if both:
        dropped.append(f"targets: {', '.join(both)} in modules_to_save too")
        config.exclude = [*as_list(config.exclude), *both]
        chosen = chosen_sites(model, config)
    for name, value in patterns.items():
        setattr(config, name, value)
        keep(name, lambda key: any(pattern_matches(key, site.path) for site in chosen))
    keep("feedforward", among(chosen))
    biased = any(is_bias(name) for site in chosen for name in own_parameters(site.cell))
    left_out = biased and not any(is_bias(name.rpartition(".")[2]) for name in tensors)
    if left_out and isinstance(config, LoRA) and config.bias == "lora_only":
        dropped.append("bias: the file holds none, which PEFT 0.7 to 0.20 left out; the base's are taken")
        config.bias = "none"
    return dropped


def name_in_full(config: Settings, everything: Collection[Site], family) -> None:
    """Names every cell where the file's layers do not hold for all targets: PEFT adapts a target that is a whole path
    in whichever layer it is, and outside of the layers."""
    entries, numbers, paths = as_list(config.targets), as_list(config.layers), {site.path for site in everything}
    if paths.isdisjoint(entries):
        return
    config.targets = [
        site.path
        for site in everything
        if site.path in entries or (site.layer in numbers and means(entries, site, family))
    ]
    config.layers = None


def saved_as_peft_reads_it(config: Settings, paths: list[str], tensors: Collection[str]) -> None:
    """Names in full what PEFT's looser reading of modules_to_save (paths that end so) meant, as the tensors show."""
    entries, in_file = list(config.modules_to_save or []), {name.rpartition(".")[0] for name in tensors}
    for path in in_file.intersection(paths):
        if not saved_in_full(config, path) and any(path.endswith(entry) for entry in entries):
            config.modules_to_save = [*config.modules_to_save, path]


def add_whole(config: Settings, model, arrays: Collection[str]) -> None:
    """Names in modules_to_save what a file brings whole without saying so: PEFT's ``save_embedding_layers``, which is
    on where the vocabulary was extended."""
    cells = {path for path, cell in plain_cells(model) if "weight" in own_parameters(cell)}
    for name in arrays:
        path, _, last = name.rpartition(".")
        if last == "weight" and path in cells and not saved_in_full(config, path):
            config.modules_to_save = [*(config.modules_to_save or []), path]


def check_apart(model, tensors: Collection[str]) -> None:
    """Refuses what PEFT's ``ensure_weight_tying`` makes of an embedding and the head that is tied to it, whose tensors
    the file then has. It does nothing to other cells, and rows of tokens (`adapters.tokens`) are shared in any case."""
    tied = getattr(getattr(model, "config", None), "tied_head", lambda: None)()
    head = tied[0].removesuffix("weight") if tied else ""
    if head and any(name.startswith(head) and not name.endswith("trainable_tokens_delta") for name in tensors):
        raise InputError(
            f"ensure_weight_tying: {head[:-1]} and the embedding share what is trained of them, which is not supported "
            "in a model; pet merge takes it"
        )


def shapes_of(tensors: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """{name: shape} of parameters or arrays."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def misfits(expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> list[str]:
    """What of an adapter's tensors is missing, extra or misshapen, by their shapes."""
    problems = [f"{key} is missing" for key in expected if key not in found]
    for key, shape in found.items():
        if key not in expected:
            problems.append(f"{key} belongs to no cell of this model's adapter{nearest(key, expected)}")
        elif (needed := expected[key]) != shape:
            problems.append(f"{key} has shape {shape}, expected {needed}")
    return problems
