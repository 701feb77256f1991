"""What an adapter's parameters are called in a network, and which of them are trained."""

from __future__ import annotations

from mindspore import Parameter

from adapters.cells import Site, weight_of
from adapters.method import AdapterModule


def trained_in(module: AdapterModule) -> list[Parameter]:
    """A module's parameters that are trained. A copy of a network (``copy.deepcopy``) has lost their marks."""
    kept = {id(value) for value in module.tensors().values()}
    return [value for value in module.get_parameters() if not getattr(value, "buffer", id(value) not in kept)]


def prefix_of(site: Site) -> str:
    """What the names of a cell's own parameters begin with: its path, behind more where the model is a part of a larger
    network. An optimizer of that takes no name twice."""
    weight = weight_of(site.cell)
    prefix = weight.name.rpartition(".")[0] if weight is not None else ""
    return prefix if prefix.endswith(f".{site.path}") else site.path


def name_module(module: AdapterModule, site: Site, adapter: str) -> None:
    """Names a module's parameters after the cell: ``q_proj.lora_A.weight``, and with the adapter's name in it
    (``q_proj.lora_A.second.weight``) for any adapter but ``default``."""
    path = prefix_of(site)
    keys = {id(value): key for key, value in module.tensors().items()}
    for structural, parameter in module.parameters_and_names():
        key = keys.get(id(parameter), structural)
        parameter.buffer = id(parameter) not in keys
        if adapter != "default":
            first, _, rest = key.partition(".")
            key = f"{first}.{adapter}.{rest}" if rest else f"{first}.{adapter}"
        parameter.name = f"{path}.{key}" if path else key
        parameter.adapter = adapter
        parameter.requires_grad = not parameter.buffer
