"""The experts of a layer as transformers 5 has them: one tensor of gates and ups, one of downs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def stacked(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same tensors with those of each layer's experts in two."""
    found, experts = {}, {}
    for name, value in tensors.items():
        front, is_expert, last = name.rpartition(".experts.")
        number, _, matrix = last.partition(".")
        if not is_expert:
            found[name] = value
        elif matrix == "down_proj.weight":
            experts.setdefault(f"{front}.experts.down_proj", {})[int(number)] = value
        elif matrix == "gate_proj.weight":
            up = tensors[name.replace("gate_proj", "up_proj")]
            experts.setdefault(f"{front}.experts.gate_up_proj", {})[int(number)] = np.concatenate([value, up])
    return {**found, **{name: np.stack([one for _, one in sorted(each.items())]) for name, each in experts.items()}}
