"""What layers that are compiled by the CPU engine take in a training step, from their compiled program.

A model of two layers is built for it, without values: the program depends on widths alone.
"""

from __future__ import annotations

import dataclasses

from adapters.apply import apply
from adapters.dropout import set_dropout_key
from adapters.lora import LoRALinear
from model_zoo.auto import model_class
from model_zoo.engine import MemoryProfile, available, memory_profile
from model_zoo.families import config_class
from pet.train.precision import set_precision

LAYER_COUNTS = ("num_hidden_layers", "num_layers", "n_layer")
"""What config.json calls the number of layers."""


_known: dict[tuple[str, str, bool, str], MemoryProfile | None] = {}


def layer_memory(meta_model, adapter, recompute: bool, precision: str = "fp32") -> MemoryProfile | None:
    """What the layers of a model take, or None where they run operator by operator.

    Args:
        adapter: a method's configuration, or None where every weight is trained.
        precision: of their products. What lies between two products in bf16 takes half.
    """
    key = (repr(sorted(meta_model.values.items(), key=str)), repr(adapter), recompute, precision)
    if key not in _known:
        _known[key] = _profile(meta_model, adapter, recompute, precision) if available() else None
    return _known[key]


def _profile(meta_model, adapter, recompute: bool, precision: str) -> MemoryProfile | None:
    if getattr(adapter, "init", "default") not in ("default", "gaussian"):
        return None  # it would look at weights, which are not there
    dora = getattr(adapter, "use_dora", False)
    if dora:  # so would its norms
        adapter = dataclasses.replace(adapter, use_dora=False)
    # who is seen by whom takes no memory
    values = {**meta_model.values, "layer_types": None, **{key: 2 for key in LAYER_COUNTS if key in meta_model.values}}
    try:
        config = config_class(values).from_dict(values)
        model = model_class(type(config))(config)
        if adapter is not None:
            apply(model, adapter)
        set_dropout_key(model, 0)  # as a trainer does
        set_precision(model, precision)
        found = memory_profile(model.set_train(True), recompute)
    except (TypeError, ValueError):  # layers that are not there, or values of no use: whoever builds the model says it
        return None
    if found is None or not dora:
        return found
    rescaled = sum(
        module.lora_B.weight.shape[0]
        for _, module in model.layer_list[1].cells_and_names()
        if isinstance(module, LoRALinear)
    )  # DoRA's result is saved beside the output that it was made of
    if recompute:
        return dataclasses.replace(found, backward=found.backward + rescaled)
    return dataclasses.replace(found, saved=found.saved + rescaled)
