"""Floating-point operations of a step."""

from __future__ import annotations

from pet.meta_model import MetaModel
from pet.parallel.shares import Layout
from pet.planning.traffic import Steps


def flops(work, divided: Layout, steps: Steps, stage: int, held: list) -> float:
    """Floating-point operations of one piece: forward, backward, and the forward again where it is computed twice.

    A matrix product of ``(N, in)`` and ``(in, out)`` takes 2·N·in·out; its backward as much for the input, and as much
    again for a weight that is trained. Attention is counted over the whole square, or over its window.
    """
    dims = work.meta_model.config.dims
    matrices = [share for share in held if len(share.shape) == 2]
    products = sum(share.size for share in matrices if not is_embedding(work.meta_model, share, stage, steps))
    trained = sum(share.size for share in matrices if share.trained)
    windows = work.meta_model.config.windows
    seen = sum(min(windows[layer] or work.length, work.length) for layer in divided.layers[stage])
    attention = 4 * steps.tokens * seen * dims.heads * dims.head_dim // steps.tensor
    forward = 2 * steps.tokens * products + attention
    layers = divided.layers[stage]
    again = 1.0 if stage < steps.pipeline - 1 else len(steps.again(layers)) / max(len(layers), 1)
    return forward * (2 + again) + attention + 2 * steps.tokens * trained


def is_embedding(meta_model: MetaModel, share, stage: int, steps: Steps) -> bool:
    """Whether a matrix is only looked up here; a tied one is the head's as well, on the last stage."""
    name = share.name.rpartition(".")[0]
    if name != meta_model.family.embedding:
        return name in meta_model.family.embeddings
    tied = f"{meta_model.family.head}.weight" not in meta_model.shapes
    return not (tied and stage == steps.pipeline - 1)
