"""Kernels in C, for a CPU: compiled on the machine that they run on, when they are first needed.

They do in one pass what MindSpore's operators do in several. Without a C compiler, or on another device, everything
runs by `model_zoo.fused` and gives the same numbers, slower.

    build.py       compiles and keeps them              kernels.py     cells around them
    gemm.c         matrix products                      attention.c    attention and its gradients
    low_rank.c     LoRA's sum and its gradients         norms.c, activations.c, heads.c
    loss.c, loss.py   the head and the loss in one      update.c, updates.py   the optimizer's work
    few_rows.c     products of few rows                 one_token.c    keys and values that are kept
    steps.c        many kernels as one operator         steps.py       how cells tell what they do
    small.c        sums and columns between them        calls.py       what that comes to
    training.py    all layers, forward and backward     gradients.py   the backward pass of it
    decoding.py    all layers over a cache              together.py    products that run at once
    layout.py      where everything lies                dora.c, prefix.c   what other adapters do in layers
    pool.c         threads                              product.h, vectors.h   what the kernels compute with
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator

import mindspore as ms
from mindspore import nn, ops

from model_zoo import fused, fused_attention
from model_zoo.engine.build import SWITCH, NoCompiler, library

log = logging.getLogger("pet")


def head_and_loss(kernels, kernel):
    """The twin of `fused.LinearCrossEntropyKernel`, which takes negative targets for those that do not count."""
    from model_zoo.engine.loss import LinearCrossEntropy

    return LinearCrossEntropy() if kernel.ignored < 0 else kernel


TWINS = {
    fused.RMSNormKernel: lambda kernels, kernel: kernels.RMSNorm(kernel.eps),
    fused.LayerNormKernel: lambda kernels, kernel: kernels.LayerNorm(kernel.eps),
    fused.SwiGLUKernel: lambda kernels, kernel: kernels.SwiGLU(),
    fused.GeluTanhKernel: lambda kernels, kernel: kernels.GeluTanh(),
    fused.SplitHeadsKernel: lambda kernels, kernel: kernels.SplitHeads(kernel.head_dim),
    fused.LowRankKernel: lambda kernels, kernel: kernels.LowRank(),
    fused.RotaryKernel: lambda kernels, kernel: kernels.Rotary(kernel.half),
    fused.SplitRotaryKernel: lambda kernels, kernel: kernels.SplitRotary(kernel.half, kernel.head_dim),
    fused_attention.AttentionKernel: lambda kernels, kernel: kernels.Attention(),
    fused.LinearCrossEntropyKernel: head_and_loss,
}
"""How to make the C kernel that stands for one of `model_zoo.fused`."""


@functools.cache
def available() -> bool:
    """Whether there are C kernels here. That there are none is said once, unless they were switched off."""
    if ms.get_context("device_target") != "CPU":
        return False
    try:
        library()
    except NoCompiler as error:
        if str(error) != f"{SWITCH}=0":
            log.warning("no native kernels, so it runs slower: %s", error)
        return False
    return True


@functools.cache
def native(kernel):
    """The C kernel that does what this one of `model_zoo.fused` does; the same object for the same kernel.

    Returns:
        A cell, or the kernel itself where there is none.
    """
    make = TWINS.get(type(kernel))
    if make is None or not available():
        return kernel
    from model_zoo.engine import kernels

    return make(kernels, kernel)


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """Within, what is not in a graph multiplies by MindSpore's own products."""
    from model_zoo.engine.kernels import OnlyInGraphs

    before, OnlyInGraphs.uncompiled = OnlyInGraphs.uncompiled, True
    try:
        yield
    finally:
        OnlyInGraphs.uncompiled = before


def is_product(value) -> bool:
    """Whether this is a ``MatMul``, or what stands for one."""
    return isinstance(value, ops.MatMul) or hasattr(type(value), "stands_for_product")


def swap_products(cell: nn.Cell, fast: bool) -> None:
    """Lets a cell's matrix products run by the C kernels, or by their primitives again."""
    if hasattr(type(cell), "stands_for_product"):
        return
    for name, value in list(vars(cell).items()) + list(cell.name_cells().items()):
        if fast and isinstance(value, ops.MatMul) and not value.transpose_a and available():
            from model_zoo.engine import kernels

            new = kernels.Product(value)
        elif not fast and hasattr(type(value), "stands_for_product"):
            new = value.primitive
        else:
            continue
        delattr(cell, name)
        setattr(cell, name, new)
