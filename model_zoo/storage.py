"""How a model's frozen weights are stored: what ``dtype="auto"`` means.

A model computes in one type, that of its norms. The weights of its products and tables may be stored in another one,
which takes less memory: they are widened, exactly, wherever they are multiplied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import mindspore as ms
from mindspore import Parameter, nn

from model_zoo.checkpoint.parameters import retype
from model_zoo.checkpoint.reading import Checkpoint
from model_zoo.configs import Config
from model_zoo.engine import Widened, available, stored_rows
from model_zoo.layers import Embedding, new_parameter
from model_zoo.quantization.storage import is_quantized

NARROW = ("bfloat16", "float16")
"""Types that weights are kept in as they are stored; all others become the model's own."""


def kept_types(config: Config, stored: Mapping[str, str]) -> dict[str, str]:
    """The types that weights are kept in.

    Args:
        stored: {parameter's name: type in its file}.

    Returns:
        {parameter's name: type} of those that are not widened: matrices, never norms and biases.
    """
    shapes, narrow = config.shapes(), NARROW
    if ms.get_context("device_target") == "CPU" and not available():  # MindSpore can do next to nothing in bfloat16
        narrow = ("float16",)
    return {name: word for name, word in stored.items() if word in narrow and len(shapes[name]) == 2}


def stored_types(checkpoint: Checkpoint, sources: Mapping[str, str]) -> dict[str, str]:
    """{parameter's name: type in the file}, given where each is stored."""
    return {name: checkpoint.dtype(stored) for name, stored in sources.items()}


def set_storage(model: nn.Cell, types: Mapping[str, str]) -> None:
    """Gives a model that is not loaded yet weights of these types, which take no memory until they are.

    Args:
        model: a `CausalLM` without adapters.
        types: {parameter's name: type}.
    """
    fresh: dict[int, Parameter] = {}
    for _, cell in model.cells_and_names():
        old = cell._params.get("weight")
        if old is None or old.name not in types or is_quantized(cell):  # what is packed has a form of its own
            continue
        if id(old) not in fresh:
            fresh[id(old)] = new_parameter(old.shape, getattr(ms, types[old.name]))
            fresh[id(old)].name = old.name
        cell.weight = fresh[id(old)]
        if isinstance(cell, Embedding):
            cell.rows = stored_rows()
        else:
            primitive = cell.product
            del cell.product
            cell.product = Widened(primitive)


def widen_trained(model: nn.Cell, parameters: Iterable[Parameter]) -> None:
    """Brings what is to be trained into the type that the model computes in: it is exact, and sums of small changes
    are not in 16 bits."""
    dtype = getattr(model, "dtype", None)
    for one in parameters:
        if dtype == ms.float32 and one.dtype in (ms.bfloat16, ms.float16):
            retype(one, dtype)
