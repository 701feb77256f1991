"""LoRA's settings under the names of PEFT's adapter_config.json, both ways."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from adapters.cells import own_parameters, plain_cells, weight_of
from adapters.initial import START
from adapters.matching import chosen_sites
from adapters.patterns import (
    GROUPS,
    as_list,
    found_by_any,
    full_match,
    in_any_order,
    is_glob,
    keys_for,
    pattern_key,
    pattern_matches,
    pattern_value,
    within,
)
from adapters.stacked import settings
from model_zoo.errors import InputError, warn_caller
from model_zoo.quantization.storage import is_quantized

BASE_LAYER = ".base_layer."
A, B, TABLE = ".lora_A.weight", ".lora_B.weight", ".lora_embedding_A"


def targets_to_peft(entries, paths: list[str]):
    """Our targets as PEFT's: names stay, a single expression becomes its string, anything else the list of cells."""
    entries = as_list(entries)
    plain = all(not is_glob(entry) and not entry.startswith("re:") for entry in entries)
    groups = {*GROUPS} & set(entries)
    if entries and plain and not groups:
        return sorted(entries)
    if len(entries) == 1 and entries[0].startswith("re:"):
        return entries[0][3:]
    return sorted(paths)


def written_targets(config, model, paths: list[str]):
    """`targets_to_peft` of a configuration; whole paths where names would mean more in PEFT's model: in other layers,
    in an encoder that is not opened here, or what cannot be adapted, at which PEFT fails."""
    beside = getattr(getattr(model, "config", None), "left_out", "")
    if config.layers is not None or config.exclude is not None or beside:
        return sorted(paths)
    written = targets_to_peft(config.targets or sorted({path.rsplit(".", 1)[-1] for path in paths}), paths)
    return sorted(paths) if isinstance(written, str) and sweeps(written, model, paths) else written


def sweeps(expression: str, model, paths: list[str]) -> bool:
    """Whether an expression matches more than these cells: others of the model, or a neighbour of any name, as PEFT's
    model has some that are no cells here (activations, dropout)."""
    others = {path for path, _ in plain_cells(model)}.difference(paths)
    others.update(f"{path.rpartition('.')[0]}.other_part" for path in paths)
    return any(full_match(expression, other) for other in others)


def to_peft(config, model, adapter) -> dict[str, Any]:
    """The settings as PEFT writes them. What a glob or a group named is written as the cells it found.

    PiSSA and OLoRA are written as the plain LoRA of twice the rank that they are on the unchanged base (`pack`); an
    embedding has neither start, and its own rank. What was begun anew is written as that of all its parts.
    """
    paths = [path for path in adapter.sites if path not in adapter.companions]
    doubled = config.init in START
    ranks = 2 if doubled else 1
    if adapter.earlier is not None:
        ranks += adapter.earlier.config.rank // config.rank
    growth = growth_of(config, ranks)
    tables = [path for path in paths if adapter.sites[path].kind == "embedding"] if doubled else []

    patterns = [in_any_order(one, paths) for one in (config.rank_pattern, config.alpha_pattern)]
    # PEFT before 0.14 looks for one key in both, and before 0.15 behind a dot: a cell has to have one that it finds
    found = {path: {pattern_key(one, path) for one in patterns} - {None} for path in paths}
    known = all(found_by_any(key, path) for path, each in found.items() for key in each)
    apart = tables or not known or any(len(each) > 1 for each in found.values())
    keys = keys_for(paths)

    def scaled(pattern, usual, factor):
        if not apart:
            return {key: value * factor for key, value in pattern.items()}
        own = {path: pattern_value(pattern, path, usual) * (1 if path in tables else factor) for path in paths}
        return {keys[path]: value for path, value in own.items() if value != usual * factor}

    values = {
        **{key: getattr(config, name) for name, key in config.peft_names().items()},
        "r": config.rank * ranks,
        "lora_alpha": config.alpha * growth,
        "target_modules": written_targets(config, model, paths),
        "layers_pattern": None,
        "layers_to_transform": None,
        "modules_to_save": saved_whole(config, model),
        "rank_pattern": scaled(patterns[0], config.rank, ranks),
        "alpha_pattern": scaled(patterns[1], config.alpha, growth),
        "init_lora_weights": config.init if config.init == "gaussian" else True,
        "fan_in_fan_out": any(site.published_transposed for site in adapter.sites.values()),
    }
    adapted = {path.rpartition(".")[2] for path in paths if ".experts." in path}
    if not adapted:
        return values
    if adapted & {"gate_proj", "up_proj"} and "down_proj" not in adapted:  # it looks for both stacked parameters
        given = f"experts' {' and '.join(sorted(adapted))} without down_proj"
        warn_caller(f"{given}: PEFT with transformers 5 cannot open this")
    return {**values, **settings({path: path for path in paths}, values)}


def growth_of(config, ranks: int):
    """What alpha is multiplied by where the rank is, so that the scale stays."""
    return math.sqrt(ranks) if config.use_rslora and ranks > 1 else ranks


def saved_whole(config, model) -> list[str] | None:
    """modules_to_save for PEFT, which takes an entry for any cell whose path ends with it, dot or no dot: what would
    mean more there than here is written as whole paths. It does not find the tensors of a cell within
    another entry's, which is left out, since the outer one says all."""
    if not config.modules_to_save:
        return config.modules_to_save
    paths = [path for path, cell in plain_cells(model) if own_parameters(cell)]

    def depth(path: str, entry: str) -> int:
        """How far into a path the cell goes that an entry names."""
        return f".{path}.".index(f".{entry}.") + len(entry)

    written = []
    for entry in config.modules_to_save:
        meant = [path for path in paths if within(path, entry)]
        others = [other for other in config.modules_to_save if other != entry]
        left = [
            path
            for path in meant
            if not any(within(path, other) and depth(path, other) < depth(path, entry) for other in others)
        ]
        more = any(path.endswith(entry) and path not in meant for path in paths)
        written += left if more or left != meant else [entry]
    return written


