"""LoRA matrices in MindFormers' and MindPet's ``.ckpt`` files: to a PEFT adapter directory and back.

There a matrix has ``<name>.mindpet_delta_lora_a`` (rank, in) and ``…_b`` (out, rank), in older files
``tk_delta_lora_…``; rank and alpha stand in the job's pet_config, one for all matrices. Where the base's matrices are
divided differently, LoRA on a part of one is LoRA on the whole whose B is zero elsewhere; several parts become blocks,
with a rank that is the sum of theirs and the same scale. It is the same function, exactly.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from model_zoo.checkpoint.ckpt_io import CkptFile, write_ckpt
from model_zoo.checkpoint.mindspore_files import opened
from model_zoo.checkpoint.safetensors_io import SafetensorsFile
from model_zoo.counting import config_of, layout_of, parameter_shapes
from model_zoo.errors import InputError, nearest
from pet.compat.ckpt.doors import Report, config_for, find_ckpt, write_adapter
from pet.compat.ckpt.names import LORA, Form, Group, form_of, groups
from pet.compat.ckpt.view import further_layers, is_lora, is_weight, to_ours, to_theirs

Pair = tuple[np.ndarray, np.ndarray]  # A (rank, in) and B (out, rank)


def to_adapter(
    source: str | os.PathLike,
    output: str | os.PathLike,
    alpha: float,
    config: str | os.PathLike | Mapping[str, Any] | None = None,
    form: Form | None = None,
) -> Report:
    """Writes the LoRA matrices of a ``.ckpt`` file as an adapter directory in PEFT's format.

    Args:
        source: a file with nothing but them, or with the base's weights as well.
        alpha: ``lora_alpha`` of the job's pet_config; the file does not hold it.
        config: of the base, see `pet.compat.ckpt.doors.config_for`. Of a file with more layers the first ones are read.
        form: what the names do not tell of the file.

    Raises:
        InputError: no LoRA matrices, one without its other, or names and shapes that do not fit the base.
    """
    path = find_ckpt(source)
    with opened(path) as file:
        pairs = _pairs(file)
        values = config_for(path, config)
        names = [f"{stem}.weight" for stem in pairs]
        form = form_of([*names, *file.tensors], form)
        places = _places(values, form, names)
        known = {name for group in groups(values, form) for name in group.theirs}
        weights = [name for name in file.tensors if is_weight(name)]
        further = further_layers(path, [*names, *weights], {*places, *known})
        names = [name for name in names if name not in further]
        problems = [
            f"{path}: {name.removesuffix('.weight')} is no matrix of this model{nearest(name, places)}"
            for name in names
            if name not in places
        ]
        problems += [
            f"{path}: {name} is no parameter of this model{nearest(name, known)}"
            for name in weights
            if name not in known | further
        ]
        InputError.raise_any(problems)
        ranks = {pairs[name.removesuffix(".weight")][0].shape[0] for name in names}
        if len(ranks) > 1:
            raise InputError(f"{path}: LoRA matrices of ranks {sorted(ranks)}; MindFormers has one for all")
        rank = ranks.pop()
        found: dict[str, Pair] = {}
        for group in {id(places[name]): places[name] for name in names}.values():
            present = {name: pairs[stem] for name in group.theirs if (stem := name.removesuffix(".weight")) in pairs}
            found.update(_ours(group, present))
    shapes = parameter_shapes(values)
    _check_shapes(path, found, shapes, layout_of(values) == "gpt2")
    tensors = {}
    for module, (a, b) in found.items():
        tensors[f"base_model.model.{module}.lora_A.weight"] = a
        tensors[f"base_model.model.{module}.lora_B.weight"] = b
    ranks = _shortened({module: len(a) for module, (a, _) in found.items() if len(a) != rank}, found)
    settings = {
        "peft_type": "LORA",
        "bias": "none",
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "fan_in_fan_out": layout_of(values) == "gpt2",
        "target_modules": _targets(found, shapes),
        "rank_pattern": ranks,
        "alpha_pattern": {name: alpha * other / rank for name, other in ranks.items()},
    }
    write_adapter(output, tensors, settings)
    return Report(Path(output), len(tensors), note=f"rank {rank}, alpha {alpha:g}, on {len(found)} matrices")


def to_lora_file(
    adapter: str | os.PathLike,
    output: str | os.PathLike,
    config: str | os.PathLike | Mapping[str, Any],
    form: Form | None = None,
) -> Report:
    """Writes an adapter directory as a ``.ckpt`` file with MindFormers' names.

    Args:
        adapter: a LoRA adapter in PEFT's format.
        form: how MindFormers divides the base's matrices.

    Returns:
        The report says which ``lora_rank`` and ``lora_alpha`` the job's pet_config must have.

    Raises:
        InputError: another method than plain LoRA, or ranks or scales that differ between matrices: MindFormers has one
            for all.
    """
    from pet.serving import MERGE, lora_of

    values = config_for(Path(output), config)
    with lora_of(adapter, config_of(values), "MindFormers") as (stored, changes):
        if odd := [one.name for one in changes if one.kind != "lora"]:
            raise InputError(f"{adapter}: {odd[0]}: MindFormers has LoRA on linear layers only; {MERGE}")
        ours = {
            one.name: (stored.file.read(one.tensors["lora_A"]), stored.file.read(one.tensors["lora_B"]), one.scale)
            for one in changes
        }
        types = {one.name: stored.file.info(one.tensors["lora_A"]).dtype for one in changes}
    places = {name: group for group in groups(values, form) for name in group.ours}
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    arrays: dict[str, np.ndarray] = {}
    facts: set[tuple[int, float]] = set()
    word = "tk" if form and form.old_names else "mindpet"
    for group in {id(places[name]): places[name] for name in ours}.values():
        scales = {ours[name][2] for name in group.ours if name in ours}
        if len(scales) > 1:
            raise InputError(f"{adapter}: {', '.join(group.ours)} differ in scale, but are one matrix in MindFormers")
        dtype = types[next(name for name in group.ours if name in ours)]
        for name, pair in _theirs(group, {name: ours[name][:2] for name in group.ours if name in ours}).items():
            facts.add((len(pair[0]), scales.copy().pop() * len(pair[0])))
            for letter, array in zip("ab", pair, strict=True):
                key = f"{name.removesuffix('.weight')}.{word}_delta_lora_{letter}"
                tensors[key], arrays[key] = (dtype, array.shape), array
    if len(facts) > 1:
        listed = ", ".join(f"rank {rank} alpha {alpha:g}" for rank, alpha in sorted(facts))
        raise InputError(f"{adapter}: matrices come to {listed}; MindFormers has one rank and alpha for all")
    rank, alpha = facts.pop()
    write_ckpt(output, tensors, arrays.__getitem__)
    return Report(Path(output), len(tensors), note=f"pet_config: lora_rank: {rank}, lora_alpha: {alpha:g}")


def _pairs(file: CkptFile | SafetensorsFile) -> dict[str, Pair]:
    """{name of the matrix: (A, B)} of a file."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for name in file.tensors:
        if is_lora(name):
            match = LORA.fullmatch(name)
            found.setdefault(match["stem"], {})[match["part"].lower()] = file.read(name)
    lonely = [
        f"{file.path}: {stem} has only one of its two LoRA matrices" for stem, two in found.items() if len(two) < 2
    ]
    odd = [
        f"{file.path}: {stem}: A of shape {two['a'].shape} and B of shape {two['b'].shape} do not belong together"
        for stem, two in found.items()
        if len(two) == 2 and (two["a"].ndim != 2 or two["b"].ndim != 2 or two["a"].shape[0] != two["b"].shape[1])
    ]
    if not found:
        lonely = [f"{file.path}: holds no LoRA matrices (names ending in mindpet_delta_lora_a or tk_delta_lora_a)"]
    InputError.raise_any(lonely + odd)
    return {stem: (two["a"], two["b"]) for stem, two in found.items()}


