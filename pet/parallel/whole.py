"""The whole model again, on one process: for files, which are the same whatever the layout was.

What files hold is put together from all processes: all that an adapter has, trained or not, or the whole base where
there is no adapter. The base beneath an adapter is not, since no file holds it. The result is a fresh model, with the
same adapters under the same names: whoever saves it needs to know nothing of the layout.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from adapters.adapter import Adapter
from adapters.dropout import dropouts
from adapters.registry import registry
from model_zoo.auto import model_class
from model_zoo.checkpoint.fingerprint import fingerprint
from model_zoo.checkpoint.reading import Checkpoint
from pet.train.objectives.reference import ADAPTER


def base_fingerprint(model: nn.Cell, directory: str | None = None) -> str:
    """The base's fingerprint, of the loaded model or, where only a part of it is here, of the files."""
    values = model.config.to_dict()
    if directory is None:
        with registry(model).disabled():
            return fingerprint(values, model)
    with Checkpoint(directory) as checkpoint:
        return fingerprint(values, checkpoint)


def saved_parameters(model: nn.Cell) -> dict[str, Parameter]:
    """What files hold of the model, by name, as far as it is in this process.

    That is every parameter of every adapter but a reference's, active or not, with the buffers that its files are
    computed from (the first factors of PiSSA and OLoRA) but dropout's keys; without an adapter, every parameter of the
    base.
    """
    adapters = trained_adapters(model).values()
    if not adapters:
        return {one.name: one for one in model.get_parameters() if getattr(one, "adapter", None) != ADAPTER}
    cells = {id(cell) for _, cell in model.cells_and_names()}  # those of absent stages are not among them
    found, keys = [], {id(cell.key) for cell in dropouts(model)}
    for adapter in adapters:
        for path, module in adapter.modules.items():
            found += module.get_parameters() if id(adapter.sites[path].cell) in cells else ()
        found += [item.own for item in adapter.replaced if id(item.cell) in cells]
    return {parameter.name: parameter for parameter in found if id(parameter) not in keys}


def trained_adapters(model: nn.Cell) -> dict[str, Adapter]:
    """The adapters by name, without one that is there as a reference alone."""
    return {name: adapter for name, adapter in registry(model).adapters.items() if name != ADAPTER}


def whole_model(model: nn.Cell, weights: dict[str, np.ndarray]) -> nn.Cell:
    """A model like this one, undivided.

    Args:
        model: this process's part.
        weights: the whole tensors of `saved_parameters` by name, of all processes (`ParallelContext.gather`).

    Returns:
        A model with the same adapters and settings. The base beneath adapters is zero and takes no memory.
    """
    whole = model_class(type(model.config))(model.config, dtype=model.dtype)
    for name in ("loaded_from", "generation_config", "base_fingerprint", "base_form"):
        if hasattr(model, name):
            setattr(whole, name, getattr(model, name))
    adapters = trained_adapters(model)
    for labels in filter(None, (adapter.labels for adapter in adapters.values())):
        whole.add_score(labels)
    for name, adapter in adapters.items():
        config = adapter.config
        if getattr(config, "init", None) == "loftq":  # it starts from packed weights, which are not here
            config = dataclasses.replace(config, init="default")
        fresh = registry(whole).add(config, name)
        fresh.config, fresh.source, fresh.named = adapter.config, dict(adapter.source), adapter.named
    if adapters:
        registry(whole).set(registry(model).active)
    for name, parameter in saved_parameters(whole).items():
        ops.assign(parameter, Tensor(np.ascontiguousarray(weights[name])).astype(parameter.dtype))
    return whole
