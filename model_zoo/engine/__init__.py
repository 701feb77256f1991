"""The CPU engine: a small compiler from decoder layers to kernels in C, and these kernels.

They are compiled on the machine that they run on, when they are first needed, and do in one pass what MindSpore's
operators do in several. Without a C compiler, or on another device, the table's plain column stands for them: the same
results up to rounding, slower. This module is the engine's door; nothing else of it is imported from outside. Cells are
handed a `trace.Tracer`.

    ops.py          the table of operations             vjp.py          their gradient rules
    plain*.py       the plain column                    cells.py        one operation as a cell
    ir.py           values, buffers, instructions       trace.py        from cells to instructions
    gradients.py    the backward pass                   schedule.py     GEMM batching
    lowering.py     pieces, buffers, the program        run.py          all layers, forward and backward
    experts.py      mixtures of experts                 loss.py         the head and the loss in one
    decode.py       over a cache; a token as one call   updates.py      the optimizer's work
    packing.py      matrices in 8 and 4 bits            speed.py        whether bfloat16 products are fast
    build.py        compiles and keeps csrc/            call.py         a C function as an operator

    csrc/program.c  runs a program                      pool.c          threads
    gemm.c, blocks.c, rounded.c   matrix products       few_rows.c      products of few rows
    bf16.c          their inner loops in bfloat16
    attention.c, attention_bf16.c, one_token.c, prefix.c, heads.c
    norms.c, activations.c, small.c, low_rank.c, dora.c, experts.c
    loss.c, update.c        storage.h, storage.c    how weights are stored      codes.h, packing.c   4 and 8 bits
    product.h, vectors.h, numbers.h, sums.h         what kernels compute with
"""

from __future__ import annotations

import shlex

import mindspore as ms
from mindspore import nn

from model_zoo.engine import build, cells
from model_zoo.engine.build import NoCompiler, switched_off
from model_zoo.engine.cells import available, precision_suffix, stored_rows
from model_zoo.engine.decode import PromptProgram, TokenProgram, fuse_cached_layers
from model_zoo.engine.experts import mixture
from model_zoo.engine.ir import NotTraceable
from model_zoo.engine.loss import cross_entropy, logit_bytes, ranked_cross_entropy, token_cross_entropy
from model_zoo.engine.packing import packed_product, packed_words, packing_kernels, unpacking
from model_zoo.engine.plain_products import Rounded, Widened
from model_zoo.engine.plain_rows import softmax, unlearned
from model_zoo.engine.run import LaunchLayers, MemoryProfile, fuse_layers, memory_profile
from model_zoo.engine.speed import bf16_speedup, describe_bf16, no_bf16, product_rates
from model_zoo.engine.updates import adamw_in_place, joined, sums_of_squares

__all__ = [
    "MemoryProfile",
    "NoCompiler",
    "NotTraceable",
    "PromptProgram",
    "Rounded",
    "TokenProgram",
    "Widened",
    "adamw_in_place",
    "available",
    "bf16_speedup",
    "cross_entropy",
    "describe",
    "describe_bf16",
    "free_left",
    "fuse_cached_layers",
    "fuse_layers",
    "joined",
    "kernels_name",
    "logit_bytes",
    "memory_profile",
    "mixture",
    "no_bf16",
    "packed_product",
    "packed_words",
    "packing_kernels",
    "precision_suffix",
    "product_rates",
    "ranked_cross_entropy",
    "set_kernels",
    "softmax",
    "stored_rows",
    "sums_of_squares",
    "switched_off",
    "token_attention",
    "token_cross_entropy",
    "unlearned",
    "unpacking",
    "uses_kernel",
]


def describe() -> str:
    """The compiler, the number of threads and the compiled file.

    Raises:
        NoCompiler: there are no C kernels; the message says why.
        InputError: the number of threads asked for is none.
    """
    path, count = build.library(), build.threads_in_use()
    threads = "1 thread" if count == 1 else f"{count} threads"
    return f"compiled by {shlex.join(build.compiler())}, {threads}: {path}"


def kernels_name() -> str:
    """The compiled file's name: another one for other kernels, compilers and processors, "" without kernels."""
    return build.library().name if available() else ""


def free_left() -> None:
    """Frees what the last training step has left for the next one."""
    LaunchLayers.left = (None, ())


def uses_kernel(cell: nn.Cell, name: str, **numbers) -> None:
    """Gives a cell the attribute ``kernel``, a cell that computes an operation of the table, to be used where the
    cell's ``fast`` is set; `set_kernels` sets it.

    Args:
        numbers: the constants of its signature, and sizes that its inputs do not tell.
    """
    cell.fast, cell.operation = False, (name, numbers)
    cell.kernel = cells.plain(name, **numbers)


def set_kernels(model: nn.Cell, fast: bool) -> None:
    """Chooses the kernels for compiled graphs (True) or plain operators (False) in every cell that has both."""
    for _, cell in list(model.cells_and_names()):
        swap_products(cell, fast and available())
        if hasattr(cell, "choose_kernel"):
            cell.choose_kernel(fast and available())
        if "operation" in vars(cell):
            cell.fast = fast and getattr(cell, "device", None) is None  # whose operator is faster still
            if cell.fast:
                name, numbers = cell.operation
                cell.kernel = (cells.native if available() else cells.plain)(name, **numbers)


def swap_products(cell: nn.Cell, native: bool) -> None:
    """Lets a cell's own matrix products run by the C kernels, or by their primitives again."""
    if isinstance(cell, (cells.Kernel, cells.Product, Rounded, Widened)):  # whose own products are the plain ones
        return
    for name, value in list(vars(cell).items()) + list(cell.name_cells().items()):
        primitive = value.primitive if isinstance(value, Rounded) else value
        if native and isinstance(primitive, (ms.ops.MatMul, Widened)) and not primitive.transpose_a:
            new = cells.Product(value)
        elif not native and isinstance(value, cells.Product):
            new = value.primitive
        else:
            continue
        delattr(cell, name)
        setattr(cell, name, new)


def token_attention(**numbers) -> nn.Cell:
    """Attention of one token per row over the keys and values that are kept, and its own.

    Args:
        numbers: scale, window and cap, as in `model_zoo.layers.AttentionCore`, and pinned: how many of the kept columns
            are seen from beyond the window. They keep their rows, and the columns after them take the others in turn.

    It takes the query ``(B, heads, 1, d)``; keys and values ``(B, kv_heads, T + 1, d)``, T of them in front of all
    tokens; the kept ones ``(B·kv_heads·L, d)``; end ``(B, 1)`` and key mask ``(B, T + C)``, and gives joined heads
    ``(B, heads·d)``. The token's key and value are written into the kept ones, which MindSpore does not see: nothing
    else in the same graph may read these.
    """
    return cells.native("token_attention", **numbers)