def _places(config: Mapping[str, Any], form: Form, names: list[str]) -> dict[str, Group]:
    """{their name: group}; a file of LoRA matrices alone may adapt the joined matrices or their parts."""
    parts = {name.split(".")[-2] for name in names}
    if layout_of(config) == "chatglm2" and not parts & {"query_key_value"}:
        form = dataclasses.replace(form, qkv_concat=not parts & {"wq", "wk", "wv"})
    return {name: group for group in groups(config, form) for name in group.theirs}


def _ours(group: Group, present: dict[str, Pair]) -> dict[str, Pair]:
    """{our module: (A, B)} of what is there of a group."""
    a, b = _side_by_side(group.theirs, group.rows, present)
    names = [name.removesuffix(".weight") for name in group.ours]
    return {name: (a, part) for name, part in zip(names, to_ours(group, [b]), strict=True)}


def _theirs(group: Group, present: dict[str, Pair]) -> dict[str, Pair]:
    """{their name: (A, B)} of what is there of a group."""
    a, b = _side_by_side(group.ours, group.rows, present)
    parts = to_theirs(group, [b])
    blocks = _blocks(parts) if len(parts) > 1 else None
    if blocks is None:
        return {name: (a, part) for name, part in zip(group.theirs, parts, strict=True)}
    return {group.theirs[place]: (a[columns], parts[place][:, columns]) for place, columns in blocks.items()}


