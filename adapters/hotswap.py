"""Another adapter's numbers in the place of one that is on the model: no new parameter, no new graph.

What compiled graphs hold fast must agree: the variant of LoRA, and cells and ranks that suffice. What they read from
parameters is exchanged: a smaller rank and absent cells are filled up with zeros, and another scale is part of B then.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from mindspore import nn

from adapters.adapter import Adapter
from adapters.fitting import misfits, shapes_of
from adapters.initial import START
from adapters.lora import LoRAConfig
from adapters.matching import chosen_sites
from adapters.registry import registry
from adapters.saving import adapter_config, fill, note_file, read_arrays
from model_zoo.arguments import checked
from model_zoo.errors import InputError, located
from model_zoo.turns import turn

FIXED = ("use_dora", "bias", "trainable_tokens")
"""Settings that shape the graph, beside cells and ranks."""
RANK_AXIS = {".lora_A.weight": 0, ".lora_embedding_A": 0, ".lora_B.weight": 1, ".lora_embedding_B": 1}
"""{end of a factor's name: axis of the rank}."""


@checked
def hotswap_adapter(model: nn.Cell, directory: str | Path, name: str = "default") -> None:
    """Gives adapter `name` the tensors of an adapter directory.

    Compiled graphs stay valid and see the new values. The dropout rate and everything else that is not in the tensors
    stays as it is on the model.

    Args:
        model: with a LoRA adapter of this name, not merged.
        directory: a PEFT directory for the same base, with no other cells and no higher ranks.
        name: of the adapter on the model.

    Raises:
        InputError: lists everything that differs. Nothing has been assigned then.
    """
    state = registry(model)
    adapter = state.get(name)
    adapter.refuse_merged(state.merged_names, "exchanging it")
    if not isinstance(adapter.config, LoRAConfig):
        raise InputError(f"adapter {name!r} is of method {adapter.config.method}; only LoRA can be exchanged")
    directory = Path(directory)
    values, config = adapter_config(directory)
    if not isinstance(config, LoRAConfig):
        raise InputError(f"{directory}: of type {values['peft_type']}, but adapter {name!r} is LoRA")
    with located(directory):
        config, arrays, stored, metadata = read_arrays(model, state, directory, values, config, True, [])
        problems = differences(model, adapter, config)
    arrays = arrays if problems else fitted(adapter, config, arrays)
    problems += misfits(shapes_of(adapter.tensors()), shapes_of(arrays))
    InputError.raise_any([f"{directory}: {problem}" for problem in problems])
    with turn.lock:
        fill(adapter, arrays)
    note_file(state, adapter, adapter.config, values, stored, metadata)
    state.refresh()


def differences(model: nn.Cell, adapter: Adapter, config: LoRAConfig) -> list[str]:
    """What in a configuration would need another graph than an adapter's."""
    mine, problems = adapter.config, []
    for key in FIXED:
        if getattr(mine, key) != getattr(config, key):
            problems.append(f"{key} is {getattr(config, key)!r}, adapter {adapter.name!r} has {getattr(mine, key)!r}")
    if started := sorted({mine.init, config.init} & START.keys()):
        problems.append(f"first factors ({', '.join(started)}) are subtracted, which each adapter has of its own")
    here = {path for path in adapter.modules if path not in adapter.companions}
    there = {site.path for site in chosen_sites(model, config)}
    if odd := sorted(there - here):
        problems.append(f"adapter {adapter.name!r} has nothing at {', '.join(odd[:3])}")
    for path in sorted(here & there):
        if mine.rank_at(path) < config.rank_at(path):
            problems.append(f"{path} has rank {config.rank_at(path)}, the adapter there only {mine.rank_at(path)}")
    return problems[:10]


def fitted(adapter: Adapter, config: LoRAConfig, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Another adapter's arrays at the ranks and scales of the one on the model. Factors of a cell that it leaves alone
    are zeros; magnitudes of DoRA have no such value, and are missing."""
    result = dict(arrays)
    for key, parameter in adapter.tensors().items():
        path, axis = next(((key[: -len(end)], axis) for end, axis in RANK_AXIS.items() if key.endswith(end)), ("", 0))
        if not path:
            continue
        array = arrays.get(key, np.zeros(parameter.shape, np.float32))
        widths = [(0, 0)] * array.ndim
        widths[axis] = (0, parameter.shape[axis] - array.shape[axis])
        ratio = config.scale_at(path) / adapter.config.scale_at(path) if axis else 1
        result[key] = np.pad(array, widths) * np.float32(ratio)
    return result
