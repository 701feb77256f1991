"""When an adapter in training is begun anew (`adapters.relora`), and what becomes of the optimizer's state then."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np

from adapters.registry import registry
from adapters.relora import begin_anew, earlier_tensors, put_earlier, restarting
from model_zoo.errors import InputError
from pet.train.step import mix

log = logging.getLogger("pet")

EARLIER = "earlier."
"""In front of a checkpoint's names of what was merged."""


def check(trainer) -> None:
    """Refuses restarts of what cannot be begun anew, before the first step.

    Raises:
        InputError: the settings ask for that.
    """
    if trainer.settings.restart_every is None:
        return
    try:
        restarting(trainer.model)
        if trainer.distributed.divides_model or getattr(trainer.distributed, "shard_optimizer", False):
            raise InputError("processes divide the matrices, or their optimizer's state; replicas may be several")
    except InputError as error:
        raise InputError(f"train.restart_every: {error}") from None
    if trainer.settings.restart_every >= trainer.total_steps:
        said = "train.restart_every: the run ends after %d steps, and the adapter never begins anew"
        log.warning(said, trainer.total_steps)
    if trainer.settings.restart_decay == 1:
        log.warning("train.restart_decay: 1 has no effect: the first step of the descent has the whole rate; give 2")


def begin_anew_if_due(trainer) -> None:
    """Begins the adapter anew in front of every N-th step but the first. Checkpoints and evaluations lie before."""
    every, position = trainer.settings.restart_every, trainer.position
    if every is None or position.step % every or position.step <= position.restarted:
        return
    rank = begin_anew(trainer.model, mix(trainer.settings.seed, position.step))
    prune(
        trainer.optimizer, {one.name for one in restarting(trainer.model).parameters()}, trainer.settings.restart_prune
    )
    position.restarted = position.step
    log.info("step %d: the adapter is part of the base and begins anew; rank of all parts: %d", position.step, rank)


def prune(optimizer, names: set[str], share: float) -> None:
    """Sets a share of the optimizer's state to 0, for each parameter where its first moment is smallest.

    All moments of a number go, or none: a first moment without its second, in the step after a restart, in which A has
    no gradient, would be divided by next to nothing.

    Args:
        names: of the parameters that it is of.
    """
    arrays, kept = optimizer.state_arrays(), {}
    for key, array in arrays.items():
        if (name := key.partition(".")[2]) in names:
            sizes = np.abs(array)
            mask = kept.setdefault((name, array.shape), sizes > np.quantile(sizes, share))
            arrays[key] = np.where(mask, array, np.zeros((), array.dtype))
    optimizer.load_state(arrays)


def merged_weights(model) -> dict[str, np.ndarray]:
    """What of a model's active adapters was merged when they were begun anew, as a checkpoint holds it."""
    state = registry(model)
    parts = [earlier_tensors(state.get(name)) for name in state.active]
    return {EARLIER + key: array for part in parts for key, array in part.items()}


def take_merged(model, weights: Mapping[str, np.ndarray]) -> None:
    """Merges what a checkpoint's weights hold of `merged_weights`, in the place of what is merged."""
    found = {name.removeprefix(EARLIER): weights[name] for name in weights if name.startswith(EARLIER)}
    if found or merged_weights(model):
        put_earlier(model, restarting(model), found)