def pack(arrays: dict[str, np.ndarray], adapter) -> dict[str, np.ndarray]:
    """The adapter's arrays under PEFT's names and in PEFT's form.

    PEFT calls the bias of an adapted cell ``<cell>.base_layer.bias``. It has no place for the first factors of PiSSA
    and OLoRA, which it takes off the base: ``[B, −B₀]`` and ``[A; A₀]`` are the same change on the unchanged base.
    """
    packed = {}
    for key, array in arrays.items():
        path, _, last = key.rpartition(".")
        if last == "bias" and path in adapter.modules:
            key = path + BASE_LAYER + last
        packed[key] = array
    modules = adapter.modules.items()
    parts = [(path, one.initial_A, one.initial_B, -1) for path, one in modules if hasattr(one, "initial_A")]
    if adapter.earlier is not None:
        parts += [(path, one.lora_A, one.lora_B, 1) for path, one in adapter.earlier.modules.items()]
    for path, a, b, sign in parts:
        packed[path + A] = np.concatenate([packed[path + A], a.weight.asnumpy()], 0)
        packed[path + B] = np.concatenate([packed[path + B], sign * b.weight.asnumpy()], 1)
    return packed


def unpack(arrays: dict[str, np.ndarray], model, init: str) -> dict[str, np.ndarray]:
    """A file's arrays under our names.

    PEFT puts the whole base weight of an adapted embedding or head beside its factors. This model's own has been left
    out by then (`adapters.saving`); another one would silently change the result.
    """
    cells = dict(model.cells_and_names())
    plain = {}
    for key, array in arrays.items():
        path, found, last = key.replace(".token_adapter" + BASE_LAYER, BASE_LAYER).rpartition(BASE_LAYER)
        if not found:
            plain[key] = array
        elif last == "bias":
            plain[f"{path}.bias"] = array
        elif last == "weight" and path in cells and weight_of(cells[path]) is not None:
            raise InputError(
                f"{key}: the file brings a base weight of its own {array.shape}, which is not this model's "
                f"{tuple(weight_of(cells[path]).shape)}"
                + (f": {init} took its first factors off it; save it in PEFT as plain LoRA" if init in START else "")
            )
        else:
            plain[key] = array
    return plain


def restarted(config, model, arrays: dict[str, np.ndarray], started_by: str | None):
    """PiSSA and OLoRA as they were trained on a base in 8 or 4 bits, which is packed without their first factors: these
    are the second half of the written rank (`pack`). Over unpacked weights it is plain LoRA as it is written."""
    cells = dict(model.cells_and_names())
    paths = [key.removesuffix(A) for key in arrays if key.endswith(A)]
    packed = any(is_quantized(cells[path]) for path in paths if path in cells)
    whole = all(path + B in arrays and arrays[path + B].ndim == 2 for path in paths)  # or `fill` says what is missing
    if started_by not in START or not packed or not whole:
        return config, arrays
    growth = growth_of(config, 2)
    halved, first = dict(arrays), {}
    for path in paths:
        a, b = arrays[path + A], arrays[path + B]
        rank = a.shape[0] // 2
        halved[path + A], halved[path + B] = a[:rank], b[:, :rank]
        first[path] = -b[:, rank:], a[rank:]
    tables = [key.removesuffix(TABLE) for key in arrays if key.endswith(TABLE)]

    def shrunk(patterns, divide):
        """But for embeddings, whose keys `to_peft` writes apart."""
        own = {key: any(pattern_matches(key, path) for path in tables) for key in patterns or {}}
        return {key: value if own[key] else divide(value) for key, value in (patterns or {}).items()}

    config = dataclasses.replace(
        config,
        init=started_by,
        rank=config.rank // 2,
        alpha=config.alpha / growth,
        rank_pattern=shrunk(config.rank_pattern, lambda rank: rank // 2),
        alpha_pattern=shrunk(config.alpha_pattern, lambda alpha: alpha / growth),
    )
    config.first = first
    return config, halved


def check_ranks(config, model, tensors, where) -> None:
    """Raises InputError where the configuration's ranks are not those of the file's factors.

    Nothing has been allocated by then, so an absurd rank costs nothing. A cell that the file has no factors for is not
    given a higher rank than the file has anywhere.
    """
    problems, largest, seen = [], 0, set()
    for key, info in tensors.items():
        for mark in config.marks:
            if key.endswith(f".{mark}"):
                path = key[: -len(mark) - 1]
                rank = config.rank_at(path)
                if not info.shape or info.shape[0] != rank:
                    problems.append(f"{where}: {key} has shape {info.shape}, but the configuration says rank {rank}")
                seen.add(path)
                largest = max(largest, info.shape[0] if info.shape else 0)
    if not seen:
        raise InputError(f"{where}: the file holds no LoRA tensors")
    for site in chosen_sites(model, config):
        if site.path not in seen and config.rank_at(site.path) > largest:
            problems.append(f"{where}: no factors for {site.path}, which would have rank {config.rank_at(site.path)}")
    InputError.raise_any(problems[:10])
