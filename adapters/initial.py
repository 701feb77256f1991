"""Factors to start from that are taken out of the weight itself: PiSSA and OLoRA.

Both published methods take the product of the first factors off the base weight, so that the sum is what it was. Here
the base stays untouched, bit for bit, and the module subtracts the product instead: ``y = W·x + s·(B·A − B₀·A₀)·x``.
That is the same function with the same gradients, and at the start exactly the base.

In 8 or 4 bits it is the rest that is quantised, ``Q(W − s·B₀·A₀)``, as PiSSA's authors do: without the largest
directions it loses less. The cell adds ``s·B₀·A₀`` to it (`QuantizedLinear.taken`), so that its weight is W but for
what quantising the rest loses, and all that is said above holds over that weight.
"""

from __future__ import annotations

import numpy as np

from model_zoo import progress
from model_zoo.errors import InputError
from model_zoo.quantization.storage import is_quantized


def pissa(weight: np.ndarray, rank: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """PiSSA (Meng et al. 2024): the `rank` largest singular directions, their values shared out evenly.

    Args:
        weight: ``(out, in)``.
        rank: at most min(out, in) directions exist; what is left of the factors is zero.
        scale: s, so that s·B·A is the weight's best approximation of this rank.

    Returns:
        B ``(out, rank)`` and A ``(rank, in)``, float32.
    """
    progress.tick(("svd", weight.shape))
    left, values, right = np.linalg.svd(weight, full_matrices=False)
    root = np.sqrt(values[:rank] / scale)
    return padded(left[:, :rank] * root, root[:, None] * right[:rank], rank)


def olora(weight: np.ndarray, rank: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """OLoRA (Büyükakyüz 2024): the first columns of Q and rows of R of the QR decomposition; arguments as in `pissa`.

    The scale does not enter, as in PEFT.
    """
    progress.tick(("qr", weight.shape))
    orthogonal, triangular = np.linalg.qr(weight)
    return padded(orthogonal[:, :rank], triangular[:rank], rank)


def starting_weight(site) -> np.ndarray:
    """The weight ``(out, in)`` in float64 that first factors are taken out of: of a packed cell the one in its file.

    Raises:
        InputError: the cell is packed there, too.
    """
    from adapters.sites import weight_array  # merging on disk does without MindSpore

    if is_quantized(site.cell):
        return site.cell.original().astype(np.float64)
    weight = weight_array(site)
    return weight.T if site.transposed else weight


def loftq(site, rank: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """LoftQ (Li et al. 2023) with one iteration: s·B·A is the best approximation of W − Q, what quantising W to Q left
    out. The base stays Q.

    Args:
        site: a packed cell; W is read from the file that it was packed from.

    Raises:
        InputError: the cell is not packed, or there is no unquantised W.
    """
    if not is_quantized(site.cell):
        raise InputError(f"lora: init 'loftq' starts from what 8 or 4 bits leave out; {site.path} is not packed")
    return pissa(site.cell.original() - site.cell.dequantized(), rank, scale)


def padded(b: np.ndarray, a: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Factors of fewer directions than `rank`, filled up with zeros."""
    missing = rank - a.shape[0]
    b, a = np.pad(b, ((0, 0), (0, missing))), np.pad(a, ((0, missing), (0, 0)))
    return b.astype(np.float32), a.astype(np.float32)


START = {"pissa": pissa, "olora": olora}
