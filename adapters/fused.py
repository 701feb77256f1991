"""LoRA on parts of a fused matrix (``enable_lora``), as PEFT before 0.3 had it, opened as LoRA on all of it.

It is the form of every GPT-2 there, and of others whose queries, keys and values lie in one matrix. A holds the factors
of all chosen parts, one below the other; B is a convolution of two groups, whatever their number: the first half of its
outputs sees the first half of A's, the second half the second.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from adapters.file_names import AdapterFile
from model_zoo.errors import InputError


class FusedFile(AdapterFile):
    """Its tensor file, with B as a matrix ``(out, rank)`` that has zeros for the other parts. Arguments and attribute
    are those of `adapters.stacked.UnstackedFile`."""

    def __init__(self, path: str | Path, values: dict[str, Any], prefix: str):
        super().__init__(path)
        parts = values["enable_lora"]
        if not isinstance(parts, list) or not all(isinstance(part, bool) for part in parts) or not any(parts):
            raise InputError(f"enable_lora is {parts!r}; a list of true and false was expected")
        chosen = [place for place, part in enumerate(parts) if part]
        for name, info in list(self.tensors.items()):
            if not name.endswith(".lora_B.weight"):
                continue
            if len(info.shape) != 3 or info.shape[2] != 1 or info.shape[0] % (2 * len(chosen)):
                raise InputError(f"{path}: {name} has shape {info.shape}, but enable_lora chooses {len(chosen)} parts")
            b = self.read(name, dtype="float32")[:, :, 0]
            half, rank, width = len(b) // 2, b.shape[1], len(b) // len(chosen)
            rows = np.concatenate([np.arange(width) + width * place for place in chosen])
            own = np.zeros((width * len(parts), 2 * rank), np.float32)
            own[rows[:half], :rank], own[rows[half:], rank:] = b[:half], b[half:]
            self.put(name, own)
        self.values = {key: value for key, value in values.items() if key != "enable_lora"} | {
            key: values.get(key, 8) * len(chosen) for key in ("r", "lora_alpha")
        }
