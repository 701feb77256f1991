"""The whole model again, on one process: for files, which are the same whatever the layout was.

What is trained is put together from all processes; a frozen base is not, since no file of an adapter holds it. The
result is a fresh model whose base takes no memory, with the same adapters under the same names: whoever saves it needs
to know nothing of the layout.
"""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, nn, ops

from adapters.registry import registry
from model_zoo.auto import MODEL_OF
from model_zoo.checkpoint.fingerprint import fingerprint
from model_zoo.checkpoint.reading import Checkpoint


def base_fingerprint(model: nn.Cell, directory: str | None = None) -> str:
    """The base's fingerprint, of the loaded model or, where only a part of it is here, of the files."""
    values = model.config.to_dict()
    if directory is None:
        with registry(model).disabled():
            return fingerprint(values, model)
    with Checkpoint(directory) as checkpoint:
        return fingerprint(values, checkpoint)


def whole_model(model: nn.Cell, trained: dict[str, np.ndarray]) -> nn.Cell:
    """A model like this one, undivided.

    Args:
        model: this process's part.
        trained: the whole trained tensors by parameter name (`ParallelWorld.gather`); adapters that do not train are
            taken over only where this process has them whole.

    Returns:
        A model with the same adapters and settings. Its base is zero unless it was trained.
    """
    dtype = next(p.dtype for p in model.get_parameters() if getattr(p, "adapter", None) is None)
    whole = MODEL_OF[type(model.config)](model.config, dtype=dtype)
    for name in ("loaded_from", "generation_config", "base_fingerprint"):
        if hasattr(model, name):
            setattr(whole, name, getattr(model, name))
    state = registry(model)
    for name, adapter in state.adapters.items():
        fresh = registry(whole).add(adapter.config, name)
        fresh.source = dict(adapter.source)
    if state.adapters:
        registry(whole).set(state.active)
    for parameter in whole.get_parameters():
        if parameter.name in trained:
            ops.assign(parameter, Tensor(np.ascontiguousarray(trained[parameter.name])).astype(parameter.dtype))
    return whole
