"""PEFT's LoRA on stacked experts, opened as LoRA on the matrices of each expert.

transformers 5 holds the experts of a layer as ``gate_up_proj (E, 2·I, H)`` and ``down_proj (E, H, I)``. PEFT's LoRA on
such a parameter (``target_parameters``) is one A ``(E·r, in)``, expert after expert, and one B ``(out, r·E)``, in which
the expert is the faster index: ``ΔW_e = s·B[:, e::E]·A[e·r:(e+1)·r]``. So gate and up of an expert have the same A, and
the upper and the lower half of its B. Of two adapted parameters the first is called ``experts.base_layer.lora_A``, as
PEFT wraps it first, and the second ``experts.lora_A``.

PEFT opens LoRA on the matrices of each expert by the opposite way: gate and up become one LoRA of twice the rank.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from adapters.file_names import AdapterFile
from adapters.patterns import pattern_value
from model_zoo.checkpoint.wrappers import STACKS
from model_zoo.errors import InputError

FACTOR = re.compile(r"(?P<experts>.+\.experts)(?P<inner>\.base_layer)?\.lora_(?P<factor>[AB])\.weight")
ROUTER = r"gate(\.weight)?"
"""A pattern's key for the router: a cell here, and a parameter for PEFT."""
CELL = re.compile(r"(?P<cell>.+)\.lora_(A\.weight|embedding_A)")


class UnstackedFile(AdapterFile):
    """The tensor file of an adapter with ``target_parameters``, with the experts' matrices under names of their own.

    Args:
        values: its adapter_config.json.
        prefix: of the tensors' names, which paths lack.

    Attributes:
        values: the settings that describe the file as it is shown here.
        parameters: the cells whose weight was adapted as a parameter, which has ranks by its own name.

    Raises:
        InputError: a target that is neither a stack of experts nor a cell's weight, or factors of another shape.
    """

    def __init__(self, path: str | Path, values: dict[str, Any], prefix: str):
        super().__init__(path)
        given = values["target_parameters"]
        if odd := [one for one in given if one.rpartition(".")[2] not in (*STACKS, "weight")]:
            raise InputError(f"target_parameters: {', '.join(odd)}: only experts' {' and '.join(STACKS)} can be opened")
        named_by, cells = {}, {}
        for name in list(self.tensors):
            if match := FACTOR.fullmatch(name):
                experts = match["experts"].removeprefix(prefix)
                wrapped = [one for one in STACKS if any(f".{experts}.{one}".endswith(f".{end}") for end in given)]
                if len(wrapped) < (2 if match["inner"] else 1):
                    raise InputError(f"{name}: target_parameters names no parameter that this belongs to")
                stack = wrapped[0 if match["inner"] else -1]
                rank = pattern_value(values.get("rank_pattern"), f"{experts}.{stack}", values.get("r", 8))
                for matrix in self.cut(name, match, stack, rank):
                    named_by[f"{experts}.{matrix}"] = f"{experts}.{stack}"
            elif match := CELL.fullmatch(name):
                cell = match["cell"].removeprefix(prefix)
                own = any(f".{cell}.weight".endswith(f".{one}") for one in given)
                cells[cell] = f"{cell}.weight" if own else cell
        named = values.get("target_modules")
        if not isinstance(named, list) or narrowed(values):
            named = list(cells)
        everywhere = not any(part.isdigit() for one in given for part in one.split("."))  # not in some layers alone
        self.values = {
            **values,
            "target_modules": sorted(
                {*named, *(one.removesuffix(".weight") for one in given if one.endswith(".weight"))}
                | {path.rpartition(".")[2] if everywhere else path for path in named_by}
            ),
            **dict.fromkeys(("target_parameters", "exclude_modules", "layers_to_transform", "layers_pattern")),
            **settings({**cells, **named_by}, values),
        }
        self.parameters = {cell for cell, key in cells.items() if key != cell}

    def cut(self, name: str, match: re.Match, stack: str, rank: int) -> list[str]:
        """Puts the factors of the matrices in the place of a stacked one; gives their names at these experts."""
        info, matrices, first = self.tensors.pop(name), STACKS[stack], match["factor"] == "A"
        stacked, other = info.shape if first else info.shape[::-1]
        if stacked % rank or (not first and other % len(matrices)):
            raise InputError(f"{name} has shape {info.shape}: no LoRA of rank {rank} on experts' {stack}")
        self.tensors[name] = info
        array, count = self.read(name), stacked // rank
        del self.tensors[name]
        array = array.reshape((count, rank, other) if first else (len(matrices), -1, rank, count))
        names = []
        for expert in range(count):
            for index, matrix in enumerate(matrices):
                shown = f"{match['experts']}.{expert}.{matrix}.lora_{match['factor']}.weight"
                self.put(shown, array[expert] if first else array[index, ..., expert], info.dtype)
                names.append(f"{expert}.{matrix}")
        return names


def settings(keys: dict[str, str], values: dict[str, Any]) -> dict[str, Any]:
    """Ranks and alphas of an adapter on experts as PEFT can take them over for stacked ones.

    PEFT gives gate_up_proj twice ``r`` and ``lora_alpha``, whatever the patterns say, and would scale rsLoRA by the
    doubled rank. So the rank of gate and up is ``r``, where it is one, and rsLoRA's √r is part of alpha.

    Args:
        keys: {cell: path by which its values are looked up}.
        values: adapter_config.json's.
    """
    found = {}
    for path, key in keys.items():
        rank = pattern_value(values.get("rank_pattern"), key, values.get("r", 8))
        alpha = pattern_value(values.get("alpha_pattern"), key, values.get("lora_alpha", 8))
        found[path] = rank, alpha * math.sqrt(rank) if values.get("use_rslora") else alpha
    halves = {found[path] for path in found if ".experts." in path and path.endswith(STACKS["gate_up_proj"])}
    common = halves.pop() if len(halves) == 1 else (values.get("r", 8), values.get("lora_alpha", 8))
    result: dict[str, Any] = {"r": common[0], "lora_alpha": common[1], "use_rslora": False}
    for index, setting in enumerate(("rank_pattern", "alpha_pattern")):
        by_name: dict[str, set] = {}
        for path, pair in found.items():
            by_name.setdefault(path.rpartition(".")[2], set()).add(pair[index])
        result[setting] = {
            (last if len(by_name[name]) == 1 else f"^{re.escape(path.removesuffix(name))}{last}"): pair[index]
            for path, pair in found.items()
            for name in [path.rpartition(".")[2]]
            for last in [ROUTER if name == "gate" else name]
            if by_name[name] != {common[index]}
        }
    return result


def narrowed(values: dict[str, Any]) -> bool:
    """Whether not all cells that ``target_modules`` names are meant; 0 is a layer's number."""
    return any(values.get(key) not in (None, "", []) for key in ("exclude_modules", "layers_to_transform"))
