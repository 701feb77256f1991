"""Floating-point operations of a step."""

from __future__ import annotations

import functools

from pet.meta_model import MetaModel
from pet.parallel.shares import STAGES, Layout
from pet.planning.traffic import Steps


def flops(work, divided: Layout, steps: Steps, stage: int) -> float:
    """Floating-point operations of one piece: forward, backward, and the forward again where it is computed twice.

    A matrix product of ``(N, in)`` and ``(in, out)`` takes 2·N·in·out; its backward as much for the input, and as much
    again for a weight that is trained. Attention is counted over the whole square, or over its window.
    """
    dims = work.meta_model.config.dims
    products, trained = matrices(work.meta_model, divided, stage)
    windows = work.meta_model.config.windows
    seen = sum(min(windows[layer] or work.length, work.length) for layer in divided.layers[stage])
    attention = 4 * steps.tokens * seen * dims.heads * dims.head_dim // steps.tensor
    forward = 2 * steps.tokens * products + attention
    layers = divided.layers[stage]
    again = 1.0 if stage < steps.pipeline - 1 else len(steps.again(layers)) / max(len(layers), 1)
    return forward * (2 + again) + attention + 2 * steps.tokens * trained


@functools.lru_cache(STAGES)
def matrices(meta_model: MetaModel, divided: Layout, stage: int) -> tuple[int, int]:
    """Numbers of a stage's matrices that something is multiplied with, and of those that are trained."""
    last = stage == len(divided.layers) - 1
    held = [share for share in divided.of_stage(stage) if len(share.shape) == 2]
    products = sum(share.size for share in held if not is_embedding(meta_model, share, last))
    return products, sum(share.size for share in held if share.trained)


def is_embedding(meta_model: MetaModel, share, last: bool) -> bool:
    """Whether a matrix is only looked up on a stage; a tied one is the head's as well, on the last stage."""
    name = share.name.rpartition(".")[0]
    if name != meta_model.family.embedding:
        return name in meta_model.family.embeddings
    tied = f"{meta_model.family.head}.weight" not in meta_model.shapes
    return not (tied and last)
