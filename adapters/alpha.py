"""Another alpha for a LoRA adapter that is on a model already: how strongly it acts can be tried out without training
it again."""

from __future__ import annotations

import dataclasses

from mindspore import nn

from adapters.adapter import new_version
from adapters.lora import LoRAConfig
from adapters.registry import registry
from model_zoo.arguments import checked
from model_zoo.engine import set_kernels, uses_kernel
from model_zoo.errors import InputError


@checked
def set_alpha(model: nn.Cell, alpha: float, name: str = "default") -> None:
    """Changes how strongly a LoRA adapter acts: its scale is then ``alpha / r`` (``alpha / √r`` for rsLoRA).

    Saving writes the new value. Cells of ``alpha_pattern`` keep theirs. Compiled graphs are made anew.

    Args:
        model: with a LoRA adapter of this name, not merged.
        alpha: a number above 0.
        name: of the adapter.

    Raises:
        InputError: an unknown name, another method, an adapter that is merged, or no such number.
    """
    state = registry(model)
    adapter = state.get(name)
    if not isinstance(adapter.config, LoRAConfig):
        raise InputError(f"set_alpha: adapter {name!r} is of method {adapter.config.method}; only LoRA has an alpha")
    adapter.refuse_merged(state.merged_names, "changing its alpha")
    config = dataclasses.replace(adapter.config, alpha=alpha)
    config.validate()
    for path, module in adapter.modules.items():
        if path not in adapter.companions:
            rescale(module, config.scale_at(path))
    # a base that is packed without the first factors times the scale is packed anew
    state.note_base([module.attached(adapter.sites[path]) for path, module in adapter.modules.items()])
    adapter.config, adapter.version = config, new_version()
    state.refresh()


def rescale(module, scale: float) -> None:
    """Gives a LoRA module on any kind of cell another scale."""
    module.scale = scale
    if hasattr(module, "kernel"):
        fast = module.fast
        uses_kernel(module, "low_rank", scale=scale)
        set_kernels(module, fast)
    if hasattr(module, "magnitude"):
        module.magnitude.scale = scale