def _side_by_side(names: Sequence[str], rows: Sequence[int], present: dict[str, Pair]) -> Pair:
    """LoRA on parts of a matrix as LoRA on the whole: B in blocks, in the same columns where all parts have one A."""
    downs = [present[name][0] for name in names if name in present]
    if len(names) == 1:
        return present[names[0]]
    shared = all(np.array_equal(a, downs[0]) for a in downs)
    whole = np.zeros((sum(rows), len(downs[0]) if shared else sum(map(len, downs))), downs[0].dtype)
    column = 0
    for part, name in zip(np.split(whole, np.cumsum(rows)[:-1]), names, strict=True):
        if name in present:
            a, b = present[name]
            part[:, column : column + len(a)] = b
            column += 0 if shared else len(a)
    return (downs[0] if shared else np.concatenate(downs)), whole


def _blocks(parts: list[np.ndarray]) -> dict[int, slice] | None:
    """The columns that each part of B uses, where every part that is not zero has equally many of its own."""
    used = [place for place, part in enumerate(parts) if part.any()]
    width = parts[0].shape[1]
    if not used or width % len(used):
        return None
    size = width // len(used)
    blocks = {place: slice(number * size, (number + 1) * size) for number, place in enumerate(used)}
    for place, columns in blocks.items():
        outside = np.delete(parts[place], np.arange(columns.start, columns.stop), axis=1)
        if outside.any():
            return None
    return blocks


def _check_shapes(path: Path, found: dict[str, Pair], shapes: Mapping[str, tuple[int, ...]], transposed: bool) -> None:
    problems = []
    for module, (a, b) in found.items():
        out, width = shapes[f"{module}.weight"][:: -1 if transposed else 1]
        if (b.shape[0], a.shape[1]) != (out, width):
            problems.append(f"{path}: LoRA of {module} is {b.shape[0]}×{a.shape[1]}, the matrix {out}×{width}")
    InputError.raise_any(problems)


def _targets(found: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """PEFT's target_modules: the last word of the names where all matrices of that word are meant, else whole names."""
    words = {module.rpartition(".")[2] for module in found}
    meant = {
        name.removesuffix(".weight")
        for name, shape in shapes.items()
        if len(shape) == 2 and name.removesuffix(".weight").rpartition(".")[2] in words
    }
    return sorted(words) if meant == set(found) else sorted(found)


def _shortened(ranks: Mapping[str, int], found: Mapping[str, Any]) -> dict[str, int]:
    """Ranks by the last word of the modules' names, where all matrices of a word have the same."""
    by_word: dict[str, set[int | None]] = {}
    for module in found:
        by_word.setdefault(module.rpartition(".")[2], set()).add(ranks.get(module))
    if any(len(each) > 1 for each in by_word.values()):
        return {re.escape(module): rank for module, rank in ranks.items()}
    return {word: rank for word, (rank,) in by_word.items() if rank is not None}
