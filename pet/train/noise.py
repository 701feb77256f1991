"""What is random within a step, as a function of one number: adapter dropout, and NEFTune's noise.

The trainer sets that number, the key, before every micro-batch. No generator has a state, so none has to be saved, and
a resumed run draws what the uninterrupted one would have drawn. Where a micro-batch is divided over processes or
pieces, each is told which block of its rows it has, and all together draw what one process would have drawn.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from operator import attrgetter

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from adapters.dropout import Dropout, drawn, dropouts, seed_of, set_dropout_key
from model_zoo.errors import InputError
from model_zoo.layers import int_range, on_ascend


class Noise(nn.Cell):
    """NEFTune (Jain et al. 2023): uniform noise of ±alpha/√(length·width) on the embeddings, while training.

    Args:
        alpha: its strength; 5 is usual.
    """

    def __init__(self, alpha: float):
        super().__init__()
        self.alpha, self.by_product = alpha, on_ascend()
        self.key = Parameter(Tensor([0, 0], ms.int32), name="neftune_key", requires_grad=False)  # the key, the block
        self.key.buffer = True  # no weight: nothing that counts or compares those counts it

    def construct(self, embedded, length: int):
        width = embedded.shape[-1]
        reach = self.alpha / math.sqrt(length * width)
        index = int_range(embedded.size).reshape(embedded.shape)
        seed = seed_of(self.key, 374761393, embedded.size, self.by_product)
        bits = ops.bitwise_and(drawn(index, seed, self.by_product), 0xFFFFFF)
        uniform = bits.astype(ms.float32) * (2.0 / 0x1000000) - 1.0
        return embedded + (uniform * reach).astype(embedded.dtype)


@functools.cache
def noisy_class(cls: type) -> type:
    """The sub-class of an embedding's class that adds noise to what it gives."""

    class Noisy(cls):
        def construct(self, ids):
            embedded = self.calm_construct(ids)
            if not self.training:
                return embedded
            return self.neftune(embedded, ids.shape[-1])

    Noisy.calm_construct = cls.construct  # not super(): see `adapters.sites`
    Noisy.__name__ = Noisy.__qualname__ = f"Noisy{cls.__name__}"
    return Noisy


def attach_noise(model: nn.Cell, alpha: float) -> Noise | None:
    """Lets the model's token embedding add noise while training. Names of parameters stay as they are.

    Returns:
        The noise; None in a pipeline stage that has no embedding.

    Raises:
        InputError: the model does not say which cell is its embedding.
    """
    family = getattr(model, "family", None)
    if family is None:
        raise InputError(f"neftune_alpha: {type(model).__name__} does not say which cell embeds tokens")
    cell = attrgetter(family.embedding)(model)
    if not hasattr(cell, "weight"):
        return None
    noise = Noise(alpha)
    if not hasattr(cell, "neftune"):
        cell.__class__ = noisy_class(type(cell))
    cell.neftune = noise
    return noise


def key_setter(model: nn.Cell, neftune_alpha: float = 0.0) -> Callable[..., None] | None:
    """A function ``(key, block=0)`` that sets the key of all that is random in a model; None where nothing is.

    Args:
        model: looked through for dropout cells.
        neftune_alpha: above 0, noise is added to its embedding.
    """
    release(model)  # of an earlier run
    noise = attach_noise(model, neftune_alpha) if neftune_alpha > 0 else None
    drops = bool(dropouts(model))
    if noise is None and not drops:
        return None

    def set_key(key: int, block: int = 0) -> None:
        if drops:
            set_dropout_key(model, key, block)
        if noise is not None:
            noise.alpha = neftune_alpha
            ops.assign(noise.key, Tensor([key & 0x7FFFFFFF, block], ms.int32))

    return set_key


def release(model: nn.Cell) -> None:
    """Ends what `key_setter` began: a loop of the user's own has no noise, and dropout draws anew in each step."""
    for _, cell in model.cells_and_names():
        if isinstance(cell, Noise):
            cell.alpha = 0.0
        elif isinstance(cell, Dropout):
            cell.keyed = False
