"""PEFT's AdaLoRA, B·diag(E)·A, opened as the LoRA that it is; what trains it chooses its ranks, and is not here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from adapters.file_names import AdapterFile
from adapters.fused import FusedFile
from adapters.patterns import keys_for
from adapters.stacked import UnstackedFile
from model_zoo.errors import InputError

ADALORA = "ADALORA"
SPENT = ("target_r", "init_r", "tinit", "tfinal", "deltaT", "beta1", "beta2", "orth_reg_weight", "total_step")


class AdaLoraFile(AdapterFile):
    """Its tensor file, with E and the scale, which is of the rank before any was taken away, in A. Arguments and
    attribute are those of `adapters.stacked.UnstackedFile`."""

    def __init__(self, path: str | Path, values: dict[str, Any], prefix: str):
        super().__init__(path)
        ranks, alpha, first_rank = {}, values.get("lora_alpha", 8), values.get("init_r", 12) + 1e-5
        cells = [name.removesuffix(".lora_E") for name in self.tensors if name.endswith(".lora_E")]
        if not cells:
            raise InputError(f"peft_type is {ADALORA!r}, but {path} holds no lora_E")
        for cell in cells:
            a, b, e = (self.read(f"{cell}.lora_{part}", dtype="float64") for part in "ABE")
            scaled = {"A": a * e * (alpha if alpha > 0 else len(a)) / first_rank, "B": b}
            for part in "ABE":
                del self.tensors[f"{cell}.lora_{part}"]
            if len(a):  # the budget may have left a cell no rank
                ranks[cell.removeprefix(prefix)] = len(a)
            for part, array in scaled.items() if len(a) else ():
                self.put(f"{cell}.lora_{part}.weight", array.astype(np.float32))
        rank = max(ranks.values(), default=1)
        keys = keys_for(ranks)
        pattern = {keys[path]: own for path, own in ranks.items() if own != rank}
        self.values = {key: value for key, value in values.items() if key not in SPENT} | {
            **{"peft_type": "LORA", "target_modules": sorted(ranks), "use_rslora": False},
            **{"r": rank, "lora_alpha": rank, "rank_pattern": pattern, "alpha_pattern": pattern},
            **dict.fromkeys(("exclude_modules", "layers_to_transform", "layers_pattern")),
        }


def shown_as(values: dict[str, Any]) -> type[AdaLoraFile] | type[UnstackedFile] | type[FusedFile] | None:
    """What shows an adapter's tensors as those of a LoRA, where they are none as they stand."""
    if values["peft_type"] == ADALORA:
        return AdaLoraFile
    forms = {"target_parameters": UnstackedFile, "enable_lora": FusedFile} if values["peft_type"] == "LORA" else {}
    return next((form for key, form in forms.items() if values.get(key)), None)
