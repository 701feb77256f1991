"""What an adapter file's configuration says of a base's tensors, as PEFT reads it; no model and no MindSpore is needed.

Loading asks the model (`adapters.fitting`). Merging on disk asks here, so that it refuses what loading refuses.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from adapters.patterns import GROUPS, as_list, full_match, in_linear_time, is_glob, named, within

Found = Mapping[tuple[str, str], Mapping[str, str]]  # {(tensor's name, kind of change): {part: tensor in the file}}


def with_targets(settings: dict[str, Any], peft_type: str, family: Any) -> dict[str, Any]:
    """The settings with the family's own targets where the file names none, which is how loading takes it."""
    if family is None or as_list(settings["targets"]):
        return settings
    defaults = {
        "LORA": family.default_targets,
        "IA3": family.ia3_targets,
        "TRAINABLE_TOKENS": (family.embedding,),
    }
    return {**settings, "targets": list(defaults.get(peft_type, ())) or None}


def expressions(settings: dict[str, Any]) -> list[str]:
    """The regular expressions among targets and what is excluded."""
    entries = as_list(settings["targets"]) + as_list(settings.get("exclude"))
    return [entry[3:] for entry in entries if entry.startswith("re:")]


def unbounded(settings: dict[str, Any]) -> bool:
    """Whether there is an expression that linear time does not suffice for: the tensors name the cells."""
    return any(in_linear_time(expression) is None for expression in expressions(settings))


def tells(settings: dict[str, Any]) -> bool:
    """Whether the settings alone say which cells are adapted. Groups of cells are a model's, and without targets, or
    where an expression is `unbounded`, the tensors alone can say."""
    targets = as_list(settings["targets"])
    of_models = any(not entry.startswith("re:") and (is_glob(entry) or entry in GROUPS) for entry in targets)
    return bool(targets) and not of_models and not unbounded(settings)


def adapts(settings: dict[str, Any], path: str) -> bool:
    """Whether a file's settings say, as PEFT reads them, that the cell at this path is adapted.

    False also where the tensors alone can say (`tells`).
    """
    targets, excluded = as_list(settings["targets"]), as_list(settings.get("exclude"))
    if targets == ["all-linear"] or unbounded(settings):
        return False

    def listed(entries: list[str]) -> bool:
        return any(full_match(entry[3:], path) if entry.startswith("re:") else named(path, entry) for entry in entries)

    layers, number = as_list(settings.get("layers")), re.match(r".*?\.[^.]*\.(\d+)\.", path)
    in_layers = not layers or (number is not None and int(number[1]) in layers)
    saved = any(within(path, entry) for entry in settings.get("modules_to_save") or [])
    return (path in targets or (listed(targets) and in_layers)) and not listed(excluded) and not saved


def missing(
    settings: dict[str, Any], shapes: Mapping[str, tuple[int, ...]], found: Collection[tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    """(tensor name, setting) of what the configuration says is changed and no tensor changes.

    Args:
        shapes: {tensor name: shape} of the base.
        found: (name, kind) of what the tensors change.
    """
    changed = {name for name, kind in found if kind != "whole"}
    whole = {name for name, kind in found if kind == "whole"}
    bias = settings.get("bias")
    for name, shape in shapes.items():
        module, _, last = name.rpartition(".")
        adapted = adapts(settings, module)
        if last == "weight" and len(shape) == 2 and adapted and name not in changed:
            yield name, "target_modules"
        elif name not in whole and any(within(module, entry) for entry in settings.get("modules_to_save") or []):
            yield name, "modules_to_save"
        elif name not in whole and last == "bias" and (bias == "all" or (bias == "lora_only" and adapted)):
            yield name, "bias"
    if settings.get("trainable_tokens") and not any(kind == "rows" for _, kind in found):
        yield "any embedding", "trainable_token_indices"


def left_out(settings: dict[str, Any], found: Found, family: Any, tied: tuple[str, str] | None = None) -> Iterator[str]:
    """The tensors of the file that the configuration leaves out: PEFT passes over them, and loading refuses them.

    Args:
        family: the base's table, or None.
        tied: the names of a head and the embedding, of which either stands for both (PEFT's ``ensure_weight_tying``).
    """
    told, pair = tells(settings), [name.removesuffix(".weight") for name in tied or ()]

    def adapted(module: str) -> bool:
        return not told or any(adapts(settings, one) for one in (pair if module in pair else [module]))

    def trains_rows(module: str) -> bool:
        given = settings.get("trainable_tokens")
        if "rank" not in settings:  # they are all that there is to the adapter
            return adapted(module)
        return isinstance(given, dict) or family is None or module == family.embedding

    def trains_whole(module: str, last: str) -> bool:
        mode = settings.get("bias")
        of_bias = last == "bias" and (mode == "all" or (mode == "lora_only" and adapted(module)))
        # PEFT takes an entry for any cell whose path ends so, and saves tables of tokens without naming them
        saved = any(within(module, entry) or module.endswith(entry) for entry in settings["modules_to_save"] or [])
        return last == "weight" or of_bias or saved

    for (name, kind), tensors in found.items():
        module, _, last = name.rpartition(".")
        if kind == "whole":
            there = "modules_to_save" not in settings or trains_whole(module, last)
        else:
            there = trains_rows(module) if kind == "rows" else adapted(module)
        for part, key in tensors.items():
            if not there or (part == "lora_magnitude_vector" and not settings["use_dora"]):
                yield key
